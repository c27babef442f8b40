"""What is known of a generation's end, and what is made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunewarden.domain.cause import Cause

Fact = str | int | float


@dataclass(frozen=True, kw_only=True)
class Crash:
    """crash.json: what the trainer wrote of its own death. `at_load`: before step 1, None where it doesn't say."""

    error: str
    phase: str | None = None
    where: str | None = None
    at_load: bool | None = None
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outside:
    """What others say of the death: the job's control group and the kernel. docs/reference/causes.md, evidence.

    `kills`: how often the kernel killed in the job's group since its launch, None: unknown. `victims`: lines of the
    kernel's log about processes of the job, by pid. `memory`: fine, short or unknown, of host and group together.
    `xids`: faults that the driver puts down to a process of the job, each with its line; `card_xids`: those that it
    puts down to nobody.
    """

    kills: int | None = None
    victims: Mapping[int, str] = field(default_factory=dict)
    memory: str = "unknown"
    xids: tuple[tuple[int, str], ...] = ()
    card_xids: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What is known about how a generation ended by itself.

    `exit_status` is the launcher's: negative for a signal, None when nobody could reap it. `tail` is the end of what
    this generation printed. `near_end` is None when the number of steps is unknown, `steps_made` when nobody counts
    them. `resumed`: it was to go on from a state. `seconds`: how long it lived.
    """

    exit_status: int | None
    crash: Crash | None
    tail: str
    near_end: bool | None
    steps_made: int | None = None
    planned: int | None = None
    phase: str | None = None
    loss: float | None = None
    resumed: bool = False
    seconds: float | None = None
    outside: Outside = field(default_factory=Outside)


@dataclass(frozen=True, kw_only=True)
class Death:
    """The cause, the line that shows it ("" where the exit status says it all), and the facts of the event."""

    cause: Cause
    evidence: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)
