"""What the agent sees of the job's processes and cards. Used by the main thread and the heartbeat."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tunewarden.processes.identity import ProcessId, read_proc
from tunewarden.processes.tree import Member, members, strangers
from tunewarden.sampling.gpu import GpuReading, open_gpu_source
from tunewarden.supervisor.cards import job_cards
from tunewarden.supervisor.keeper_link import Situation

_RECENT_CARDS_S = 0.9  # below the shortest heartbeat
_RECENT_S = 0.5  # a walk over /proc takes long on a busy host, and one look at the cards asks several times


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """One walk over /proc."""

    at: float
    launcher: ProcessId | None
    members: tuple[Member, ...]


class HostWatch:
    """Looks at /proc and the cards, one caller at a time. `keeper_pid` is the subreaper of all that the job leaves."""

    def __init__(
        self,
        *,
        job_id: str,
        simulate_gpu: str | None,
        situation: Situation,
        keeper_pid: int | None,
        trainers: Callable[[], Iterable[int]],
    ) -> None:
        self._job_id, self._situation, self._keeper_pid = job_id, situation, keeper_pid
        self._simulated = simulate_gpu is not None
        self._lock = threading.RLock()
        self._source = open_gpu_source(simulate_gpu, self._pids, trainers)
        self._seen: _Seen | None = None
        self._joined: tuple[ProcessId, ...] = ()  # of a watched job, all that was last seen of it
        self._read: tuple[float, tuple[GpuReading, ...]] | None = None
        self._cards: tuple[str, ...] | None = None  # the uuids that were the job's when it was last seen on a card

    @property
    def subreaper(self) -> int | None:
        """The keeper's pid while it lives."""
        return None if self._situation.keeper_lost else self._keeper_pid

    @property
    def roots(self) -> tuple[ProcessId, ...]:
        """Whose descendants are the job's."""
        if self._situation.joined:
            return (*self._situation.joined, *self._joined)
        return (self._situation.launcher,) if self._situation.launcher else ()

    def members(self, *, fresh: bool = False) -> tuple[Member, ...]:
        """The living processes of the job, parents first; up to half a second old unless `fresh`."""
        launcher, now = self._situation.launcher, time.monotonic()
        with self._lock:
            seen = self._seen
            if fresh or seen is None or seen.launcher != launcher or now - seen.at > _RECENT_S:
                found = members(self.roots, self._job_id, subreaper=self.subreaper)
                if self._situation.joined:
                    # What such a job leaves behind becomes no child of ours: it is known by having been seen.
                    self._joined = tuple(member.id for member in found)
                self._seen = seen = _Seen(at=now, launcher=launcher, members=found)
            return seen.members

    def strangers(self) -> tuple[Member, ...]:
        """The living processes of the job that are never signalled, by a fresh look."""
        return strangers(self.roots, self._job_id, subreaper=self.subreaper)

    def gpus(self, *, fresh: bool = False) -> tuple[GpuReading, ...]:
        """Every card of this host, up to a second ago unless `fresh`; empty where none can be read.

        A simulated card's utilization is over the time since the last read: a short one would be noise.
        """
        now = time.monotonic()
        with self._lock:
            if fresh or self._read is None or now - self._read[0] > _RECENT_CARDS_S:
                self._read = (now, self._source.read().gpus)
            return self._read[1]

    def job_gpus(self, gpus: tuple[GpuReading, ...], pids: Iterable[int]) -> tuple[GpuReading, ...] | None:
        """The job's cards among `gpus`, and where the job is gone, those that it was last seen on; None: unknown."""
        pids = frozenset(pids)
        found = job_cards(gpus, pids, self._visible(pids), simulated=self._simulated)
        with self._lock:
            if found is not None and pids:
                self._cards = tuple(gpu.uuid for gpu in found)
            if found is None and self._cards is not None:
                found = tuple(gpu for gpu in gpus if gpu.uuid in self._cards) or None
        return found

    def _pids(self) -> list[int]:
        return [member.id.pid for member in self.members()]

    def _visible(self, pids: Iterable[int]) -> str | None:
        """CUDA_VISIBLE_DEVICES as a process of the job has it."""
        for pid in sorted(pids):
            for entry in read_proc(pid, "environ").split(b"\0"):
                name, _, value = entry.partition(b"=")
                if name == b"CUDA_VISIBLE_DEVICES":
                    return value.decode("utf-8", "replace")
        return None


def read_bytes(pids: Iterable[int]) -> int | None:
    """Bytes that these processes have read from storage (/proc/PID/io); None where none may be seen."""
    found = []
    for pid in pids:
        for line in read_proc(pid, "io").splitlines():
            name, _, value = line.partition(b":")
            if name == b"read_bytes":
                found.append(int(value))
    return sum(found) if found else None


def executable_name(process: ProcessId | int) -> str:
    """The name of the program that a process runs, or nothing."""
    pid = process if isinstance(process, int) else process.pid
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""
