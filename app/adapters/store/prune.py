"""Pruning, by age and by size, in small bites. Nothing that is open ever goes."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, func, or_, select

from tunewarden.adapters.store.tables import (
    audit,
    decisions,
    deliveries,
    episodes,
    jobs,
    orders,
    outbox,
    remediations,
    reservations,
)

# A commit of the writer thread is not held up for longer than this many rows take; the rest goes next time.
BITE = 2000
_HANDLED = ("done", "bad")
_SAID = ("sent", "dead", "merged")
_BUDGET_WINDOW = timedelta(days=7)  # reservations are counted in windows of at most this


@dataclass(frozen=True, kw_only=True)
class PruneAges:
    """How long handled things are kept, and how many bytes of bodies."""

    deliveries: timedelta
    decisions: timedelta
    remediations: timedelta
    audit: timedelta
    outbox: timedelta
    deliveries_bytes: int


def prune(conn: Connection, now: float, ages: PruneAges) -> dict[str, int]:
    """Delete what is too old or too much; the numbers of rows by table. Call again while any of them is BITE."""

    def before(age: timedelta) -> float:
        return now - age.total_seconds()

    handled = deliveries.c.state.in_(_HANDLED)
    ended = (remediations.c.open.is_(False), remediations.c.ended_at < before(ages.remediations))
    removed = {
        "deliveries": _delete(conn, deliveries, handled, deliveries.c.received_at < before(ages.deliveries))
        + _delete_beyond(conn, ages.deliveries_bytes),
        "decisions": _delete(conn, decisions, decisions.c.decided_at < before(ages.decisions), ~_of_open_episode()),
        "episodes": _delete(conn, episodes, episodes.c.closed_at < before(ages.decisions)),
        "outbox": _delete(
            conn,
            outbox,
            outbox.c.state.in_(_SAID),
            func.coalesce(outbox.c.sent_at, outbox.c.created_at) < before(ages.outbox),
        ),
        "orders": _delete(conn, orders, orders.c.state != "open", orders.c.ended_at < before(ages.remediations)),
        "remediations": _delete(conn, remediations, *ended),
        "reservations": _delete(conn, reservations, reservations.c.reserved_at < before(_BUDGET_WINDOW)),
        "jobs": _delete(
            conn, jobs, jobs.c.state.in_(("ended", "lost")), jobs.c.seen_at < before(ages.remediations), _unused()
        ),
        "audit": _delete(conn, audit, audit.c.at < before(ages.audit)),
    }
    return {name: count for name, count in removed.items() if count}


def _of_open_episode() -> ColumnElement[bool]:
    return exists().where(episodes.c.episode_id == decisions.c.episode_id, episodes.c.closed_at.is_(None))


def _unused() -> ColumnElement[bool]:
    """No remediation and no order names the job any more."""
    return ~or_(
        exists().where(remediations.c.job_id == jobs.c.job_id), exists().where(orders.c.job_id == jobs.c.job_id)
    )


def _delete(conn: Connection, table: Table, *where: ColumnElement[bool]) -> int:
    (key,) = table.primary_key.columns
    chosen = select(key).where(*where).order_by(key).limit(BITE).scalar_subquery()
    return conn.execute(delete(table).where(key.in_(chosen))).rowcount


def _delete_beyond(conn: Connection, most_bytes: int) -> int:
    """Delete the oldest handled bodies until those that stay fit into `most_bytes`."""
    size = func.length(deliveries.c.body)
    total = int(conn.scalar(select(func.sum(size))) or 0)
    if total <= most_bytes:
        return 0
    oldest = select(deliveries.c.delivery_id, size).where(deliveries.c.state.in_(_HANDLED))
    last = None
    for delivery_id, length in conn.execute(oldest.order_by(deliveries.c.delivery_id).limit(BITE)):
        if total <= most_bytes:
            break
        total, last = total - length, delivery_id
    if last is None:
        return 0
    return _delete(conn, deliveries, deliveries.c.state.in_(_HANDLED), deliveries.c.delivery_id <= last)
