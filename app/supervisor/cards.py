"""Which cards are the job's, and how full they are. Decides from readings; measures nothing."""

from collections.abc import Collection, Sequence

from tunewarden.domain.order import HostCheck
from tunewarden.sampling.gpu import GpuReading

FREE_RATIO = 0.10  # "holds a job" means a memory ratio above this


def job_cards(
    gpus: Sequence[GpuReading], pids: Collection[int], visible: str | None, *, simulated: bool
) -> tuple[GpuReading, ...] | None:
    """The job's cards: those on which NVML shows one of `pids`, else those of CUDA_VISIBLE_DEVICES (`visible`).

    None: unknown. A simulated card is the job's. Indices in `visible` count in NVML's (PCI) order, which is CUDA's only
    under CUDA_DEVICE_ORDER=PCI_BUS_ID; with one card both agree.
    """
    if simulated:
        return tuple(gpus)
    shown = tuple(gpu for gpu in gpus if any(process.pid in pids for process in gpu.processes or ()))
    if shown:
        return shown
    if visible is None:
        return None
    named = tuple(_named(gpus, word.strip()) for word in visible.split(",") if word.strip())
    known = tuple(gpu for gpu in named if gpu is not None)
    return known if known and len(known) == len(named) else None


def _named(gpus: Sequence[GpuReading], word: str) -> GpuReading | None:
    if word.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(word)), None)
    wanted = word.lower().removeprefix("gpu-")
    found = [gpu for gpu in gpus if gpu.uuid.lower().removeprefix("gpu-").startswith(wanted)]
    return found[0] if len(found) == 1 else None  # CUDA takes a unique beginning of a uuid


def memory_ratio(gpu: GpuReading) -> float | None:
    """used / (used + free), 0 to 1; None where it was not measured."""
    if gpu.memory_used is None or gpu.memory_free is None or gpu.memory_used + gpu.memory_free <= 0:
        return None
    return gpu.memory_used / (gpu.memory_used + gpu.memory_free)


def confirms(check: HostCheck, cards: Sequence[GpuReading]) -> bool | None:
    """Whether the cards bear a check out, by the fullest (or busiest) of them; None: no data."""
    if check.metric == "memory_ratio":
        values = [memory_ratio(gpu) for gpu in cards]
    else:
        values = [None if gpu.utilization is None else gpu.utilization / 100.0 for gpu in cards]
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    return max(known) > check.value if check.op == ">" else max(known) < check.value


def held_by_others(gpu: GpuReading, pids: Collection[int]) -> int:
    """Bytes that processes which are not the job's hold on this card."""
    return sum(process.memory or 0 for process in gpu.processes or () if process.pid not in pids)


def holder_of(gpu: GpuReading, pids: Collection[int], others_before: int) -> str | None:
    """Who keeps this card from being free, in words; None: it is free.

    Free is: nothing of the job on it, and a memory ratio below 0.10 or no more in use than others held before.
    """
    ours = [process for process in gpu.processes or () if process.pid in pids]
    if ours:
        return f"{gpu.uuid}: still held by pid {ours[0].pid} of the job"
    ratio = memory_ratio(gpu)
    if ratio is None or ratio < FREE_RATIO:
        return None
    if gpu.memory_used is not None and gpu.memory_used <= others_before + FREE_RATIO * (gpu.memory_total or 0):
        return None
    names = ", ".join(f"{process.name or '?'} (pid {process.pid})" for process in gpu.processes or ())
    return f"{gpu.uuid}: {ratio:.0%} full, held by {names or 'a process that the driver does not name'}"
