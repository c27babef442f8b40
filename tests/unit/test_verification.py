"""The verdict over a new generation, case by case."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tunewarden.domain.policy import Expectation
from tunewarden.domain.reason import Reason
from tunewarden.domain.verification import Evidence, Recovery, long_enough, verdict

START = 1000.0
EXPECT = Expectation(expr="x", verify_for=timedelta(minutes=5), steps=50, deadline=timedelta(minutes=15))

LAUNCHED = Evidence(launched_at=START, required_step=100)
STEPPING = replace(LAUNCHED, resumed_step=100, first_step=101, first_step_at=START + 60, step=120, step_at=START + 90)
PROVEN = replace(STEPPING, step=200, step_at=START + 400, holds=False)
IN_TIME = START + 60 + 300
TOO_LATE = START + 15 * 60

CASES = [
    ("just launched", LAUNCHED, START + 1, Recovery.NOT_YET, None),
    ("no step yet", LAUNCHED, TOO_LATE - 1, Recovery.NOT_YET, None),
    ("no step by the deadline", LAUNCHED, TOO_LATE, Recovery.BROKEN, Reason.NO_STEP),
    ("silent until the deadline", replace(LAUNCHED, fresh=False), TOO_LATE, Recovery.UNKNOWN, Reason.NO_DATA),
    ("never tells steps", replace(LAUNCHED, counts_steps=False), TOO_LATE, Recovery.UNKNOWN, Reason.NO_DATA),
    ("steps, but not long", STEPPING, START + 120, Recovery.NOT_YET, None),
    ("long, but few steps", STEPPING, IN_TIME, Recovery.NOT_YET, None),
    ("many steps, but not long", PROVEN, IN_TIME - 1, Recovery.NOT_YET, None),
    ("long and many, condition gone", PROVEN, IN_TIME, Recovery.RECOVERED, Reason.RECOVERED),
    ("condition still holds", replace(PROVEN, holds=True), IN_TIME, Recovery.RUNNING_NOT_RECOVERED, Reason.STILL_FULL),
    ("condition not measured", replace(PROVEN, holds=None), IN_TIME, Recovery.NOT_YET, None),
    ("never measured", replace(PROVEN, holds=None), IN_TIME + 900, Recovery.UNKNOWN, Reason.NO_DATA),
    ("stale at the end", replace(PROVEN, fresh=False), IN_TIME, Recovery.NOT_YET, None),
    ("stale for good", replace(PROVEN, fresh=False), IN_TIME + 900, Recovery.UNKNOWN, Reason.NO_DATA),
    ("resumed too early", replace(STEPPING, resumed_step=99), START + 90, Recovery.BROKEN, Reason.NOT_RESUMED),
    ("afresh", replace(STEPPING, resumed_step=None, first_step=1), START + 90, Recovery.BROKEN, Reason.NOT_RESUMED),
    ("no proof of the resume", replace(PROVEN, resumed_step=None), IN_TIME, Recovery.BROKEN, Reason.NOT_RESUMED),
    ("nothing to resume", replace(PROVEN, required_step=None), IN_TIME, Recovery.RECOVERED, Reason.RECOVERED),
    ("steps stopped", STEPPING, START + 90 + 900, Recovery.BROKEN, Reason.NO_STEP),
    ("steps and samples stopped", replace(STEPPING, fresh=False), START + 90 + 900, Recovery.UNKNOWN, Reason.NO_DATA),
    ("died", replace(STEPPING, died="failed"), START + 90, Recovery.BROKEN, Reason.DIED_AGAIN),
    ("was killed", replace(LAUNCHED, died="killed"), START + 2, Recovery.BROKEN, Reason.DIED_AGAIN),
    ("ran out of memory", replace(STEPPING, died="cuda_oom"), START + 90, Recovery.BROKEN, Reason.DIED_OF_OOM_AGAIN),
    ("at load", replace(LAUNCHED, died="oom_at_load"), START + 9, Recovery.BROKEN, Reason.DIED_OF_OOM_AGAIN),
    ("sampling", replace(STEPPING, died="oom_in_sampling"), START + 90, Recovery.BROKEN, Reason.DIED_OF_OOM_AGAIN),
    ("of host memory", replace(STEPPING, died="host_oom"), START + 90, Recovery.BROKEN, Reason.DIED_OF_HOST_OOM_AGAIN),
    ("into NaN", replace(STEPPING, died="nan"), START + 90, Recovery.BROKEN, Reason.LOSS_NOT_FINITE),
    ("without a step", replace(LAUNCHED, died="finished_without_steps"), START + 5, Recovery.BROKEN, Reason.NO_STEP),
    ("a person stopped it", replace(STEPPING, died="user_stop"), START + 90, Recovery.SUPERSEDED, Reason.USER_STOP),
    ("another order ended it", replace(STEPPING, died="replaced"), START + 90, Recovery.SUPERSEDED, Reason.SUPERSEDED),
    ("finished while watched", replace(STEPPING, died="finished"), START + 90, Recovery.RECOVERED, Reason.RECOVERED),
    ("over at once, no step", replace(LAUNCHED, died="finished"), START + 5, Recovery.BROKEN, Reason.NO_STEP),
    (
        "finished after starting afresh",
        replace(STEPPING, first_step=1, resumed_step=None, died="finished"),
        START + 90,
        Recovery.BROKEN,
        Reason.NOT_RESUMED,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("evidence", "now", "recovery", "reason"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_the_verdict_follows_the_evidence(
    evidence: Evidence, now: float, recovery: Recovery, reason: Reason | None
) -> None:
    """What can't be measured is never good, and a person's act is never a fault."""
    found = verdict(evidence, EXPECT, now)

    assert (found.recovery, found.reason if recovery is not Recovery.NOT_YET else None) == (recovery, reason)


def test_the_condition_is_asked_only_at_the_end() -> None:
    """Before that its answer would not count."""
    assert not long_enough(STEPPING, EXPECT, IN_TIME)
    assert not long_enough(PROVEN, EXPECT, IN_TIME - 1)
    assert long_enough(PROVEN, EXPECT, IN_TIME)
