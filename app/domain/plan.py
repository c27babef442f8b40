"""The plan of a remediation: the policy as it was when the remediation was opened, and its JSON form for the store."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from tunewarden.domain.order import HostCheck
from tunewarden.domain.policy import Expectation, Policy, Step, StepKind

MANUAL_POLICY = "manual"  # the policy name of what a person asked for


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done, in this order.

    `confirm` are the checks that the agent takes on the host before a destructive step. A `replace` is always the
    last step: what follows it is the proof.
    """

    steps: tuple[Step, ...]
    confirm: tuple[HostCheck, ...] = ()
    confirm_exprs: tuple[str, ...] = ()
    expect: Expectation = field(default_factory=Expectation)


def _as_it_is(expr: str) -> str | None:
    return expr


def plan_of(policy: Policy, steps: tuple[Step, ...], *, fill: Callable[[str], str | None] = _as_it_is) -> Plan:
    """The plan for the steps that a decision chose. `notify` is no step of a plan: messages have their own moments.

    `fill` puts the values of this alert and job into an expression; one that it can't fill stays as it is, and
    Prometheus then has no data for it.
    """
    expr = fill(policy.expect.expr) if policy.expect.expr else ""
    return Plan(
        steps=tuple(step for step in steps if step.kind is not StepKind.NOTIFY),
        confirm=tuple(item.host for item in policy.confirm if item.host is not None),
        confirm_exprs=tuple(fill(item.expr) or item.expr for item in policy.confirm if item.expr),
        expect=replace(policy.expect, expr=policy.expect.expr if expr is None else expr),
    )


def plan_to_wire(plan: Plan) -> dict[str, Any]:
    """JSON for the column `remediations.plan`; durations in seconds."""
    expect = plan.expect
    return {
        "steps": [_step_to_wire(step) for step in plan.steps],
        "confirm": [check_to_wire(check) for check in plan.confirm],
        "confirm_exprs": list(plan.confirm_exprs),
        "expect": {
            "expr": expect.expr,
            "host": check_to_wire(expect.host) if expect.host else None,
            "verify_for_s": expect.verify_for.total_seconds(),
            "steps": expect.steps,
            "deadline_s": expect.deadline.total_seconds(),
        },
    }


def plan_from_wire(wire: Mapping[str, Any]) -> Plan:
    """The plan that plan_to_wire wrote."""
    expect = wire["expect"]
    return Plan(
        steps=tuple(_step_from_wire(step) for step in wire["steps"]),
        confirm=tuple(check_from_wire(check) for check in wire["confirm"]),
        confirm_exprs=tuple(wire["confirm_exprs"]),
        expect=Expectation(
            expr=expect["expr"],
            host=check_from_wire(expect["host"]) if expect["host"] else None,
            verify_for=timedelta(seconds=expect["verify_for_s"]),
            steps=expect["steps"],
            deadline=timedelta(seconds=expect["deadline_s"]),
        ),
    )


def check_to_wire(check: HostCheck) -> dict[str, Any]:
    """The form that an order has on the wire too."""
    return {"metric": check.metric, "op": check.op, "value": check.value}


def check_from_wire(wire: Mapping[str, Any]) -> HostCheck:
    return HostCheck(metric=wire["metric"], op=wire["op"], value=wire["value"])


def _step_to_wire(step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind.value,
        "knobs": dict(step.knobs),
        "command": list(step.command),
        "environment": list(step.environment),
        "timeout_s": step.timeout.total_seconds(),
        "allow_effective_batch_change": step.allow_effective_batch_change,
        "lose_unsaved": step.lose_unsaved,
    }


def _step_from_wire(wire: Mapping[str, Any]) -> Step:
    return Step(
        kind=StepKind(wire["kind"]),
        knobs=dict(wire["knobs"]),
        command=tuple(wire["command"]),
        environment=tuple(wire["environment"]),
        timeout=timedelta(seconds=wire["timeout_s"]),
        allow_effective_batch_change=wire["allow_effective_batch_change"],
        lose_unsaved=wire["lose_unsaved"],
    )
