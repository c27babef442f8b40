"""Where GPU values come from: the driver, a simulated card, or nowhere."""

import ctypes
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tunewarden.sampling.reading import GpuProcess, GpuReading, GpuSource, Readings
from tunewarden.sampling.simulated import SimulatedCard, SimulatedGpu

__all__ = ["GpuProcess", "GpuReading", "GpuSource", "NoGpu", "Readings", "open_gpu_source"]

DRIVER_LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True)
class NoGpu:
    """The source of a host without a driver: no cards, and the reason why."""

    why: str

    def read(self) -> Readings:
        return Readings(errors=(self.why,))


def open_gpu_source(
    simulate: str | None,
    pids: Callable[[], Iterable[int]],
    workers: Callable[[], Iterable[int]] | None = None,
) -> GpuSource:
    """The source for this host.

    `simulate` is the value of `--simulate-gpu`, or None for the real driver. `pids` gives the live processes of the
    job, whose resident memory a simulated card shows; `workers` those whose CPU time stands for GPU time (the trainer's
    ranks, not its data loaders; default: all of `pids`). ValueError, with what to write, when `simulate` can't be read.
    """
    if simulate is not None:
        return SimulatedGpu(SimulatedCard.parse(simulate), pids, workers or pids)
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return NoGpu(f"no NVIDIA driver on this host ({DRIVER_LIBRARY} can't be loaded): no GPU values")
    # pynvml costs 4 MB of resident memory, which an agent on a host without a driver need not pay.
    source: GpuSource = importlib.import_module("tunewarden.sampling.nvml").NvmlSource()
    return source
