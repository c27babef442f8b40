"""TOML, JSON, shell text and flags: one value changes, every other byte stays, and the inverse gives the original."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.splicing import ANY, plan_of, spliced
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.layers import KeyPath, Layer, Syntax, plan_layers, read_layers

ONE: Mapping[str, tuple[KeyPath, ...]] = {ANY: (("batch_size",), ("*", "batch_size"))}
TOML = [
    pytest.param("batch_size = 4\n", id="plain"),
    pytest.param("batch_size=4", id="no spaces, no line end"),
    pytest.param("\ufeff# 批\r\nbatch_size = 4 # 大 4\r\nx = 1\r\n", id="BOM, CRLF, Chinese"),
    pytest.param("[a] # 4\n  batch_size   =   4   # c\nlr = 2e-4\n", id="section, spaces, notation"),
    pytest.param('"batch_size" = 4\n', id="quoted key"),
    pytest.param("batch_size = '4'\n", id="literal string"),
    pytest.param('batch_size = "4" # "4"\n', id="basic string"),
    pytest.param("a = { x = 4, batch_size = 4, y = [ {z = 4} ] }\n", id="inline table"),
    pytest.param("a.batch_size = 4\na.x = 4\n", id="dotted key"),
    pytest.param("d = 1979-05-27 07:32:00 # 4\nbatch_size = 4\n", id="a date before"),
    pytest.param("t = '''\nbatch_size = 4\n'''\nbatch_size = 4\n", id="in a literal text"),
    pytest.param('t = """\nbatch_size = 4 \\\n """\nbatch_size = 4\n', id="in a text with an escape"),
    pytest.param("p = 'C:\\new\\4'\nq = \"C:\\\\4\"\nbatch_size = 4\n", id="Windows paths"),
    pytest.param("l = [ # 4\n  4,\n  [4, 4], # ]\n]\nbatch_size = 4\n", id="list over lines"),
    pytest.param("[[datasets]]\nbatch_size = 4\n[[datasets]]\n", id="not an array of tables"),
    pytest.param("x = inf\ny = 0x1F\nz = 1_000\nb = true\nbatch_size = 4\n", id="numbers of all kinds"),
]


@pytest.mark.parametrize("before", TOML)
def test_only_the_value_changes_in_toml(tmp_path: Path, before: str) -> None:
    """The value is replaced in its quotes; every other byte is equal, and setting it back gives the original."""
    key: tuple[KeyPath, ...] = (("batch_size",), ("a", "batch_size"), ("datasets", "0", "batch_size"))
    path = tmp_path / "c.toml"
    path.write_bytes(before.encode())

    path.write_bytes(plan_of(path, {ANY: "77"}, {ANY: key}).copies[0].new_bytes)

    changed = path.read_bytes().decode()
    assert changed.count("77") == 1
    assert (len(changed), changed.replace("77", "4")) == (len(before) + 1, before)
    assert plan_of(path, {ANY: "4"}, {ANY: key}).copies[0].new_bytes == before.encode()


JSON = [
    pytest.param('{"batch_size": 4}', id="one line"),
    pytest.param('{\n    "a": [4, {"b": 4}],\n    "batch_size" : 4 ,\n    "c": 4\n}\n', id="indented"),
    pytest.param('\ufeff{\r\n\t"批": "4",\r\n\t"batch_size": "4"\r\n}', id="BOM, CRLF, tab, string"),
    pytest.param('{"p": "C:\\\\4", "q": "\\"batch_size\\": 4", "batch_size":4,"n":null}', id="escapes, compact"),
    pytest.param('{"x": {"batch_size": 4.5}, "lr": 2e-4, "batch_size": 4}', id="nested of the same name"),
]


@pytest.mark.parametrize("before", JSON)
def test_only_the_value_changes_in_json(tmp_path: Path, before: str) -> None:
    """A number stays a number and a string a string; indentation and line ends stay."""
    new = spliced(tmp_path / "c.json", before.encode(), "77")

    assert (new.count(b"77"), new.decode().replace("77", "4")) == (1, before)
    assert spliced(tmp_path / "c.json", new, "4") == before.encode()


SHELL = [
    pytest.param("#!/bin/bash\nbatch_size=4 # batch size 批\n", id="comment"),
    pytest.param('batch_size="4"\r\nx=4\r\n', id="quotes, CRLF"),
    pytest.param("export batch_size='4'", id="export, no line end"),
    pytest.param("x=1; batch_size=4; y=4\n", id="several on a line"),
    pytest.param("x=4 batch_size=4 \\\n y=4\n", id="several in one statement"),
    pytest.param("declare -i x=4 batch_size=4\n", id="declared"),
    pytest.param("export y batch_size=4 z # batch_size=9\n", id="exported with others"),
    pytest.param("batch_size=4 && echo 4\n", id="before an and"),
    pytest.param("cat <<'E'\nbatch_size=9\nE\nbatch_size=4\n", id="behind a here-document"),
    pytest.param('echo "\nbatch_size=9\n"\nbatch_size=4\n', id="behind a text over lines"),
    pytest.param("batch_size=4\nbatch_size=9 python t.py\n", id="another for one command"),
    pytest.param("a=(\nbatch_size=9\n)\nbatch_size=4\n", id="behind an array"),
    pytest.param('x=$(echo "batch_size=9")\nif [[ $x == 4 ]]; then\n y=4\nfi\nbatch_size=4\n', id="behind a condition"),
    pytest.param("python t.py \\\n  --batch_size=9\nbatch_size=4\n", id="behind a continued line"),
]


@pytest.mark.parametrize("before", SHELL)
def test_only_the_value_changes_in_shell_text(tmp_path: Path, before: str) -> None:
    """Quotes, comments and line ends stay, and what looks alike in texts and arrays is no setting."""
    new = spliced(tmp_path / "t.sh", before.encode(), "77")

    assert (new.count(b"77"), new.decode().replace("77", "4")) == (1, before)
    assert spliced(tmp_path / "t.sh", new, "4") == before.encode()


@pytest.mark.parametrize("before", SHELL)
def test_bash_reads_the_value_that_was_found(tmp_path: Path, before: str) -> None:
    """A real bash that runs the text has the value in the variable."""
    bash = shutil.which("bash")
    assert bash is not None
    text = spliced(tmp_path / "t.sh", before.encode(), "77").decode().replace("\r", "")
    script = f'python() {{ :; }}\n{text}\nprintf "\\n%s" "$batch_size"'

    ran = subprocess.run([bash, "-c", script], capture_output=True, text=True, timeout=30, check=True)

    assert ran.stdout.splitlines()[-1] == "77"


REFUSED = [
    ("c.toml", "batch_size = 4\nx = 1\nbatch_size = 8\n", Reason.CONFIG_MALFORMED, "c.toml:1 and "),
    ("c.toml", "[a]\nx = 1\n[a]\nbatch_size = 4\n", Reason.CONFIG_MALFORMED, "c.toml:3: `a` is set more than once"),
    ("c.toml", "batch_size = [4]\n", Reason.KNOB_NOT_CHANGEABLE, "c.toml:1: `batch_size` is a list"),
    ("c.toml", "batch_size = {a = 4}\n", Reason.KNOB_NOT_CHANGEABLE, "is a mapping or an expression"),
    ("c.toml", 'batch_size = "\\u0034"\n', Reason.KNOB_NOT_CHANGEABLE, "escapes"),
    ("c.toml", "batch_size = '''4'''\n", Reason.KNOB_NOT_CHANGEABLE, "several lines"),
    ("c.toml", "batch_size = 0x4\n", Reason.KNOB_NOT_CHANGEABLE, "no plain value"),
    ("c.toml", "batch_size = 4.0\n", Reason.KNOB_NOT_CHANGEABLE, "no plain value"),
    ("c.toml", "x = 1\nbatch_size = \n", Reason.CONFIG_MALFORMED, "c.toml:2: is no TOML"),
    ("c.toml", "x = 'a\n", Reason.CONFIG_MALFORMED, "is no TOML"),
    ("c.toml", "batch_size = 4\n" + "x." * 100_000 + "y = 1\n", Reason.CONFIG_MALFORMED, "more than 5000 dots"),
    ("c.toml", "a = " + "[" * 2000, Reason.CONFIG_MALFORMED, "c.toml:1"),
    ("c.json", '{"batch_size": 4, "batch_size": 8}', Reason.CONFIG_MALFORMED, "c.json:1: `batch_size` is set more"),
    ("c.json", '{"batch_size": [4]}', Reason.KNOB_NOT_CHANGEABLE, "is a list"),
    ("c.json", '{"batch_size": null}', Reason.KNOB_NOT_CHANGEABLE, "is null"),
    ("c.json", '{"batch_size": "\\u0034"}', Reason.KNOB_NOT_CHANGEABLE, "escapes"),
    ("c.json", '{\n"a": 1,\n}', Reason.CONFIG_MALFORMED, "c.json:3: is no JSON"),
    ("c.json", "[4]", Reason.CONFIG_MALFORMED, "no object"),
    ("c.json", '{"a": ' + "[" * 5000, Reason.CONFIG_MALFORMED, "c.json:1"),
    ("t.sh", "batch_size=$((2*2))\n", Reason.KNOB_NOT_CHANGEABLE, "t.sh:1: `batch_size` is an expression, a list"),
    ("t.sh", "batch_size=${BATCH:-4}\n", Reason.KNOB_NOT_CHANGEABLE, "is an expression"),
    ("t.sh", 'batch_size="$b"\n', Reason.KNOB_NOT_CHANGEABLE, "is an expression"),
    ("t.sh", "batch_size=(4)\n", Reason.KNOB_NOT_CHANGEABLE, "is an expression, a list"),
    ("t.sh", "batch_size=\n", Reason.KNOB_NOT_CHANGEABLE, "empty"),
    ("t.sh", "if true; then\nbatch_size=4\nfi\n", Reason.KNOB_NOT_CHANGEABLE, "t.sh:2: `batch_size` is set under a"),
    ("t.sh", "true && batch_size=4\n", Reason.KNOB_NOT_CHANGEABLE, "is set under a condition"),
    ("t.sh", "true && \\\nbatch_size=4\n", Reason.KNOB_NOT_CHANGEABLE, "is set under a condition"),
    ("t.sh", "batch_size=4\nexport 'batch_size=8'\n", Reason.CONFIG_MALFORMED, "is set more than once"),
    ("t.sh", "batch_size=4\nbatch_size=8 >f\n", Reason.CONFIG_MALFORMED, "is set more than once"),
    ("t.sh", "batch_size+=4\n", Reason.KNOB_NOT_CHANGEABLE, "is added to"),
    ("t.sh", "batch_size=4\nx=1 batch_size=8\n", Reason.CONFIG_MALFORMED, "t.sh:2: `batch_size` is set more than once"),
    ("t.sh", "batch_size=4\ndeclare -i batch_size=8\n", Reason.CONFIG_MALFORMED, "is set more than once"),
    ("t.sh", "batch_size=4\nbatch_size=8\n", Reason.CONFIG_MALFORMED, "t.sh:2: `batch_size` is set more than once"),
    ("t.sh", "batch_size=4 python t.py\n", Reason.KNOB_NOT_FOUND, "sets no `batch_size`"),
    ("t.sh", "x=1\necho 'a\nbatch_size=4\n", Reason.CONFIG_MALFORMED, "t.sh:2: is no shell text"),
    ("t.sh", "cat <<E\nbatch_size=4\n", Reason.CONFIG_MALFORMED, "t.sh:1"),
    ("t.sh", "batch_size=4\0\n", Reason.CONFIG_MALFORMED, "zero byte"),
]


@pytest.mark.parametrize(("name", "text", "reason", "why"), REFUSED)
def test_what_can_not_be_changed_safely_is_refused(
    tmp_path: Path, name: str, text: str, reason: Reason, why: str
) -> None:
    """A list, an expression, a key set twice, a damaged file: a named reason, one line, with file and line."""
    with pytest.raises(Refused) as caught:
        spliced(tmp_path / name, text.encode(), "2")

    assert caught.value.reason is reason
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


SIZES = [
    ("c.toml", 'batch_size = "512,512"\n', 'batch_size = "256,256"\n'),
    ("c.toml", "batch_size = [ 512, 768 ] # wh\n", "batch_size = [ 256, 384 ] # wh\n"),
    ("c.toml", "batch_size = 512\n", "batch_size = 256\n"),
    ("c.json", '{"batch_size": [512,\n512]}', '{"batch_size": [256,\n256]}'),
    ("c.json", '{"batch_size": "512"}', '{"batch_size": "256"}'),
    ("c.yaml", "batch_size:\n- 512\n- 512\n", "batch_size:\n- 256\n- 256\n"),
    ("c.yaml", "batch_size: 512, 1024\n", "batch_size: 256, 512\n"),
    ("t.sh", "batch_size='512,512' # x\n", "batch_size='256,256' # x\n"),
]


@pytest.mark.parametrize(("name", "before", "after"), SIZES)
def test_a_resolution_changes_in_the_form_that_it_has(tmp_path: Path, name: str, before: str, after: str) -> None:
    """Both parts of a size are scaled, as a string or as a list, and come back."""
    path = tmp_path / name
    path.write_bytes(before.encode())
    keys: Mapping[str, tuple[KeyPath, ...]] = {"resolution": (("batch_size",),)}

    path.write_bytes(plan_of(path, {"resolution": "/2"}, keys).copies[0].new_bytes)

    assert path.read_bytes() == after.encode()
    assert plan_of(path, {"resolution": "*2"}, keys).copies[0].new_bytes == before.encode()


# ---- keys that are put in and taken out

KEYS: Mapping[str, tuple[KeyPath, ...]] = {
    "batch_size": (("batch",), ("*", "batch"), ("t", "*", "batch")),
    "gradient_accumulation": (("steps",), ("*", "steps"), ("t", "*", "steps")),
    "cache_latents": (("cache",), ("*", "cache"), ("t", "*", "cache")),
    "mixed_precision": (("mixed",), ("*", "mixed"), ("t", "*", "mixed")),
}
DEFAULTS = {"gradient_accumulation": "1", "cache_latents": "false", "mixed_precision": "fp32"}
PUT_IN = [
    ("c.toml", "[a]\n  batch = 4 # c\n  x = 1\n", "[a]\n  batch = 2 # c\n  steps = 2\n  x = 1\n"),
    ("c.toml", "x=1\r\nbatch=4", "x=1\r\nbatch=2\r\nsteps=2"),
    ("c.toml", "batch=4", "batch=2\nsteps=2"),
    ("c.toml", "a = { batch = 4 }\n", "a = { batch = 2, steps = 2 }\n"),
    ("c.toml", "a = {x=1,batch=4,y=2}\n", "a = {x=1,batch=2,steps=2,y=2}\n"),
    ("c.toml", "a.batch = 4\nx = 1\n", "a.batch = 2\na.steps = 2\nx = 1\n"),
    ("c.yaml", "x: 1\nbatch:   4 # c\n", "x: 1\nbatch:   2 # c\nsteps: 2\n"),
    ("c.yaml", "t:\r\n- batch: 4\r\n  x: 1\r\n", "t:\r\n- batch: 2\r\n  steps: 2\r\n  x: 1\r\n"),
    ("c.yaml", "t: [{a: 1, batch: 4}]\n", "t: [{a: 1, batch: 2, steps: 2}]\n"),
    ("c.yaml", "batch: 4", "batch: 2\nsteps: 2"),
    ("c.json", '{\n  "batch": 4\n}\n', '{\n  "batch": 2,\n  "steps": 2\n}\n'),
    ("c.json", '{\r\n\t"batch": 4,\r\n\t"x": 1\r\n}', '{\r\n\t"batch": 2,\r\n\t"steps": 2,\r\n\t"x": 1\r\n}'),
    ("c.json", '{"批":"x","batch":4}', '{"批":"x","batch":2,"steps":2}'),
    ("c.json", '{"batch": 4}', '{"batch": 2, "steps": 2}'),
    ("t.sh", "batch=4 # c\nx=1\n", "batch=2 # c\nsteps=2\nx=1\n"),
]


@pytest.mark.parametrize(("name", "before", "after"), PUT_IN)
def test_an_accumulation_that_is_read_and_absent_is_put_in(tmp_path: Path, name: str, before: str, after: str) -> None:
    """It stands behind the batch size, written as its neighbours are; `unset` takes it out to the byte."""
    path = tmp_path / name
    path.write_bytes(before.encode())
    plan = plan_of(path, {"batch_size": "/2"}, KEYS, DEFAULTS)

    path.write_bytes(plan.copies[0].new_bytes)

    assert path.read_bytes() == after.encode()
    added = [change for change in plan.changes if change.knob == "gradient_accumulation"]
    assert [(each.old, each.new, b"steps" in after.encode().splitlines()[each.line - 1]) for each in added] == [
        ("1", "2", True)
    ]
    back = plan_of(path, {"batch_size": "*2", "gradient_accumulation": "unset"}, KEYS, DEFAULTS)
    assert back.copies[0].new_bytes == before.encode()
    assert back.effective_batch == (4, 4)


@pytest.mark.parametrize(("name", "before", "after"), PUT_IN)
def test_in_a_copy_of_ours_the_plain_inverse_gives_the_original(
    tmp_path: Path, name: str, before: str, after: str
) -> None:
    """`*2` on the copy that `/2` wrote takes the accumulation out again, since the original beside it has none."""
    (tmp_path / name).write_bytes(before.encode())
    copy = tmp_path / name.replace(".", ".tunewarden-g2.")
    copy.write_bytes(after.encode())

    plan = plan_of(copy, {"batch_size": "*2"}, KEYS, DEFAULTS)

    assert plan.copies[0].new_bytes == before.encode()


@pytest.mark.parametrize(
    ("name", "original"), [("c.toml", None), ("c.tunewarden-g2.toml", None), ("c.tunewarden-g2.toml", b"steps = 1\n")]
)
def test_a_key_that_the_user_had_stays(tmp_path: Path, name: str, original: bytes | None) -> None:
    """A user's accumulation that returns to 1 is set to 1, not taken out; so is one whose original is gone."""
    path = tmp_path / name
    path.write_bytes(b"batch = 2\nsteps = 2\n")
    if original is not None:
        (tmp_path / "c.toml").write_bytes(b"batch = 4\n" + original)

    plan = plan_of(path, {"batch_size": "*2"}, KEYS, DEFAULTS)

    assert plan.copies[0].new_bytes == b"batch = 4\nsteps = 1\n"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("c.toml", "batch = 4\n", 'batch = 4\nmixed = "bf16"\ncache = true\n'),
        ("c.json", '{"batch": 4}', '{"batch": 4, "mixed": "bf16", "cache": true}'),
        ("c.yaml", "batch: 4\n", "batch: 4\nmixed: bf16\ncache: true\n"),
    ],
)
def test_switches_and_words_are_put_in_and_unset(tmp_path: Path, name: str, before: str, after: str) -> None:
    """A word gets quotes where the syntax wants them; `unset` of both gives the original."""
    path = tmp_path / name
    path.write_bytes(before.encode())

    path.write_bytes(
        plan_of(path, {"mixed_precision": "bf16", "cache_latents": "true"}, KEYS, DEFAULTS).copies[0].new_bytes
    )

    assert path.read_bytes() == after.encode()
    unset = {"mixed_precision": "unset", "cache_latents": "default"}
    assert plan_of(path, unset, KEYS, DEFAULTS).copies[0].new_bytes == before.encode()


@pytest.mark.parametrize(
    ("name", "text", "reason", "why"),
    [
        ("c.yaml", "d: &d {x: 4}\nt: [{<<: *d, batch: 4}]\n", Reason.KNOB_NOT_FOUND, "no place for `steps`"),
        ("c.yaml", "t:\n- batch: 4\n- batch: 4\n", Reason.KNOB_NOT_FOUND, "no place for `steps`"),
        ("c.yaml", "? batch\n: 4\n", Reason.KNOB_NOT_CHANGEABLE, "how the rest of the file reads"),
        ("c.toml", "batch = 4\n[steps]\nx = 1\n", Reason.KNOB_NOT_CHANGEABLE, "is a mapping"),
    ],
)
def test_where_a_key_has_no_safe_place_it_is_not_put_in(
    tmp_path: Path, name: str, text: str, reason: Reason, why: str
) -> None:
    """A mapping that merges keys from elsewhere may have it already; a result that reads otherwise is never written."""
    path = tmp_path / name
    path.write_bytes(text.encode())

    with pytest.raises(Refused) as caught:
        plan_of(path, {"batch_size": "/2"}, KEYS, DEFAULTS)

    assert caught.value.reason is reason
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("c.toml", "mixed = 'bf16'\n", "mixed = 'no'\n"),
        ("c.yaml", 'mixed: "bf16"\n', 'mixed: "no"\n'),
        ("c.yaml", "mixed: bf16\n", None),
        ("c.yaml", "batch: 4\n", 'batch: 4\nmixed: "no"\n'),
    ],
)
def test_the_word_no_is_never_written_bare_into_yaml(tmp_path: Path, name: str, before: str, after: str | None) -> None:
    """A YAML reader takes a bare `no` for false: it needs the quotes that stand there."""
    path, keys = tmp_path / name, {**KEYS, "mixed_precision": (("mixed",),)}
    path.write_bytes(before.encode())

    if after is None:
        with pytest.raises(Refused, match="would read as false"):
            plan_of(path, {"mixed_precision": "no"}, keys, DEFAULTS)
    else:
        assert plan_of(path, {"mixed_precision": "no"}, keys, DEFAULTS).copies[0].new_bytes == after.encode()


# ---- several places, several layers

DATASETS = """\
[general]
batch_size = 2
[[datasets]]
batch_size = 4
[[datasets]]
batch_size = 8 # 大
[[datasets]]
"""
EACH: KeyPath = ("datasets", "*")


def datasets(path: Path) -> tuple[Layer, ...]:
    """The layers of a dataset config as sd-scripts reads it, above the command's flags."""
    return (
        Layer(syntax=Syntax.TOML, file=path, keys={"batch_size": ((*EACH, "batch_size"),)}, items=EACH),
        Layer(syntax=Syntax.TOML, file=path, keys={"batch_size": (("general", "batch_size"),)}),
        Layer(
            syntax=Syntax.FLAGS,
            file=None,
            first=2,
            keys={
                "batch_size": (("--train_batch_size",),),
                "gradient_accumulation": (("--gradient_accumulation_steps",),),
                "cache_latents": (("--cache_latents",),),
                "resolution": (("--resolution",),),
            },
            defaults={"batch_size": "1", "gradient_accumulation": "1", "cache_latents": "false"},
        ),
    )


def test_each_data_set_is_scaled_and_what_the_last_falls_to(tmp_path: Path) -> None:
    """Three places change together, the accumulation goes into the command, the flag that rules nothing stays."""
    path = tmp_path / "d.toml"
    path.write_text(DATASETS)
    argv = ("python", "train.py", "--train_batch_size", "3")

    plan = plan_layers(datasets(path), argv, {"batch_size": "/2"}, allow_effective_batch_change=False)

    assert [(c.knob, c.old, c.new, c.file, c.line) for c in plan.changes] == [
        ("gradient_accumulation", "1", "2", None, 6),
        ("batch_size", "2", "1", path, 2),
        ("batch_size", "4", "2", path, 4),
        ("batch_size", "8", "4", path, 6),
    ]
    assert plan.argv == (*argv, "--gradient_accumulation_steps", "2")
    new = DATASETS.replace("= 2", "= 1").replace("= 4", "= 2").replace("= 8", "= 4")
    assert plan.copies[0].new_bytes.decode() == new
    assert plan.effective_batch == (8, 8)
    assert [warning.split(": ")[1:] for warning in plan.warnings] == [
        ["`--train_batch_size` is set here too; " + f"{path}:4 counts"]
    ]


def test_the_smallest_of_several_is_read(tmp_path: Path) -> None:
    """What a ladder is told is the number that reaches 1 first."""
    path = tmp_path / "d.toml"
    path.write_text(DATASETS)

    assert read_layers(datasets(path), ("python", "t.py"))["batch_size"].value == "2"


def test_a_data_set_at_its_minimum_stops_all(tmp_path: Path) -> None:
    """One batch of 1 can't be halved, so none is."""
    path = tmp_path / "d.toml"
    path.write_text(DATASETS.replace("= 2", "= 1"))

    with pytest.raises(Refused) as caught:
        plan_layers(datasets(path), ("python", "t.py"), {"batch_size": "/2"}, allow_effective_batch_change=False)

    assert caught.value.reason is Reason.AT_MINIMUM


def test_a_data_set_that_nothing_gives_a_batch_is_told(tmp_path: Path) -> None:
    """Where one data set has no batch size anywhere, it can't be scaled with the others."""
    path = tmp_path / "d.toml"
    path.write_text("[[datasets]]\nbatch_size = 4\n[[datasets]]\n")

    with pytest.raises(Refused) as caught:
        plan_layers(datasets(path), ("python", "t.py"), {"batch_size": "/2"}, allow_effective_batch_change=False)

    assert caught.value.reason is Reason.KNOB_NOT_FOUND
    assert str(caught.value).startswith(f"{path}:3: `datasets.1` sets no batch_size")


def test_of_flattened_sections_the_last_counts(tmp_path: Path) -> None:
    """sd-scripts takes the last of two equal keys: that one changes, and the other is told."""
    path = tmp_path / "c.toml"
    path.write_bytes(b"[a]\nbatch = 8\n[b]\nbatch = 4\n")

    plan = plan_of(path, {"batch_size": "/2"}, KEYS, DEFAULTS, last_wins=True)

    assert plan.copies[0].new_bytes == b"[a]\nbatch = 8\n[b]\nbatch = 2\nsteps = 2\n"
    assert plan.warnings == (f"{path}:2: `a.batch` is set here too; {path}:4 counts",)


def test_two_layers_of_which_nobody_knows_the_rule_are_refused(tmp_path: Path) -> None:
    """Both places are named."""
    path = tmp_path / "c.toml"
    path.write_bytes(b"x = 1\nbatch = 8\n")
    flags = Layer(syntax=Syntax.FLAGS, file=None, keys={"batch_size": (("--batch",),)}, rules=False)
    layers = (flags, Layer(syntax=Syntax.TOML, file=path, keys=KEYS))

    with pytest.raises(Refused) as caught:
        plan_layers(layers, ("t.py", "--batch", "4"), {"batch_size": "/2"}, allow_effective_batch_change=True)

    assert caught.value.reason is Reason.KNOB_HAS_TWO_SOURCES
    assert str(caught.value).startswith(f"{path}:2: `batch` is set here and by --batch in the command, word 3")


FLAGS = [
    ("--train_batch_size 4", "--train_batch_size 2 --gradient_accumulation_steps 2"),
    ("--train_batch_size=4 --x 4", "--train_batch_size=2 --x 4 --gradient_accumulation_steps 2"),
    ("--gradient_accumulation_steps 1 --train_batch_size 4", "--gradient_accumulation_steps 2 --train_batch_size 2"),
    (
        "--train_batch_size 9 --train_batch_size 4",
        "--train_batch_size 9 --train_batch_size 2 --gradient_accumulation_steps 2",
    ),
    (
        "--train_batch_size 4 -- --train_batch_size 4",
        "--train_batch_size 2 --gradient_accumulation_steps 2 -- --train_batch_size 4",
    ),
    ("--name 猫=4 --train_batch_size 4", "--name 猫=4 --train_batch_size 2 --gradient_accumulation_steps 2"),
]


@pytest.mark.parametrize(("before", "after"), FLAGS)
def test_flags_are_changed_among_the_other_words(before: str, after: str) -> None:
    """Only the value's word changes, the accumulation is appended, and the inverse gives the words back."""
    layers = datasets(Path("none"))[2:]
    head = ("torchrun", "t.py")

    plan = plan_layers(layers, (*head, *before.split()), {"batch_size": "/2"}, allow_effective_batch_change=False)

    assert plan.argv == (*head, *after.split())
    assert plan.copies == ()
    asked = {"batch_size": "*2"}
    if "gradient_accumulation_steps" not in before:
        asked["gradient_accumulation"] = "unset"
    assert plan_layers(layers, plan.argv, asked, allow_effective_batch_change=False).argv == (*head, *before.split())


def test_words_of_the_launcher_are_not_the_trainers() -> None:
    """`--train_batch_size` before the script belongs to somebody else."""
    layers = datasets(Path("none"))[2:]

    assert read_layers(layers, ("launch", "--train_batch_size", "4", "t.py")) == {}


SWITCHES = [
    ("", "true", "--cache_latents"),
    ("--cache_latents", "false", ""),
    ("--cache_latents data", "false", "data"),
    ("--cache_latents false", "true", "--cache_latents true"),
    ("--cache_latents=False", "true", "--cache_latents=True"),
]


@pytest.mark.parametrize(("before", "asked", "after"), SWITCHES)
def test_a_switch_comes_and_goes_with_its_word(before: str, asked: str, after: str) -> None:
    """`--cache_latents` needs no value; one that has a value keeps its spelling; the other way round gives it back."""
    layers = datasets(Path("none"))[2:]
    other = "false" if asked == "true" else "true"

    plan = plan_layers(
        layers, ("t", "t.py", *before.split()), {"cache_latents": asked}, allow_effective_batch_change=False
    )

    assert plan.argv == ("t", "t.py", *after.split())
    back = plan_layers(layers, plan.argv, {"cache_latents": other}, allow_effective_batch_change=False).argv
    assert sorted(back) == sorted(("t", "t.py", *before.split()))


def test_a_size_of_two_words_is_scaled_in_both() -> None:
    """`--resolution 512 768` has two numbers; `--resolution 512,768` one word."""
    layers, knobs = datasets(Path("none"))[2:], {"resolution": "/2"}

    plans = [
        plan_layers(layers, ("t", "t.py", "--resolution", *size.split()), knobs, allow_effective_batch_change=False)
        for size in ("512 768", "512,768")
    ]

    assert [" ".join(plan.argv[3:]) for plan in plans] == ["256 384", "256,384"]


@pytest.mark.parametrize("words", ["--train_batch 4", "--train_batch_size 2 --train_batch 4"])
def test_an_abbreviated_option_is_refused(words: str) -> None:
    """argparse takes `--train_batch` for --train_batch_size (of two the last counts), or for one we don't know."""
    with pytest.raises(Refused, match=r"--train_batch may be short for --train_batch_size"):
        plan_layers(
            datasets(Path("none"))[2:],
            ("t", "t.py", *words.split()),
            {"batch_size": "/2"},
            allow_effective_batch_change=False,
        )


def test_an_abbreviated_option_before_the_whole_one_does_not_count() -> None:
    """The last counts, which is written in full."""
    words = ("t", "t.py", "--train_batch", "8", "--train_batch_size", "4", "--gradient_accumulation_steps", "1")

    plan = plan_layers(datasets(Path("none"))[2:], words, {"batch_size": "/2"}, allow_effective_batch_change=False)

    assert plan.argv[3::2] == ("8", "2", "2")


def test_words_with_an_equals_sign_override_a_file(tmp_path: Path) -> None:
    """LLaMA-Factory's `key=value` words rule over its YAML; what they don't set is changed in the file."""
    path = tmp_path / "c.yaml"
    path.write_bytes(b"batch: 8\nsteps: 1\n")
    keys: Mapping[str, tuple[KeyPath, ...]] = {"batch_size": (("batch",),), "gradient_accumulation": (("steps",),)}
    layers = (
        Layer(syntax=Syntax.ASSIGNMENTS, file=None, keys=keys, first=1),
        Layer(syntax=Syntax.YAML, file=path, keys=keys),
    )

    plan = plan_layers(
        layers, ("train", str(path), "batch=4"), {"batch_size": "/2"}, allow_effective_batch_change=False
    )

    assert plan.argv == ("train", str(path), "batch=2")
    assert plan.copies[0].new_bytes == b"batch: 8\nsteps: 2\n"


def test_a_file_that_names_another_gets_a_copy_too(tmp_path: Path) -> None:
    """The copy of the config names the copy of the dataset TOML; its bytes stand ready for the name."""
    config, data = tmp_path / "config.toml", tmp_path / "sub" / "data.toml"
    data.parent.mkdir()
    config.write_bytes("# 中\ndataset_config = 'sub/data.toml' # d\n".encode())
    data.write_bytes(b"[general]\nbatch = 4\n")
    layer = Layer(
        syntax=Syntax.TOML,
        file=data,
        keys=KEYS,
        defaults=DEFAULTS,
        named_in=(config, Syntax.TOML, ("dataset_config",)),
    )

    plan = plan_layers([layer], (), {"batch_size": "/2"}, allow_effective_batch_change=False)

    assert [copy.config_path for copy in plan.copies] == [data, config]
    (reference,) = plan.copies[1].references
    assert (reference.path, plan.copies[1].new_bytes[reference.start : reference.end]) == (data, b"data.toml")
    assert "+dataset_config = 'sub/data.tunewarden-gN.toml' # d" in plan.diff
