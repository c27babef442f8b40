"""Attempts of steps: the intent is committed before the effect, the outcome with the next intent."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from tunewarden.adapters.store.tables import steps as table

_INSERT = insert(table)
_LAST_ATTEMPT = select(func.max(table.c.attempt)).where(
    table.c.remediation_id == bindparam("remediation_id"), table.c.step == bindparam("step")
)


def begin_step(
    conn: Connection, *, remediation_id: str, step: int, kind: str, now: float, detail: Mapping[str, Any] | None = None
) -> int:
    """Write the intent of the next attempt and return its number.

    A unique key on (remediation, step, attempt) keeps two writers from beginning the same attempt.
    """
    known = conn.execute(_LAST_ATTEMPT, {"remediation_id": remediation_id, "step": step}).scalar_one()
    attempt = int(known or 0) + 1
    row = {"remediation_id": remediation_id, "step": step, "attempt": attempt, "kind": kind, "intent_at": now}
    conn.execute(_INSERT, {**row, "detail": dict(detail or {})})
    return attempt


def end_step(
    conn: Connection,
    *,
    remediation_id: str,
    step: int,
    outcome: str,
    now: float,
    detail: Mapping[str, Any] | None = None,
) -> bool:
    """Write the outcome of the attempt that has none yet. False when there is none such."""
    values: dict[str, Any] = {"outcome": outcome, "outcome_at": now}
    if detail is not None:
        values["detail"] = dict(detail)
    changed = conn.execute(
        update(table)
        .where(table.c.remediation_id == remediation_id, table.c.step == step, table.c.outcome_at.is_(None))
        .values(**values)
    )
    return changed.rowcount > 0


def attempts_of(conn: Connection, remediation_id: str) -> list[dict[str, Any]]:
    """All attempts of a remediation in order, as plain records for a person to read."""
    query = select(table).where(table.c.remediation_id == remediation_id).order_by(table.c.step, table.c.attempt)
    return [dict(row) for row in conn.execute(query).mappings()]
