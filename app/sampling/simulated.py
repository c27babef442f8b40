"""A card for machines without one: it is as full as the live processes of the job are big.

Its memory is measured, not scripted: it rises with the resident memory of the job and falls only when the processes
are gone.
"""

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tunewarden.processes.identity import ProcessId, Stat, read_stat
from tunewarden.sampling.process import process_name
from tunewarden.sampling.reading import GpuProcess, GpuReading, Readings

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_TICKS = os.sysconf("SC_CLK_TCK")
_SPEC = re.compile(r"(\d+(?:\.\d+)?)(\w+)/(\d+(?:\.\d+)?)(\w+)(?:@(\d))?")


@dataclass(frozen=True, kw_only=True)
class SimulatedCard:
    """A card of `total` bytes that is full when the job's processes hold `full_at` bytes of real memory."""

    total: int
    full_at: int
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> "SimulatedCard":
        """`24GiB/256MiB`, or `24GiB/256MiB@1` for the card with index 1. ValueError says what to write."""
        match = _SPEC.fullmatch(text.strip())
        if match is None or match[2] not in _UNITS or match[4] not in _UNITS:
            raise ValueError(_how_to_write(text))
        total = int(float(match[1]) * _UNITS[match[2]])
        full_at = int(float(match[3]) * _UNITS[match[4]])
        if total == 0 or full_at == 0:
            raise ValueError(_how_to_write(text))
        return cls(total=total, full_at=full_at, index=int(match[5] or 0))

    @property
    def uuid(self) -> str:
        """The same on each start: made from the host's name and the index."""
        digest = hashlib.sha256(f"{socket.gethostname()}/{self.index}".encode()).hexdigest()
        return f"GPU-51b0{digest[:4]}-{digest[4:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:28]}"


class SimulatedGpu:
    """`pids`: the job's live processes; `workers`: those whose CPU time since the last read stands for GPU time."""

    def __init__(
        self,
        card: SimulatedCard,
        pids: Callable[[], Iterable[int]],
        workers: Callable[[], Iterable[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._card = card
        self._pids = pids
        self._workers = workers
        self._clock = clock
        self._last: tuple[float, dict[ProcessId, int]] | None = None

    def read(self) -> Readings:
        card = self._card
        uses = _running(self._pids())
        scale = card.total / card.full_at
        used = min(card.total, int(sum(use.rss_bytes for use in uses) * scale))
        reading = GpuReading(
            uuid=card.uuid,
            index=card.index,
            name="Simulated GPU",
            memory_used=used,
            memory_free=card.total - used,
            memory_total=card.total,
            utilization=self._utilization(),
            processes=tuple(
                GpuProcess(pid=use.id.pid, memory=int(use.rss_bytes * scale), name=process_name(use.id.pid))
                for use in uses
                if use.rss_bytes  # one that is dying has given its memory back
            ),
        )
        return Readings(gpus=(reading,))

    def _utilization(self) -> float | None:
        """The busiest worker's CPU share since the last read, 0 to 100; None at the first read."""
        now = self._clock()
        ticks = {use.id: use.cpu_ticks for use in _running(self._workers())}
        before, self._last = self._last, (now, ticks)
        if before is None or now <= before[0]:
            return None
        spent = ((used - before[1].get(process, 0)) / _TICKS for process, used in ticks.items())
        return min(100.0, 100.0 * max(spent, default=0.0) / (now - before[0]))


def _running(pids: Iterable[int]) -> list[Stat]:
    """Those that live: a zombie holds nothing."""
    return [stat for stat in map(read_stat, pids) if stat is not None and stat.running]


def _how_to_write(text: str) -> str:
    return (
        f"--simulate-gpu {text!r} can't be read: write the card's size and the real memory that counts as full, "
        "as in 24GiB/256MiB (units KiB, MiB, GiB), with @1 behind it for a second card"
    )
