"""Why a card is hardly used: one cause, and the numbers that decided. docs/reference/alerts.md prints these rules.

The numbers come from Prometheus over the window of the alert. Without one of its inputs a cause is a guess, so it is
unknown.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from string import Template

NO_LONGER_IDLE = 0.5  # utilisation: from here on nothing needs an explanation
MOSTLY_WAITING = 0.5  # share of the step time that waits for data
CPU_SATURATED = 0.9
WANTS_CPU = 0.15  # cores: on a full host a job that wants more may get no more than this; one that sleeps uses less
COMPUTES = 0.5  # cores: a job below this spends its time asleep or blocked
DISK_SATURATED = 0.7
WAITS_FOR_DISK = 0.25  # iowait
READS_FROM_STORAGE = 64 * 1024.0  # bytes a second: more than a log or a config
TINY_STEP_S = 0.05

# PromQL by input, over the alert's $window. Each gives one sample, or none when it could not be measured.
# A step's seconds include its wait for data (docs/reference/control-directory.md).
DIAGNOSIS_QUERIES: Mapping[str, str] = {
    "gpu_utilization": 'max(avg_over_time(gpu:utilization:ratio{uuid="$uuid"}[$window]))',
    "cpu_busy": 'max(avg_over_time(tunewarden_host_cpu_busy_ratio{node="$node"}[$window]))',
    "cpu_iowait": 'max(avg_over_time(tunewarden_host_cpu_iowait_ratio{node="$node"}[$window]))',
    "disk_busy": 'max(avg_over_time(tunewarden_host_disk_busy_ratio{node="$node"}[$window]))',
    "job_cpu_cores": 'max(avg_over_time(tunewarden_job_cpu_cores{training_job_id="$training_job_id"}[$window]))',
    "job_read_rate": 'sum(rate(tunewarden_job_read_bytes_total{training_job_id="$training_job_id"}[$window]))',
    "step_rate": 'sum(rate(pytorch_step_duration_seconds_count{training_job_id="$training_job_id"}[$window]))',
    "step_seconds": (
        'sum(rate(pytorch_step_duration_seconds_sum{training_job_id="$training_job_id"}[$window]))'
        ' / sum(rate(pytorch_step_duration_seconds_count{training_job_id="$training_job_id"}[$window]))'
    ),
    "data_wait_share": (
        'sum(rate(tunewarden_job_data_wait_seconds_total{training_job_id="$training_job_id"}[$window]))'
        ' / sum(rate(pytorch_step_duration_seconds_sum{training_job_id="$training_job_id"}[$window]))'
    ),
}
_OF_STEPS = ("step_seconds", "data_wait_share")  # 0 / 0 when no step is made


class Cause(StrEnum):
    """Why the card waits."""

    LOADER = "loader"  # the data loader is slow, and neither the CPU nor a disk explains it
    CPU = "cpu"  # preparing the data takes all the CPU there is
    DISK = "disk"  # the data come slowly from storage
    SMALL_KERNELS = "small_kernels"  # steps are so short that starting them costs more than their work
    NOT_TRAINING = "not_training"  # memory is held, but no step is made
    UNKNOWN = "unknown"  # a number is missing, or none of these fits


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """`numbers`: those that were measured. `missing`: the inputs that were not, when that made the cause unknown."""

    cause: Cause
    numbers: Mapping[str, float]
    missing: tuple[str, ...] = ()


def queries(*, uuid: str, node: str, training_job_id: str, window: str) -> dict[str, str]:
    """DIAGNOSIS_QUERIES for one card and job; `window` as Prometheus writes durations (10m). The values are quoted."""
    values = {
        "uuid": _quoted(uuid),
        "node": _quoted(node),
        "training_job_id": _quoted(training_job_id),
        "window": window,
    }
    return {name: Template(text).substitute(values) for name, text in DIAGNOSIS_QUERIES.items()}


def diagnose(numbers: Mapping[str, float | None]) -> Diagnosis:
    """The cause that the numbers show; keys as in DIAGNOSIS_QUERIES. NaN, Prometheus's answer to 0 / 0, is missing."""
    measured = ((name, numbers.get(name)) for name in DIAGNOSIS_QUERIES)
    known = {name: value for name, value in measured if value is not None and math.isfinite(value)}
    no_steps = known.get("step_rate") == 0.0
    missing = tuple(name for name in DIAGNOSIS_QUERIES if name not in known and not (no_steps and name in _OF_STEPS))
    cause = Cause.UNKNOWN if missing else _cause(known, no_steps=no_steps)
    return Diagnosis(cause=cause, numbers=known, missing=missing)


def _cause(known: Mapping[str, float], *, no_steps: bool) -> Cause:
    if known["gpu_utilization"] >= NO_LONGER_IDLE:
        return Cause.UNKNOWN
    if no_steps:
        return Cause.NOT_TRAINING
    if known["data_wait_share"] >= MOSTLY_WAITING:
        return _what_data_wait_for(known)
    computes_s = known["step_seconds"] * (1 - known["data_wait_share"])
    return Cause.SMALL_KERNELS if computes_s < TINY_STEP_S else Cause.UNKNOWN


def _what_data_wait_for(known: Mapping[str, float]) -> Cause:
    """The job's own CPU use counts too: neighbours that load the host are not why a sleeping loader is slow."""
    cores = known["job_cpu_cores"]
    if known["cpu_busy"] >= CPU_SATURATED and cores >= WANTS_CPU:
        return Cause.CPU
    disk_is_slow = known["disk_busy"] >= DISK_SATURATED or known["cpu_iowait"] >= WAITS_FOR_DISK
    if known["job_read_rate"] >= READS_FROM_STORAGE and (disk_is_slow or cores < COMPUTES):
        return Cause.DISK
    return Cause.LOADER


def _quoted(value: str) -> str:
    """The inside of a PromQL string: a label's value is a user's text and must not end the string."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
