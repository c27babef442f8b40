"""A job's numbers as series: their names, kinds, help texts and labels. What /metrics shows and a Pushgateway gets.

docs/reference/metrics.md lists them. Pure: whoever shows them renders them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tunewarden.domain.sample import JobSample

PHASES = ("load", "cache", "train", "eval", "sample", "checkpoint")
MOST_USER_LABELS = 10
LONGEST_LABEL = 128  # characters of a value
# What a label of the user can't be called: ours, Prometheus's own, and those by which alerts are told apart.
RESERVED_LABELS = frozenset(
    {"training_job", "training_job_id", "generation", "node", "config_name", "source", "phase"}
    | {"trainer", "framework", "state", "enforce", "held", "gpu", "uuid", "device", "name"}
    | {"job", "instance", "le", "quantile", "alertname", "alertstate", "severity"}
)
_MODEL_TYPE = "model_type"  # the user may say it: nobody knows it better
_PREFIX = "label_"
_LOG = "log"

Labels = Mapping[str, str]


class Kind(StrEnum):
    """Prometheus's types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One sample. `suffix` follows the family's name: `_total`, `_count`, `_sum` or nothing."""

    suffix: str
    labels: Labels
    value: float


@dataclass(frozen=True, kw_only=True)
class Family:
    """All series of one name. A counter's `name` has no `_total`."""

    name: str
    kind: Kind
    text: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class _Row:
    """`field` of a JobSample as a series. `said`: the trainer counted it, so it is marked where only its log did."""

    name: str
    text: str
    field: str
    kind: Kind = Kind.GAUGE
    said: bool = False


class _Shown(NamedTuple):
    """`marked`: the labels of what the trainer counts; one object a job, so that its text is made once."""

    labels: Labels
    marked: Labels
    job: JobSample


def job_labels(
    *,
    name: str,
    job_id: str,
    generation: int,
    node: str,
    config_name: str,
    model_type: str,
    user: Mapping[str, str],
) -> dict[str, str]:
    """The labels of every series of a job: ours, and ten at most of the user's. Empty ones are left out."""
    own = {
        "training_job": name,
        "training_job_id": job_id,
        "generation": str(generation),
        "node": node,
        "config_name": config_name,
        _MODEL_TYPE: user.get(_MODEL_TYPE) or model_type,
    }
    return {**_user_labels(user), **{label: _value(text) for label, text in own.items() if text}}


def label_fits(name: str) -> bool:
    """Whether the user's label becomes a label of the series under its own name."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and _label_name(name) == name


def families(jobs: Iterable[tuple[Labels, JobSample]]) -> list[Family]:
    """The series of these jobs. What could not be measured has none, and a family without series is left out."""
    shown = [_Shown(labels, {**labels, "source": _LOG} if job.source == _LOG else labels, job) for labels, job in jobs]
    made = [_step_seconds(shown), _phases(shown), *(_family(row, shown) for row in _ROWS)]
    return [family for family in made if family.points]


def _user_labels(user: Mapping[str, str]) -> dict[str, str]:
    """By name, so that which ten it is doesn't change; two names that become one are one, the first."""
    found: dict[str, str] = {}
    for name in sorted(user):
        label, text = _label_name(name), _value(user[name])
        if name != _MODEL_TYPE and text and label not in found and len(found) < MOST_USER_LABELS:
            found[label] = text
    return found


def _label_name(name: str) -> str:
    """A name that Prometheus takes: letters, digits and _; one that means something to us or to it gets a prefix."""
    label = re.sub(r"[^A-Za-z0-9_]", "_", name)[:LONGEST_LABEL]
    if label in RESERVED_LABELS or label.startswith(("__", "exported_")) or not re.match(r"[A-Za-z_]", label):
        return _PREFIX + label.lstrip("_")
    return label


def _value(text: str) -> str:
    return text[:LONGEST_LABEL].encode("utf-8", "replace").decode("utf-8")


def _family(row: _Row, jobs: Iterable[_Shown]) -> Family:
    suffix = "_total" if row.kind is Kind.COUNTER else ""
    points = tuple(
        Point(suffix=suffix, labels=shown.marked if row.said else shown.labels, value=float(value))
        for shown in jobs
        if (value := getattr(shown.job, row.field)) is not None
    )
    return Family(name=row.name, kind=row.kind, text=row.text, points=points)


def _step_seconds(jobs: Iterable[_Shown]) -> Family:
    """The articles' name and type: a Summary without quantiles, of which `rate(…_count[1m])` is steps a second."""
    points: list[Point] = []
    for shown in jobs:
        count, seconds = shown.job.step_seconds_count, shown.job.step_seconds_sum
        if count is not None and seconds is not None:
            points.append(Point(suffix="_count", labels=shown.marked, value=float(count)))
            points.append(Point(suffix="_sum", labels=shown.marked, value=seconds))
    text = "Wall time of the optimizer steps of this generation, the wait for data included, pauses left out."
    return Family(name="pytorch_step_duration_seconds", kind=Kind.SUMMARY, text=text, points=tuple(points))


def _phases(jobs: Iterable[_Shown]) -> Family:
    """One series a phase; a phase of a newer trainer is 0 everywhere rather than a series of its own."""
    points = tuple(
        Point(suffix="", labels={**shown.marked, "phase": phase}, value=float(shown.job.phase == phase))
        for shown in jobs
        if shown.job.phase is not None
        for phase in PHASES
    )
    text = "1 for the phase that the job is in, 0 for the others."
    return Family(name="tunewarden_job_phase", kind=Kind.GAUGE, text=text, points=points)


def _gauge(name: str, text: str, field: str, *, said: bool = False) -> _Row:
    return _Row(name=f"tunewarden_job_{name}", text=text, field=field, said=said)


def _counter(name: str, text: str, field: str, *, said: bool = False) -> _Row:
    return _Row(name=f"tunewarden_job_{name}", text=text, field=field, kind=Kind.COUNTER, said=said)


_ROWS = (
    _gauge("planned_steps", "Optimizer steps that the whole training is to make.", "total_steps", said=True),
    _gauge("loss", "The last loss that the trainer showed; NaN stays NaN.", "loss", said=True),
    _gauge("resident_memory_bytes", "Resident memory of all processes of the job.", "rss_bytes"),
    _gauge("cpu_cores", "CPU cores that the job's processes use.", "cpu_cores"),
    _gauge("log_idle_seconds", "Since when the job has written nothing.", "log_idle_s"),
    _gauge("steps_per_second", "Optimizer steps a second over the last minute.", "step_rate", said=True),
    _gauge("median_steps_per_second", "Median of this generation's minute rates.", "step_rate_median", said=True),
    _gauge("step_idle_seconds", "Since when the job is in phase train without a new step.", "step_idle_s", said=True),
    _gauge("median_step_seconds", "Median time of a step of this generation.", "step_seconds_median", said=True),
    _gauge("data_wait_ratio", "Share of the last minute's step time that waited for data, 0 to 1.", "data_wait_share"),
    _gauge("last_state_step", "The step of the newest complete checkpoint.", "last_state_step"),
    _gauge("resumed_step", "The step from which this generation went on.", "resumed_step"),
    _gauge("torch_allocated_bytes", "Memory that torch's tensors hold on the card.", "torch_allocated"),
    _gauge("torch_reserved_bytes", "Memory that torch's allocator holds on the card.", "torch_reserved"),
    _gauge("torch_peak_bytes", "Most memory that torch's tensors held in this generation.", "torch_peak"),
    _counter("torch_allocation_retries", "Allocations that fitted after the cache was freed.", "torch_retries"),
    _counter("torch_ooms", "Allocations that failed for want of memory.", "torch_ooms"),
    _counter("optimizer_steps", "Optimizer steps of the whole training, over all generations.", "step", said=True),
    _counter("micro_steps", "Micro-batches of this generation: forward and backward passes.", "micro_steps"),
    _counter("data_wait_seconds", "Time of the steps that was spent waiting for data.", "data_wait_seconds_sum"),
    _counter("read_bytes", "Bytes that the job's processes read from storage.", "read_bytes"),
    _counter("oom_lines", "Out-of-memory lines in the job's log.", "oom_lines"),
)
