"""Beginning, cancelling and superseding remediations: functions of the caller's transaction."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from tunewarden.adapters.store import audit, jobs, orders, remediations, steps
from tunewarden.adapters.store.job_now import job_now
from tunewarden.adapters.store.wakes import wake
from tunewarden.domain.advance import (
    Begin,
    begin_of,
    event_of_job_end,
    may_cancel,
    needs_asking,
    order_of,
    refusal_of,
    skips_on_waiting,
)
from tunewarden.domain.job import Job, JobState
from tunewarden.domain.order import Order
from tunewarden.domain.plan import MANUAL_POLICY, Plan
from tunewarden.domain.policy import Step, StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, Remediation, State
from tunewarden.errors import Refused
from tunewarden.pipeline.moves import ORDERS_TOPIC, REMEDIATIONS_TOPIC, Moves

_SUPERSEDABLE = frozenset({State.DECIDED, State.ORDERED, State.ACCEPTED, State.VERIFYING})


def begin(
    conn: Connection, remediation_id: str, now: float, moves: Moves | None = None, *, confirmed: bool = False
) -> None:
    """Begin the current step of a `decided` remediation: issue its order, or leave a command to the worker.

    A later step that ends a living generation is left to the worker too: it asks Prometheus again (`confirmed`).

    The dispatcher calls it right after it inserted the remediation, the worker for rows that wait. What may not be
    begun any more ends here, with its reason. `now` in epoch seconds.
    """
    moves = moves or Moves()
    remediation = remediations.load(conn, remediation_id)
    if remediation is None or remediation.state is not State.DECIDED:
        return
    job = jobs.get(conn, remediation.job_id)
    if job is None:  # jobs are kept as long as their remediations; this guards a store edited by hand
        moves.move(conn, remediation, Event.SUPERSEDED, now, reason=Reason.JOB_ENDED)
        return
    refusal = refusal_of(remediation, job, low_on_space=moves.acting.low_on_space())
    if refusal is not None:
        moves.move(conn, remediation, refusal[0], now, reason=refusal[1])
        return
    remediation = skips_on_waiting(remediation, job)
    unasked = needs_asking(remediation) and not confirmed and job.state is JobState.RUNNING
    if unasked or begin_of(remediation.plan.steps[remediation.step]) is Begin.COMMAND:
        wake(conn, REMEDIATIONS_TOPIC)
        return
    expires_in_s = _expiry(conn, job, moves.acting.order_expires_s, now)
    order = order_of(remediation, job, order_id=orders.new_order_id(), expires_in_s=expires_in_s)
    issue(conn, moves, remediation, order, Event.ORDER_ISSUED, now)


def issue(
    conn: Connection,
    moves: Moves,
    remediation: Remediation,
    order: Order,
    event: Event,
    now: float,
    **changes: Any,
) -> Remediation:
    """Write the order, its attempt and the move in one; the job's long poll wakes after the commit."""
    after = moves.move(conn, remediation, event, now, step=remediation.step, **changes)
    steps.begin_step(
        conn,
        remediation_id=remediation.remediation_id,
        step=remediation.step,
        kind=order.kind.value,
        now=now,
        detail={"order_id": order.order_id},
    )
    orders.issue(conn, order, remediation_id=remediation.remediation_id, now=now)
    wake(conn, ORDERS_TOPIC + order.job_id)
    return after


def cancel(
    conn: Connection,
    remediation_id: str,
    now: float,
    *,
    reason: Reason,
    by_person: bool = False,
    moves: Moves | None = None,
) -> bool:
    """Cancel before the first save or stop (`resolved`, or a person). False when it is too late for that."""
    remediation = remediations.load(conn, remediation_id)
    if remediation is None or not may_cancel(remediation, by_person=by_person):
        return False
    (moves or Moves()).move(conn, remediation, Event.CANCELLED, now, reason=reason)
    return True


def job_ended(conn: Connection, moves: Moves, job_id: str, *, cause: str, generation: int, now: float) -> None:
    """A generation ended by itself: what was not carried out yet has lost to it."""
    remediation = remediations.open_of_job(conn, job_id)
    if remediation is None or remediation.state is State.COMMANDING:
        return
    event = event_of_job_end(remediation, cause, generation)
    if event is not None:
        reason = Reason.USER_STOP if cause == "user_stop" else Reason.JOB_ENDED
        moves.move(conn, remediation, event, now, reason=reason)


def open_manual(
    conn: Connection, moves: Moves, job: Job, kind: StepKind, *, stop_now: bool, actor: str, now: float
) -> Mapping[str, str]:
    """A person's save or stop: no confirmation, no budget, but audited. → order_id and remediation_id.

    Raises Refused with the reason for a person.
    """
    _check_manual(job, kind, stop_now=stop_now)
    _make_room(conn, moves, job, kind, now)
    remediation_id = remediations.open_remediation(
        conn,
        job_id=job.job_id,
        generation=job.generation,
        policy=MANUAL_POLICY,
        plan=Plan(steps=(Step(kind=kind, lose_unsaved=stop_now),)),
        reason=Reason.MANUAL,
        facts={"now": stop_now, "actor": actor},
        now=now,
    )
    if remediation_id is None:
        raise Refused(Reason.ORDER_OPEN, f"another order of {job.name} is open")
    audit.append(
        conn,
        at=now,
        action=f"job.{kind.value}",
        actor=actor,
        job_id=job.job_id,
        remediation_id=remediation_id,
        reason=Reason.MANUAL,
        detail={"now": stop_now},
    )
    begin(conn, remediation_id, now, moves)
    order = orders.open_of_job(conn, job.job_id)
    return {"remediation_id": remediation_id, "order_id": order.order_id if order else ""}


def _check_manual(job: Job, kind: StepKind, *, stop_now: bool) -> None:
    if job.state is JobState.LOST:
        raise Refused(Reason.JOB_LOST, f"the agent of {job.name} is away: nothing can be asked of it")
    if job.state is not JobState.RUNNING:
        raise Refused(Reason.JOB_ENDED, f"{job.name} has ended")
    if job.multi_node and kind is StepKind.STOP:
        raise Refused(Reason.MULTI_NODE, f"{job.name} spans several nodes: it can be saved, not stopped")
    if not stop_now and "save" not in job.can:
        hint = " (`stop --now` stops without a save)" if kind is StepKind.STOP else ""
        raise Refused(Reason.NO_SAVE_CHANNEL, f"{job.name} can't be told to save{hint}")


def _make_room(conn: Connection, moves: Moves, job: Job, kind: StepKind, now: float) -> None:
    """A person's stop takes the place of what has not begun; a save never pushes anything aside."""
    standing = remediations.open_of_job(conn, job.job_id)
    if standing is None:
        return
    if kind is not StepKind.STOP or standing.state not in _SUPERSEDABLE:
        text = f"{standing.remediation_id} of {job.name} is {standing.state.value}"
        raise Refused(Reason.ORDER_OPEN, text)
    moves.move(conn, standing, Event.SUPERSEDED, now, reason=Reason.SUPERSEDED)


def _expiry(conn: Connection, job: Job, usual_s: float, now: float) -> float:
    """A job that waits after an OOM end waits only so long: an order that comes later answers nothing."""
    known = job_now(conn, job.job_id) if job.state is JobState.WAITING else None
    if known is None or known.waits_until is None:
        return usual_s
    return max(1.0, min(usual_s, known.waits_until - now))
