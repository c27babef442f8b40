"""The side effects that the stages need, as Protocols. Fakes are in tunewarden.testing."""

from datetime import datetime
from typing import Protocol


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
