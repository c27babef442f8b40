"""Optimizer steps over all generations: what each has made, and how many were planned."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tunewarden.supervisor.control import ControlDirectory, Progress

COUNTED = "counted"  # the journal's name of these notes


@dataclass(frozen=True, kw_only=True)
class Count:
    """One generation. `step` is of the whole training and never less than what an earlier generation reached.

    `steps_made` are this generation's own. `resume_step` is where it was told to go on, None for a start from the
    beginning. `total` is the planned number of optimizer steps, as the first generation that knew it said. `lived_s`
    is None where the launch or the end was not seen.
    """

    generation: int
    steps_made: int
    step: int
    resume_step: int | None
    total: int | None
    lived_s: float | None

    def to_note(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return asdict(self)


def count(
    generation: int,
    controls: Mapping[int, ControlDirectory],
    *,
    resume_step: int | None,
    lived_s: float | None,
    noted: Iterable[Mapping[str, Any]],
) -> Count:
    """Count one generation. `controls` are the directories up to it, `noted` the earlier counts of the journal."""
    before = [each for each in noted if each["generation"] < generation]
    progress = {number: control.progress() for number, control in controls.items()}
    now = progress[generation]
    made = steps_made(now, resume_step)
    totals = [each.get("total") for each in before] + [each.total_steps for each in progress.values() if each]
    return Count(
        generation=generation,
        steps_made=made,
        step=max([now.step if now else 0, resume_step or 0]),
        resume_step=resume_step,
        total=next((total for total in totals if total is not None), None),
        lived_s=lived_s,
    )


def steps_made(progress: Progress | None, resume_step: int | None) -> int:
    """Optimizer steps that a generation has made by itself."""
    if progress is None:
        return 0
    if progress.step_seconds_count is not None:
        return progress.step_seconds_count
    return max(0, progress.step - (resume_step or 0))
