"""The jobs: what agents registered, and what they last said."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, or_, select, update

from tunewarden.adapters.store.tables import jobs
from tunewarden.domain.job import LIVING_STATES, Gpu, Job, JobState

_LIVING = tuple(state.value for state in LIVING_STATES)
# Built once: to build a statement costs as much as to run it, and these are on the way to an order.
_BY_ID = select(jobs).where(jobs.c.job_id == bindparam("job_id"))
_RECENT = (
    select(jobs)
    .where(or_(jobs.c.state != JobState.ENDED.value, jobs.c.ended_at > bindparam("ended_after")))
    .order_by(jobs.c.job_id)
)


class AmbiguousJob(Exception):
    """More than one living job has that name."""


def upsert(conn: Connection, job: Job, *, boot_id: str = "") -> None:
    """Register `job`, or register it again after a launch. `held` stays as a person set it; so does the first time."""
    values = {**_values(job), "boot_id": boot_id, "ended_cause": None, "ended_at": None, "waits_until": None}
    known = conn.execute(select(jobs.c.job_id).where(jobs.c.job_id == job.job_id)).one_or_none()
    if known is None:
        conn.execute(insert(jobs), values)
        return
    for kept in ("job_id", "held", "registered_at"):
        del values[kept]
    conn.execute(update(jobs).where(jobs.c.job_id == job.job_id).values(**values))


def seen(conn: Connection, job_id: str, *, seen_at: float, **values: Any) -> bool:
    """Note a message of the agent, with what it changed (columns by name: state, sample, can, gpus …).

    False when the job isn't known: the agent must register again. A lost job that speaks is living again.
    """
    done = conn.execute(update(jobs).where(jobs.c.job_id == job_id).values(seen_at=seen_at, **values))
    return done.rowcount == 1


def get(conn: Connection, job_id: str) -> Job | None:
    """One job by its id."""
    found = conn.execute(_BY_ID, {"job_id": job_id}).one_or_none()
    return None if found is None else job_of(found)


def find(conn: Connection, ref: str) -> Job | None:
    """The job that a person means: by id, or by name if one living job has it (else the newest that ended).

    Raises AmbiguousJob when several living ones have the name.
    """
    if (by_id := get(conn, ref)) is not None:
        return by_id
    named = [job_of(row) for row in conn.execute(select(jobs).where(jobs.c.name == ref).order_by(jobs.c.registered_at))]
    living = [job for job in named if job.living]
    if len(living) > 1:
        raise AmbiguousJob(", ".join(job.job_id for job in living))
    found = living or named
    return found[-1] if found else None


def listed(conn: Connection, *, limit: int = 500) -> list[Job]:
    """Living jobs first, then the newest of the others."""
    query = select(jobs).order_by(jobs.c.state.in_(_LIVING).desc(), jobs.c.registered_at.desc()).limit(limit)
    return [job_of(row) for row in conn.execute(query)]


def living(conn: Connection) -> list[Job]:
    """Every job that an order can still reach."""
    return [job_of(row) for row in conn.execute(select(jobs).where(jobs.c.state.in_(_LIVING)).order_by(jobs.c.job_id))]


def recent(conn: Connection, *, ended_after: float) -> list[Job]:
    """The living jobs, the lost ones, and those that ended after that moment: what an alert can still mean."""
    return [job_of(row) for row in conn.execute(_RECENT, {"ended_after": ended_after})]


def hold(conn: Connection, job_id: str, *, held: bool) -> bool:
    """Hold or release a job. False when there is none."""
    return conn.execute(update(jobs).where(jobs.c.job_id == job_id).values(held=held)).rowcount == 1


def end(conn: Connection, job_id: str, *, generation: int, cause: str, at: float, waits_until: float | None) -> bool:
    """Note the end of a generation. `waits_until`: its `run` still waits for an order to launch the next.

    False when the job isn't known or a later generation runs already.
    """
    state = JobState.ENDED if waits_until is None else JobState.WAITING
    done = conn.execute(
        update(jobs)
        .where(jobs.c.job_id == job_id, jobs.c.generation == generation)
        .values(state=state.value, ended_cause=cause, ended_at=at, waits_until=waits_until)
    )
    return done.rowcount == 1


def mark_lost(conn: Connection, *, silent_since: float) -> list[Job]:
    """Living jobs not heard of since then become `lost`; they are returned as they are now."""
    lost = conn.execute(
        update(jobs)
        .where(jobs.c.state.in_(_LIVING), jobs.c.seen_at < silent_since)
        .values(state=JobState.LOST.value)
        .returning(*jobs.c)
    )
    return [job_of(row) for row in lost]


def samples(conn: Connection) -> dict[str, Mapping[str, Any]]:
    """The newest heartbeat of each living job, as received."""
    query = select(jobs.c.job_id, jobs.c.sample).where(jobs.c.state.in_(_LIVING), jobs.c.sample.is_not(None))
    return {row.job_id: row.sample for row in conn.execute(query) if row.sample is not None}


def job_of(row: Row[Any]) -> Job:
    """The record of a row of `jobs`."""
    return Job(
        job_id=row.job_id,
        name=row.name,
        host_id=row.host_id,
        node=row.node,
        generation=row.generation,
        state=JobState(row.state),
        enforce=row.enforce,
        held=row.held,
        trainer=row.trainer,
        config_name=row.config_name or "",
        model_type=row.model_type or "",
        knobs=row.knobs,
        changeable=frozenset(row.changeable or ()),
        cpus=row.cpus,
        no_hook=row.no_hook or "",
        labels=row.labels,
        gpus=None if row.gpus is None else _gpus(row.gpus),
        host_gpus=_gpus(row.host_gpus),
        can=frozenset(row.can),
        ranks=row.ranks,
        multi_node=row.multi_node,
        registered_at=datetime.fromtimestamp(row.registered_at, UTC),
        seen_at=datetime.fromtimestamp(row.seen_at, UTC),
        clock_skew_s=row.clock_skew_s,
    )


def gpus_json(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """Cards as the columns gpus and host_gpus hold them."""
    return [{"uuid": gpu.uuid, "index": gpu.index} for gpu in gpus]


def _gpus(rows: Sequence[Mapping[str, Any]]) -> tuple[Gpu, ...]:
    return tuple(Gpu(uuid=row["uuid"], index=row["index"]) for row in rows)


def _values(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "host_id": job.host_id,
        "node": job.node,
        "generation": job.generation,
        "state": job.state.value,
        "enforce": job.enforce,
        "held": job.held,
        "trainer": job.trainer,
        "config_name": job.config_name,
        "model_type": job.model_type,
        "knobs": None if job.knobs is None else dict(job.knobs),
        "changeable": sorted(job.changeable),
        "cpus": job.cpus,
        "no_hook": job.no_hook,
        "labels": dict(job.labels),
        "gpus": None if job.gpus is None else gpus_json(job.gpus),
        "host_gpus": gpus_json(job.host_gpus),
        "can": sorted(job.can),
        "ranks": job.ranks,
        "multi_node": job.multi_node,
        "registered_at": job.registered_at.timestamp(),
        "seen_at": job.seen_at.timestamp(),
        "clock_skew_s": job.clock_skew_s,
    }
