"""The memory of a job's control group: how often the kernel killed in it, its limit, and the most that it held.

cgroup v2 (memory.events, memory.max, memory.peak) and v1 (memory.oom_control, memory.limit_in_bytes,
memory.max_usage_in_bytes). The roots are parameters, so that a test can have a tree of its own.
"""

from dataclasses import dataclass
from pathlib import Path

from tunewarden.processes.identity import read_proc

ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # v1 says "no limit" as a number near 2^63
_MOST_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class MemoryGroup:
    """One control group. `name` is what the kernel's log calls it, `path` its folder."""

    name: str
    path: Path
    version: int

    def oom_kills(self) -> int | None:
        """Processes of this group that the kernel killed for want of memory, so far; None where it can't be read."""
        return _field(self.path / ("memory.events" if self.version == 2 else "memory.oom_control"), "oom_kill")

    def limit(self) -> int | None:
        """Bytes that it may hold; None: no limit, or unknown."""
        found = _number(self.path / ("memory.max" if self.version == 2 else "memory.limit_in_bytes"))
        return None if found is None or found >= _NO_LIMIT else found

    def peak(self) -> int | None:
        """The most bytes that it ever held; None where the kernel doesn't count (v2 before 5.19)."""
        return _number(self.path / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"))


def memory_group(pid: int, root: Path = ROOT, lines: str | None = None) -> MemoryGroup | None:
    """The group whose memory limit holds for a process; None where the kernel counts nothing for it.

    In a container the path of /proc/PID/cgroup may be the host's; then the mount's own root is the container's.
    `lines` stands for /proc/PID/cgroup in tests.
    """
    text = lines if lines is not None else read_proc(pid, "cgroup").decode("utf-8", "replace")
    rows = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    older = next((row[2] for row in rows if "memory" in row[1].split(",")), None)
    name = older if older is not None else next((row[2] for row in rows if row[0] == "0"), None)
    if name is None:
        return None
    version = 1 if older is not None else 2
    base = root / "memory" if version == 1 else root
    for path in (base / name.lstrip("/"), base):
        group = MemoryGroup(name=name, path=path, version=version)
        if ".." not in path.parts and group.oom_kills() is not None:
            return group
    return None


def _field(path: Path, name: str) -> int | None:
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


def _number(path: Path) -> int | None:
    word = _text(path).strip()
    return int(word) if word.isdecimal() else None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
