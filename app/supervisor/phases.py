"""How an order is carried out: one table of phases, each with an intent on disk before its effect and an outcome after.

After a SIGKILL the same table is walked again: phases with an outcome are passed over, and the first one without is
acted on again; its act looks first at what is there already.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tunewarden.domain.order import Order, OrderKind, Phase
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor import phase_elsewhere, phase_launch, phase_plan, phase_save, phase_stop
from tunewarden.supervisor.client import PROTOCOL
from tunewarden.supervisor.control_file import NO_ROOM
from tunewarden.supervisor.execution import Done, Execution, Superseded
from tunewarden.supervisor.journal import Kind
from tunewarden.supervisor.orders import ACCEPT, OrderRecord
from tunewarden.supervisor.outbox import Letter
from tunewarden.supervisor.plan_checks import must_save
from tunewarden.supervisor.run import Run
from tunewarden.supervisor.started_by import StartedBy

_ACTS = ("save", "stop", "launch")  # the phases that touch the job
_SUSPENDED_POLL_S = 0.2
POINTS = ("before_intent", "after_intent", "after_effect", "after_outcome")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PhaseRow:
    """One phase. `check` runs before its intent and may refuse; `act` may be run again after a kill."""

    name: str
    applies: Callable[[Order], bool]
    check: Callable[[Execution], None]
    intend: Callable[[Execution], Mapping[str, Any]]
    act: Callable[[Execution, Mapping[str, Any]], Done]


def _accept(_ex: Execution, _intent: Mapping[str, Any]) -> Done:
    return Done(report=Phase.ACCEPTED)


def _plan(ex: Execution, intent: Mapping[str, Any]) -> Done:
    if ex.run.spec.started_by is not StartedBy.RUN:
        phase_elsewhere.check(ex, intent)
    return phase_plan.act(ex, intent)


def _stop(ex: Execution, intent: Mapping[str, Any]) -> Done:
    done = phase_stop.act(ex, intent)
    if ex.run.spec.started_by is not StartedBy.RUN:
        phase_elsewhere.tell_how_to_go_on(ex)
    return done


def _ask_to_go(ex: Execution, _intent: Mapping[str, Any]) -> Done:
    """Wait for the service's word on the plan, until the order expires. Without it nothing is touched."""
    order, outbox = ex.order, ex.run.outbox
    if outbox.answer(order.order_id, Phase.PLANNED) is None:
        outbox.put(Letter(id=order.order_id, phase=Phase.PLANNED, body=ex.record.reports[Phase.PLANNED]))
    if not ex.wait(lambda: outbox.answer(order.order_id, Phase.PLANNED) is not None, ex.record.deadline):
        outbox.drop(order.order_id, Phase.PLANNED)
        raise Refused(Reason.SERVICE_AWAY, "the service gave no go-ahead in time: nothing was saved or stopped")
    answer = outbox.answer(order.order_id, Phase.PLANNED) or {}
    if answer.get("go") is not True:
        raise Refused(Reason.WITHDRAWN, "the service took the order back: nothing was saved or stopped")
    return Done()


def _always(_order: Order) -> bool:
    return True


def _saves(order: Order) -> bool:
    return not order.after_oom and must_save(order)


def _stops(order: Order) -> bool:
    return not order.after_oom and order.kind is not OrderKind.SAVE


def _no_intent(_ex: Execution) -> Mapping[str, Any]:
    return {}


def _no_check(_ex: Execution) -> None:
    return None


def _check_save(ex: Execution) -> None:
    ex.check_moment()


def _check_stop(ex: Execution) -> None:
    if not _saves(ex.order):  # else the save was the first act, and had its check
        ex.check_moment()
    phase_stop.check_reach(ex)


def _check_launch(ex: Execution) -> None:
    if ex.order.after_oom:
        ex.check_moment()
    phase_launch.check(ex)


TABLE: tuple[PhaseRow, ...] = (
    # The intent of the first holds the order: see `accept`.
    PhaseRow(name=ACCEPT, applies=_always, check=_no_check, intend=_no_intent, act=_accept),
    PhaseRow(name="plan", applies=_always, check=_no_check, intend=phase_plan.intend, act=_plan),
    PhaseRow(name="go", applies=_always, check=_no_check, intend=_no_intent, act=_ask_to_go),
    PhaseRow(name="save", applies=_saves, check=_check_save, intend=phase_save.intend, act=phase_save.act),
    PhaseRow(name="stop", applies=_stops, check=_check_stop, intend=phase_stop.intend, act=_stop),
    PhaseRow(
        name="launch",
        applies=lambda order: order.kind is OrderKind.REPLACE,
        check=_check_launch,
        intend=phase_launch.intend,
        act=phase_launch.act,
    ),
)


def accept(run: Run, order: Order, raw: Mapping[str, Any]) -> OrderRecord:
    """Journal a new order, with the moment of this boot at which it expires.

    Where that can't be written nothing has happened yet: the next phase's intent can't be written either, and refuses.
    """
    run.boundary.reach(ACCEPT, "before_intent")
    deadline = run.monotonic() + order.expires_in_s
    entry = run.journal.keep(order.order_id, ACCEPT, Kind.INTENT, {"order": dict(raw), "deadline": deadline})
    record = OrderRecord(order=order, deadline=deadline, boot_id=entry.boot_id)
    record.take(entry)
    run.boundary.reach(ACCEPT, "after_intent")
    return record


def carry_out(run: Run, record: OrderRecord) -> None:
    """Walk the table from the first phase without an outcome to the order's end, which is journaled and reported."""
    ex = Execution(run=run, record=record)
    try:
        for row in TABLE:
            if row.applies(record.order) and row.name not in record.outcomes:
                _do(ex, row)
        if not record.ended:
            end(ex, Phase.REFUSED, Reason.UNCERTAIN, "the order asks for nothing that this agent knows how to do")
    except Refused as refusal:
        end(ex, Phase.REFUSED, refusal.reason, str(refusal))
    except Superseded as superseded:
        end(ex, Phase.SUPERSEDED, superseded.reason, str(superseded))
    except OSError as error:
        log.exception("order %s", record.order.order_id)
        reason = Reason.NO_DISK_SPACE if error.errno in NO_ROOM else Reason.UNCERTAIN
        end(ex, Phase.REFUSED, reason, f"the host refused: {error}")


def _do(ex: Execution, row: PhaseRow) -> None:
    reach = ex.run.boundary.reach
    if row.name not in ex.record.intents:
        ex.breathe(0.0)
        if row.name in _ACTS:
            _wait_while_suspended(ex)
        row.check(ex)
        reach(row.name, "before_intent")
        ex.record.take(ex.run.journal.append(ex.order.order_id, row.name, Kind.INTENT, row.intend(ex)))
        reach(row.name, "after_intent")
    done = row.act(ex, ex.record.intents[row.name].detail)
    reach(row.name, "after_effect")
    body = _body(ex, None, done.detail)
    report = {"phase": done.report, "body": body} if done.report else None
    detail = {"facts": dict(done.facts), "report": report}
    # It is done, whether or not that can be written: refusing now would be a lie.
    ex.record.take(ex.run.journal.keep(ex.order.order_id, row.name, Kind.OUTCOME, detail))
    reach(row.name, "after_outcome")
    if done.report is not None:
        ex.run.outbox.put(Letter(id=ex.order.order_id, phase=done.report, body=body))


def _wait_while_suspended(ex: Execution) -> None:
    """Ctrl-Z: nothing begins on a job that stands still. Before its first act an order may expire meanwhile."""
    begun = any(name in ex.record.outcomes for name in _ACTS)
    while ex.run.link.on_hold and (begun or ex.run.monotonic() < ex.record.deadline):
        ex.breathe(_SUSPENDED_POLL_S)


def end(ex: Execution, phase: Phase, reason: Reason, text: str) -> None:
    """End an order before its last phase: undo what can be undone, then say why."""
    log.info("order %s: %s (%s): %s", ex.order.order_id, phase, reason, text)
    left = ex.clean_up()
    body = _body(ex, reason, {"text": f"{text}; {left}" if left and left != text else text})
    report = {"phase": phase, "body": body}
    ex.record.take(ex.run.journal.keep(ex.order.order_id, phase, Kind.ENDED, {"report": report}))
    ex.run.outbox.put(Letter(id=ex.order.order_id, phase=phase, body=body))


def _body(ex: Execution, reason: Reason | None, detail: Mapping[str, Any]) -> dict[str, Any]:
    return {"protocol": PROTOCOL, "generation": ex.order.generation, "reason": reason, "detail": dict(detail)}
