"""Step and loss out of the TensorBoard events of a job, for trainers that tell nothing and show no bar."""

import os
import re
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from tunewarden.supervisor.control import Progress
from tunewarden.supervisor.event_file import EventFile, Scalar
from tunewarden.supervisor.step_counter import StepCounter

_LOOK_EVERY_S = 15.0  # for new files
_MOST_FILES = 8
_MOST_NAMES = 5000  # looked at in the folders
_DEEPEST = 4  # sd-scripts: logging_dir/<time>/network_train
# events.out.tfevents.<unix time>.<host>.<pid>.<n>: torch's and TensorFlow's writer; the pid tells whose it is.
_NAME = re.compile(r"events\.out\.tfevents\.\d+\..+\.(\d+)\.\d+")
# By what the trainers call the loss of one step: sd-scripts, transformers, diffusers, OneTrainer; a mean comes last.
_TAGS = (
    "loss/current",
    "train/loss",
    "train_loss",
    "step_loss",
    "loss/train_step",
    "loss/loss",
    "loss",
    "loss/average",
)
_NO_STEP = re.compile(r"epoch|eval|val|test", re.IGNORECASE)


class EventProgress:
    """`folders` are where events may be; `base` is the step at which the generation began."""

    def __init__(self, folders: Sequence[Path], base: int = 0) -> None:
        self._folders, self._base = folders, base
        self._files: dict[Path, EventFile] = {}
        self._looked_at: float | None = None
        self._tag = ""
        self._counter = StepCounter(base)
        self._loss: float | None = None

    def read(self, now: float, pids: Set[int]) -> None:
        """Take in what the job's processes `pids` wrote since the last call; `now` in monotonic seconds."""
        if self._looked_at is None or now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            for path in self._new_files(pids):
                self._files[path] = EventFile(path)
        for file in self._files.values():
            for scalar in file.read():
                self._take(scalar)

    def progress(self) -> Progress | None:
        """What is known; None before the first event with a loss. Events come late, so they tell no phase."""
        step = self._counter.step
        if step is None:
            return None
        return Progress(
            step=step,
            loss=self._loss,
            step_seconds_sum=self._counter.seconds,
            step_seconds_count=self._counter.count,
            source="log",
        )

    def _take(self, scalar: Scalar) -> None:
        if _rank(scalar.tag) < _rank(self._tag):
            self._tag, self._counter = scalar.tag, StepCounter(self._base)
        if scalar.tag == self._tag:
            self._counter.at(scalar.step, scalar.wall)
            self._loss = scalar.value

    def _new_files(self, pids: Set[int]) -> list[Path]:
        found = []
        for path in _event_files(self._folders):
            name = _NAME.fullmatch(path.name)
            if name and int(name.group(1)) in pids and path not in self._files:
                found.append(path)
        return sorted(found)[: _MOST_FILES - len(self._files)]


def _rank(tag: str) -> int:
    """The lower the better; a tag that is no loss of a step ranks with none at all."""
    if tag in _TAGS:
        return _TAGS.index(tag)
    is_loss = "loss" in tag.lower() and not _NO_STEP.search(tag)
    return len(_TAGS) if is_loss else len(_TAGS) + 1


def _event_files(folders: Sequence[Path]) -> Iterator[Path]:
    """Within bounds, and following no link."""
    left = _MOST_NAMES
    for folder in folders:
        for where, below, names in os.walk(folder):
            if len(Path(where).relative_to(folder).parts) >= _DEEPEST:
                below.clear()
            left -= len(names) + len(below)
            if left < 0:
                return
            yield from (Path(where, name) for name in names if name.startswith("events.out.tfevents."))
