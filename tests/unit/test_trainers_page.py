"""docs/reference/trainers.md: a row for every recipe, and behind every letter a test that exists."""

import ast
import re
from pathlib import Path

import pytest

from tests.unit.test_recognition import TIERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "trainers.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")] for line in PAGE.splitlines() if line.startswith("| `")
]
LETTERS = dict(re.findall(r"^\| ([A-Z]\d?) \| `([^`]+)` \|$", PAGE, re.M))
USED = sorted({letter for _, letter in re.findall(r"\b(run|source) ([A-Z]\d?)\b", PAGE)})


def _supported() -> dict[str, list[str]]:
    """Trainer → tier and cells."""
    rows = [row for row in ROWS if len(row) == 6]
    return {row[0].split("`")[1]: row[1:] for row in rows}


def test_every_recipe_has_its_row() -> None:
    """The trainers of the table and of the page are the same, in the same tiers."""
    assert {trainer: cells[0] for trainer, cells in _supported().items()} == {k: str(v) for k, v in TIERS.items()}


@pytest.mark.parametrize("trainer", TIERS)
def test_every_cell_says_how_we_know(trainer: str) -> None:
    """A cell names a test, or says that the trainer's own promise decides, or that there is nothing."""
    cells = _supported()[trainer][1:]

    assert [cell for cell in cells if not re.search(r"\b(run|source) [A-Z]\d?\b|hello\.json|^none$", cell)] == []


def test_letters_are_listed_and_used() -> None:
    """No letter without a test, no test that nothing refers to."""
    assert sorted(LETTERS) == USED


@pytest.mark.parametrize("letter", LETTERS)
def test_the_test_behind_a_letter_exists(letter: str) -> None:
    """The file has a function of that name."""
    file, _, name = LETTERS[letter].partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))

    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("letter", sorted(letter for _, letter in re.findall(r"\b(run) ([A-Z]\d?)\b", PAGE)))
def test_run_means_that_a_real_trainer_ran(letter: str) -> None:
    """`run` is only said of tests that start a trainer with torch."""
    assert LETTERS[letter].startswith(("tests/trainers/", "tests/prove/"))


def test_proven_means_run() -> None:
    """A proven trainer was saved and resumed in a run."""
    proven = [cells for cells in _supported().values() if cells[0] == "proven"]

    assert [cells for cells in proven if not all("run " in cell for cell in cells[3:])] == []
    assert len(proven) == 3
