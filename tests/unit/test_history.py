"""Which ends of a remediation leave nothing more to do, and which make alerts wait."""

import pytest

from tunewarden.domain.history import cools_down, settles
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import ENDING_STATES, State


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        (State.RECOVERED, Reason.RECOVERED, True),
        (State.RUNNING_NOT_RECOVERED, Reason.STILL_FULL, True),
        (State.BROKEN, Reason.DIED_AGAIN, True),
        (State.UNKNOWN, Reason.NO_DATA, True),
        (State.UNCERTAIN, Reason.UNCERTAIN, True),
        (State.FAILED, Reason.COMMAND_FAILED, True),
        (State.DONE, Reason.SAVED, False),
        (State.DONE, Reason.COMMAND_DONE, True),
        (State.DONE, Reason.STOPPED, True),
        (State.REFUSED, Reason.UNCONFIRMED, False),
        (State.REFUSED, Reason.EXPIRED, False),
        (State.REFUSED, Reason.NO_RESUME_RECIPE, True),
        (State.REFUSED, Reason.AT_MINIMUM, True),
        (State.CANCELLED, Reason.RESOLVED, False),
        (State.CANCELLED, Reason.MANUAL, True),
        (State.SUPERSEDED, Reason.JOB_ENDED, False),
    ],
)
def test_an_end_settles_an_episode_or_not(state: State, reason: Reason, expected: bool) -> None:
    """A refusal that another try would meet again is for a person."""
    assert settles(state, reason) is expected


def test_only_what_lost_to_the_job_or_a_person_needs_no_cooldown() -> None:
    """An OOM end that overtook an order is decided anew at once."""
    assert {state for state in ENDING_STATES if not cools_down(state)} == {State.SUPERSEDED}
