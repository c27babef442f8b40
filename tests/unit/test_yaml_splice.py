"""Values are changed in place and no other byte is."""

import io
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.splicing import ANY, plan_of, spliced
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.document import Edit, Intent, edited, find
from tunewarden.trainers.yaml_splice import parse

SPLICES = [
    pytest.param("batch_size: 4\n", "batch_size: 2\n", id="plain"),
    pytest.param("batch_size: 4", "batch_size: 2", id="no line end"),
    pytest.param("a: 1\r\nbatch_size: 4\r\nb: 2\r\n", "a: 1\r\nbatch_size: 2\r\nb: 2\r\n", id="CRLF"),
    pytest.param("\ufeffbatch_size: 4\n", "\ufeffbatch_size: 2\n", id="BOM"),
    pytest.param("# 批大小 😀\nbatch_size: 4 # 中文 4\n", "# 批大小 😀\nbatch_size: 2 # 中文 4\n", id="Chinese, emoji"),
    pytest.param("name: '猫'\nbatch_size: 4\n", "name: '猫'\nbatch_size: 2\n", id="multi-byte value before"),
    pytest.param("batch_size : 4\n", "batch_size : 2\n", id="space before the colon"),
    pytest.param('"batch_size": 4\n', '"batch_size": 2\n', id="quoted key"),
    pytest.param('batch_size: "4"\n', 'batch_size: "2"\n', id="double quotes"),
    pytest.param("batch_size: '4'  # x\n", "batch_size: '2'  # x\n", id="single quotes"),
    pytest.param("{batch_size: 4, a: [4, 4]}\n", "{batch_size: 2, a: [4, 4]}\n", id="flow mapping"),
    pytest.param("batch_size: !!int 4\n", "batch_size: !!int 2\n", id="core tag"),
    pytest.param("batch_size: &b 4\n", "batch_size: &b 2\n", id="anchor that nothing uses"),
    pytest.param("? batch_size\n: 4\n", "? batch_size\n: 2\n", id="explicit key"),
    pytest.param("---\nbatch_size: 4\n...\n", "---\nbatch_size: 2\n...\n", id="document marks"),
    pytest.param("%YAML 1.1\n---\nbatch_size: 4\n", "%YAML 1.1\n---\nbatch_size: 2\n", id="directive"),
    pytest.param("x: {batch_size: 4}\nbatch_size: 4\n", "x: {batch_size: 4}\nbatch_size: 2\n", id="nested first"),
    pytest.param("batch_size: 4\nx:\n  batch_size: 4\n", "batch_size: 2\nx:\n  batch_size: 4\n", id="nested after"),
    pytest.param("p: C:\\new\\4 # x\nbatch_size: 4\n", "p: C:\\new\\4 # x\nbatch_size: 2\n", id="Windows path"),
    pytest.param("t: |\n  batch_size: 4\nbatch_size: 4\n", "t: |\n  batch_size: 4\nbatch_size: 2\n", id="in a text"),
    pytest.param("d: &d {lr: 1}\n<<: *d\nbatch_size: 4\n", "d: &d {lr: 1}\n<<: *d\nbatch_size: 2\n", id="merge key"),
    pytest.param("batch_size:    4   \n", "batch_size:    2   \n", id="spaces kept"),
    pytest.param("lr: 2e-4\nbatch_size: 4\nx: 0x10\n", "lr: 2e-4\nbatch_size: 2\nx: 0x10\n", id="notations kept"),
    pytest.param("'a': 1\n[1, 2]: 3\nbatch_size: 4\n", "'a': 1\n[1, 2]: 3\nbatch_size: 2\n", id="a key that is a list"),
]


@pytest.mark.parametrize(("before", "after"), SPLICES)
def test_only_the_value_changes(tmp_path: Path, before: str, after: str) -> None:
    """The value is replaced in its quotes; every other byte is equal, and setting it back gives the original."""
    new = spliced(tmp_path / "c.yaml", before.encode(), "2")

    assert new == after.encode()
    assert spliced(tmp_path / "c.yaml", new, "4") == before.encode()


NESTED = [
    pytest.param("train:\n  batch_size: 4 # 4\n", "train:\n  batch_size: 2 # 4\n", id="block"),
    pytest.param("train: {a: 1, batch_size: 4}\n", "train: {a: 1, batch_size: 2}\n", id="flow"),
    pytest.param(
        "train:\r\n- {batch_size: 4}\r\n-   batch_size: '4'\r\n    x: 4\r\n",
        "train:\r\n- {batch_size: 2}\r\n-   batch_size: '2'\r\n    x: 4\r\n",
        id="every item of a list",
    ),
    pytest.param("batch_size: 4\ntrain: {batch_size: 4}\n", "batch_size: 4\ntrain: {batch_size: 2}\n", id="not above"),
    pytest.param("d: &d {a: 4}\ntrain:\n  <<: *d\n  batch_size: 4\n", None, id="beside a merge key"),
]


@pytest.mark.parametrize(("before", "after"), NESTED)
def test_a_key_path_leads_into_mappings_and_lists(tmp_path: Path, before: str, after: str | None) -> None:
    """`train.batch_size` and each `train[].batch_size` are found, and nothing of the same name elsewhere."""
    path = tmp_path / "c.yaml"
    path.write_bytes(before.encode())
    after = after or before.replace("batch_size: 4", "batch_size: 2")

    plan = plan_of(path, {ANY: "2"}, {ANY: (("train", "batch_size"), ("train", "*", "batch_size"))})

    assert plan.copies[0].new_bytes == after.encode()


SHARED = [
    pytest.param("b: &b {batch_size: 4}\ntrain: *b\n", "c.yaml:2: `train` is the alias *b", id="below an alias"),
    pytest.param("train: &t {batch_size: 4}\nx: *t\n", "`train.batch_size` has the anchor &t", id="in an anchor"),
    pytest.param("t: &t\n  batch_size: 4\ntrain:\n  <<: *t\n", "c.yaml:1: the file sets no", id="merged"),
    pytest.param("b: &b {x: 1}\ntrain: [{batch_size: 4}, *b]\n", "`train.1` is the alias *b", id="an item is an alias"),
    pytest.param("train: {a: 1}\ntrain: {batch_size: 4}\n", "c.yaml:1 and ", id="a mapping that is there twice"),
]


@pytest.mark.parametrize(("text", "why"), SHARED)
def test_what_other_values_share_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """A change must not reach what uses the same anchor, nor a mapping that a later one replaces."""
    with pytest.raises(Refused) as caught:
        spliced(
            tmp_path / "c.yaml",
            text.encode(),
            "2",
            ("train", "*", "batch_size") if "[" in text else ("train", "batch_size"),
        )

    assert why in str(caught.value)


REFUSED = [
    pytest.param(b"a: 1\n", Reason.KNOB_NOT_FOUND, "c.yaml:1:", id="no such key"),
    pytest.param(b"x:\n  batch_size: 4\n", Reason.KNOB_NOT_FOUND, "top level", id="only nested"),
    pytest.param(b"d: &d {batch_size: 4}\n<<: *d\n", Reason.KNOB_NOT_FOUND, "top level", id="only merged"),
    pytest.param(b"# batch_size: 4\na: 1\n", Reason.KNOB_NOT_FOUND, "top level", id="commented out"),
    pytest.param(
        b"batch_size: 4\na: 1\nbatch_size: 8\n",
        Reason.CONFIG_MALFORMED,
        "c.yaml:3: `batch_size` is set more than once",
        id="twice",
    ),
    pytest.param(b"batch_size: 4\n'batch_size': 4\n", Reason.CONFIG_MALFORMED, "c.yaml:2", id="twice, once quoted"),
    pytest.param(b"batch_size: [4]\n", Reason.KNOB_NOT_CHANGEABLE, "c.yaml:1: `batch_size` is a list", id="list"),
    pytest.param(b"batch_size: {{ bs }}\n", Reason.KNOB_NOT_CHANGEABLE, "expression", id="template"),
    pytest.param(b"a: &a 4\nbatch_size: *a\n", Reason.KNOB_NOT_CHANGEABLE, "alias *a", id="alias"),
    pytest.param(b"batch_size: &a 4\nb: *a\n", Reason.KNOB_NOT_CHANGEABLE, "anchor &a", id="anchor in use"),
    pytest.param(b"batch_size: !env 4\n", Reason.KNOB_NOT_CHANGEABLE, "tag !env", id="own tag"),
    pytest.param(b"batch_size:\na: 1\n", Reason.KNOB_NOT_CHANGEABLE, "is empty", id="empty"),
    pytest.param(b"batch_size: |\n  4\n", Reason.KNOB_NOT_CHANGEABLE, "block of text", id="literal block"),
    pytest.param(b"batch_size: >-\n  4\n", Reason.KNOB_NOT_CHANGEABLE, "block of text", id="folded block"),
    pytest.param(b"batch_size: 4\n  5\n", Reason.KNOB_NOT_CHANGEABLE, "several lines", id="two lines"),
    pytest.param(b'batch_size: "\\x34"\n', Reason.KNOB_NOT_CHANGEABLE, "escapes", id="escape"),
    pytest.param(
        b"a: 1\n---\nbatch_size: 4\n", Reason.CONFIG_MALFORMED, "c.yaml:2: begins a second", id="two documents"
    ),
    pytest.param("a: 1\n# 中\n".encode("gbk"), Reason.CONFIG_MALFORMED, "c.yaml:2: is not UTF-8", id="GBK"),
    pytest.param("batch_size: 4\n".encode("utf-16"), Reason.CONFIG_MALFORMED, "UTF-8", id="UTF-16"),
    pytest.param(b"batch_size:\t4\n", Reason.CONFIG_MALFORMED, "c.yaml:1:", id="tab"),
    pytest.param(b"a: 1\n\tbatch_size: 4\n", Reason.CONFIG_MALFORMED, "c.yaml:2:", id="tab at the start"),
    pytest.param(b"a: 1\nb: [1\n", Reason.CONFIG_MALFORMED, "c.yaml:", id="open bracket"),
    pytest.param(b"a: 1\nb: 'x\n", Reason.CONFIG_MALFORMED, "c.yaml:", id="open quote"),
    pytest.param(b"a: *nowhere\nbatch_size: x\n", Reason.CONFIG_MALFORMED, "nowhere", id="alias of nothing"),
    pytest.param(b"- batch_size: 4\n", Reason.CONFIG_MALFORMED, "no mapping", id="list of mappings"),
    pytest.param(b"just text\n", Reason.CONFIG_MALFORMED, "no mapping", id="text"),
    pytest.param(b"", Reason.CONFIG_MALFORMED, "no mapping", id="empty file"),
    pytest.param(b"# only this\n", Reason.CONFIG_MALFORMED, "no mapping", id="comment only"),
    pytest.param(b"batch_size: 4\x00\n", Reason.CONFIG_MALFORMED, "c.yaml:", id="NUL"),
    pytest.param(b"a: " + b"[" * 300, Reason.CONFIG_MALFORMED, "c.yaml:", id="deep"),
    pytest.param(b"#" * 300_000, Reason.CONFIG_MALFORMED, "256 KiB", id="too large"),
]


@pytest.mark.parametrize(("data", "reason", "text"), REFUSED)
def test_what_can_not_be_changed_safely_is_refused(tmp_path: Path, data: bytes, reason: Reason, text: str) -> None:
    """Each such file has a reason and one line that says where and why."""
    with pytest.raises(Refused) as caught:
        spliced(tmp_path / "c.yaml", data, "2")

    assert caught.value.reason is reason
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_line_counts_from_one_in_a_file_with_BOM_and_CRLF() -> None:
    """A place in a file with BOM, CRLF and Chinese text is the text inside the quotes, on the editor's line."""
    document = parse("\ufeff# 批\r\nbatch_size: '16' # 大\r\n".encode(), "config")

    (entry,) = find(document, ("batch_size",))

    assert (document.text[entry.start : entry.end], entry.text, entry.line) == ("16", "16", 2)


def test_several_values_of_other_lengths_are_spliced_at_once(tmp_path: Path) -> None:
    """Later places don't move when an earlier value grows."""
    path = tmp_path / "c.yaml"
    path.write_bytes(b"lora_alpha: 1\nlora_rank: 16\nx: 1\n")
    keys = {"network_dim": (("lora_rank",),), "network_alpha": (("lora_alpha",),)}

    plan = plan_of(path, {"network_dim": "8", "network_alpha": "128"}, keys)

    assert plan.copies[0].new_bytes == b"lora_alpha: 128\nlora_rank: 8\nx: 1\n"


@pytest.mark.parametrize("value", ["2 # x", "2\nlr: 1", "[1]", "a: b", "*x", "&x 2", "'2'", ""])
def test_a_value_that_would_read_as_something_else_is_refused(value: str) -> None:
    """The result is parsed again: a new value that changes the structure is never let through."""
    document = parse(b"batch_size: 4\nlr: 1\n", "config")
    (entry,) = find(document, ("batch_size",))
    edit, intent = Edit(start=entry.start, end=entry.end, text=value), Intent(replaced={entry.start: value})

    with pytest.raises(Refused) as caught:
        edited(document, [edit], intent, parse)

    assert caught.value.reason is Reason.KNOB_NOT_CHANGEABLE


# ---- files made by hypothesis


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples."""
    return tmp_path_factory.mktemp("yaml")


WORDS = [
    "true",
    "fp16",
    "2e-4",
    "./data/猫",
    "'it''s'",
    '"q # 4"',
    "C:\\models\\v1-5",
    "4",
    "[4, 4]",
    "{batch_size: 4}",
]
comments = st.sampled_from(["", "  # 4", " # 批大小: 4", " # batch_size: 9", " #😀 'x\""])
fillers = st.one_of(
    st.sampled_from(["", "# batch_size: 9", "   # 中文注释", "#"]),
    st.builds(
        lambda n, word, comment: f"key_{n}: {word}{comment}", st.integers(0, 10**9), st.sampled_from(WORDS), comments
    ),
    st.builds(lambda n: f"nest_{n}:\n  batch_size: 4 # in\n  more: [1]", st.integers(0, 10**9)),
    st.builds(lambda n: f"text_{n}: |\n  batch_size: 4\n  # no comment", st.integers(0, 10**9)),
)
quotes = st.sampled_from(["", "'", '"'])


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, bytes, int]:
    """A file, the same file with `{}` for the bytes of the value changed, and its number of batch_size keys."""
    line = "{key_quote}batch_size{key_quote}{gap}: {quote}{value}{quote}{comment}"
    copies = draw(st.sampled_from([1, 1, 1, 1, 2, 0]))
    before, after = [], []
    for _ in range(copies):
        parts = {
            "key_quote": draw(quotes),
            "gap": draw(st.sampled_from(["", " "])),
            "quote": draw(quotes),
            "comment": draw(comments),
        }
        before.append(line.format(**parts, value=draw(st.integers(1, 999))))
        after.append(line.format(**parts, value="NEW"))
    others = draw(st.lists(fillers, max_size=8, unique=True))
    places = [draw(st.integers(0, len(others))) for _ in range(copies)]
    end = draw(st.sampled_from(["\n", "\r\n"]))
    head = draw(st.sampled_from(["", "\ufeff"]))
    tail = draw(st.sampled_from(["", end]))

    def build(mine: list[str]) -> bytes:
        lines = list(others)
        for place, text in sorted(zip(places, mine, strict=True), key=lambda item: item[0], reverse=True):
            lines.insert(place, text)
        return (head + "\n".join(lines).replace("\n", end) + tail).encode()

    return build(before), build(after), copies


@settings(max_examples=150, deadline=None)
@given(made=files(), value=st.integers(1, 99999))
def test_whatever_the_file_only_the_span_changes(folder: Path, made: tuple[bytes, bytes, int], value: int) -> None:
    """In any file with one top-level key its bytes change and no others; with none or two the file is refused."""
    before, after, copies = made
    new = str(value)

    if copies == 1:
        result = spliced(folder / "c.yaml", before, new)

        assert result == after.replace(b"NEW", new.encode())
        old_data, new_data = (yaml.load(io.BytesIO(each), yaml.SafeLoader) for each in (before, result))
        assert str(new_data.pop("batch_size")) == new
        old_data.pop("batch_size")
        assert old_data == new_data
    else:
        with pytest.raises(Refused) as caught:
            spliced(folder / "c.yaml", before, new)

        assert caught.value.reason in (Reason.CONFIG_MALFORMED, Reason.KNOB_NOT_FOUND)


@settings(max_examples=150, deadline=None)
@given(data=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_bytes_are_spliced_or_refused(folder: Path, data: bytes) -> None:
    """No file, however broken, raises anything but Refused."""
    try:
        result = spliced(folder / "c.yaml", b"batch_size: 4\n" + data, "2")
    except Refused:
        return

    assert result == b"batch_size: 2\n" + data
