"""What is read about a generation's end: crash.json, the counters of its control group, the kernel's log, its steps.

The control group's count of kills is journaled at the launch, so that only what was added since counts; how much memory
was free is looked at each second, for afterwards it is free again.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tunewarden.domain.xid import XidClass, class_of
from tunewarden.supervisor.cgroup import ROOT, MemoryGroup, memory_group
from tunewarden.supervisor.control_file import read_object, text
from tunewarden.supervisor.death import Crash, Outside
from tunewarden.supervisor.journal import Journal
from tunewarden.supervisor.keeper_link import Situation
from tunewarden.supervisor.kernel_log import KMSG, KernelSays, Xid, kernel_says

NOTE = "memory_at_launch"
_CRASH_CHARS = 16 * 1024
_NAME_CHARS = 64
_LOOKS = 10  # seconds, one look each
_SHORT_SHARE = 0.10  # of the host's memory: less available is short
_FULL_SHARE = 0.90  # of the group's limit: more held is short


class Noted(Protocol):
    """The parts of a run that are read here."""

    @property
    def situation(self) -> Situation: ...

    @property
    def journal(self) -> Journal: ...


@dataclass(kw_only=True)
class DeathWatch:
    """Keeps what must be seen while the job lives. Used by the agent's main thread.

    `group_root`, `meminfo` and `kmsg` are parameters for tests.
    """

    group_root: Path = ROOT
    meminfo: Path = Path("/proc/meminfo")
    kmsg: Path = KMSG
    _free: deque[float] = field(default_factory=lambda: deque(maxlen=_LOOKS))
    _noted: int = 0

    def look(self, run: Noted) -> None:
        """Once a second: note a new generation's counters, and how much memory is free."""
        generation, launcher = run.situation.generation, run.situation.launcher
        if run.situation.ended or launcher is None:
            return
        if self._noted != generation:
            self._noted = generation
            self._free.clear()
            if _noted(run.journal, generation) is None:
                group = memory_group(launcher.pid, self.group_root)
                run.journal.note(NOTE, {"generation": generation, **_counters(group)})
        share = _available(self.meminfo)
        if share is not None:
            self._free.append(share)

    def outside(self, run: Noted, pids: Iterable[int]) -> Outside:
        """What the kernel says of the newest generation, whose processes were `pids`."""
        noted = _noted(run.journal, run.situation.generation)
        if noted is None:
            return Outside()
        group = _group_of(noted)
        kills = group.oom_kills() if group is not None else None
        says = kernel_says(float(noted["at"]), self.kmsg)
        known = frozenset(pids)
        return Outside(
            kills=None if kills is None else max(0, kills - int(noted["oom_kills"])),
            victims=_victims(says, known, group),
            memory=self._memory(group, kills_added=bool(kills and kills > int(noted["oom_kills"]))),
            xids=tuple((xid.number, xid.line) for xid in _faults(says) if xid.pid in known),
            card_xids=tuple((xid.number, xid.line) for xid in _faults(says) if xid.pid is None),
        )

    def _memory(self, group: MemoryGroup | None, *, kills_added: bool) -> str:
        """`fine` only where both the host and the group are seen to have had room."""
        if kills_added or (self._free and min(self._free) < _SHORT_SHARE):
            return "short"
        if not self._free or group is None:
            return "unknown"
        limit, peak = group.limit(), group.peak()
        if limit is None:
            return "fine"
        if peak is None:
            return "unknown"
        return "short" if peak > limit * _FULL_SHARE else "fine"


def read_crash(control: Path) -> Crash | None:
    """What the trainer wrote of its own death; None where it wrote nothing that can be read."""
    raw = read_object(control / "crash.json") or {}
    error = text(raw.get("error"), _CRASH_CHARS)
    if error is None:
        return None
    tail = text(raw.get("traceback_tail"), _CRASH_CHARS) or ""
    at_load = raw.get("at_load")
    return Crash(
        error=error,
        phase=text(raw.get("phase"), _NAME_CHARS),
        where=text(raw.get("where"), _NAME_CHARS),
        at_load=at_load if isinstance(at_load, bool) else None,
        frames=tuple(line.strip() for line in tail.splitlines()),
    )


def _noted(journal: Journal, generation: int) -> Mapping[str, Any] | None:
    """What was noted at its launch, with the moment `at`."""
    for entry in journal.notes(NOTE):
        if entry.detail["generation"] == generation:
            return {**entry.detail, "at": entry.at}
    return None


def _counters(group: MemoryGroup | None) -> dict[str, Any]:
    if group is None:
        return {"group": None, "oom_kills": 0}
    return {
        "group": {"name": group.name, "path": str(group.path), "version": group.version},
        "oom_kills": group.oom_kills() or 0,
    }


def _group_of(noted: Mapping[str, Any]) -> MemoryGroup | None:
    raw = noted["group"]
    return raw and MemoryGroup(name=raw["name"], path=Path(raw["path"]), version=raw["version"])


def _victims(says: KernelSays, pids: frozenset[int], group: MemoryGroup | None) -> dict[int, str]:
    """Those of the job: by pid, or by a control group that is not everybody's."""
    own = group.name if group is not None and group.name.strip("/") else None
    return {kill.pid: kill.line for kill in says.kills if kill.pid in pids or (own is not None and kill.group == own)}


def _faults(says: KernelSays) -> list[Xid]:
    """Without those that only follow another one."""
    return [xid for xid in says.xids if class_of(xid.number) is not XidClass.IGNORED]


def _available(meminfo: Path) -> float | None:
    """The share of the host's memory that programs can have, 0 to 1."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        found = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Mem")}
        return found["MemAvailable"] / found["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
        return None
