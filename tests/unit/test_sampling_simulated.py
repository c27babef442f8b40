"""The simulated card: full when the job's real memory is what was said to be full, empty only when it is gone."""

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.acceptance.real_process import eventually
from tunewarden.sampling.gpu import open_gpu_source
from tunewarden.sampling.simulated import SimulatedCard, SimulatedGpu

MIB = 1 << 20
HOLDER = (
    "import sys; held = bytearray({size}); held[::4096] = b'x' * len(held[::4096]); "
    "print('held', flush=True); sys.stdin.read()"
)
SPINNER = "print('held', flush=True)\nwhile True: pass"


def started(code: str) -> "subprocess.Popen[str]":
    """A real process that has said that it is ready."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def ended(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def holder() -> Iterator["subprocess.Popen[str]"]:
    """A process that holds 64 MiB."""
    process = started(HOLDER.format(size=64 * MIB))
    yield process
    ended(process)


@pytest.mark.parametrize(
    ("text", "total", "full_at", "index"),
    [
        ("24GiB/256MiB", 24 << 30, 256 << 20, 0),
        (" 24GiB/256MiB ", 24 << 30, 256 << 20, 0),
        ("1.5GiB/300MB", 3 << 29, 300_000_000, 0),
        ("24GiB/256MiB@1", 24 << 30, 256 << 20, 1),
    ],
)
def test_a_card_is_written_as_size_and_real_memory(text: str, total: int, full_at: int, index: int) -> None:
    """Size, the real memory that counts as full, and an index for a second card."""
    card = SimulatedCard.parse(text)

    assert (card.total, card.full_at, card.index) == (total, full_at, index)


@pytest.mark.parametrize("text", ["", "24GiB", "24/256", "24GiB/256", "24gib/256mib", "0GiB/1MiB", "24GiB/0MiB", "a/b"])
def test_a_card_that_cannot_be_read_is_refused_with_what_to_write(text: str) -> None:
    """The error shows the value and an example."""
    with pytest.raises(ValueError, match="24GiB/256MiB") as refused:
        open_gpu_source(text, list)

    assert repr(text) in str(refused.value)


def test_the_uuid_stays_and_differs_by_index() -> None:
    """Rules join on the uuid, so the same card has the same one after each start."""
    uuids = [SimulatedCard.parse(text).uuid for text in ("24GiB/256MiB", "8GiB/1MiB", "24GiB/256MiB@1")]

    assert (uuids[0] == uuids[1], uuids[0] == uuids[2], uuids[0][:8], len(uuids[0])) == (True, False, "GPU-51b0", 40)


def test_the_card_shows_the_real_memory_of_the_job(holder: "subprocess.Popen[str]") -> None:
    """A process with at least 64 MiB fills at least a quarter of a card that is full at 256 MiB, and is named on it."""
    reading = open_gpu_source("24GiB/256MiB", lambda: [holder.pid]).read().gpus[0]

    assert reading.memory_used is not None and reading.memory_total == 24 << 30
    assert 0.25 <= reading.memory_used / reading.memory_total < 0.6
    assert reading.memory_used + (reading.memory_free or 0) == reading.memory_total
    assert reading.processes is not None and [process.pid for process in reading.processes] == [holder.pid]


def test_the_card_is_never_more_than_full(holder: "subprocess.Popen[str]") -> None:
    """More real memory than counts as full still is 100 %."""
    reading = open_gpu_source("24GiB/16MiB", lambda: [holder.pid]).read().gpus[0]

    assert (reading.memory_used, reading.memory_free) == (24 << 30, 0)


def test_memory_falls_only_when_the_process_is_gone(holder: "subprocess.Popen[str]") -> None:
    """The same pids, read before and after the process was killed; a zombie holds nothing."""
    source = open_gpu_source("24GiB/256MiB", lambda: [holder.pid])
    before = source.read().gpus[0].memory_used
    holder.kill()
    eventually(lambda: source.read().gpus[0].memory_used == 0)

    assert before is not None and before > 0
    assert source.read().gpus[0].processes == ()


def test_utilization_is_the_cpu_share_of_the_workers() -> None:
    """A spinning worker reads high; one that is not among the workers does not count."""
    spinner = started(SPINNER)
    try:
        now = iter([0.0, 0.0, 1.0, 1.0])
        card = SimulatedCard.parse("24GiB/256MiB")
        busy = SimulatedGpu(card, lambda: [spinner.pid], lambda: [spinner.pid], lambda: next(now))
        idle = SimulatedGpu(card, lambda: [spinner.pid], list, lambda: next(now))
        first = [source.read().gpus[0].utilization for source in (busy, idle)]
        used = spin_until_it_used(spinner.pid, 0.3)
        second = [source.read().gpus[0].utilization for source in (busy, idle)]
    finally:
        ended(spinner)

    assert first == [None, None]
    assert second[1] == 0.0
    assert second[0] is not None and 20.0 <= second[0] <= 100.0, used


def spin_until_it_used(pid: int, seconds: float) -> float:
    """Wait until the process has had so much more CPU time."""
    start = psutil.Process(pid).cpu_times().user

    def more() -> float:
        used: float = psutil.Process(pid).cpu_times().user - start
        return used if used >= seconds else 0.0

    return eventually(more)


def test_a_host_without_a_driver_says_so() -> None:
    """No driver is no crash and no silent emptiness."""
    readings = open_gpu_source(None, list).read()

    assert readings.gpus == () and "libnvidia-ml.so.1" in readings.errors[0]
