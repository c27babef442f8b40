"""What an adopted training would lose if it were stopped: it has no hook, so only its own checkpoints on disk count."""

import os
import time
from pathlib import Path

from tunewarden.errors import TunewardenError
from tunewarden.processes.identity import ProcessId
from tunewarden.supervisor.announcement import command_of, folder_of
from tunewarden.trainers.recipe import SavedState
from tunewarden.trainers.table import recognise

_TICKS = os.sysconf("SC_CLK_TCK")


def what_a_stop_loses(process: ProcessId) -> str:
    """In words: all since the newest complete checkpoint that this training itself has made, or since its start."""
    running_s = age_s(process)
    state = newest_state(process)
    written_s = None if state is None else _since_written_s(state.path)
    if state is None or written_s is None or running_s is None or written_s > running_s:
        since = "" if running_s is None else f" ({_words(running_s)} ago)"
        return f"everything since its start{since}: no complete checkpoint of it is found"
    return f"what it did in the last {_words(written_s)}: its newest complete checkpoint is {state.path}"


def newest_state(process: ProcessId) -> SavedState | None:
    """The newest complete state that the recipe of this command knows of; None where there is no recipe or state."""
    cwd = folder_of(process)
    try:
        recipe = recognise(command_of(process), cwd) if cwd else None
        states = recipe.states() if recipe else ()
    except (TunewardenError, OSError):
        return None
    return states[-1] if states else None


def age_s(process: ProcessId) -> float | None:
    """Seconds since the process started; None where the kernel does not tell."""
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return float(file.read().split()[0]) - process.start_ticks / _TICKS
    except (OSError, ValueError):
        return None


def _since_written_s(path: Path) -> float | None:
    """Seconds since the last file of a state was written. Only to tell a person: which state counts, its step says."""
    try:
        files = [path, *path.iterdir()] if path.is_dir() else [path]
        return max(0.0, time.time() - max(file.stat().st_mtime for file in files))
    except OSError:
        return None


def _words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
