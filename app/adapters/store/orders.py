"""Orders and the agents' reports in the store: at most one open order per job, one report per order and phase."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, insert, or_, select, update

from tunewarden.adapters.store.tables import order_reports, orders
from tunewarden.domain.order import Order, OrderKind, Phase, Report
from tunewarden.domain.plan import check_to_wire
from tunewarden.domain.reason import Reason

PROTOCOL = 1
OPEN, WITHDRAWN, ENDED = "open", "withdrawn", "ended"
# Built once: to build a statement costs as much as to run it, and these are on the way to the go-ahead.
_BY_ID = select(orders).where(orders.c.order_id == bindparam("order_id"))
_OPEN_OF_JOB = select(orders).where(orders.c.job_id == bindparam("job_id"), orders.c.state == OPEN)
_REPORT = select(order_reports).where(
    order_reports.c.order_id == bindparam("order_id"), order_reports.c.phase == bindparam("phase")
)
_UNAPPLIED = select(order_reports).where(
    order_reports.c.order_id == bindparam("order_id"), order_reports.c.applied.is_(False)
)
_SET_PHASE = update(orders).where(orders.c.order_id == bindparam("of_order")).values(phase=bindparam("phase"))
_INSERT, _INSERT_REPORT = insert(orders), insert(order_reports)
_TAKEABLE = (None, Phase.ACCEPTED.value)  # how far an order may be and still be handed out, or expire


@dataclass(frozen=True, kw_only=True)
class OrderRow:
    """One order. Times are epoch seconds of our own clock; only the rest of its life is ever sent."""

    order_id: str
    job_id: str
    remediation_id: str | None
    generation: int
    kind: OrderKind
    body: Mapping[str, Any]
    state: str
    phase: Phase | None
    issued_at: float
    expires_at: float

    @property
    def begun(self) -> bool:
        """True once the agent was given the go-ahead: it can't be taken back any more."""
        return self.phase is not None and self.phase.value not in _TAKEABLE


@dataclass(frozen=True, kw_only=True)
class StoredReport:
    """One report as it was stored. `go` is what a `planned` report was answered."""

    report: Report
    applied: bool
    go: bool | None


def new_order_id() -> str:
    """Unguessable, short enough for a file name."""
    return "o-" + secrets.token_hex(8)


def issue(conn: Connection, order: Order, *, remediation_id: str | None, now: float) -> None:
    """Insert an open order. An IntegrityError means that the job has another one open."""
    conn.execute(
        _INSERT,
        {
            "order_id": order.order_id,
            "job_id": order.job_id,
            "remediation_id": remediation_id,
            "generation": order.generation,
            "kind": order.kind.value,
            "body": _body(order),
            "state": OPEN,
            "phase": None,
            "issued_at": now,
            "expires_at": now + order.expires_in_s,
        },
    )


def load(conn: Connection, order_id: str) -> OrderRow | None:
    """One order, or None."""
    row = conn.execute(_BY_ID, {"order_id": order_id}).mappings().one_or_none()
    return None if row is None else _order(row)


def open_of_job(conn: Connection, job_id: str) -> OrderRow | None:
    """The open order of a job: there is at most one."""
    row = conn.execute(_OPEN_OF_JOB, {"job_id": job_id}).mappings().one_or_none()
    return None if row is None else _order(row)


def takeable(conn: Connection, job_id: str, now: float) -> dict[str, Any] | None:
    """The open order of a job in the form that is sent, with the rest of its life; None when there is none to take."""
    order = open_of_job(conn, job_id)
    if order is None or order.begun or order.expires_at <= now:
        return None
    return {**order.body, "expires_in_s": round(order.expires_at - now, 3)}


def expired(conn: Connection, now: float) -> list[OrderRow]:
    """Open orders that nobody began in time."""
    query = select(orders).where(
        orders.c.state == OPEN,
        orders.c.expires_at <= now,
        or_(orders.c.phase.is_(None), orders.c.phase == Phase.ACCEPTED.value),
    )
    return [_order(row) for row in conn.execute(query).mappings()]


def close_of_remediation(conn: Connection, remediation_id: str, *, state: str, now: float) -> None:
    """End or withdraw what a remediation has open."""
    conn.execute(
        update(orders)
        .where(orders.c.remediation_id == remediation_id, orders.c.state == OPEN)
        .values(state=state, ended_at=now)
    )


def close(conn: Connection, order_id: str, *, now: float) -> None:
    """The order has had its last phase."""
    conn.execute(
        update(orders).where(orders.c.order_id == order_id, orders.c.state == OPEN).values(state=ENDED, ended_at=now)
    )


def withdraw(conn: Connection, order_id: str, *, now: float) -> None:
    """Take an order back that was not begun."""
    conn.execute(
        update(orders)
        .where(orders.c.order_id == order_id, orders.c.state == OPEN)
        .values(state=WITHDRAWN, ended_at=now)
    )


def set_phase(conn: Connection, order_id: str, phase: Phase) -> None:
    """Note how far the order has got."""
    conn.execute(_SET_PHASE, {"of_order": order_id, "phase": phase.value})


def store_report(conn: Connection, report: Report, *, now: float) -> bool:
    """Keep the first report of a phase; False when there was one already (it is a repetition)."""
    if report_of(conn, report.order_id, report.phase) is not None:
        return False
    conn.execute(
        _INSERT_REPORT,
        {
            "order_id": report.order_id,
            "phase": report.phase.value,
            "reason": report.reason.value if report.reason else None,
            "detail": dict(report.detail),
            "received_at": now,
            "applied": False,
        },
    )
    return True


def report_of(conn: Connection, order_id: str, phase: Phase) -> StoredReport | None:
    """The stored report of a phase, or None."""
    row = conn.execute(_REPORT, {"order_id": order_id, "phase": phase.value}).mappings().one_or_none()
    return None if row is None else _report(row)


def unapplied(conn: Connection, order_id: str) -> list[Report]:
    """The reports of one order that have not moved its remediation yet, in the order of the phases."""
    reports = [_report(row).report for row in conn.execute(_UNAPPLIED, {"order_id": order_id}).mappings()]
    return sorted(reports, key=lambda report: tuple(Phase).index(report.phase))


def orders_with_unapplied(conn: Connection) -> list[str]:
    """The orders that have such reports, by receipt of the first."""
    query = (
        select(order_reports.c.order_id, order_reports.c.received_at)
        .where(order_reports.c.applied.is_(False))
        .order_by(order_reports.c.received_at)
    )
    return list(dict.fromkeys(row.order_id for row in conn.execute(query)))


def mark_applied(conn: Connection, order_id: str, phase: Phase, *, go: bool | None = None) -> None:
    """The report has had its effect, or never will have one."""
    values: dict[str, Any] = {"applied": True} if go is None else {"applied": True, "go": go}
    conn.execute(
        update(order_reports)
        .where(order_reports.c.order_id == order_id, order_reports.c.phase == phase.value)
        .values(**values)
    )


def _body(order: Order) -> dict[str, Any]:
    return {
        "protocol": PROTOCOL,
        "order_id": order.order_id,
        "job_id": order.job_id,
        "generation": order.generation,
        "kind": order.kind.value,
        "knobs": dict(order.knobs),
        "confirm": [check_to_wire(check) for check in order.confirm],
        "save_first": order.save_first,
        "lose_unsaved": order.lose_unsaved,
        "allow_effective_batch_change": order.allow_effective_batch_change,
        "after_oom": order.after_oom,
    }


def _order(row: RowMapping) -> OrderRow:
    values = {name: value for name, value in row.items() if name != "ended_at"}
    values["kind"] = OrderKind(row["kind"])
    values["phase"] = Phase(row["phase"]) if row["phase"] else None
    return OrderRow(**values)


def _report(row: RowMapping) -> StoredReport:
    reason = Reason(row["reason"]) if row["reason"] else None
    report = Report(order_id=row["order_id"], phase=Phase(row["phase"]), reason=reason, detail=row["detail"])
    return StoredReport(report=report, applied=row["applied"], go=row["go"])
