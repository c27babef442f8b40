"""The side effects that the stages need, as Protocols. Fakes are in tunewarden.testing."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from tunewarden.domain.message import Message, Notice
from tunewarden.domain.outbox import OutboxRow, RobotState, SendResult


class Clock(Protocol):
    """The time of this host."""

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class Boundary(Protocol):
    """A named moment around an effect. Production passes one that does nothing; kill tests pass one that kills."""

    def reach(self, transition: str, point: str) -> None:
        """`point` is before_intent, after_intent, after_effect or after_outcome."""
        ...


class NoBoundary:
    """The boundary of production."""

    def reach(self, transition: str, point: str) -> None:  # noqa: ARG002 - the names are the port's
        return None


class Robot(Protocol):
    """One robot of a chat group."""

    @property
    def limit_bytes(self) -> int:
        """The largest body that it takes."""
        ...

    def size(self, message: Message) -> int:
        """How many bytes the message has once it is sent."""
        ...

    async def send(self, message: Message) -> SendResult:
        """Posts it once. Never raises for what the network or the robot does: that is the result."""
        ...

    async def aclose(self) -> None:
        """Closes its connections."""
        ...


class OutboxStore(Protocol):
    """The rows of the outbox and the state of the robots.

    Each `mark_` writes only rows whose epoch is the one given: a reporter that was replaced changes nothing any more.
    """

    async def begin(self) -> int:
        """A new epoch for the caller. Every row found in `sending` becomes pending and possibly repeated.

        All pending rows become due now: a restart is when a person has repaired something.
        """
        ...

    async def bury_unknown(self, targets: Sequence[str], error: str) -> int:
        """Gives up the rows of targets that the settings no longer name; returns how many."""
        ...

    async def enqueue(self, target: str, notice: Notice) -> None:
        """Adds a pending row. Stages that decide add theirs in their own transaction instead."""
        ...

    async def claim_due(self, target: str, now: datetime, limit: int, epoch: int) -> list[OutboxRow]:
        """Up to `limit` pending rows of the target with next_attempt_at <= now, oldest first, now of this epoch."""
        ...

    async def next_due(self, target: str) -> datetime | None:
        """The earliest next_attempt_at among the target's pending rows."""
        ...

    async def mark_sending(self, ids: Sequence[int], epoch: int) -> None:
        """The intent: state `sending`, attempts + 1."""
        ...

    async def mark_sent(self, ids: Sequence[int], epoch: int, now: datetime) -> None:
        """Delivered at `now`."""
        ...

    async def mark_retry(
        self, ids: Sequence[int], epoch: int, at: datetime, error: str, possibly_repeated: bool
    ) -> None:
        """Pending again, due at `at`. A mark that is set already stays."""
        ...

    async def mark_dead(self, ids: Sequence[int], epoch: int, error: str) -> None:
        """Given up; `error` is shown to a person."""
        ...

    async def robot_state(self, target: str) -> RobotState:
        """The state of the robot; an empty one if there is none."""
        ...

    async def save_robot_state(self, state: RobotState) -> None:
        """Keeps it."""
        ...
