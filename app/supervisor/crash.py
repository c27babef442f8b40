"""crash.json: what a trainer wrote when it died of an exception. See docs/reference/control-directory.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunewarden.supervisor.control import ControlDirectory, State, TorchMemory, memory_of, state_of
from tunewarden.supervisor.control_file import text, whole_number

_ERROR_CHARS = 16 * 1024  # before any search in it
_WORD_CHARS = 64


@dataclass(frozen=True, kw_only=True)
class Crash:
    """`state` is what was saved after the exception; not `consistent`: inside optimizer.step, half of it updated.

    `at_load`: before the first step. `where` is a word such as sampling. None: not said.
    """

    error: str
    step: int | None = None
    phase: str | None = None
    state: State | None = None
    consistent: bool = True
    at_load: bool = False
    where: str | None = None
    traceback_tail: str = ""
    memory: TorchMemory = field(default_factory=TorchMemory)


def read_crash(control: ControlDirectory) -> Crash | None:
    """What a generation's trainer wrote about its death, or None."""
    raw = control.read("crash.json")
    error = text(raw.get("error"), _ERROR_CHARS) if raw else None
    return None if raw is None or error is None else _crash(raw, error)


def _crash(raw: Mapping[str, Any], error: str) -> Crash:
    saved = raw.get("state")
    said = raw.get("consistent")
    inside = saved.get("consistent") if isinstance(saved, dict) else None
    return Crash(
        error=error,
        step=whole_number(raw.get("step")),
        phase=text(raw.get("phase"), _WORD_CHARS),
        state=state_of(saved),
        # Anything but a plain yes is no yes, where something is said at all.
        consistent=all(each is None or each is True for each in (said, inside)),
        at_load=raw.get("at_load") is True,
        where=text(raw.get("where"), _WORD_CHARS),
        traceback_tail=text(raw.get("traceback_tail"), _ERROR_CHARS) or "",
        memory=memory_of(raw.get("memory")),
    )
