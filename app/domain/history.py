"""What happened before, as far as a decision needs it."""

from dataclasses import dataclass, field
from datetime import datetime

from tunewarden.domain.budget import Spent
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import State

# A remediation that ended so has done nothing to the job, and another try may go better.
_WORTH_ANOTHER_TRY = frozenset(
    {
        Reason.UNCONFIRMED,
        Reason.EXPIRED,
        Reason.WITHDRAWN,
        Reason.SERVICE_AWAY,
        Reason.NO_STEP_BOUNDARY,
        Reason.WRONG_GENERATION,
        Reason.ORDER_OPEN,
        Reason.RESOLVED,
    }
)


@dataclass(frozen=True, kw_only=True)
class OpenRemediation:
    """The open remediation of the job that an alert means."""

    remediation_id: str
    state: State
    cancellable: bool  # nothing was saved or stopped yet
    linked: bool = False  # the episode at hand opened or joined it
    others_fire: bool = False  # another episode that opened or joined it still fires


@dataclass(frozen=True, kw_only=True)
class History:
    """The past of one job and one policy, and the state of the brakes.

    `ended_at` is of the job's newest remediation that cooldowns count from. `settled`: the episode's own remediation
    came to an end that leaves nothing more to do. `attempts` are the job's remediations of the window, in words.
    `rungs_*` are those of ladders that the job has been through, over all its generations.
    """

    open: OpenRemediation | None = None
    ended_at: datetime | None = None
    settled: bool = False
    saved_at: datetime | None = None
    spent: Spent = field(default_factory=Spent)
    attempts: tuple[str, ...] = ()
    rungs_taken: frozenset[str] = frozenset()
    rungs_refused: frozenset[str] = frozenset()
    breaker_open: bool = False
    low_on_space: bool = False


def settles(state: State, reason: Reason) -> bool:
    """Whether a remediation that ended so leaves nothing more to do for the episode that opened it."""
    if state in (State.REFUSED, State.CANCELLED):
        return reason not in _WORTH_ANOTHER_TRY
    if state is State.DONE:  # a save may be due again; a command runs once an episode
        return reason is not Reason.SAVED
    return state is not State.SUPERSEDED


def cools_down(state: State) -> bool:
    """Whether alerts must wait after a remediation that ended so. What the job or a person did is no reason to."""
    return state is not State.SUPERSEDED
