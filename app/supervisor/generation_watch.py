"""What is known of one generation's training: told by the trainer, else read in what it prints or logs."""

import dataclasses
import math
from collections.abc import Set
from typing import Any

from tunewarden.supervisor.control import ControlDirectory, Progress, TorchMemory
from tunewarden.supervisor.event_progress import EventProgress
from tunewarden.supervisor.generation_log import GenerationLog
from tunewarden.supervisor.step_rate import StepClock, StepRates

_SAID = (
    *("step", "total_steps", "micro_steps", "phase", "source"),
    *("step_seconds_sum", "step_seconds_count", "data_wait_seconds_sum"),
)
_COUNTED = (
    *_SAID,
    *("loss", "step_rate", "step_rate_median", "step_idle_s", "step_seconds_median", "data_wait_share"),
)


@dataclasses.dataclass(kw_only=True)
class GenerationWatch:
    """What is counted over one generation."""

    generation: int
    control: ControlDirectory
    log: GenerationLog
    rates: StepRates = dataclasses.field(default_factory=StepRates)
    clock: StepClock = dataclasses.field(default_factory=StepClock)
    events: EventProgress = dataclasses.field(default_factory=lambda: EventProgress(()))
    cpu: tuple[float, float] | None = None  # (monotonic seconds, CPU seconds of the tree) at the last look

    def newest(self, pids: Set[int], now: float) -> Progress | None:
        """What the trainer tells; else what it shows in a bar, and in TensorBoard's events what the bar leaves out.

        `pids` are the job's processes, `now` monotonic seconds.
        """
        told = self.control.progress()
        if told is not None:
            return told
        shown = self.log.progress.progress()
        if shown is not None and shown.loss is not None:
            return shown
        self.events.read(now, pids)
        logged = self.events.progress()
        if shown is None or logged is None:
            return shown or logged
        return dataclasses.replace(shown, loss=logged.loss)

    def counted(self, progress: Progress | None, now: float, *, alive: bool) -> dict[str, Any]:
        """The numbers of a heartbeat that count steps. While a generation is dead (not `alive`) no step is due."""
        if progress is None:
            return dict.fromkeys(_COUNTED)
        self.rates.add(now, progress.step)
        self.clock.add(
            now,
            step=progress.step,
            training=alive and progress.phase == "train",
            seconds=progress.step_seconds_sum,
            count=progress.step_seconds_count,
            waited=progress.data_wait_seconds_sum,
        )
        return {
            **{name: getattr(progress, name) for name in _SAID},
            "loss": _json_loss(progress.loss),
            "step_rate": self.rates.rate(),
            "step_rate_median": self.rates.median(),
            "step_idle_s": self.clock.idle_s(),
            "step_seconds_median": self.clock.median_s(),
            "data_wait_share": self.clock.wait_share(),
        }

    def besides(self, progress: Progress | None) -> dict[str, Any]:
        """Torch's memory, the framework, and the states that are there or were gone on from."""
        hello, resumed = self.control.hello(), self.control.resumed()
        last_state = progress.last_state if progress else None
        memory = dataclasses.asdict(progress.memory if progress else TorchMemory())
        return {
            **{f"torch_{name}": number for name, number in memory.items()},
            "framework": hello.framework if hello else None,
            "resumed_step": resumed.step if resumed else None,
            "last_state_step": last_state.step if last_state else None,
            "last_state_path": str(last_state.path) if last_state else None,
        }


def _json_loss(loss: float | None) -> float | str | None:
    """JSON has no NaN and no infinity; that a loss is none is what people want to know."""
    return loss if loss is None or math.isfinite(loss) else str(loss)
