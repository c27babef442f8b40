"""How busy the host is, from /proc: psutil would cost the agent more memory and give no more."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_SECTOR = 512  # the unit of /proc/diskstats, whatever the disk's own sector is
_NO_REAL_DISK = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")  # virtual, or counted again by the disks below them


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReading:
    """`cpu_*` and `disk_busy` are shares (0 to 1) of the time since the last read: None at the first. Memory in bytes.

    `cpu_busy` leaves out idle and iowait: a CPU that waits for a disk is not busy. `disk_busy` is the busiest disk's.
    `disk_read_bytes` is a counter over all real disks.
    """

    cpu_busy: float | None = None
    cpu_iowait: float | None = None
    disk_busy: float | None = None
    disk_read_bytes: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None


@dataclass(frozen=True, slots=True)
class _CpuTimes:
    total: int
    idle: int
    iowait: int


@dataclass(frozen=True, slots=True)
class _Disk:
    read_bytes: int
    busy_ms: int


class HostSampler:
    """Remembers the last read: the shares are over the time between two calls of `read`."""

    def __init__(
        self, proc: Path = Path("/proc"), sys: Path = Path("/sys"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._proc = proc
        self._sys = sys
        self._clock = clock
        self._cpu: _CpuTimes | None = None
        self._disks: tuple[float, dict[str, _Disk]] | None = None
        self.read()

    def read(self) -> HostReading:
        """Never raises: what can't be read is None."""
        busy, iowait = self._cpu_shares()
        disks = self._read_disks()
        memory = self._read_memory()
        return HostReading(
            cpu_busy=busy,
            cpu_iowait=iowait,
            disk_busy=self._disk_busy(disks),
            disk_read_bytes=sum(disk.read_bytes for disk in disks.values()) if disks else None,
            memory_total=memory.get("MemTotal"),
            memory_available=memory.get("MemAvailable"),
        )

    def _cpu_shares(self) -> tuple[float | None, float | None]:
        before, now = self._cpu, self._read_cpu()
        self._cpu = now
        if before is None or now is None or now.total <= before.total:
            return None, None
        total = now.total - before.total
        # The kernel's iowait counter may fall (it says so itself), so both shares are kept inside 0 to 1.
        iowait = min(max(now.iowait - before.iowait, 0), total)
        idle = min(max(now.idle - before.idle, 0), total - iowait)
        return (total - idle - iowait) / total, iowait / total

    def _read_cpu(self) -> _CpuTimes | None:
        try:
            line = (self._proc / "stat").read_text(encoding="ascii").split("\n", 1)[0]
            # user nice system idle iowait irq softirq steal; guest times are inside user already
            times = [int(word) for word in line.split()[1:9]]
            return _CpuTimes(total=sum(times), idle=times[3], iowait=times[4])
        except (OSError, ValueError, IndexError):
            return None

    def _read_disks(self) -> dict[str, _Disk]:
        try:
            lines = (self._proc / "diskstats").read_text(encoding="ascii").splitlines()
            names = {path.name for path in (self._sys / "block").iterdir()}  # whole disks, no partitions
        except OSError:
            return {}
        rows = (line.split() for line in lines)
        return {
            row[2]: _Disk(int(row[5]) * _SECTOR, int(row[12]))
            for row in rows
            if len(row) > 12 and row[2] in names and not row[2].startswith(_NO_REAL_DISK)
        }

    def _disk_busy(self, disks: dict[str, _Disk]) -> float | None:
        now = self._clock()
        before, self._disks = self._disks, (now, disks)
        if before is None or now <= before[0]:
            return None
        elapsed_ms = (now - before[0]) * 1000
        shares = [
            (disk.busy_ms - before[1][name].busy_ms) / elapsed_ms for name, disk in disks.items() if name in before[1]
        ]
        return min(max(*shares, 0.0), 1.0) if shares else None

    def _read_memory(self) -> dict[str, int]:
        try:
            lines = (self._proc / "meminfo").read_text(encoding="ascii").splitlines()
            return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Mem")}
        except (OSError, ValueError, IndexError):
            return {}
