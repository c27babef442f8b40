"""How often the service may act."""

import pytest

from tunewarden.domain.budget import Caps, Spent, refusal, trips
from tunewarden.domain.policy import Limits
from tunewarden.domain.reason import Reason

JOB, HOUR, FLEET = Reason.JOB_BUDGET_SPENT, Reason.HOURLY_BUDGET_SPENT, Reason.FLEET_SHARE_SPENT


@pytest.mark.parametrize(
    ("spent", "replaces", "expected"),
    [
        (Spent(), True, None),
        (Spent(replacements=2), True, None),
        (Spent(replacements=3), True, JOB),
        (Spent(replacements=3), False, None),
        (Spent(actions_last_hour=9), True, None),
        (Spent(actions_last_hour=10), True, HOUR),
        (Spent(actions_last_hour=10), False, HOUR),
        (Spent(running_jobs=3, jobs_acted_on=3), True, None),
        (Spent(running_jobs=4, jobs_acted_on=1), True, None),
        (Spent(running_jobs=4, jobs_acted_on=2), True, FLEET),
        (Spent(running_jobs=4, jobs_acted_on=2), False, None),
        (Spent(running_jobs=5, jobs_acted_on=2), True, FLEET),
    ],
)
def test_what_is_spent_is_refused(spent: Spent, replaces: bool, expected: Reason | None) -> None:
    """Three replacements, ten actions an hour, half of four or more running jobs."""
    assert refusal(spent, Caps(), Limits(), replaces=replaces) is expected


@pytest.mark.parametrize(
    ("spent", "replaces", "expected"),
    [
        (Spent(actions_last_hour=8), True, None),
        (Spent(actions_last_hour=9), True, HOUR),
        (Spent(running_jobs=4, jobs_acted_on=0), True, None),
        (Spent(running_jobs=4, jobs_acted_on=1), True, FLEET),
        (Spent(running_jobs=4, jobs_acted_on=1), False, None),
        (Spent(running_jobs=3, jobs_acted_on=2), True, None),
    ],
)
def test_the_last_one_that_is_allowed_opens_the_breaker(spent: Spent, replaces: bool, expected: Reason | None) -> None:
    """Reached, not exceeded."""
    assert trips(spent, Caps(), replaces=replaces) is expected


def test_a_share_that_rounds_to_nothing_still_allows_one() -> None:
    """10 % of four jobs is not none for ever."""
    assert refusal(Spent(running_jobs=4), Caps(share_percent=10), Limits(), replaces=True) is None
