"""One process in /proc: what it holds and how much CPU it has had."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUse:
    """`rss` in bytes, `cpu_seconds` user and system since its start. (pid, started) names it though pids come again."""

    pid: int
    started: int
    name: str
    rss: int
    cpu_seconds: float


def process_use(pid: int, proc: Path = Path("/proc")) -> ProcessUse | None:
    """None when it is gone, or a zombie, which holds nothing."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name is in brackets and may hold brackets and spaces itself: cut at the last one.
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return ProcessUse(
        pid=pid,
        started=int(fields[19]),
        name=name,
        rss=int(fields[21]) * _PAGE,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
    )


def process_name(pid: int, proc: Path = Path("/proc")) -> str:
    """The short name of a process, or an empty string (gone, or of another pid namespace)."""
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
