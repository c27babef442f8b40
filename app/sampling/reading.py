"""What one look at the cards gives. Bytes, 0 to 100, degrees Celsius, watts; None: could not be measured."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    """A process that holds memory of a card. `pid` is the host's: the driver knows no pid namespaces."""

    pid: int
    memory: int | None
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """One card. `used + free` is what programs can have; `total` has the driver's reserve on top (NVML memory v2).

    `age_s` is how old the values are: more than a moment only when the driver hangs.
    """

    uuid: str
    index: int
    name: str
    memory_used: int | None = None
    memory_free: int | None = None
    memory_total: int | None = None
    utilization: float | None = None
    temperature: float | None = None
    power_watts: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    age_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """Every card that answered, and one line for each thing that did not."""

    gpus: tuple[GpuReading, ...] = ()
    errors: tuple[str, ...] = ()


class GpuSource(Protocol):
    """Something that knows the cards of this host. `read` never raises and returns within a few seconds."""

    def read(self) -> Readings: ...
