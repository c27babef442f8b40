"""Optimizer steps over generations."""

import json
from pathlib import Path
from typing import Any

import pytest

from tunewarden.supervisor.control import ControlDirectory
from tunewarden.supervisor.count import Count, count


def control(folder: Path, **progress: Any) -> ControlDirectory:
    folder.mkdir()
    if progress:
        (folder / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
    return ControlDirectory(folder)


def counted(*controls: ControlDirectory, noted: Any = (), resume_step: int | None = None) -> Count:
    by_number = dict(enumerate(controls, 1))
    return count(len(controls), by_number, resume_step=resume_step, lived_s=None, noted=noted)


@pytest.mark.parametrize(
    ("progress", "resume_step", "made", "step"),
    [
        ({"step": 12, "step_seconds_count": 12}, None, 12, 12),
        ({"step": 43, "step_seconds_count": 12}, 31, 12, 43),
        ({"step": 43}, 31, 12, 43),  # a trainer that counts no seconds
        ({"step": 7, "step_seconds_count": 7}, 31, 7, 31),  # sd-scripts' own count begins at 0 again
        ({}, 31, 0, 31),
        ({}, None, 0, 0),
    ],
)
def test_steps_made_and_steps_of_the_training(
    tmp_path: Path, progress: dict[str, Any], resume_step: int | None, made: int, step: int
) -> None:
    """A generation's own steps, and the step of the whole training, which never falls below where it went on."""
    found = counted(control(tmp_path / "g1", **progress), resume_step=resume_step)

    assert (found.steps_made, found.step) == (made, step)


def test_the_planned_total_is_the_first_that_was_said(tmp_path: Path) -> None:
    """transformers computes 400 of 200 after a change of batch size; the plan was 200."""
    first = control(tmp_path / "g1", step=31, total_steps=200)
    second = control(tmp_path / "g2", step=40, total_steps=400)

    assert counted(first, second, resume_step=31).total == 200


def test_the_journal_is_believed_before_the_job(tmp_path: Path) -> None:
    """What was counted then stands, whatever lies in the job's own folder now."""
    rewritten = control(tmp_path / "g1", step=1, total_steps=7)
    noted = [{"generation": 1, "total": 200}]

    assert counted(rewritten, control(tmp_path / "g2"), noted=noted).total == 200
