"""What the service asks of an agent, and what the agent answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tunewarden.domain.reason import Reason


class OrderKind(StrEnum):
    """The three things that an agent can be asked for."""

    SAVE = "save"
    STOP = "stop"
    REPLACE = "replace"


class Phase(StrEnum):
    """How far an order has got. `refused` and `superseded` end it, and so does its kind's last phase."""

    ACCEPTED = "accepted"  # journaled
    PLANNED = "planned"  # the plan is complete: config found, new file written and read back, recipe, disk space
    SAVED = "saved"  # the receipt is there and what it names is whole
    STOPPED = "stopped"  # nothing of the generation is alive
    LAUNCHED = "launched"  # the next generation is started
    REFUSED = "refused"  # not done, for a reason; before `stopped` the job is left as it was
    SUPERSEDED = "superseded"  # something local won: the job ended, a person stopped it


ENDING_PHASES: Mapping[OrderKind, frozenset[Phase]] = {
    OrderKind.SAVE: frozenset({Phase.SAVED, Phase.REFUSED, Phase.SUPERSEDED}),
    OrderKind.STOP: frozenset({Phase.STOPPED, Phase.REFUSED, Phase.SUPERSEDED}),
    OrderKind.REPLACE: frozenset({Phase.LAUNCHED, Phase.REFUSED, Phase.SUPERSEDED}),
}


@dataclass(frozen=True, kw_only=True)
class HostCheck:
    """A measurement that the agent takes on the host at the moment of acting. No data means `unconfirmed`.

    `metric` is `memory_ratio` (used / (used + free) of the job's fullest card, 0 to 1) or `utilization` (0 to 1).
    """

    metric: str
    op: str  # ">" or "<"
    value: float


@dataclass(frozen=True, kw_only=True)
class Order:
    """One fenced order.

    Knobs have canonical names (`batch_size`) and values `/2`, `*2` or plain; never argv, paths or environment.
    """

    order_id: str
    job_id: str
    generation: int
    kind: OrderKind
    knobs: Mapping[str, str] = field(default_factory=dict)
    confirm: tuple[HostCheck, ...] = ()
    expires_in_s: float = 60.0  # a duration: two hosts' clocks are never compared
    save_first: bool = True  # a stop or replace saves before it stops
    lose_unsaved: bool = False  # may stop although nothing was saved since the last state
    allow_effective_batch_change: bool = False
    after_oom: bool = False  # the generation is dead already: only plan and launch


@dataclass(frozen=True, kw_only=True)
class Report:
    """One answer of an agent about an order; the service keeps one per (order_id, phase)."""

    order_id: str
    phase: Phase
    reason: Reason | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
