"""The rows of the bench's table."""

import datetime
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement against its goal; `at_least` says on which side of the goal it must be."""

    name: str
    goal: float
    value: float
    unit: str
    at_least: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        """PASS or MISS."""
        return "PASS" if (self.value >= self.goal if self.at_least else self.value <= self.goal) else "MISS"

    def line(self) -> str:
        sign = "≥" if self.at_least else "≤"
        goal = f"{sign} {self.goal:g} {self.unit}"
        return f"{self.name:<62} {goal:>14} {self.value:>10.3g} {self.unit:<5} {self.verdict}  {self.note}".rstrip()


Measure = Callable[[], list[Row]]


def machine() -> str:
    """What the numbers were taken on."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    load = os.getloadavg()[0]
    return f"{today}, {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load:.1f}"
