"""What would be decided about a webhook body. Acts on nothing and writes nothing."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from tunewarden.adapters.store.engine import read_beside
from tunewarden.domain.alert import Alert, AlertStatus
from tunewarden.domain.decide import decide
from tunewarden.domain.decision import Decision
from tunewarden.domain.episode import EpisodeEvent
from tunewarden.domain.evidence import Evidence
from tunewarden.domain.history import History
from tunewarden.domain.resolution import resolve
from tunewarden.pipeline.deciding import Deciding, Gathered, judge
from tunewarden.pipeline.gathering import known_jobs


def simulate(
    body: bytes,
    alerts_of: Callable[[bytes], list[Alert]],
    deciding: Deciding,
    *,
    store: Path | None,
    now: datetime,
    gathered: Gathered | None = None,
) -> list[dict[str, Any]]:
    """A list, one entry an alert in the body's order: fingerprint, verdict, reason, policy, steps, and more.

    Each firing alert is taken as the first of its episode. Jobs, budgets and heartbeats are the store's, which a
    running service may have open; without a store no alert means a job. `gathered` are Prometheus's answers, if it was
    asked. Raises what `alerts_of` raises for a body that it can't read, StoreUnavailable for an unreadable store.
    """
    alerts = alerts_of(body)
    known = gathered or Gathered()
    if store is None or not store.is_file():
        decisions = [_without_store(alert, deciding, now) for alert in alerts]
    else:
        decisions = read_beside(store, lambda conn: _with_store(conn, alerts, deciding, known, now))
    return [_entry(alert, decision) for alert, decision in zip(alerts, decisions, strict=True)]


def _with_store(
    conn: Connection, alerts: Sequence[Alert], deciding: Deciding, gathered: Gathered, now: datetime
) -> list[Decision]:
    jobs = known_jobs(conn, now.timestamp())
    return [
        judge(
            conn,
            alert,
            _event(alert),
            None,
            resolve(alert, jobs, deciding.node_aliases),
            deciding,
            gathered,
            now,
            low_on_space=False,
        ).decision
        for alert in alerts
    ]


def _without_store(alert: Alert, deciding: Deciding, now: datetime) -> Decision:
    return decide(
        alert,
        event=_event(alert),
        messaged=False,
        meant=resolve(alert, (), deciding.node_aliases),
        policies=deciding.policies,
        history=History(),
        evidence=Evidence(),
        rules=deciding.rules,
        now=now,
    )


def _event(alert: Alert) -> EpisodeEvent:
    return EpisodeEvent.RESOLVED if alert.status is AlertStatus.RESOLVED else EpisodeEvent.OPENED


def _entry(alert: Alert, decision: Decision) -> dict[str, Any]:
    return {
        "fingerprint": alert.fingerprint,
        "alertname": alert.name,
        "status": alert.status.value,
        "verdict": decision.verdict.value,
        "reason": decision.reason.value,
        "policy": decision.policy,
        "job_id": decision.job_id,
        "steps": [step.kind.value for step in decision.steps],
        "message": decision.message,
        "facts": dict(decision.facts),
    }
