"""The audit: one line an act, never changed."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select

from tunewarden.adapters.store.tables import audit
from tunewarden.domain.reason import Reason

_INSERT = insert(audit)


def append(
    conn: Connection,
    *,
    at: float,
    action: str,
    actor: str,
    job_id: str | None = None,
    remediation_id: str | None = None,
    reason: Reason | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Write one line in the caller's transaction. `actor` is service, agent, or a person's name."""
    conn.execute(
        _INSERT,
        {
            "at": at,
            "action": action,
            "actor": actor[:64],
            "job_id": job_id,
            "remediation_id": remediation_id,
            "reason": None if reason is None else reason.value,
            "detail": dict(detail or {}),
        },
    )


def newest(conn: Connection, *, limit: int = 100, job_id: str | None = None) -> list[RowMapping]:
    """The newest lines first."""
    query = select(audit).order_by(audit.c.audit_id.desc()).limit(limit)
    if job_id is not None:
        query = query.where(audit.c.job_id == job_id)
    return list(conn.execute(query).mappings())
