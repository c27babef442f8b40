"""The last result of a restarted job gets the planned name, and never takes another file's place."""

from pathlib import Path
from typing import cast

import pytest

from tests.unit.trainer_case import Case, case
from tunewarden.supervisor.final_name import give_planned_name
from tunewarden.supervisor.run import Run

SCRIPT = "from library import train_util\nargs = train_util.read_config_from_file(args, parser)\n"
LINE = "python train_network.py --output_dir out --output_name cat-r2 --initial_step 31"


class Told:
    """As much of a run as is asked for: its recipe, and what is said to the person."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.said: list[str] = []

    def recipe(self) -> object:
        return self.case.recipe

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def run(tmp_path: Path) -> Told:
    """A second generation of sd-scripts that has written its result."""
    return Told(case(tmp_path, LINE, {"train_network.py": SCRIPT, "out/cat-r2.safetensors": "new"}))


def named(run: Told) -> list[str]:
    give_planned_name(cast(Run, run))
    return run.said


def test_it_is_also_cat(run: Told, tmp_path: Path) -> None:
    """Both names are there, and it is told once, also when the agent is started again."""
    told = named(run)

    assert told == ["the last result, cat-r2.safetensors, is also cat.safetensors"]
    assert (tmp_path / "out/cat.safetensors").read_text() == "new"
    assert named(run) == told


def test_another_file_keeps_its_place(run: Told, tmp_path: Path) -> None:
    """What lies under the planned name is never touched."""
    (tmp_path / "out/cat.safetensors").write_text("old")

    assert "is there already" in named(run)[0]
    assert (tmp_path / "out/cat.safetensors").read_text() == "old"


def test_a_result_that_is_not_there(run: Told, tmp_path: Path) -> None:
    """A training that wrote nothing gets no name."""
    (tmp_path / "out/cat-r2.safetensors").unlink()

    assert (named(run), [path.name for path in (tmp_path / "out").iterdir()]) == ([], [])
