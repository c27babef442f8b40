"""The decisions, and what ties episodes to remediations: a decision that opened one, or joined it."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, insert, select

from tunewarden.adapters.store.tables import decisions, episodes, remediations
from tunewarden.domain.decision import Decision
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import State

_INSERT = insert(decisions).returning(decisions.c.decision_id)


@dataclass(frozen=True, kw_only=True)
class Linked:
    """The newest remediation that an episode opened or joined."""

    remediation_id: str
    state: State
    reason: Reason
    open: bool


def add(
    conn: Connection,
    decision: Decision,
    *,
    now: float,
    episode_id: int | None,
    delivery_id: int | None,
    remediation_id: str | None = None,
) -> int:
    """Write one decision."""
    values = {
        "episode_id": episode_id,
        "delivery_id": delivery_id,
        "decided_at": now,
        "verdict": decision.verdict.value,
        "reason": decision.reason.value,
        "policy": decision.policy,
        "job_id": decision.job_id,
        "remediation_id": remediation_id,
        "facts": dict(decision.facts),
    }
    return int(conn.execute(_INSERT, values).scalar_one())


def newest(conn: Connection, *, limit: int = 100, job_id: str | None = None) -> list[RowMapping]:
    """The newest first, with the alert's name."""
    query = (
        select(decisions, episodes.c.alertname, episodes.c.fingerprint)
        .join(episodes, episodes.c.episode_id == decisions.c.episode_id, isouter=True)
        .order_by(decisions.c.decision_id.desc())
        .limit(limit)
    )
    if job_id is not None:
        query = query.where(decisions.c.job_id == job_id)
    return list(conn.execute(query).mappings())


def linked_to(conn: Connection, episode_id: int) -> Linked | None:
    """What the episode opened or joined last."""
    query = (
        select(remediations)
        .join(decisions, decisions.c.remediation_id == remediations.c.remediation_id)
        .where(decisions.c.episode_id == episode_id)
        .order_by(decisions.c.decision_id.desc())
        .limit(1)
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    return Linked(
        remediation_id=row.remediation_id, state=State(row.state), reason=Reason(row.reason), open=bool(row.open)
    )


def firing_of(conn: Connection, remediation_id: str) -> set[int]:
    """The episodes that opened or joined a remediation and still fire."""
    query = (
        select(episodes.c.episode_id)
        .join(decisions, decisions.c.episode_id == episodes.c.episode_id)
        .where(
            decisions.c.remediation_id == remediation_id,
            episodes.c.resolved_at.is_(None),
            episodes.c.closed_at.is_(None),
        )
    )
    return {row.episode_id for row in conn.execute(query)}


def counts(conn: Connection, *, since: float) -> Mapping[tuple[str, str], int]:
    """How many decisions of each (verdict, reason) since then."""
    query = select(decisions.c.verdict, decisions.c.reason).where(decisions.c.decided_at > since)
    found: dict[tuple[str, str], int] = {}
    for row in conn.execute(query):
        found[(row.verdict, row.reason)] = found.get((row.verdict, row.reason), 0) + 1
    return found
