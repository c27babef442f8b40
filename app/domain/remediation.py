"""One execution of one policy on one job: its states, and the one table that says how they follow each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tunewarden.domain.plan import MANUAL_POLICY, Plan
from tunewarden.domain.reason import Reason


class State(StrEnum):
    """Where a remediation is. Everything before the ending states is open: at most one such per job."""

    DECIDED = "decided"  # the next step of the plan is to be begun
    COMMANDING = "commanding"  # a run_command step runs (its intent is written)
    ORDERED = "ordered"  # an order is open; the agent has not taken it
    ACCEPTED = "accepted"  # the agent journaled it
    PLANNED = "planned"  # the agent's plan is whole, and it was given the go-ahead: no way back by `resolved`
    SAVED = "saved"  # the checkpoint is written
    HALTED = "halted"  # nothing of the old generation is alive; the launch is to come
    VERIFYING = "verifying"  # the new generation is started and watched

    RECOVERED = "recovered"
    RUNNING_NOT_RECOVERED = "running_not_recovered"  # left alone, told
    BROKEN = "broken"  # died, or no step by the deadline
    UNKNOWN = "unknown"  # no data: told
    DONE = "done"  # a plan without a launch (save, stop, command) is carried out
    REFUSED = "refused"  # before the stop: the job is as it was
    FAILED = "failed"  # a command failed
    SUPERSEDED = "superseded"  # something local won, or another order
    CANCELLED = "cancelled"  # by `resolved` or a person, before the first save or stop
    UNCERTAIN = "uncertain"  # it can't be told: a person must look


ENDING_STATES = frozenset(
    {
        State.RECOVERED,
        State.RUNNING_NOT_RECOVERED,
        State.BROKEN,
        State.UNKNOWN,
        State.DONE,
        State.REFUSED,
        State.FAILED,
        State.SUPERSEDED,
        State.CANCELLED,
        State.UNCERTAIN,
    }
)


class Event(StrEnum):
    """What moves a remediation."""

    COMMAND_BEGUN = "command_begun"
    COMMAND_FAILED = "command_failed"
    COMMAND_UNCERTAIN = "command_uncertain"  # killed between intent and outcome, and no probe can tell
    ORDER_ISSUED = "order_issued"
    ACCEPTED = "accepted"
    PLANNED = "planned"
    SAVED = "saved"
    STOPPED = "stopped"
    LAUNCHED = "launched"
    STEP_DONE = "step_done"  # the step's last phase is reached and the plan has another step
    PLAN_DONE = "plan_done"  # ... and it was the last one
    REFUSED = "refused"
    LAUNCH_FAILED = "launch_failed"  # refused after the stop
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # nobody took the order in time
    LOST = "lost"  # the agent is gone
    RECOVERED = "recovered"
    STILL_FULL = "still_full"
    DIED = "died"
    NO_DATA = "no_data"
    ROLLED_BACK = "rolled_back"  # broken once: an order with the previous knobs is issued


class Effect(StrEnum):
    """What the service does outside its own rows when a transition happens; each has an intent and an outcome."""

    NONE = "none"
    COMMAND = "command"


@dataclass(frozen=True, kw_only=True)
class Transition:
    """From one state by one event to another."""

    source: State
    event: Event
    target: State
    effect: Effect = Effect.NONE


# The moments around a transition at which a crash must lose nothing and double nothing. Without an outside effect
# intent and outcome are one commit.
POINTS = ("before_intent", "after_intent", "after_effect", "after_outcome")


def points_of(row: Transition) -> tuple[str, ...]:
    """The moments of one transition; the kill tests are generated from this."""
    return POINTS if row.effect is not Effect.NONE else ("before_intent", "after_outcome")


def name_of(source: State, event: Event) -> str:
    """A transition's name for boundaries, logs and tests."""
    return f"{source}:{event}"


@dataclass(frozen=True, kw_only=True)
class Remediation:
    """One execution of one policy on one job. Times are epoch seconds of the service's clock.

    `step` is the index of the plan's current step, `generation` the one that it began with, `facts` what was gathered
    on the way (docs/reference/remediations.md names them). `epoch` rises with every claim: whoever holds an older one
    can write nothing.
    """

    remediation_id: str
    job_id: str
    policy: str
    plan: Plan
    state: State
    reason: Reason
    generation: int
    opened_at: float
    state_since: float
    step: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    equivalence_group: str = ""
    policy_digest: str = ""
    episode_id: int | None = None
    rolled_back: bool = False
    ended_at: float | None = None
    wake_at: float | None = None
    lease_owner: str | None = None
    lease_until: float | None = None
    epoch: int = 0

    @property
    def open(self) -> bool:
        return self.state not in ENDING_STATES

    @property
    def manual(self) -> bool:
        """True when a person asked for it."""
        return self.policy == MANUAL_POLICY

    @property
    def last_step(self) -> bool:
        return self.step + 1 >= len(self.plan.steps)


class InvalidTransition(Exception):
    """The remediation can't move so from where it is."""


def _rows() -> tuple[Transition, ...]:
    s, e = State, Event
    rows = [
        Transition(source=s.DECIDED, event=e.ORDER_ISSUED, target=s.ORDERED),
        Transition(source=s.DECIDED, event=e.COMMAND_BEGUN, target=s.COMMANDING, effect=Effect.COMMAND),
        Transition(source=s.DECIDED, event=e.CANCELLED, target=s.CANCELLED),
        Transition(source=s.DECIDED, event=e.SUPERSEDED, target=s.SUPERSEDED),
        Transition(source=s.DECIDED, event=e.REFUSED, target=s.REFUSED),
        Transition(source=s.COMMANDING, event=e.STEP_DONE, target=s.DECIDED),
        Transition(source=s.COMMANDING, event=e.PLAN_DONE, target=s.DONE),
        Transition(source=s.COMMANDING, event=e.COMMAND_FAILED, target=s.FAILED),
        Transition(source=s.COMMANDING, event=e.COMMAND_UNCERTAIN, target=s.UNCERTAIN),
        Transition(source=s.ORDERED, event=e.ACCEPTED, target=s.ACCEPTED),
        Transition(source=s.ORDERED, event=e.EXPIRED, target=s.REFUSED),
        Transition(source=s.ACCEPTED, event=e.EXPIRED, target=s.REFUSED),
        Transition(source=s.ACCEPTED, event=e.PLANNED, target=s.PLANNED),
        Transition(source=s.PLANNED, event=e.SAVED, target=s.SAVED),
        Transition(source=s.PLANNED, event=e.STOPPED, target=s.HALTED),
        Transition(source=s.PLANNED, event=e.LAUNCHED, target=s.VERIFYING),
        Transition(source=s.SAVED, event=e.STOPPED, target=s.HALTED),
        Transition(source=s.SAVED, event=e.STEP_DONE, target=s.DECIDED),
        Transition(source=s.SAVED, event=e.PLAN_DONE, target=s.DONE),
        Transition(source=s.HALTED, event=e.LAUNCHED, target=s.VERIFYING),
        Transition(source=s.HALTED, event=e.STEP_DONE, target=s.DECIDED),
        Transition(source=s.HALTED, event=e.PLAN_DONE, target=s.DONE),
        Transition(source=s.HALTED, event=e.LAUNCH_FAILED, target=s.BROKEN),
        Transition(source=s.VERIFYING, event=e.RECOVERED, target=s.RECOVERED),
        Transition(source=s.VERIFYING, event=e.STILL_FULL, target=s.RUNNING_NOT_RECOVERED),
        Transition(source=s.VERIFYING, event=e.DIED, target=s.BROKEN),
        Transition(source=s.VERIFYING, event=e.NO_DATA, target=s.UNKNOWN),
        Transition(source=s.VERIFYING, event=e.ROLLED_BACK, target=s.ORDERED),
        Transition(source=s.VERIFYING, event=e.SUPERSEDED, target=s.SUPERSEDED),
    ]
    for source in (s.ORDERED, s.ACCEPTED):
        rows.append(Transition(source=source, event=e.CANCELLED, target=s.CANCELLED))
    for source in (s.ORDERED, s.ACCEPTED, s.PLANNED, s.SAVED):
        rows.append(Transition(source=source, event=e.REFUSED, target=s.REFUSED))
    for source in (s.ORDERED, s.ACCEPTED, s.PLANNED, s.SAVED, s.HALTED):
        rows.append(Transition(source=source, event=e.SUPERSEDED, target=s.SUPERSEDED))
        rows.append(Transition(source=source, event=e.LOST, target=s.UNCERTAIN))
    rows.append(Transition(source=s.VERIFYING, event=e.LOST, target=s.UNCERTAIN))
    return tuple(rows)


TRANSITIONS = _rows()
_BY_KEY = {(row.source, row.event): row for row in TRANSITIONS}


def transition(source: State, event: Event) -> Transition:
    """The one row for this state and event.

    Raises InvalidTransition when there is none.
    """
    row = _BY_KEY.get((source, event))
    if row is None:
        raise InvalidTransition(f"{source} can't take {event}")
    return row
