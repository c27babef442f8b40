"""Which policy decides about an alert, and whether it may end a living job."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tunewarden.domain.alert import Alert
from tunewarden.domain.budget import Caps
from tunewarden.domain.evidence import questions, variables_of
from tunewarden.domain.job import Job, JobState
from tunewarden.domain.matcher import all_match
from tunewarden.domain.policy import Mode, Policy
from tunewarden.domain.reason import Reason
from tunewarden.domain.resolution import Meant

SKEW_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the settings say. `enforce`: policies that inherit may stop a living job."""

    enforce: bool = False
    caps: Caps = field(default_factory=Caps)


def choose(
    policies: Sequence[Policy], alert: Alert, job: Job | None, now: datetime
) -> tuple[Policy | None, Reason | None]:
    """The policy that decides about `alert`: the first that matches and whose job condition holds.

    Where none of the matching ones fits the job, the first of them, so that it can say why. None when no policy
    matches (NO_POLICY), or only such that are switched off (POLICY_OFF).
    """
    matching = [policy for policy in policies if all_match(policy.matchers, alert.labels)]
    active = [policy for policy in matching if policy.enabled and policy.mode is not Mode.OFF]
    if not active:
        return None, Reason.POLICY_OFF if matching else Reason.NO_POLICY
    fits = (policy for policy in active if job is None or misfit(policy, job, now) is None)
    return next(fits, active[0]), None


def questions_for(alert: Alert, meant: Meant, policies: Sequence[Policy], now: datetime) -> tuple[str, ...]:
    """The expressions that Prometheus must be asked before `alert` can be decided."""
    policy, _ = choose(policies, alert, meant.job, now)
    if policy is None or meant.job is None:
        return ()
    return questions(policy, variables_of(alert, meant.job, meant.uuid, policy))


def may_destroy(policy: Policy, job: Job, rules: Rules) -> bool:
    """Whether `policy` may stop or relaunch this job now: off > observe > enforce over the settings.

    `run --enforce` lifts only the settings' default. A dead job has nothing left to lose.
    """
    if policy.mode is not Mode.INHERIT:
        return policy.mode is Mode.ENFORCE
    return rules.enforce or job.enforce or job.state is JobState.WAITING


def misfit(policy: Policy, job: Job, now: datetime) -> Reason | None:
    """Why the job is not one that the policy acts on; None when it is."""
    condition = policy.job
    fits = (
        (not condition.trainers or job.trainer in condition.trainers)
        and all_match(condition.labels, job.labels)
        and not (condition.single_node and job.multi_node)
        and (condition.max_ranks is None or job.ranks <= condition.max_ranks)
    )
    if not fits:
        return Reason.CONDITION_NOT_MET
    if condition.min_age <= timedelta(0):
        return None
    if abs(job.clock_skew_s) > SKEW_LIMIT_S:
        return Reason.CLOCK_SKEW
    return Reason.CONDITION_NOT_MET if now - job.registered_at < condition.min_age else None
