"""Remediations in the store. Every write after the first is fenced: it names the state and the epoch that it saw."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, bindparam, insert, or_, select, update

from tunewarden.adapters.store.tables import remediations as table
from tunewarden.domain.plan import Plan, plan_from_wire, plan_to_wire
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import ENDING_STATES, Remediation, State
from tunewarden.errors import StoreError

_ID_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"  # without letters that are read as digits
_ID_LENGTH = 6
_WRITTEN = (
    "state",
    "open",
    "reason",
    "facts",
    "step",
    "rolled_back",
    "state_since",
    "ended_at",
    "wake_at",
    "lease_owner",
    "lease_until",
)
# Built once: to build a statement costs as much as to run it, and these are on the way to an order.
_BY_ID = select(table).where(table.c.remediation_id == bindparam("remediation_id"))
_INSERT = insert(table)
_WRITE = (
    update(table)
    .where(
        table.c.remediation_id == bindparam("seen_id"),
        table.c.state == bindparam("seen_state"),
        table.c.epoch == bindparam("seen_epoch"),
    )
    .values({name: bindparam(name) for name in _WRITTEN})
)
_OPEN_OF_JOB = select(table).where(table.c.job_id == bindparam("job_id"), table.c.open.is_(True))


class StaleClaim(StoreError):
    """Somebody else moved this remediation meanwhile: nothing was written."""


def new_remediation_id() -> str:
    """A short id that a person can read aloud: R-7F3K2M."""
    return "R-" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))


def open_remediation(
    conn: Connection,
    *,
    job_id: str,
    generation: int,
    policy: str,
    plan: Plan,
    reason: Reason,
    now: float,
    policy_digest: str = "",
    group: str = "",
    episode_id: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str | None:
    """Insert one in state `decided`; None when the job has an open one already.

    There is one writer, so the look and the insert are one; a unique index stands behind them.

    Raises ValueError for a plan without steps: there would be nothing to carry out.
    """
    if not plan.steps:
        raise ValueError("a remediation needs a plan with at least one step")
    remediation_id = new_remediation_id()
    row = {
        "remediation_id": remediation_id,
        "job_id": job_id,
        "episode_id": episode_id,
        "policy": policy,
        "policy_digest": policy_digest,
        "equivalence_group": group,
        "plan": plan_to_wire(plan),
        "step": 0,
        "state": State.DECIDED.value,
        "open": True,
        "reason": reason.value,
        "facts": dict(facts or {}),
        "generation": generation,
        "opened_at": now,
        "state_since": now,
    }
    if open_of_job(conn, job_id) is not None:
        return None
    conn.execute(_INSERT, row)
    return remediation_id


def load(conn: Connection, remediation_id: str) -> Remediation | None:
    """One remediation, or None."""
    return _one(conn, _BY_ID, remediation_id=remediation_id)


def open_of_job(conn: Connection, job_id: str) -> Remediation | None:
    """The open remediation of a job: there is at most one."""
    return _one(conn, _OPEN_OF_JOB, job_id=job_id)


def last_ended_of_job(conn: Connection, job_id: str) -> Remediation | None:
    """The one that ended last, for cooldowns."""
    query = select(table).where(table.c.job_id == job_id, table.c.open.is_(False))
    row = conn.execute(query.order_by(table.c.ended_at.desc()).limit(1)).mappings().first()
    return None if row is None else _remediation(row)


def newest(conn: Connection, *, limit: int = 100) -> list[Remediation]:
    """The newest first, open or not."""
    rows = conn.execute(select(table).order_by(table.c.opened_at.desc()).limit(limit)).mappings()
    return [_remediation(row) for row in rows]


def due(conn: Connection, states: frozenset[State], now: float) -> list[Remediation]:
    """Open ones in these states whose time has come (`wake_at` is none or past), the oldest first."""
    names = [state.value for state in states]
    query = select(table).where(
        table.c.open.is_(True), table.c.state.in_(names), or_(table.c.wake_at.is_(None), table.c.wake_at <= now)
    )
    return [_remediation(row) for row in conn.execute(query.order_by(table.c.opened_at)).mappings()]


def write(conn: Connection, seen: Remediation, after: Remediation) -> Remediation:
    """Write `after` over `seen`.

    Raises StaleClaim when its state or epoch is no longer what was seen: then another one has moved it.
    """
    changed = conn.execute(
        _WRITE,
        {
            "seen_id": seen.remediation_id,
            "seen_state": seen.state.value,
            "seen_epoch": seen.epoch,
            "state": after.state.value,
            "open": after.state not in ENDING_STATES,
            "reason": after.reason.value,
            "facts": dict(after.facts),
            "step": after.step,
            "rolled_back": after.rolled_back,
            "state_since": after.state_since,
            "ended_at": after.ended_at,
            "wake_at": after.wake_at,
            "lease_owner": after.lease_owner,
            "lease_until": after.lease_until,
        },
    )
    if changed.rowcount != 1:
        raise StaleClaim
    return after


def claim(conn: Connection, remediation_id: str, *, owner: str, now: float, lease_s: float) -> Remediation | None:
    """Take the lease and raise the epoch; None when somebody holds it, or it is over."""
    free = or_(table.c.lease_until.is_(None), table.c.lease_until <= now)
    taken = conn.execute(
        update(table)
        .where(table.c.remediation_id == remediation_id, table.c.open.is_(True), free)
        .values(lease_owner=owner, lease_until=now + lease_s, epoch=table.c.epoch + 1)
        .returning(*table.c)
    )
    row = taken.mappings().one_or_none()
    return None if row is None else _remediation(row)


def renew(conn: Connection, held: Remediation, *, now: float, lease_s: float) -> bool:
    """Hold on to a lease. False when it was lost: then nothing more may be done under it."""
    changed = conn.execute(
        update(table)
        .where(table.c.remediation_id == held.remediation_id, table.c.epoch == held.epoch, table.c.open.is_(True))
        .values(lease_until=now + lease_s)
    )
    return changed.rowcount == 1


def released(remediation: Remediation) -> Remediation:
    """The same without a lease; the epoch stays, so that an older holder still can't write."""
    return replace(remediation, lease_owner=None, lease_until=None)


def _one(conn: Connection, query: Select[Any], **values: str) -> Remediation | None:
    row = conn.execute(query, values).mappings().one_or_none()
    return None if row is None else _remediation(row)


def _remediation(row: RowMapping) -> Remediation:
    values = {name: value for name, value in row.items() if name != "open"}
    values["plan"] = plan_from_wire(row["plan"])
    values["state"] = State(row["state"])
    values["reason"] = Reason(row["reason"])
    return Remediation(**values)
