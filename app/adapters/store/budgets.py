"""How often the service may act, and the breaker: rows that are written before the first intent.

All functions run inside the caller's transaction, so that a check and its reservation are one.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, func, insert, select, update

from tunewarden.adapters.store.tables import breaker, jobs, remediations, reservations
from tunewarden.domain.job import JobState
from tunewarden.domain.policy import StepKind
from tunewarden.domain.reason import Reason

BROKEN_IN_A_ROW = 3  # so many remediations ended `broken` with no recovery between them: the breaker opens
_BREAKER_ROW = 1
_REPLACEMENTS = (StepKind.STOP.value, StepKind.REPLACE.value)
# Built once: to build a statement costs as much as to run it, and each decision asks them all.
_REPLACEMENTS_OF = (
    select(func.count())
    .select_from(reservations)
    .where(
        reservations.c.job_id == bindparam("job_id"),
        reservations.c.equivalence_group == bindparam("group"),
        reservations.c.kind.in_(_REPLACEMENTS),
        reservations.c.reserved_at > bindparam("since"),
    )
)
_ACTIONS_SINCE = select(func.count(func.distinct(reservations.c.remediation_id))).where(
    reservations.c.reserved_at > bindparam("since")
)
_LAST_SAVE_AT = (
    select(func.max(reservations.c.reserved_at))
    .join(remediations, remediations.c.remediation_id == reservations.c.remediation_id)
    .where(
        reservations.c.job_id == bindparam("job_id"),
        reservations.c.kind == StepKind.SAVE.value,
        remediations.c.policy == bindparam("policy"),
    )
)
_JOBS_ACTED_ON = (
    select(func.count(func.distinct(remediations.c.job_id)))
    .join(reservations, reservations.c.remediation_id == remediations.c.remediation_id)
    .where(remediations.c.open.is_(True), reservations.c.kind.in_(_REPLACEMENTS))
)
_RUNNING_JOBS = select(func.count()).select_from(jobs).where(jobs.c.state == JobState.RUNNING.value)
_BREAKER = select(breaker).where(breaker.c.breaker_id == _BREAKER_ROW)


@dataclass(frozen=True, kw_only=True)
class BreakerState:
    """The breaker as it is. It opens by itself; only a person closes it. Times are epoch seconds."""

    opened_at: float | None = None
    reason: str | None = None
    broken_in_a_row: int = 0
    closed_by: str | None = None
    closed_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self.opened_at is not None


def reserve(
    conn: Connection, *, job_id: str, remediation_id: str, group: str, kinds: tuple[StepKind, ...], now: float
) -> None:
    """Write down the attempts of one remediation, a row each, before its first intent. `notify` costs nothing."""
    rows = [
        {
            "job_id": job_id,
            "remediation_id": remediation_id,
            "equivalence_group": group,
            "kind": kind.value,
            "reserved_at": now,
        }
        for kind in kinds
        if kind is not StepKind.NOTIFY
    ]
    if rows:
        conn.execute(insert(reservations), rows)


def replacements_of(conn: Connection, *, job_id: str, group: str, since: float) -> int:
    """How many stops and replacements were reserved for this job (all generations) and group since then."""
    return int(conn.execute(_REPLACEMENTS_OF, {"job_id": job_id, "group": group, "since": since}).scalar_one())


def actions_since(conn: Connection, *, since: float) -> int:
    """How many remediations reserved anything since then, over all jobs."""
    return int(conn.execute(_ACTIONS_SINCE, {"since": since}).scalar_one())


def last_save_at(conn: Connection, *, job_id: str, policy: str) -> float | None:
    """When this policy last reserved a save of this job, in epoch seconds."""
    value = conn.execute(_LAST_SAVE_AT, {"job_id": job_id, "policy": policy}).scalar_one()
    return None if value is None else float(value)


def jobs_acted_on(conn: Connection) -> int:
    """How many jobs have an open remediation that may stop or replace them."""
    return int(conn.execute(_JOBS_ACTED_ON).scalar_one())


def running_jobs(conn: Connection) -> int:
    """How many jobs run now: the whole that a percentage cap is a share of."""
    return int(conn.execute(_RUNNING_JOBS).scalar_one())


def breaker_state(conn: Connection) -> BreakerState:
    """The breaker; closed when nothing was ever written."""
    row = conn.execute(_BREAKER).mappings().one_or_none()
    if row is None:
        return BreakerState()
    return BreakerState(**{name: value for name, value in row.items() if name != "breaker_id"})


def open_breaker(conn: Connection, *, reason: Reason, now: float) -> bool:
    """Open it. False when it was open already, so that a person is told once."""
    if breaker_state(conn).is_open:
        return False
    _write(conn, opened_at=now, reason=reason.value, closed_by=None, closed_at=None)
    return True


def close_breaker(conn: Connection, *, by: str, now: float) -> bool:
    """A person closes it; the count of broken ones starts afresh. False when it was not open."""
    was_open = breaker_state(conn).is_open
    _write(conn, opened_at=None, reason=None, broken_in_a_row=0, closed_by=by, closed_at=now)
    return was_open


def count_broken(conn: Connection, *, now: float, limit: int = BROKEN_IN_A_ROW) -> bool:
    """One more remediation ended `broken`. True when it was the `limit`th in a row and this opened the breaker."""
    count = breaker_state(conn).broken_in_a_row + 1
    _write(conn, broken_in_a_row=count)
    return count >= limit and open_breaker(conn, reason=Reason.DIED_AGAIN, now=now)


def count_recovered(conn: Connection) -> None:
    """A remediation recovered: the row of broken ones ends."""
    if breaker_state(conn).broken_in_a_row:
        _write(conn, broken_in_a_row=0)


def _write(conn: Connection, **values: object) -> None:
    changed = conn.execute(update(breaker).where(breaker.c.breaker_id == _BREAKER_ROW).values(**values))
    if changed.rowcount == 0:
        conn.execute(insert(breaker).values(breaker_id=_BREAKER_ROW, **{"broken_in_a_row": 0, **values}))
