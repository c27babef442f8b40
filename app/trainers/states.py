"""The states that trainers leave on disk: which are complete, and at which optimizer step they were made.

A half-written state is never given out. The newest is the one with the highest step; a file's time says nothing,
because copying, syncing and a clock change it.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from tunewarden.trainers.paths import folders_in
from tunewarden.trainers.recipe import SavedState

_MODEL_FILES = ("*.safetensors", "pytorch_model*.bin", "*.index.json", "adapter_model.bin", "pytorch_model*/*")
_PARTIAL = (".partial", ".tmp", ".incomplete")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def complete_accelerate(folder: Path) -> bool:
    """Whether accelerate's save_state finished here: it writes the random numbers of each rank last."""
    return (
        _filled(folder, "optimizer*.bin", "optimizer*.safetensors", "pytorch_model/*", "optimizer_*/*")
        and _filled(folder, "random_states_*.pkl")
        and _filled(folder, *_MODEL_FILES, "*/*.safetensors")
    )


def complete_sd_scripts(folder: Path) -> bool:
    """Whether this is a whole state of sd-scripts: accelerate's files, and a train_state.json that can be read."""
    return step_of_train_state(folder) is not None and complete_accelerate(folder)


def complete_transformers(folder: Path) -> bool:
    """Whether this is a whole checkpoint of the Trainer.

    transformers 5 marks one that is being written with checkpoint-is-incomplete.txt, and does not look at the mark
    itself when it resumes. A checkpoint of `save_only_model` has no optimizer, so nothing can go on from it.
    """
    if (folder / "checkpoint-is-incomplete.txt").exists():
        return False
    step = _number(_json(folder / "trainer_state.json"), "global_step")
    named = _CHECKPOINT.fullmatch(folder.name)
    return (
        step is not None
        and (named is None or int(named[1]) == step)
        and _filled(folder, "optimizer.pt", "optimizer.bin", "global_step*/*", "optimizer_*/*")
        and _filled(folder, *_MODEL_FILES)
    )


def step_of_train_state(folder: Path) -> int | None:
    """sd-scripts' own count in train_state.json. After a resume it begins at 0 again."""
    return _number(_json(folder / "train_state.json"), "current_step")


def checkpoints(folder: Path, complete: Callable[[Path], bool]) -> tuple[SavedState, ...]:
    """The complete `checkpoint-N` in `folder`, newest last. N is the step."""
    found = []
    for path in _folders(folder):
        match = _CHECKPOINT.fullmatch(path.name)
        if match and complete(path):
            found.append(SavedState(step=int(match[1]), path=path))
    return in_order(found)


def named_states(
    folder: Path,
    names: Iterable[tuple[re.Pattern[str], Callable[[Path, str], int | None]]],
    complete: Callable[[Path], bool],
) -> tuple[SavedState, ...]:
    """The complete states in `folder` whose names fit one of `names`; each has the step from name and folder."""
    found = []
    rules = tuple(names)
    for path in _folders(folder):
        for pattern, step_of in rules:
            match = pattern.fullmatch(path.name)
            step = step_of(path, match[1] if match.groups() else "") if match else None
            if step is not None and complete(path):
                found.append(SavedState(step=step, path=path))
                break
    return in_order(found)


def in_order(states: Iterable[SavedState]) -> tuple[SavedState, ...]:
    """By step, newest last; states of one step by name, so that the order never depends on the disk's."""
    return tuple(sorted(states, key=lambda state: (state.step, state.path.name)))


def _folders(folder: Path) -> list[Path]:
    return [path for path in folders_in(folder) if not path.name.endswith(_PARTIAL)]


def _filled(folder: Path, *patterns: str) -> bool:
    """Whether some file that fits holds something. A file of no bytes is one whose writing was cut off."""
    try:
        files = [path for pattern in patterns for path in folder.glob(pattern) if path.is_file()]
        return bool(files) and all(path.stat().st_size > 0 for path in files)
    except OSError:
        return False


def _json(path: Path) -> dict[str, object]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _number(fields: dict[str, object], key: str) -> int | None:
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
