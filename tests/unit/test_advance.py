"""What follows for a remediation from a report, an end, a person; and the orders it leads to."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tunewarden.domain.advance import (
    event_of_job_end,
    events_of_report,
    facts_of_report,
    may_cancel,
    order_of,
    refusal_of,
    rollback_order,
    skips_on_waiting,
)
from tunewarden.domain.job import Job, JobState
from tunewarden.domain.order import HostCheck, OrderKind, Phase, Report
from tunewarden.domain.plan import MANUAL_POLICY, Plan, plan_from_wire, plan_of, plan_to_wire
from tunewarden.domain.policy import Confirmation, Expectation, Policy, Step, StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, Remediation, State

NOW = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
CHECK = HostCheck(metric="memory_ratio", op=">", value=0.95)
SAVE, STOP, COMMAND = (
    Step(kind=StepKind.SAVE),
    Step(kind=StepKind.STOP),
    Step(kind=StepKind.RUN_COMMAND, command=("x",)),
)
REPLACE = Step(kind=StepKind.REPLACE, knobs={"batch_size": "/2"})


def remediation(state: State = State.ORDERED, *steps: Step, **changes: Any) -> Remediation:
    values: dict[str, Any] = {
        "remediation_id": "R-1",
        "job_id": "job-1",
        "policy": "vram-pressure",
        "plan": Plan(steps=steps or (REPLACE,), confirm=(CHECK,)),
        "state": state,
        "reason": Reason.POLICY_MATCHED,
        "generation": 1,
        "opened_at": 0.0,
        "state_since": 0.0,
    }
    return Remediation(**{**values, **changes})


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "job_id": "job-1",
        "name": "cat-lora",
        "host_id": "h",
        "node": "n",
        "generation": 1,
        "state": JobState.RUNNING,
        "registered_at": NOW,
        "seen_at": NOW,
    }
    return Job(**{**values, **changes})


def report(phase: Phase, **changes: Any) -> Report:
    return Report(order_id="o-1", phase=phase, **changes)


@pytest.mark.parametrize(
    ("state", "kind", "phase", "events"),
    [
        (State.ORDERED, OrderKind.REPLACE, Phase.ACCEPTED, (Event.ACCEPTED,)),
        (State.ORDERED, OrderKind.REPLACE, Phase.PLANNED, (Event.ACCEPTED, Event.PLANNED)),
        (State.ACCEPTED, OrderKind.REPLACE, Phase.PLANNED, (Event.PLANNED,)),
        (State.PLANNED, OrderKind.REPLACE, Phase.SAVED, (Event.SAVED,)),
        (State.PLANNED, OrderKind.SAVE, Phase.SAVED, (Event.SAVED, Event.PLAN_DONE)),
        (State.PLANNED, OrderKind.STOP, Phase.SAVED, (Event.SAVED,)),
        (State.SAVED, OrderKind.STOP, Phase.STOPPED, (Event.STOPPED, Event.PLAN_DONE)),
        (State.SAVED, OrderKind.REPLACE, Phase.STOPPED, (Event.STOPPED,)),
        (State.HALTED, OrderKind.REPLACE, Phase.LAUNCHED, (Event.LAUNCHED,)),
        (State.HALTED, OrderKind.REPLACE, Phase.REFUSED, (Event.LAUNCH_FAILED,)),
        (State.SAVED, OrderKind.REPLACE, Phase.REFUSED, (Event.REFUSED,)),
        (State.HALTED, OrderKind.REPLACE, Phase.SUPERSEDED, (Event.SUPERSEDED,)),
        (State.HALTED, OrderKind.REPLACE, Phase.SAVED, ()),
        (State.DONE, OrderKind.SAVE, Phase.SAVED, ()),
        (State.VERIFYING, OrderKind.REPLACE, Phase.REFUSED, ()),
    ],
)
def test_a_report_moves_along_the_table(state: State, kind: OrderKind, phase: Phase, events: tuple[Event, ...]) -> None:
    """The last phase of an order's kind ends the step too; what comes too late moves nothing."""
    assert events_of_report(remediation(state), kind, report(phase)) == events


def test_a_step_before_others_is_done_and_not_the_plan() -> None:
    """The plan goes on."""
    two = remediation(State.PLANNED, SAVE, STOP)

    assert events_of_report(two, OrderKind.SAVE, report(Phase.SAVED)) == (Event.SAVED, Event.STEP_DONE)


def test_facts_of_a_report_are_chosen_and_bounded() -> None:
    """Only what messages and proofs need, under our names; a text can't be endless."""
    detail = {"step": 121, "path": "/" + "x" * 9000, "secret": "no"}
    facts = facts_of_report(report(Phase.SAVED, detail=detail))

    assert (facts["receipt_step"], len(facts["checkpoint"]), "secret" in facts) == (121, 2000, False)


@pytest.mark.parametrize(
    ("state", "facts", "by_person", "may"),
    [
        (State.DECIDED, {}, False, True),
        (State.ORDERED, {}, False, True),
        (State.ACCEPTED, {}, False, True),
        (State.PLANNED, {}, True, False),
        (State.HALTED, {}, False, False),
        (State.ORDERED, {"begun": True}, False, False),
        (State.ORDERED, {"begun": True}, True, True),
    ],
)
def test_cancelling_is_for_before_the_first_save_or_stop(
    state: State, facts: dict[str, Any], by_person: bool, may: bool
) -> None:
    """`resolved` no longer cancels once a step of the plan was begun; a person may, between two steps."""
    assert may_cancel(remediation(state, facts=facts), by_person=by_person) is may


@pytest.mark.parametrize(
    ("state", "cause", "generation", "event"),
    [
        (State.ORDERED, "finished", 1, Event.SUPERSEDED),
        (State.PLANNED, "cuda_oom", 1, Event.SUPERSEDED),
        (State.SAVED, "user_stop", 1, Event.SUPERSEDED),
        (State.SAVED, "policy_stop", 1, None),
        (State.HALTED, "replaced", 1, None),
        (State.HALTED, "failed", 1, None),
        (State.VERIFYING, "failed", 2, None),
    ],
)
def test_a_jobs_end_wins_before_the_stop(state: State, cause: str, generation: int, event: Event | None) -> None:
    """An end that our order brought about is the order's business; after the launch it is the verifier's."""
    assert event_of_job_end(remediation(state), cause, generation) is event


def test_the_end_of_a_job_does_not_end_a_command() -> None:
    """It runs on the service's host, as after a stop."""
    assert event_of_job_end(remediation(State.DECIDED, COMMAND), "finished", 1) is None


@pytest.mark.parametrize(
    ("job_changes", "step", "policy", "low", "refusal"),
    [
        ({}, REPLACE, "p", False, None),
        ({"state": JobState.ENDED}, SAVE, "p", False, (Event.SUPERSEDED, Reason.JOB_ENDED)),
        ({"state": JobState.LOST}, SAVE, "p", False, (Event.REFUSED, Reason.JOB_LOST)),
        ({"held": True}, SAVE, "p", False, (Event.REFUSED, Reason.ON_HOLD)),
        ({"held": True}, SAVE, MANUAL_POLICY, False, None),
        ({"multi_node": True}, REPLACE, "p", False, (Event.REFUSED, Reason.MULTI_NODE)),
        ({"multi_node": True}, SAVE, "p", False, None),
        ({}, REPLACE, "p", True, (Event.REFUSED, Reason.STORE_LOW_ON_SPACE)),
        ({}, SAVE, "p", True, None),
        ({"state": JobState.ENDED}, COMMAND, "p", False, None),
        ({"state": JobState.WAITING}, REPLACE, "p", False, None),
    ],
)
def test_a_step_is_begun_only_where_it_may(
    job_changes: dict[str, Any], step: Step, policy: str, low: bool, refusal: tuple[Event, Reason] | None
) -> None:
    """Looked at again in the moment of acting, whatever was decided before."""
    found = refusal_of(remediation(State.DECIDED, step, policy=policy), job(**job_changes), low_on_space=low)

    assert found == refusal


def test_an_order_holds_knobs_and_checks_and_no_more() -> None:
    """A replace saves first, and the agent takes the checks again."""
    order = order_of(remediation(State.DECIDED), job(), order_id="o-1")

    assert (order.kind, order.knobs, order.confirm) == (OrderKind.REPLACE, {"batch_size": "/2"}, (CHECK,))
    assert (order.save_first, order.lose_unsaved, order.after_oom) == (True, False, False)


def test_a_save_is_not_confirmed() -> None:
    """It ends nothing, so it needs no proof."""
    assert order_of(remediation(State.DECIDED, SAVE), job(), order_id="o-1").confirm == ()


def test_a_waiting_job_is_only_launched() -> None:
    """It is dead: nothing to save, nothing to measure, and a plan's save is passed over."""
    waiting = job(state=JobState.WAITING)
    planned = skips_on_waiting(remediation(State.DECIDED, SAVE, REPLACE), waiting)
    order = order_of(planned, waiting, order_id="o-1")

    assert (order.kind, order.after_oom, order.save_first, order.confirm) == (OrderKind.REPLACE, True, False, ())


def test_going_back_names_the_old_values() -> None:
    """Absolute values: `*2` of a rounded half could be another number."""
    facts = {
        "changes": [{"knob": "batch_size", "from": 4, "to": 2}, {"knob": "gradient_accumulation", "from": 1, "to": 2}]
    }
    order = rollback_order(remediation(State.VERIFYING, facts=facts), job(generation=2), order_id="o", expires_in_s=60)

    assert order is not None
    assert order.knobs == {"batch_size": "4", "gradient_accumulation": "1"}
    assert (order.generation, order.save_first, order.confirm) == (2, False, ())


def test_there_is_no_way_back_to_what_is_not_known() -> None:
    """Without changes no order."""
    assert rollback_order(remediation(State.VERIFYING), job(), order_id="o", expires_in_s=60) is None


def test_a_plan_is_read_as_it_was_written() -> None:
    """A remediation keeps the policy that it started with, through reloads and restarts."""
    policy = Policy(
        name="p",
        matchers=(),
        confirm=(Confirmation(host=CHECK), Confirmation(expr='up{uuid="$uuid"}')),
        steps=(Step(kind=StepKind.NOTIFY), SAVE, REPLACE),
        expect=Expectation(expr="mem > 0.9", host=CHECK),
    )
    plan = plan_of(policy, policy.steps, fill=lambda expr: expr.replace("$uuid", "GPU-1"))

    assert plan_from_wire(plan_to_wire(plan)) == plan
    assert [step.kind for step in plan.steps] == [StepKind.SAVE, StepKind.REPLACE]
    assert plan.confirm_exprs == ('up{uuid="GPU-1"}',)
