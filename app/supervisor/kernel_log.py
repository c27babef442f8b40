"""What the kernel's log says since a moment: processes that it killed for want of memory, and Xids of the cards.

/dev/kmsg is readable to root, and to others where kernel.dmesg_restrict is 0; elsewhere there is no such evidence.
"""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

KMSG = Path("/dev/kmsg")
_RECORD = 8192  # the kernel refuses a smaller read
_MOST_RECORDS = 50_000
_MOST_BYTES = 4 << 20
_LONGEST_S = 1.0
_LINE_CHARS = 2048
# "Out of memory: Killed process 4711 (python) total-vm:…", "Memory cgroup out of memory: Killed process 4711 (python)"
_KILLED = re.compile(r"out of memory: Kill(?:ed)? process (\d{1,10})", re.IGNORECASE)
# "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=…,task_memcg=/docker/1f…,task=python,pid=4711,uid=0"
_VICTIM = re.compile(r"task_memcg=([^,\s]{1,512}),task=[^,]{0,64},pid=(\d{1,10})")
# "NVRM: Xid (PCI:0000:65:00): 79, pid=4711, name=python, GPU has fallen off the bus." Older: pid='<unknown>'
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{1,24})[^)]{0,64}\): (\d{1,4})(?:, pid='?(\d{1,10}))?")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A process that the kernel killed for want of memory. `group`: its control group, "" where that is not said."""

    pid: int
    group: str
    line: str


@dataclass(frozen=True, kw_only=True)
class Xid:
    """A card's fault. `pid` None: the driver does not say whose work it was."""

    number: int
    card: str
    pid: int | None
    line: str


@dataclass(frozen=True, kw_only=True)
class KernelSays:
    """The records that matter here, the oldest first. `read` is False where the log can't be read."""

    read: bool = False
    kills: tuple[Kill, ...] = ()
    xids: tuple[Xid, ...] = ()


def kernel_says(since: float, path: Path = KMSG) -> KernelSays:
    """What the kernel has logged since `since`, seconds on CLOCK_MONOTONIC, whose clock the log nearly shares."""
    text = _read(path)
    if text is None:
        return KernelSays()
    kills, xids = [], []
    for line in text.splitlines():
        said = _since(line, since)
        if not said:
            continue
        if (kill := _kill(said)) is not None:
            kills.append(kill)
        if (found := _XID.search(said)) is not None:
            pid = int(found[3]) if found[3] else None
            xids.append(Xid(number=int(found[2]), card=found[1], pid=pid, line=said))
    return KernelSays(read=True, kills=tuple(kills), xids=tuple(xids))


def _kill(said: str) -> Kill | None:
    victim = _VICTIM.search(said) if "oom-kill" in said else None
    if victim is not None:
        return Kill(pid=int(victim[2]), group=victim[1], line=said)
    found = _KILLED.search(said)
    return Kill(pid=int(found[1]), group="", line=said) if found else None


def _since(line: str, since: float) -> str:
    """The words of a record that is new enough, else nothing. A record: `priority,number,microseconds,-;words`."""
    head, separator, said = line.partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or not fields[2].isdecimal():
        return ""
    return said[:_LINE_CHARS] if int(fields[2]) / 1e6 >= since else ""


def _read(path: Path) -> str | None:
    """All that the log holds now, within 4 MiB and a second; None where it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    parts: list[bytes] = []
    deadline = time.monotonic() + _LONGEST_S
    try:
        while len(parts) < _MOST_RECORDS and time.monotonic() < deadline:
            try:
                part = os.read(descriptor, _RECORD)
            except BrokenPipeError:  # overwritten while we read: the next one is there
                continue
            except BlockingIOError:
                break
            if not part:
                break
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(parts)[-_MOST_BYTES:].decode("utf-8", "replace")
