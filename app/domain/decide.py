"""What is done about one alert, and why. Pure: all that it knows is handed in.

The checks stand in one tuple, in their order; the first that answers decides. When none does, the policy's steps are
carried out.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tunewarden.domain.alert import Alert
from tunewarden.domain.budget import refusal
from tunewarden.domain.case import (
    Case,
    facts_of,
    notifies,
    plan_now,
    quiet,
    second_sign,
    step_words,
    tell,
    wait,
)
from tunewarden.domain.choice import Rules, choose, misfit
from tunewarden.domain.decision import Decision, Verdict
from tunewarden.domain.episode import DECIDING, EpisodeEvent
from tunewarden.domain.evidence import Evidence, substitute
from tunewarden.domain.footing import RUNG, ladder_step, with_rung
from tunewarden.domain.history import History
from tunewarden.domain.job import JobState
from tunewarden.domain.only_told import only_told
from tunewarden.domain.policy import DESTRUCTIVE, Policy, StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import State
from tunewarden.domain.resolution import Meant, others_holding_more

OPT_OUT = ("remediation", "off")
GENERATION_LABEL = "generation"
_SLOW_RECHECK_S = 60.0
_OBSERVE_RECHECK_S = 600.0
_SOON_S = 2.0


def decide(
    alert: Alert,
    *,
    event: EpisodeEvent,
    messaged: bool,
    meant: Meant,
    policies: Sequence[Policy],
    history: History,
    evidence: Evidence,
    rules: Rules,
    now: datetime,
) -> Decision:
    """The decision about `alert`. Policies are tried in their order: the first that fits the alert and the job decides.

    `event` is what the alert did to its episode, `messaged` whether a person has heard of this episode.
    """
    if event not in DECIDING:
        return _without_policy(event, history, meant)
    policy, reason = choose(policies, alert, meant.job, now)
    if policy is None:
        return Decision(verdict=Verdict.IGNORE, reason=reason or Reason.NO_POLICY, job_id=_job_id(meant))
    if not policy.acts:
        return only_told(policy, meant, evidence, messaged)
    if meant.job is None:
        return _no_job(policy, meant, messaged)
    case = Case(
        alert=alert,
        policy=policy,
        job=meant.job,
        uuid=meant.uuid,
        messaged=messaged,
        event=event,
        history=history,
        evidence=evidence,
        rules=rules,
        now=now,
    )
    case = with_rung(case)
    return next((decision for check in _CHECKS if (decision := check(case))), None) or _act(case)


def _without_policy(event: EpisodeEvent, history: History, meant: Meant) -> Decision:
    if event is EpisodeEvent.RESOLVED:
        remediation = history.open
        cancels = remediation and remediation.cancellable and remediation.linked and not remediation.others_fire
        verdict = Verdict.CANCEL if cancels else Verdict.IGNORE
        return Decision(verdict=verdict, reason=Reason.RESOLVED, job_id=_job_id(meant))
    reason = Reason.REPEAT if event is EpisodeEvent.REPEATED else Reason.STALE_DUPLICATE
    if event is EpisodeEvent.NOTHING:
        reason = Reason.RESOLVED
    return Decision(verdict=Verdict.IGNORE, reason=reason, job_id=_job_id(meant))


def _no_job(policy: Policy, meant: Meant, messaged: bool) -> Decision:
    return Decision(
        verdict=Verdict.NOTIFY,
        reason=meant.reason or Reason.NO_TARGET,
        policy=policy.name,
        message=not messaged and notifies(policy),
        recheck_s=_SLOW_RECHECK_S,  # its job may register, or show its cards, later
        facts={"names": list(meant.names)} if meant.names else {},
    )


def _over(case: Case) -> Decision | None:
    """The job is over, or gone. A dead job that waits is for policies on that event, and they are for nothing else."""
    after_oom = case.policy.after_oom
    if case.job.state is JobState.ENDED and not _only_commands(case.policy):
        told = after_oom and case.history.open is None  # an open remediation tells of the end itself
        return tell(case, Reason.JOB_ENDED) if told else quiet(case, Reason.JOB_ENDED)
    if case.job.state is JobState.LOST:
        return replace(tell(case, Reason.JOB_LOST), recheck_s=_SLOW_RECHECK_S)
    generation = case.alert.labels.get(GENERATION_LABEL)
    if after_oom and generation != str(case.job.generation):
        return quiet(case, Reason.WRONG_GENERATION)
    if after_oom and case.alive:  # the event may overtake the job's own row
        return wait(case, Reason.UNCONFIRMED, timedelta(seconds=_SOON_S))
    if _only_commands(case.policy):
        return None
    return quiet(case, Reason.JOB_ENDED) if not after_oom and not case.alive else None


def _only_commands(policy: Policy) -> bool:
    """Commands run on the service's host: what they do, an upload or a bill, needs no living job."""
    return {step.kind for step in policy.steps} <= {StepKind.NOTIFY, StepKind.RUN_COMMAND}


def _opted_out(case: Case) -> Decision | None:
    return tell(case, Reason.OPTED_OUT) if case.job.labels.get(OPT_OUT[0]) == OPT_OUT[1] else None


def _on_hold(case: Case) -> Decision | None:
    return tell(case, Reason.ON_HOLD, recheck_s=_SLOW_RECHECK_S) if case.job.held else None


def _joined(case: Case) -> Decision | None:
    """A dead job waits only a minute, so its event is asked again soon: the open one may end by that very death."""
    if case.history.open is None:
        return None
    soon = case.job.state is JobState.WAITING and case.history.open.state is not State.VERIFYING
    return replace(quiet(case, Reason.JOINED), recheck_s=_SOON_S if soon else _SLOW_RECHECK_S, verdict=Verdict.WAIT)


def _settled(case: Case) -> Decision | None:
    return quiet(case, Reason.REPEAT) if case.history.settled and case.event is EpisodeEvent.RECHECKED else None


def _cooling_down(case: Case) -> Decision | None:
    """A dead job waits only a minute: a save of a moment ago must not cost it its restart. The budget still counts."""
    if case.history.ended_at is None or not case.alive:
        return None
    left = case.history.ended_at + case.policy.limits.cooldown - case.now
    return wait(case, Reason.COOLDOWN, left) if left > timedelta(0) else None


def _others_hold_memory(case: Case) -> Decision | None:
    names = others_holding_more(case.evidence.card(case.uuid)) if case.alive else ()
    if not names:
        return None
    return tell(case, Reason.OTHER_PROCESS_HOLDS_MEMORY, recheck_s=_SLOW_RECHECK_S, names=list(names))


def _condition(case: Case) -> Decision | None:
    reason = misfit(case.policy, case.job, case.now)
    if reason is None:
        return None
    age_left = case.job.registered_at + case.policy.job.min_age - case.now
    if reason is Reason.CLOCK_SKEW or age_left <= timedelta(0):
        return replace(tell(case, reason), recheck_s=_SLOW_RECHECK_S)
    return tell(case, reason, recheck_s=max(1.0, age_left.total_seconds()))


def _second_sign(case: Case) -> Decision | None:
    if not case.policy.signs or second_sign(case):
        return None
    return tell(case, Reason.NO_SECOND_SIGN, recheck_s=case.policy.recheck.total_seconds())


def _confirmation(case: Case) -> Decision | None:
    """Only what ends a living generation needs it. Checks on the host are the agent's, when it acts."""
    if not (case.policy.destructive and case.alive):
        return None
    variables = case.variables
    asked = [substitute(item.expr, variables) for item in case.policy.confirm if item.expr]
    answers = [case.evidence.answer(expr) for expr in asked]
    if case.policy.confirm and all(answer is not None and answer.holds for answer in answers):
        return None
    detail = "not asked, or no fresh data" if None in answers else "it does not hold"
    return tell(case, Reason.UNCONFIRMED, recheck_s=case.policy.recheck.total_seconds(), detail=detail)


def _ladder(case: Case) -> Decision | None:
    """A ladder that has no rung left acts no more: a person decides what may be given up."""
    step = ladder_step(case)
    if step is None or step.rung is not None:
        return None
    tried = ", ".join(sorted(case.history.rungs_taken | case.history.rungs_refused))
    return tell(case, Reason.NO_RUNG_LEFT, tried=tried)


def _only_told(case: Case) -> Decision | None:
    """What may only be observed, and has no save that could be done."""
    steps, cut = plan_now(case)
    if steps:
        return None
    verdict = Verdict.OBSERVE if cut is Reason.OBSERVE_MODE else Verdict.NOTIFY
    recheck_s = _OBSERVE_RECHECK_S if cut is Reason.OBSERVE_MODE else _SLOW_RECHECK_S
    told = tell(case, cut or Reason.JOB_ENDED, would_have=step_words(case.policy.steps))
    return replace(told, verdict=verdict, recheck_s=recheck_s, steps=case.policy.steps)


def _saved_recently(case: Case) -> Decision | None:
    steps, _ = plan_now(case)
    if case.history.saved_at is None or all(step.kind is not StepKind.SAVE for step in steps):
        return None
    left = case.history.saved_at + case.policy.limits.save_interval - case.now
    return wait(case, Reason.SAVED_RECENTLY, left) if left > timedelta(0) else None


def _brakes(case: Case) -> Decision | None:
    steps, _ = plan_now(case)
    would_have = step_words(steps)
    if case.history.breaker_open:
        return tell(case, Reason.BREAKER_OPEN, recheck_s=_SLOW_RECHECK_S, would_have=would_have)
    replaces = any(step.kind in DESTRUCTIVE for step in steps)
    reason = refusal(case.history.spent, case.rules.caps, case.policy.limits, replaces=replaces)
    if reason is None:
        return None
    if reason is Reason.JOB_BUDGET_SPENT:  # a person is asked, once; asking again would change nothing for hours
        return tell(case, reason, attempts=list(case.history.attempts), would_have=would_have)
    return tell(case, reason, recheck_s=_SLOW_RECHECK_S, would_have=would_have)


_CHECKS: tuple[Callable[[Case], Decision | None], ...] = (
    _over,
    _opted_out,
    _on_hold,
    _joined,
    _settled,
    _cooling_down,
    _others_hold_memory,
    _condition,
    _second_sign,
    _confirmation,
    _ladder,
    _only_told,
    _saved_recently,
    _brakes,
)


def _act(case: Case) -> Decision:
    """A plan that only saves is looked at again after the save interval; any other, in case it comes to nothing."""
    steps, cut = plan_now(case)
    only_saves = all(step.kind is StepKind.SAVE for step in steps)
    recheck = case.policy.limits.save_interval if only_saves else case.policy.limits.cooldown
    told = tuple(step for step in case.policy.steps if step.kind is StepKind.NOTIFY)
    rung = next((step.rung.value for step in steps if step.rung is not None), "")
    return Decision(
        verdict=Verdict.ACT,
        reason=cut or Reason.POLICY_MATCHED,
        policy=case.policy.name,
        job_id=case.job.job_id,
        steps=(*told, *steps),
        message=notifies(case.policy),
        recheck_s=max(1.0, recheck.total_seconds()),
        facts=facts_of(case)
        | ({"would_have": step_words(case.policy.steps)} if cut else {})
        | ({RUNG: rung} if rung else {}),
    )


def _job_id(meant: Meant) -> str:
    return meant.job.job_id if meant.job else ""
