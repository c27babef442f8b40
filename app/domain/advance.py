"""What follows for a remediation from what happened. Pure: the caller writes it down, in one transaction."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from tunewarden.domain.job import Job, JobState
from tunewarden.domain.order import Order, OrderKind, Phase, Report
from tunewarden.domain.policy import DESTRUCTIVE, Step, StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, InvalidTransition, Remediation, State, transition

DEFAULT_EXPIRY_S = 60.0  # how long an agent has to begin an order, unless the settings say otherwise

_CANCELLABLE = frozenset({State.DECIDED, State.ORDERED, State.ACCEPTED})
_BEFORE_THE_STOP = frozenset({State.DECIDED, State.ORDERED, State.ACCEPTED, State.PLANNED, State.SAVED})
_OUR_OWN_ENDS = frozenset({"replaced", "policy_stop"})  # causes of an end that an order of ours brought about
_STEP_ENDS = {OrderKind.SAVE: Phase.SAVED, OrderKind.STOP: Phase.STOPPED}
_DONE_REASONS = {
    StepKind.SAVE: Reason.SAVED,
    StepKind.STOP: Reason.STOPPED,
    StepKind.RUN_COMMAND: Reason.COMMAND_DONE,
}
_SIMPLE = {
    Phase.ACCEPTED: Event.ACCEPTED,
    Phase.PLANNED: Event.PLANNED,
    Phase.SAVED: Event.SAVED,
    Phase.STOPPED: Event.STOPPED,
    Phase.LAUNCHED: Event.LAUNCHED,
    Phase.SUPERSEDED: Event.SUPERSEDED,
}
# What each phase's detail adds to a remediation's facts, and under which name.
_FACTS: Mapping[Phase, Mapping[str, str]] = {
    Phase.PLANNED: {
        "changes": "changes",
        "effective_batch": "effective_batch",
        "config_path": "config_path",
        "config_sha256": "config_sha256",
        "new_config_path": "new_config_path",
    },
    Phase.SAVED: {"step": "receipt_step", "path": "checkpoint", "seconds": "save_seconds"},
    Phase.STOPPED: {"exit_status": "exit_status", "unsaved_steps": "unsaved_steps"},
    Phase.LAUNCHED: {"generation": "launched_generation", "resume_step": "resume_step", "resume_path": "resume_path"},
    Phase.REFUSED: {"text": "text"},
    Phase.SUPERSEDED: {"text": "text"},
}
_MAX_TEXT = 2000


class Begin(StrEnum):
    """How the current step of a plan is begun."""

    ORDER = "order"
    COMMAND = "command"


def events_of_report(remediation: Remediation, kind: OrderKind, report: Report) -> tuple[Event, ...]:
    """The events that a report of the open order brings, one after another; none when it comes too late to matter."""
    if report.phase is Phase.REFUSED:
        return (Event.LAUNCH_FAILED,) if remediation.state is State.HALTED else _if_possible(remediation, Event.REFUSED)
    event = _SIMPLE[report.phase]
    if event is Event.PLANNED and remediation.state is State.ORDERED:
        return (Event.ACCEPTED, Event.PLANNED)
    events = _if_possible(remediation, event)
    if events and _STEP_ENDS.get(kind) is report.phase:
        return (*events, end_of_step(remediation))
    return events


def end_of_step(remediation: Remediation) -> Event:
    """The event that ends the current step: the plan goes on, or it is carried out."""
    return Event.PLAN_DONE if remediation.last_step else Event.STEP_DONE


def done_reason(remediation: Remediation) -> Reason:
    """Why a plan without a launch is over: its last step."""
    return _DONE_REASONS.get(remediation.plan.steps[remediation.step].kind, Reason.POLICY_MATCHED)


def facts_of_report(report: Report) -> dict[str, Any]:
    """What a report adds to a remediation's facts. Text is bounded: an agent is trusted, not unlimited."""
    names = _FACTS.get(report.phase, {})
    return {name: _bounded(report.detail[key]) for key, name in names.items() if key in report.detail}


def may_cancel(remediation: Remediation, *, by_person: bool) -> bool:
    """Only before the first save or stop begins; a person may also between two steps."""
    if remediation.state not in _CANCELLABLE:
        return False
    return by_person or not remediation.facts.get("begun")


def event_of_job_end(remediation: Remediation, cause: str, generation: int) -> Event | None:
    """What a generation's own end means for the open remediation; None: nothing, or the verifier says it.

    An end that our order brought about is the order's business. Anything else before the stop wins over the order.
    """
    if cause in _OUR_OWN_ENDS or remediation.state not in _BEFORE_THE_STOP:
        return None
    if remediation.state is State.DECIDED and remediation.plan.steps[remediation.step].kind is StepKind.RUN_COMMAND:
        return None
    launched = int(remediation.facts.get("launched_generation") or remediation.generation)
    return Event.SUPERSEDED if generation >= launched else None


def loses_with_its_job(remediation: Remediation) -> bool:
    """True when it can't be told any more what becomes of it, now that the job's agent is gone."""
    return bool(_if_possible(remediation, Event.LOST))


def refusal_of(remediation: Remediation, job: Job, *, low_on_space: bool) -> tuple[Event, Reason] | None:
    """Why the current step may not be begun now; None when it may."""
    if remediation.manual and job.living:
        return None
    if job.held:
        return Event.REFUSED, Reason.ON_HOLD
    kind = remediation.plan.steps[remediation.step].kind
    if kind is StepKind.RUN_COMMAND:
        return None  # it runs on the service's host, whatever became of the job
    if job.state is JobState.ENDED:
        return Event.SUPERSEDED, Reason.JOB_ENDED
    if job.state is JobState.LOST:
        return Event.REFUSED, Reason.JOB_LOST
    if kind in DESTRUCTIVE and job.multi_node:
        return Event.REFUSED, Reason.MULTI_NODE
    if kind in DESTRUCTIVE and low_on_space:
        return Event.REFUSED, Reason.STORE_LOW_ON_SPACE
    return None


def needs_asking(remediation: Remediation) -> bool:
    """True when the current step ends a living generation and was confirmed by PromQL before an earlier step began."""
    destructive = remediation.plan.steps[remediation.step].kind in DESTRUCTIVE
    return destructive and remediation.step > 0 and bool(remediation.plan.confirm_exprs)


def skips_on_waiting(remediation: Remediation, job: Job) -> Remediation:
    """Past the saves of a plan, when the job is dead already and waits: there is nothing left to save."""
    step = remediation.step
    if job.state is JobState.WAITING:
        while step + 1 < len(remediation.plan.steps) and remediation.plan.steps[step].kind is StepKind.SAVE:
            step += 1
    return replace(remediation, step=step)


def begin_of(step: Step) -> Begin:
    """How a step is begun."""
    return Begin.COMMAND if step.kind is StepKind.RUN_COMMAND else Begin.ORDER


def order_of(remediation: Remediation, job: Job, *, order_id: str, expires_in_s: float = DEFAULT_EXPIRY_S) -> Order:
    """The order for the current step. A job that waits after an OOM end has nothing left to save or to confirm."""
    step = remediation.plan.steps[remediation.step]
    waiting = job.state is JobState.WAITING
    now_only = bool(remediation.facts.get("now"))
    return Order(
        order_id=order_id,
        job_id=job.job_id,
        generation=job.generation,
        kind=OrderKind(step.kind.value),
        knobs=dict(step.knobs),
        confirm=() if waiting or step.kind is StepKind.SAVE else remediation.plan.confirm,
        expires_in_s=expires_in_s,
        save_first=not (waiting or now_only),
        lose_unsaved=step.lose_unsaved or now_only,
        allow_effective_batch_change=step.allow_effective_batch_change,
        after_oom=waiting,
    )


def rollback_order(remediation: Remediation, job: Job, *, order_id: str, expires_in_s: float) -> Order | None:
    """The order that brings the previous knobs back, by absolute values; None when nothing is known to go back to.

    It is given only to a generation that made no step, so it has nothing to save.
    """
    knobs = {str(item["knob"]): str(item["from"]) for item in remediation.facts.get("changes") or () if "from" in item}
    if not knobs:
        return None
    waiting = job.state is JobState.WAITING
    return Order(
        order_id=order_id,
        job_id=job.job_id,
        generation=job.generation,
        kind=OrderKind.REPLACE,
        knobs=knobs,
        expires_in_s=expires_in_s,
        save_first=False,
        lose_unsaved=True,
        allow_effective_batch_change=True,
        after_oom=waiting,
    )


def _if_possible(remediation: Remediation, event: Event) -> tuple[Event, ...]:
    try:
        transition(remediation.state, event)
    except InvalidTransition:
        return ()
    return (event,)


def _bounded(value: Any) -> Any:
    return value[:_MAX_TEXT] if isinstance(value, str) else value
