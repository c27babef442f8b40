"""Settings that stand in a user's Python: where they are, and the line to write instead."""

import pytest

from tunewarden.trainers.python_code import calls, imports, keyword_value, new_line, options, settings_in

SOURCE = """\
import argparse
from transformers import Trainer, TrainingArguments as TA

BATCH_SIZE = 4  # 批大小
computed = 2 * BATCH_SIZE
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", "-b", type=int, default=8)
parser.add_argument("--lr", default="2e-4")
config = {"batch_size": 16, "mixed_precision": 'fp16'}
args = TA(
    output_dir="out",  gradient_checkpointing=True,
    batch_size=computed,
)
"""
NAMES = {"batch_size": "batch_size", "mixed_precision": "mixed_precision", "gradient_checkpointing": "checkpointing"}


def test_plain_settings_are_found() -> None:
    """A constant, an option's default, a dict entry and a keyword; not what is computed."""
    found = settings_in(SOURCE, NAMES)

    assert {
        name: sorted((each.value, each.line, each.flag) for each in several) for name, several in found.items()
    } == {
        "batch_size": [("16", 9, None), ("4", 4, None), ("8", 7, "--batch-size")],
        "mixed_precision": [("fp16", 9, None)],
        "checkpointing": [("true", 11, None)],
    }


@pytest.mark.parametrize(
    ("name", "line", "value", "wanted"),
    [
        ("batch_size", 4, "2", "BATCH_SIZE = 2  # 批大小"),
        ("mixed_precision", 9, "bf16", 'config = {"batch_size": 16, "mixed_precision": \'bf16\'}'),
        ("checkpointing", 11, "false", '    output_dir="out",  gradient_checkpointing=False,'),
    ],
)
def test_the_new_line(name: str, line: int, value: str, wanted: str) -> None:
    """Only the value differs; quotes, comment and indentation stay."""
    setting = next(each for each in settings_in(SOURCE, NAMES)[name] if each.line == line)

    assert new_line(SOURCE, setting, value) == wanted


def test_what_a_source_uses() -> None:
    """Imports, calls and options tell which trainer a renamed script is."""
    assert {"transformers", "transformers.Trainer"} <= imports(SOURCE)
    assert {"ArgumentParser", "TA"} <= calls(SOURCE)
    assert options(SOURCE) == {"--batch-size", "--lr"}


def test_a_keyword_of_a_call() -> None:
    """`output_dir` of the arguments, as written."""
    setting = keyword_value(SOURCE, "TA", "output_dir")

    assert setting is not None
    assert (setting.value, setting.line) == ("out", 11)


@pytest.mark.parametrize("source", ["def", "print 'x'", "\0", "(" * 5000])
def test_no_python_gives_nothing(source: str) -> None:
    """A source that can't be parsed has no settings and no imports."""
    assert (settings_in(source, NAMES), imports(source), calls(source)) == ({}, frozenset(), frozenset())
