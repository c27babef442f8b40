"""How often the service may act: counts over sliding windows. A cap is reached by the last one that it allows."""

from dataclasses import dataclass
from datetime import timedelta

from tunewarden.domain.policy import Limits
from tunewarden.domain.reason import Reason

HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Caps:
    """What holds for all jobs together. The share counts only from `share_from_jobs` running jobs on."""

    actions_per_hour: int = 10
    share_from_jobs: int = 4
    share_percent: int = 50


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What was done: `replacements` of this job (all generations) and group in the policy's window."""

    replacements: int = 0
    actions_last_hour: int = 0
    running_jobs: int = 0
    jobs_acted_on: int = 0  # with an open remediation that stops or replaces


def refusal(spent: Spent, caps: Caps, limits: Limits, *, replaces: bool) -> Reason | None:
    """Why one more remediation may not begin; `replaces`: it would stop or replace. None when it may."""
    if replaces and spent.replacements >= limits.replacements:
        return Reason.JOB_BUDGET_SPENT
    if spent.actions_last_hour >= caps.actions_per_hour:
        return Reason.HOURLY_BUDGET_SPENT
    if replaces and spent.jobs_acted_on >= _share(spent, caps):
        return Reason.FLEET_SHARE_SPENT
    return None


def trips(spent: Spent, caps: Caps, *, replaces: bool) -> Reason | None:
    """The cap that one more remediation, now begun, has reached: the breaker opens. `spent` is from before it."""
    if spent.actions_last_hour + 1 >= caps.actions_per_hour:
        return Reason.HOURLY_BUDGET_SPENT
    if replaces and spent.jobs_acted_on + 1 >= _share(spent, caps):
        return Reason.FLEET_SHARE_SPENT
    return None


def _share(spent: Spent, caps: Caps) -> float:
    """How many jobs may be acted on at once: at least one; any number on a small fleet."""
    if spent.running_jobs < caps.share_from_jobs:
        return float("inf")
    return max(1, spent.running_jobs * caps.share_percent // 100)
