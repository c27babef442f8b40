"""The newest samples of every job, card and host, in memory: what /metrics shows.

Samples are no events: losing them in a restart costs one heartbeat, so they are never stored.
"""

import threading
from collections.abc import Iterable

from tunewarden.domain.job import LIVING_STATES, Job, bare_uuid
from tunewarden.domain.sample import CardOnHost, Entry, Heartbeat, HostSample

THREE_HEARTBEATS_S = 15.0
OLDEST_READING_S = 60.0  # a driver that hangs longer than this tells nothing about now
MOST_JOBS = 2000


class SampleBoard:
    """One entry a job. Whatever is older than `keep_s` is gone: a lost job's series leave /metrics."""

    def __init__(self, keep_s: float = THREE_HEARTBEATS_S, most_jobs: int = MOST_JOBS) -> None:
        self._keep_s = keep_s
        self._most_jobs = most_jobs
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def put(self, job: Job, heartbeat: Heartbeat, now_monotonic: float) -> None:
        """Keep the newest heartbeat of `job`; an ended or lost job is forgotten."""
        with self._lock:
            self._entries.pop(job.job_id, None)
            if job.state not in LIVING_STATES:
                return
            self._entries[job.job_id] = Entry(job=job, heartbeat=heartbeat, at=now_monotonic)
            if len(self._entries) > self._most_jobs:
                del self._entries[next(iter(self._entries))]  # in order of receipt: the first is the oldest

    def forget(self, job_id: str) -> None:
        """Drop a job that ended."""
        with self._lock:
            self._entries.pop(job_id, None)

    def newest(self, job_id: str, now_monotonic: float) -> Entry | None:
        """The fresh entry of one job, or None."""
        with self._lock:
            entry = self._entries.get(job_id)
        return entry if entry is not None and now_monotonic - entry.at <= self._keep_s else None

    def jobs(self, now_monotonic: float) -> list[Entry]:
        """The fresh entries, oldest first. Those that are too old are dropped on the way."""
        with self._lock:
            old = [job_id for job_id, entry in self._entries.items() if now_monotonic - entry.at > self._keep_s]
            for job_id in old:
                del self._entries[job_id]
            return list(self._entries.values())

    def cards(self, now_monotonic: float) -> list[CardOnHost]:
        """One entry for each card and node: of two jobs on one host the fresher reading wins."""
        found: dict[tuple[str, str], CardOnHost] = {}
        for entry in self.jobs(now_monotonic):
            for gpu in entry.heartbeat.gpus:
                age = now_monotonic - entry.at + gpu.age_s
                key = (entry.job.node, bare_uuid(gpu.uuid))
                if age <= OLDEST_READING_S and (key not in found or age < found[key].age_s):
                    found[key] = CardOnHost(node=entry.job.node, gpu=gpu, age_s=age)
        return list(found.values())

    def hosts(self, now_monotonic: float) -> Iterable[tuple[str, HostSample]]:
        """The newest sample of each node."""
        return {entry.job.node: entry.heartbeat.host for entry in self.jobs(now_monotonic)}.items()
