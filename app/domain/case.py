"""One decision to be made: an alert, its policy, its job, and all that is known; and the forms of the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tunewarden.domain.alert import Alert
from tunewarden.domain.choice import Rules, may_destroy
from tunewarden.domain.decision import Decision, Verdict
from tunewarden.domain.episode import EpisodeEvent
from tunewarden.domain.evidence import Evidence, sign_holds, variables_of
from tunewarden.domain.history import History
from tunewarden.domain.job import Job, JobState
from tunewarden.domain.policy import DESTRUCTIVE, Policy, Step, StepKind
from tunewarden.domain.reason import Reason

# Said even when the episode had a message already (the outbox says each once per episode).
_LOUD = frozenset(
    {
        Reason.OBSERVE_MODE,
        Reason.MULTI_NODE,
        Reason.STORE_LOW_ON_SPACE,
        Reason.BREAKER_OPEN,
        Reason.JOB_BUDGET_SPENT,
        Reason.HOURLY_BUDGET_SPENT,
        Reason.FLEET_SHARE_SPENT,
    }
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One decision to be made about one job by one policy."""

    alert: Alert
    policy: Policy
    job: Job
    uuid: str | None
    messaged: bool
    event: EpisodeEvent
    history: History
    evidence: Evidence
    rules: Rules
    now: datetime

    @property
    def alive(self) -> bool:
        """A generation that could lose work; a `waiting` job is dead and can only be launched again."""
        return self.job.state is JobState.RUNNING

    @property
    def variables(self) -> Mapping[str, str]:
        return variables_of(self.alert, self.job, self.uuid, self.policy)


def plan_now(case: Case) -> tuple[tuple[Step, ...], Reason | None]:
    """The acting steps that may be carried out now, and why they are fewer than the policy's."""
    steps = tuple(step for step in case.policy.steps if step.kind is not StepKind.NOTIFY)
    cut = _cut(case)
    if cut is not None:
        can_save = case.alive and "save" in case.job.can
        return tuple(step for step in steps if step.kind is StepKind.SAVE and can_save), cut
    if not case.alive:
        return tuple(step for step in steps if step.kind in (StepKind.REPLACE, StepKind.RUN_COMMAND)), None
    # A stop or replace saves by itself before it stops: a save of its own before it would be a second one.
    return tuple(
        step
        for at, step in enumerate(steps)
        if step.kind is not StepKind.SAVE or not any(later.kind in DESTRUCTIVE for later in steps[at:])
    ), None


def _cut(case: Case) -> Reason | None:
    if not case.policy.destructive:
        return None
    if case.job.multi_node:
        return Reason.MULTI_NODE
    if case.history.low_on_space:
        return Reason.STORE_LOW_ON_SPACE
    return None if may_destroy(case.policy, case.job, case.rules) else Reason.OBSERVE_MODE


def second_sign(case: Case) -> str:
    """The name of the first second sign that is there."""
    variables = case.variables
    return next((sign.name for sign in case.policy.signs if sign_holds(sign, case.evidence, variables)), "")


def tell(case: Case, reason: Reason, *, recheck_s: float | None = None, **facts: Any) -> Decision:
    """Nothing is done to the job; a person hears of it once."""
    return Decision(
        verdict=Verdict.NOTIFY if recheck_s is None else Verdict.WAIT,
        reason=reason,
        policy=case.policy.name,
        job_id=case.job.job_id,
        message=notifies(case.policy) and (reason in _LOUD or not case.messaged),
        recheck_s=recheck_s,
        facts=facts_of(case) | facts,
    )


def quiet(case: Case, reason: Reason) -> Decision:
    return Decision(verdict=Verdict.IGNORE, reason=reason, policy=case.policy.name, job_id=case.job.job_id)


def wait(case: Case, reason: Reason, left: timedelta) -> Decision:
    return replace(quiet(case, reason), verdict=Verdict.WAIT, recheck_s=max(1.0, left.total_seconds()))


def facts_of(case: Case) -> dict[str, Any]:
    facts = numbers_of(case.evidence, case.uuid)
    sign = second_sign(case)
    return facts | ({"second_sign": sign} if sign else {})


def numbers_of(evidence: Evidence, uuid: str | None) -> dict[str, Any]:
    """What the newest heartbeat measured, by the names that the messages know; shares are 0 to 1."""
    heartbeat, card = evidence.fresh_heartbeat, evidence.card(uuid)
    if heartbeat is None:
        return {}
    found = {
        "vram_ratio": card.memory_ratio if card else None,
        "gpu_utilization": card.utilization / 100 if card and card.utilization is not None else None,
        "step": heartbeat.job.step,
        "step_rate": heartbeat.job.step_rate,
        "step_rate_median": heartbeat.job.step_rate_median,
    }
    return {name: value for name, value in found.items() if value is not None}


def step_words(steps: Sequence[Step]) -> list[str]:
    return [step.kind.value for step in steps if step.kind is not StepKind.NOTIFY]


def notifies(policy: Policy) -> bool:
    return any(step.kind is StepKind.NOTIFY for step in policy.steps)
