"""Files made by hypothesis: whatever stands around a value, only its bytes change, and the inverse gives them back."""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.splicing import ANY, plan_of, spliced
from tunewarden.errors import Refused
from tunewarden.trainers.layers import KeyPath, Layer, Syntax, plan_layers

EXAMPLES = 80
END = {"toml": "batch_size = 4\n", "json": '{"batch_size": 4, "x": ', "sh": "batch_size=4\n"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples."""
    return tmp_path_factory.mktemp("any")


@dataclass(frozen=True)
class Made:
    """A file with NEW where the value of batch_size stands."""

    text: str

    def data(self, value: object) -> bytes:
        return self.text.replace("NEW", str(value)).encode()


names = st.integers(0, 10**6).map(lambda number: f"key_{number}")
comments = st.sampled_from(["", " # 4", "  # 批 batch_size = 9", " #😀 'x\""])
ends = st.sampled_from(["\n", "\r\n"])
heads = st.sampled_from(["", "\ufeff"])

# ---- TOML

toml_values = st.sampled_from([
    "4", "2e-4", "true", '"512,512"', "'C:\\models\\4'", '"a\\"b # 4"', "[ 4, 4 ]", "[\n  4, # 4\n  [4],\n]",
    "{ batch_size = 4 }",
    "1979-05-27 07:32:00", '"""\nbatch_size = 4\n"""', "'''\n[x]\n'''", "inf", "0x4", "1_000", "{ a.b = [ {c = 4} ] }",
])  # fmt: skip


@st.composite
def toml_files(draw: st.DrawFn) -> Made:
    """Root keys, a table, array tables; the value somewhere among them."""
    blocks: list[list[str]] = []
    used: set[str] = set()
    for header in ("", "[table_a]", "[table_b.c]", "[[list]]", "[[list]]"):
        lines = [header] if header else []
        for _ in range(draw(st.integers(0, 4))):
            name = draw(names)
            if (header, name) not in used:
                used.add((header, name))
                lines.append(f"{draw(st.sampled_from(['', '  ']))}{name} = {draw(toml_values)}{draw(comments)}")
        used = set() if header.startswith("[[") else used
        blocks.append(lines)
    quote = draw(st.sampled_from(["", "'", '"']))
    key = draw(st.sampled_from(["batch_size", '"batch_size"', "'batch_size'"]))
    value = f"{quote}NEW{quote}{draw(comments)}"
    block = draw(st.sampled_from([blocks[0], blocks[1], blocks[2]]))
    first = 1 if block and block[0].startswith("[") else 0
    if block is not blocks[0] and not first:
        block = blocks[0]
    line = draw(st.sampled_from([f"{key}={value}", f"  {key} = {value}"]))
    block.insert(draw(st.integers(first, len(block))), line)
    end = draw(ends)
    text = "\n".join(line for block in blocks for line in block).replace("\n", end)
    return Made(draw(heads) + text + draw(st.sampled_from(["", end])))


TOML_KEYS: tuple[KeyPath, ...] = (("batch_size",), ("table_a", "batch_size"), ("table_b", "c", "batch_size"))


@settings(max_examples=EXAMPLES, deadline=None)
@given(made=toml_files(), value=st.integers(1, 99999))
def test_in_any_toml_only_the_value_changes(folder: Path, made: Made, value: int) -> None:
    """The other bytes are equal, tomllib reads all else as before, and the old value gives the original."""
    path = folder / "c.toml"
    path.write_bytes(made.data(1))

    plan = plan_of(path, {ANY: str(value)}, {ANY: TOML_KEYS})

    new = plan.copies[0].new_bytes if plan.copies else made.data(1)
    assert new == made.data(value)
    old_tree, new_tree = (tomllib.loads(data.decode("utf-8-sig")) for data in (made.data(1), new))
    assert _without(old_tree) == _without(new_tree)
    path.write_bytes(new)
    back = plan_of(path, {ANY: "1"}, {ANY: TOML_KEYS})
    assert (back.copies[0].new_bytes if back.copies else new) == made.data(1)


def _without(tree: Any) -> Any:
    """The tree without top-level and table values of batch_size."""
    if isinstance(tree, dict):
        return {key: _without(value) for key, value in tree.items() if key != "batch_size"}
    return repr(tree)


# ---- JSON

json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-9, 9999), st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["512,512", "C:\\models\\4", '"batch_size": 4', "猫", "\u2028", "a\nb", "]}"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)  # fmt: skip


@st.composite
def json_files(draw: st.DrawFn) -> Made:
    """An object with the value among others, in one of json's own layouts."""
    before = draw(st.dictionaries(names, json_values, max_size=4))
    after = {
        key: value for key, value in draw(st.dictionaries(names, json_values, max_size=4)).items() if key not in before
    }
    value = draw(st.sampled_from(["@NEW@", "@@NEW@@"]))
    indent = draw(st.sampled_from([None, 2, 4, "\t"]))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]))
    text = json.dumps(
        {**before, "batch_size": value, **after}, indent=indent, separators=separators, ensure_ascii=draw(st.booleans())
    )
    text = text.replace('"@@NEW@@"', '"NEW"').replace('"@NEW@"', "NEW")
    return Made(draw(heads) + text.replace("\n", draw(ends)) + draw(st.sampled_from(["", "\n"])))


@settings(max_examples=EXAMPLES, deadline=None)
@given(made=json_files(), value=st.integers(1, 99999))
def test_in_any_json_only_the_value_changes(folder: Path, made: Made, value: int) -> None:
    """Indentation, escapes and the kind of the value stay; the old value gives the original."""
    new = spliced(folder / "c.json", made.data(1), str(value))

    assert new == made.data(value)
    assert spliced(folder / "c.json", new, "1") == made.data(1)


# ---- shell

shell_lines = st.sampled_from([
    "", "# batch_size=9", "x='batch_size=9'", 'y="a b" # 4', "z=$((4+4))", "a=(4 4)", 'export P="./猫"', "lr=2e-4",
    "if [[ $x == 4 ]]; then\n  y=4\nelse\n  y=8\nfi", "cat <<E\nbatch_size=9\nE", "for i in 4; do z=$i; done",
    "f() {\n  local batch=4\n}", "python t.py \\\n  --batch_size=9 \"$x\"", "case $x in\n  4) y=1 ;;\nesac",
    "echo `date`",
    "a+=(--x 4)", "q=\\\"", "echo 'it'\"'\"'s'", "x=4; y=4 # ;", "batch_size=9 python t.py", "echo ${x#a} ${y%%b}",
])  # fmt: skip


@st.composite
def shell_files(draw: st.DrawFn) -> Made:
    """Lines of all kinds with one assignment among them."""
    lines = draw(st.lists(shell_lines, max_size=8))
    quote = draw(st.sampled_from(["", "'", '"']))
    line = f"{draw(st.sampled_from(['', '  ', 'export ']))}batch_size={quote}NEW{quote}{draw(comments)}"
    lines.insert(draw(st.integers(0, len(lines))), line)
    return Made("\n".join(lines) + draw(st.sampled_from(["", "\n"])))


@settings(max_examples=EXAMPLES, deadline=None)
@given(made=shell_files(), value=st.integers(1, 99999))
def test_in_any_shell_text_only_the_value_changes(folder: Path, made: Made, value: int) -> None:
    """Whatever commands stand around it, the assignment is found and nothing else is."""
    new = spliced(folder / "t.sh", made.data(1), str(value))

    assert new == made.data(value)
    assert spliced(folder / "t.sh", new, "1") == made.data(1)


# ---- command lines

words = st.one_of(
    st.sampled_from(
        [
            "--lr",
            "2e-4",
            "--x=4",
            "猫",
            "-v",
            "4",
            "--batch",
            "a b",
            "--",
            "=",
            "",
            "batch_size=4",
            "--name",
            "-1",
            "\udcff",
        ]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
)
FLAGS: Mapping[str, tuple[KeyPath, ...]] = {ANY: (("--batch_size",),), "cache_latents": (("--cache",),)}


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    before=st.lists(words, max_size=6),
    after=st.lists(words, max_size=6),
    joined=st.booleans(),
    value=st.integers(1, 99999),
)
def test_in_any_command_only_the_word_changes(before: list[str], after: list[str], joined: bool, value: int) -> None:
    """The value's word changes and no other; a word that makes the option unclear refuses the change."""
    mine = ["--batch_size=NEW"] if joined else ["--batch_size", "NEW"]
    argv = ["python", "t.py", *before, *mine, *after]
    layers = [Layer(syntax=Syntax.FLAGS, file=None, keys=FLAGS, first=2)]

    def now(text: str) -> tuple[str, ...]:
        return tuple(word.replace("NEW", text) if word in mine else word for word in argv)

    try:
        plan = plan_layers(layers, now("1"), {ANY: str(value)}, allow_effective_batch_change=False, resuming=False)
    except Refused:
        return

    assert plan.argv == now(str(value))
    back = plan_layers(layers, plan.argv, {ANY: "1"}, allow_effective_batch_change=False, resuming=False)
    assert back.argv == now("1")


# ---- keys that are put in, and files that are no files

KEYS: Mapping[str, tuple[KeyPath, ...]] = {
    "batch_size": (("batch_size",), ("table_a", "batch_size"), ("table_b", "c", "batch_size")),
    "gradient_accumulation": (("steps",), ("table_a", "steps"), ("table_b", "c", "steps")),
}
FILES: Mapping[str, Callable[[], st.SearchStrategy[Made]]] = {"toml": toml_files, "json": json_files, "sh": shell_files}


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data(), suffix=st.sampled_from(sorted(FILES)))
def test_in_any_file_what_was_put_in_comes_out(folder: Path, data: st.DataObject, suffix: str) -> None:
    """`/2` that puts an accumulation in, then `*2` with `unset`, gives the original bytes in every syntax."""
    made = data.draw(FILES[suffix]())
    path = folder / f"c.{suffix}"
    path.write_bytes(made.data(8))
    plan = plan_of(path, {"batch_size": "/2"}, KEYS, {"gradient_accumulation": "1"})
    path.write_bytes(plan.copies[0].new_bytes)

    back = plan_of(path, {"batch_size": "*2", "gradient_accumulation": "unset"}, KEYS, {"gradient_accumulation": "1"})

    assert plan.effective_batch == (8, 8)
    assert plan.copies[0].new_bytes.count(b"steps") == 1
    assert back.copies[0].new_bytes == made.data(8)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    tail=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), suffix=st.sampled_from(sorted(END))
)
def test_any_bytes_are_spliced_or_refused(folder: Path, tail: bytes, suffix: str) -> None:
    """No file, however broken, raises anything but Refused, or loses a byte."""
    head = END[suffix].encode()
    try:
        new = spliced(folder / f"c.{suffix}", head + tail, "2")
    except Refused:
        return

    assert new == head.replace(b"4", b"2") + tail
