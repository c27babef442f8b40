"""A job's row beyond its registration: the newest heartbeat, its end, and until when its `run` waits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from tunewarden.adapters.store.tables import jobs
from tunewarden.domain.job import JobState

_BY_ID = select(jobs).where(jobs.c.job_id == bindparam("job_id"))  # built once: that costs as much as to run it


@dataclass(frozen=True, kw_only=True)
class JobNow:
    """Times are epoch seconds of our clock. `sample` is the newest heartbeat as received; empty before the first."""

    job_id: str
    state: JobState
    generation: int
    seen_at: float
    sample: Mapping[str, Any]
    ended_cause: str | None
    ended_at: float | None
    waits_until: float | None

    @property
    def step(self) -> int | None:
        """The optimizer step of the newest heartbeat."""
        step = (self.sample.get("job") or {}).get("step")
        return step if isinstance(step, int) else None


def job_now(conn: Connection, job_id: str) -> JobNow | None:
    """What is known of the job now, or None."""
    row = conn.execute(_BY_ID, {"job_id": job_id}).one_or_none()
    if row is None:
        return None
    return JobNow(
        job_id=row.job_id,
        state=JobState(row.state),
        generation=row.generation,
        seen_at=row.seen_at,
        sample=row.sample or {},
        ended_cause=row.ended_cause,
        ended_at=row.ended_at,
        waits_until=row.waits_until,
    )


def living_twins(conn: Connection, *, job_id: str, host_id: str, name: str) -> list[str]:
    """Other jobs with this host and name that still count as living: their `run` must be over."""
    query = select(jobs.c.job_id).where(
        jobs.c.host_id == host_id, jobs.c.name == name, jobs.c.job_id != job_id, jobs.c.state != JobState.ENDED.value
    )
    return [row.job_id for row in conn.execute(query)]


def of_an_earlier_boot(conn: Connection, *, host_id: str, boot_id: str) -> list[str]:
    """Jobs of this host that were started before it was started again: nothing of them can be alive."""
    query = select(jobs.c.job_id).where(
        jobs.c.host_id == host_id,
        jobs.c.boot_id.not_in(("", boot_id)),
        jobs.c.state != JobState.ENDED.value,
    )
    return [row.job_id for row in conn.execute(query)] if boot_id else []


def end_whatever_runs(conn: Connection, job_id: str, *, cause: str, at: float) -> None:
    """The job is over, whichever generation it had."""
    values = {"state": JobState.ENDED.value, "ended_cause": cause, "ended_at": at, "waits_until": None}
    conn.execute(update(jobs).where(jobs.c.job_id == job_id).values(**values))


def waits_that_are_over(conn: Connection, now: float) -> list[JobNow]:
    """Jobs whose `run` has waited long enough for an order."""
    query = select(jobs.c.job_id).where(jobs.c.state == JobState.WAITING.value, jobs.c.waits_until <= now)
    found = [job_now(conn, row.job_id) for row in conn.execute(query).all()]
    return [job for job in found if job is not None]


def end_wait(conn: Connection, job_id: str) -> None:
    """Nobody launched the next generation: the job is over, with the cause it had."""
    values = {"state": JobState.ENDED.value, "waits_until": None}
    conn.execute(update(jobs).where(jobs.c.job_id == job_id).values(**values))
