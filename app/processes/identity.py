"""Who a process is: a pid with its start time, in our pid namespace and this boot.

A pid alone is a number that the kernel gives out again. `start_ticks` is field 22 of /proc/PID/stat: the clock ticks
since boot at which the process started (proc(5)); two processes of one boot never share both.
"""

import os
from dataclasses import dataclass

_ENDED_STATES = frozenset("ZXx")  # zombie or dead: it runs no more, only its parent has to notice


@dataclass(frozen=True)
class ProcessId:
    """One process of this boot: `pid` in our namespace, `start_ticks` in clock ticks since boot."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, kw_only=True)
class Stat:
    """What /proc/PID/stat says. `state` is one letter; memory in bytes, times in clock ticks."""

    id: ProcessId
    state: str
    ppid: int
    rss_bytes: int
    cpu_ticks: int

    @property
    def running(self) -> bool:
        """True unless it has ended and waits to be reaped."""
        return self.state not in _ENDED_STATES


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def read_stat(pid: int) -> Stat | None:
    """The stat line of a process, or None where there is no such process."""
    line = read_proc(pid, "stat")
    if not line:
        return None
    # The command name sits in brackets and may itself hold brackets and blanks: the fields start after the last one.
    fields = line[line.rindex(b")") + 2 :].split()
    return Stat(
        id=ProcessId(pid, int(fields[19])),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        cpu_ticks=int(fields[11]) + int(fields[12]),
    )


def read_proc(pid: int, name: str) -> bytes:
    """A file of /proc/PID, or nothing where the process is gone or we may not read it."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def identify(pid: int) -> ProcessId | None:
    """The identity of the process that has this pid now, zombies included; None where there is none."""
    stat = read_stat(pid)
    return stat.id if stat else None


def alive(process: ProcessId) -> bool:
    """True while this very process runs: a zombie does not, nor does another process with its pid."""
    stat = read_stat(process.pid)
    return stat is not None and stat.id == process and stat.running


def boot_id() -> str:
    """The kernel's id of this boot: start ticks of two boots can't be compared."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def pid_namespace(pid: int) -> int | None:
    """The inode of a process' pid namespace; None where it is gone or we may not know."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino  # noqa: PTH116 - the keeper stays small
    except OSError:
        return None


def own_namespace() -> int | None:
    """The inode of our own pid namespace."""
    return pid_namespace(os.getpid())
