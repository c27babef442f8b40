"""How busy a host is, from hand-written and from real /proc files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunewarden.sampling.host import HostReading, HostSampler

STAT = "cpu  {user} 0 100 {idle} {iowait} 0 0 0 0 0\ncpu0 1 2 3 4\n"
DISKS = """   7       0 loop0 9 0 9000 9 0 0 0 0 0 {loop} 0 0 0 0 0 0 0
   8       0 sda 100 0 {sectors} 50 0 0 0 0 0 {busy} 60 0 0 0 0 0 0
   8       1 sda1 100 0 {sectors} 50 0 0 0 0 0 {busy} 60 0 0 0 0 0 0
 253       0 dm-0 100 0 {sectors} 50 0 0 0 0 0 {busy} 60 0 0 0 0 0 0
"""


def write(root: Path, *, user: int, idle: int, iowait: int, sectors: int = 2000, busy: int = 0, loop: int = 0) -> None:
    proc = root / "proc"
    proc.mkdir(exist_ok=True)
    for name in ("sda", "loop0", "dm-0"):
        (root / "sys" / "block" / name).mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(STAT.format(user=user, idle=idle, iowait=iowait))
    (proc / "diskstats").write_text(DISKS.format(sectors=sectors, busy=busy, loop=loop))
    (proc / "meminfo").write_text("MemTotal: 2000 kB\nMemFree: 1 kB\nMemAvailable: 500 kB\nBuffers: 1 kB\n")


def sampler(root: Path, *times: float) -> HostSampler:
    clock = iter(times)
    return HostSampler(root / "proc", root / "sys", lambda: next(clock))


def test_shares_are_over_the_time_between_two_reads(tmp_path: Path) -> None:
    """60 of 100 ticks busy, 10 waiting for a disk; the disk worked 500 of 1000 ms; partitions are not counted twice."""
    write(tmp_path, user=0, idle=0, iowait=0)
    host = sampler(tmp_path, 0.0, 1.0)
    write(tmp_path, user=60, idle=30, iowait=10, sectors=2002, busy=500, loop=1000)

    assert host.read() == HostReading(
        cpu_busy=0.6,
        cpu_iowait=0.1,
        disk_busy=0.5,
        disk_read_bytes=2002 * 512,
        memory_total=2000 * 1024,
        memory_available=500 * 1024,
    )


@pytest.mark.parametrize(
    ("user", "idle", "iowait", "busy", "waits"),
    [
        (0, 0, 0, None, None),
        (0, 100, 0, 0.0, 0.0),
        (0, 0, 100, 0.0, 1.0),
        (100, 0, -5, 1.0, 0.0),
        (100, -5, 0, 1.0, 0.0),
    ],
)
def test_cpu_shares_stay_between_0_and_1(
    tmp_path: Path, user: int, idle: int, iowait: int, busy: float | None, waits: float | None
) -> None:
    """No time passed: unknown. A counter that falls, as iowait may, counts as 0."""
    write(tmp_path, user=1000, idle=1000, iowait=1000)
    host = sampler(tmp_path, 0.0, 1.0)
    write(tmp_path, user=1000 + user, idle=1000 + idle, iowait=1000 + iowait)
    reading = host.read()

    assert (reading.cpu_busy, reading.cpu_iowait) == (busy, waits)


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    """A host without these files gives no numbers and no error."""
    assert sampler(tmp_path, 0.0, 1.0).read() == HostReading()


def test_the_real_host_gives_real_numbers() -> None:
    """The memory of this very host, as sysconf says it."""
    reading = HostSampler().read()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    assert reading.memory_total == pytest.approx(pages, rel=0.05)
    assert reading.memory_available is not None and 0 < reading.memory_available <= reading.memory_total


def test_the_samplers_are_light_to_import() -> None:
    """The agent runs beside the training: no pydantic, and no pynvml where there is no driver."""
    code = (
        "import sys, tunewarden.sampling.gpu as gpu, tunewarden.sampling.host; "
        "gpu.open_gpu_source(None, lambda: []); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {"pydantic", "pynvml", "psutil", "asyncio"}.isdisjoint(loaded)
