"""Which state a job goes on from: the complete one with the highest step. A file's time decides nothing."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tunewarden.supervisor.control import ControlDirectory, State, state_of
from tunewarden.trainers.recipe import SavedState
from tunewarden.trainers.states import complete_accelerate, complete_transformers

_OF_TRANSFORMERS = ("trainer_state.json", "training_args.bin", "checkpoint-is-incomplete.txt")
_OF_ACCELERATE = ("train_state.json", "scheduler.bin", "optimizer.bin", "random_states_0.pkl")
_MOST_FILES = 200  # of a state, that are looked at to see whether it was written again


def is_whole(state: State) -> bool:
    """Whether the state is there and complete: a folder that accelerate or the Trainer makes holds all that they write.

    A layout that we don't know is believed: the trainer itself named it, under its final name.
    """
    if not state.whole:
        return False
    try:
        if any((state.path / name).exists() for name in _OF_TRANSFORMERS):
            return complete_transformers(state.path)
        if any((state.path / name).exists() for name in _OF_ACCELERATE):
            return complete_accelerate(state.path)
    except OSError:
        return False
    return True


def ranks_of(path: Path) -> int | None:
    """How many ranks wrote a state of accelerate or the Trainer: each has a file of random numbers; None: unknown."""
    try:
        count = len(list(path.glob("random_states_*.pkl"))) or len(list(path.glob("rng_state*.pth")))
    except OSError:
        return None
    return count or None


def mark_of(path: Path) -> str:
    """Tells whether a state was written again: the names, sizes and times of its files. "" where it is gone.

    Compared for equality only: never two times with each other, and never with a clock.
    """
    try:
        files = sorted(path.rglob("*"))[:_MOST_FILES] if path.is_dir() else [path]
        seen = [(str(file), file.lstat().st_size, file.lstat().st_mtime_ns) for file in files]
    except OSError:
        return ""
    return hashlib.sha256(repr(seen).encode("utf-8", "replace")).hexdigest()[:16]


def named_states(controls: Iterable[ControlDirectory], seen: Iterable[State] = ()) -> list[State]:
    """What these generations said of their states, and were told to go on from; not what was saved half updated."""
    found: list[State | None] = list(seen)
    spoilt: set[Path] = set()
    for control in controls:
        progress, receipt = control.progress(), control.last_receipt()
        found += [progress.last_state if progress else None, control.resume()]
        if receipt is not None and receipt.state is not None:
            found.append(receipt.state)
            if not receipt.consistent:
                spoilt.add(receipt.state.path)
        crashed, consistent = _after_crash(control)
        if crashed is not None:
            found.append(crashed)
            if not consistent:
                spoilt.add(crashed.path)
    return [state for state in found if state is not None and state.path not in spoilt]


def _after_crash(control: ControlDirectory) -> tuple[State | None, bool]:
    """What was saved after the exception, and whether no update was cut in two by it: anything but a yes is a no."""
    raw = control.read("crash.json") or {}
    return state_of(raw.get("state")), "consistent" not in raw or raw["consistent"] is True


def newest_state(
    controls: Sequence[ControlDirectory],
    on_disk: Iterable[SavedState],
    before: Mapping[str, str],
    may_hold: Callable[[Path], bool],
    seen: Iterable[State] = (),
) -> State | None:
    """The complete state with the highest step.

    `seen` were named once, by files that have been overwritten since. `on_disk` are the trainer's own, as its recipe
    finds them. Of these the ones that lay there `before` the run (path → mark) are another training's, and so are
    steps that this one has not reached.
    """
    named = named_states(controls, seen)
    reached = max([state.step for state in named] + [_step_of(control) for control in controls], default=0)
    known = {state.path for state in named}
    own = [
        State(step=state.step, path=state.path)
        for state in on_disk
        if state.path not in known
        and (state.step <= reached or reached == 0)
        and before.get(str(state.path)) != mark_of(state.path)
    ]
    for state in sorted([*named, *own], key=lambda each: each.step, reverse=True):
        if is_whole(state) and may_hold(state.path):
            return state
    return None


def _step_of(control: ControlDirectory) -> int:
    progress = control.progress()
    return progress.step if progress else 0
