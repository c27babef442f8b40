"""The agents' reports: stored by the API, applied by the worker; `planned` is the gate and is answered at once."""

from sqlalchemy import Connection

from tunewarden.adapters.store import audit, jobs, orders, remediations
from tunewarden.adapters.store.job_now import job_now
from tunewarden.adapters.store.wakes import wake
from tunewarden.domain.advance import done_reason, events_of_report, facts_of_report
from tunewarden.domain.order import ENDING_PHASES, Phase, Report
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, Remediation
from tunewarden.pipeline.moves import REPORTS_TOPIC, Moves
from tunewarden.pipeline.opening import begin

_DIFF_LIMIT = 64 * 1024
# `planned` is applied in its own commit, and `accepted` with it: it follows at once.
_NO_HURRY = frozenset({Phase.ACCEPTED, Phase.PLANNED})


def take_report(conn: Connection, moves: Moves, job_id: str, report: Report, now: float) -> bool | None:
    """Store a report and answer whether the agent may go on; None when this job has no such order.

    The gate: for `planned` the report, the move and the answer are one commit. Whoever commits first, the report or a
    cancellation, wins; the same report again gets the same answer.
    """
    order = orders.load(conn, report.order_id)
    if order is None or order.job_id != job_id:
        return None
    if orders.store_report(conn, report, now=now) and report.phase not in _NO_HURRY:
        wake(conn, REPORTS_TOPIC)
    if report.phase is not Phase.PLANNED:
        return order.state == orders.OPEN
    stored = orders.report_of(conn, report.order_id, Phase.PLANNED)
    if stored is not None and stored.go is not None:
        return stored.go
    go = _gate(conn, moves, order, now)
    if go:
        apply_reports(conn, moves, order.order_id, now)
    orders.mark_applied(conn, order.order_id, Phase.PLANNED, go=go)
    return go


def apply_reports(conn: Connection, moves: Moves, order_id: str, now: float) -> None:
    """Move the remediation by every report that has not moved it yet; those that come too late are only kept."""
    for report in orders.unapplied(conn, order_id):
        order = orders.load(conn, order_id)
        if order is not None and order.state == orders.OPEN:
            orders.set_phase(conn, order_id, report.phase)
            _apply(conn, moves, order, report, now)
        orders.mark_applied(conn, order_id, report.phase)


def _gate(conn: Connection, moves: Moves, order: orders.OrderRow, now: float) -> bool:
    if order.state != orders.OPEN:
        return False
    remediation = remediations.load(conn, order.remediation_id) if order.remediation_id else None
    if remediation is None or not remediation.open:
        return False
    if order.expires_at <= now:
        moves.move(conn, remediation, Event.EXPIRED, now, reason=Reason.EXPIRED)
        return False
    job = jobs.get(conn, order.job_id)
    if job is not None and job.held and not remediation.manual:
        moves.move(conn, remediation, Event.REFUSED, now, reason=Reason.ON_HOLD)
        return False
    return True


def _apply(conn: Connection, moves: Moves, order: orders.OrderRow, report: Report, now: float) -> None:
    remediation = remediations.load(conn, order.remediation_id) if order.remediation_id else None
    if remediation is None or not remediation.open:
        return
    _keep_the_plan(conn, order, report, now)
    facts = facts_of_report(report)
    for event in events_of_report(remediation, order.kind, report):
        extra = _facts_of_event(conn, remediation, event, now)
        step = remediation.step + 1 if event is Event.STEP_DONE else remediation.step
        reason = _reason(remediation, event, report)
        remediation = moves.move(conn, remediation, event, now, reason=reason, facts={**facts, **extra}, step=step)
        if event is Event.STEP_DONE:
            begin(conn, remediation.remediation_id, now, moves)
    if report.phase in ENDING_PHASES[order.kind]:
        orders.close(conn, order.order_id, now=now)


def _facts_of_event(conn: Connection, remediation: Remediation, event: Event, now: float) -> dict[str, object]:
    if event is Event.PLANNED:
        return {"begun": True}
    if event is Event.LAUNCHED:
        known = job_now(conn, remediation.job_id)
        return {"launched_at": now, "counts_steps": known is not None and known.step is not None, "verify": {}}
    return {}


def _reason(remediation: Remediation, event: Event, report: Report) -> Reason | None:
    if event is Event.PLAN_DONE:
        return done_reason(remediation)
    if event is Event.LAUNCH_FAILED:
        return report.reason or Reason.LAUNCH_FAILED
    if event in (Event.REFUSED, Event.SUPERSEDED):
        return report.reason or Reason.SUPERSEDED
    return None


def _keep_the_plan(conn: Connection, order: orders.OrderRow, report: Report, now: float) -> None:
    """The whole diff of a config goes to the audit: the messages show only what changed."""
    if report.phase is not Phase.PLANNED or "diff" not in report.detail:
        return
    detail = {name: report.detail.get(name) for name in ("config_path", "config_sha256", "new_config_path", "changes")}
    audit.append(
        conn,
        at=now,
        action="order.planned",
        actor="agent",
        job_id=order.job_id,
        remediation_id=order.remediation_id,
        detail={**detail, "diff": str(report.detail["diff"])[:_DIFF_LIMIT]},
    )
