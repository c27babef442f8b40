"""What an agent says about its job, its cards and its host: the heartbeat of docs/reference/jobs-api.md.

Reading is tolerant: an unknown field is ignored, a value of the wrong type is None, so agents of other weeks are
understood.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunewarden.domain.job import Gpu, Job

_MOST_GPUS = 64  # no host has more; a longer list is a mistake
_MOST_PROCESSES = 512
_LONGEST_TEXT = 256
_LONGEST_PATH = 4096
LAST_GENERATION = 1_000_000  # as in a registration


@dataclass(frozen=True, kw_only=True)
class ProcessSample:
    """A process on a card. `ours`: it belongs to the job. `memory` in bytes, None when the driver won't say."""

    pid: int
    memory: int | None
    ours: bool
    name: str


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One card of the host. Bytes, 0 to 100, degrees Celsius, watts, seconds."""

    uuid: str
    index: int
    name: str = ""
    memory_used: int | None = None
    memory_free: int | None = None
    memory_total: int | None = None
    utilization: float | None = None
    temperature: float | None = None
    power_watts: float | None = None
    age_s: float = 0.0
    processes: tuple[ProcessSample, ...] = ()

    @property
    def memory_ratio(self) -> float | None:
        """used / (used + free): of what programs can have, the driver's reserve left out."""
        if self.memory_used is None or self.memory_free is None or self.memory_used + self.memory_free <= 0:
            return None
        return self.memory_used / (self.memory_used + self.memory_free)


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """The host over one heartbeat: shares 0 to 1, bytes; `disk_read_bytes` is a counter."""

    cpu_busy: float | None = None
    cpu_iowait: float | None = None
    disk_busy: float | None = None
    disk_read_bytes: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobSample:
    """The job of one heartbeat, in the words of progress.json: `*_sum`, `*_count`, `read_bytes` are counters.

    `loss` may be NaN or infinite. `torch_*` are the allocator's: bytes, and counters. `source` says who counted the
    steps: hook, trainer or log.
    """

    step: int | None = None
    total_steps: int | None = None
    phase: str | None = None
    loss: float | None = None
    step_seconds_sum: float | None = None
    step_seconds_count: int | None = None
    data_wait_seconds_sum: float | None = None
    rss_bytes: int | None = None
    cpu_cores: float | None = None
    read_bytes: int | None = None
    oom_lines: int | None = None
    log_idle_s: float | None = None
    step_rate: float | None = None
    step_rate_median: float | None = None
    resumed_step: int | None = None
    last_state_step: int | None = None
    last_state_path: str | None = None
    micro_steps: int | None = None
    step_idle_s: float | None = None
    step_seconds_median: float | None = None
    data_wait_share: float | None = None
    torch_allocated: int | None = None
    torch_reserved: int | None = None
    torch_peak: int | None = None
    torch_retries: int | None = None
    torch_ooms: int | None = None
    source: str | None = None
    framework: str | None = None

    @property
    def step_seconds(self) -> float | None:
        """The median time of a step of this generation; from its median rate, where its agent sends no times."""
        if self.step_seconds_median is not None:
            return self.step_seconds_median
        return 1 / self.step_rate_median if self.step_rate_median else None


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """One heartbeat. `gpus_of_job` None: unknown. `wall`: the host's clock, to show its skew and nothing else."""

    generation: int
    state: str
    wall: float | None = None
    can: frozenset[str] | None = None
    gpus_of_job: tuple[Gpu, ...] | None = None
    gpus: tuple[GpuSample, ...] = ()
    host: HostSample = HostSample()
    job: JobSample = JobSample()

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> "Heartbeat":
        """The record of a JSON object; ValueError when it lacks a generation or a state: then it says nothing."""
        generation = _whole(body.get("generation"))
        state = _text(body.get("state"))
        if generation is None or not 1 <= generation <= LAST_GENERATION or not state:
            raise ValueError("a heartbeat needs `generation` (1 to 1,000,000) and `state`")
        own = body.get("gpus_of_job")
        can = body.get("can")
        return cls(
            generation=generation,
            state=state,
            wall=_number(body.get("wall")),
            can=frozenset(word for word in can if isinstance(word, str)) if isinstance(can, list) else None,
            gpus_of_job=_cards(own) if isinstance(own, list) else None,
            gpus=tuple(gpu for gpu in map(_gpu, _objects(body.get("gpus"), _MOST_GPUS)) if gpu is not None),
            host=_host(_object(body.get("host"))),
            job=_job(_object(body.get("job"))),
        )


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A job and its newest heartbeat, received at `at` (monotonic seconds of the service)."""

    job: Job
    heartbeat: Heartbeat
    at: float


@dataclass(frozen=True, kw_only=True)
class CardOnHost:
    """One card of one host. `age_s`: how old the reading is now, on the way and in the service included."""

    node: str
    gpu: GpuSample
    age_s: float


def _cards(items: list[Any]) -> tuple[Gpu, ...]:
    pairs = ((_text(item.get("uuid")), _whole(item.get("index"))) for item in _objects(items, _MOST_GPUS))
    return tuple(Gpu(uuid=uuid, index=index) for uuid, index in pairs if uuid and index is not None)


def _gpu(item: Mapping[str, Any]) -> GpuSample | None:
    """None without a uuid and an index: such a card can't be told from another."""
    uuid, index = _text(item.get("uuid")), _whole(item.get("index"))
    if not uuid or index is None:
        return None
    processes = map(_process, _objects(item.get("processes"), _MOST_PROCESSES))
    return GpuSample(
        uuid=uuid,
        index=index,
        name=_text(item.get("name")) or "",
        memory_used=_whole(item.get("memory_used")),
        memory_free=_whole(item.get("memory_free")),
        memory_total=_whole(item.get("memory_total")),
        utilization=_number(item.get("utilization")),
        temperature=_number(item.get("temperature")),
        power_watts=_number(item.get("power_watts")),
        age_s=max(0.0, _number(item.get("age_s")) or 0.0),
        processes=tuple(process for process in processes if process is not None),
    )


def _process(item: Mapping[str, Any]) -> ProcessSample | None:
    pid = _whole(item.get("pid"))
    if pid is None:
        return None
    return ProcessSample(
        pid=pid, memory=_whole(item.get("memory")), ours=item.get("ours") is True, name=_text(item.get("name")) or ""
    )


def _host(item: Mapping[str, Any]) -> HostSample:
    return HostSample(
        cpu_busy=_number(item.get("cpu_busy")),
        cpu_iowait=_number(item.get("cpu_iowait")),
        disk_busy=_number(item.get("disk_busy")),
        disk_read_bytes=_whole(item.get("disk_read_bytes")),
        memory_total=_whole(item.get("memory_total")),
        memory_available=_whole(item.get("memory_available")),
    )


def _job(item: Mapping[str, Any]) -> JobSample:
    return JobSample(
        step=_whole(item.get("step")),
        total_steps=_whole(item.get("total_steps")),
        phase=_text(item.get("phase")),
        loss=_loss(item.get("loss")),
        step_seconds_sum=_number(item.get("step_seconds_sum")),
        step_seconds_count=_whole(item.get("step_seconds_count")),
        data_wait_seconds_sum=_number(item.get("data_wait_seconds_sum")),
        rss_bytes=_whole(item.get("rss_bytes")),
        cpu_cores=_number(item.get("cpu_cores")),
        read_bytes=_whole(item.get("read_bytes")),
        oom_lines=_whole(item.get("oom_lines")),
        log_idle_s=_number(item.get("log_idle_s")),
        step_rate=_number(item.get("step_rate")),
        step_rate_median=_number(item.get("step_rate_median")),
        resumed_step=_whole(item.get("resumed_step")),
        last_state_step=_whole(item.get("last_state_step")),
        last_state_path=_path(item.get("last_state_path")),
        micro_steps=_whole(item.get("micro_steps")),
        step_idle_s=_number(item.get("step_idle_s")),
        step_seconds_median=_number(item.get("step_seconds_median")),
        data_wait_share=_number(item.get("data_wait_share")),
        torch_allocated=_whole(item.get("torch_allocated")),
        torch_reserved=_whole(item.get("torch_reserved")),
        torch_peak=_whole(item.get("torch_peak")),
        torch_retries=_whole(item.get("torch_retries")),
        torch_ooms=_whole(item.get("torch_ooms")),
        source=_text(item.get("source")),
        framework=_text(item.get("framework")),
    )


def _path(value: Any) -> str | None:
    """Whole: a path that is cut names another file."""
    return value if isinstance(value, str) and len(value) <= _LONGEST_PATH else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any, most: int) -> list[Mapping[str, Any]]:
    return [item for item in value[:most] if isinstance(item, dict)] if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    """A finite number; JSON's true and false are none, and Python's reader lets NaN through."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _loss(value: Any) -> float | None:
    """A number, or one of "nan", "inf", "-inf": JSON has no such numbers, and that a loss is none is news."""
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else _number(value)


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) and number >= 0 else None


def _text(value: Any) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None
