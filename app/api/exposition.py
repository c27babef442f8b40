"""The samples of all agents as Prometheus text, under the articles' names: docs/reference/metrics.md lists them."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from tunewarden.domain.sample import CardOnHost, Entry, HostSample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[Sequence[str], float | None]]

PHASES = ("load", "cache", "train", "eval", "sample", "checkpoint")
_CARD = ("device", "uuid", "node")
_JOB = ("training_job", "training_job_id", "generation", "node")


class Board(Protocol):
    """The newest samples: adapters.sample_board. Old entries are left out."""

    def jobs(self, now_monotonic: float) -> list[Entry]: ...
    def cards(self, now_monotonic: float) -> list[CardOnHost]: ...
    def hosts(self, now_monotonic: float) -> Iterable[tuple[str, HostSample]]: ...


def exposition(board: Board, registry: CollectorRegistry, now_monotonic: float) -> bytes:
    """The text of /metrics: what the board holds now, then the service's own metrics in `registry`."""
    samples = CollectorRegistry(auto_describe=False)
    families = [*_cards(board, now_monotonic), *_hosts(board, now_monotonic), *_jobs(board, now_monotonic)]
    samples.register(_Collected(families))
    return generate_latest(samples) + generate_latest(registry)


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        # A family without samples would say "there is such a thing" and show nothing: left out.
        return (family for family in self._families if family.samples)


def _gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(values, number)
    return family


def _counter(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(values, number)
    return family


def _cards(board: Board, now: float) -> list[Metric]:
    cards = [(_card_labels(card), card) for card in board.cards(now)]

    def gauge(name: str, text: str, field: str) -> Metric:
        return _gauge(name, text, _CARD, [(labels, getattr(card.gpu, field)) for labels, card in cards])

    return [
        gauge("gpu_memory_used", "Memory of the card in use, in bytes, without the driver's reserve.", "memory_used"),
        gauge("gpu_memory_free", "Memory of the card that programs can still have, in bytes.", "memory_free"),
        gauge("gpu_memory_total", "Memory of the card, in bytes, the driver's reserve included.", "memory_total"),
        gauge("gpu_utilization", "Share of the time in which a kernel ran, 0 to 100.", "utilization"),
        gauge("gpu_temperature_celsius", "Temperature of the card.", "temperature"),
        gauge("gpu_power_watts", "Power that the card draws.", "power_watts"),
        _gauge(
            "tunewarden_gpu_sample_age_seconds",
            "How old the values of this card are.",
            _CARD,
            [(labels, card.age_s) for labels, card in cards],
        ),
        _gauge(
            "tunewarden_gpu_info",
            "Always 1; the model of the card is in the label `name`.",
            (*_CARD, "name"),
            [((*labels, card.gpu.name), 1.0) for labels, card in cards],
        ),
    ]


def _card_labels(card: CardOnHost) -> tuple[str, str, str]:
    return (str(card.gpu.index), card.gpu.uuid, card.node)


def _hosts(board: Board, now: float) -> list[Metric]:
    hosts = [((node,), host) for node, host in board.hosts(now)]

    def values(field: str) -> list[tuple[tuple[str], float | None]]:
        return [(labels, _host_value(host, field)) for labels, host in hosts]

    def gauge(name: str, text: str, field: str) -> Metric:
        return _gauge(name, text, ("node",), values(field))

    return [
        gauge("tunewarden_host_cpu_busy_ratio", "Share of CPU time in use, waiting for disks left out.", "cpu_busy"),
        gauge("tunewarden_host_cpu_iowait_ratio", "Share of CPU time idle with a read or write open.", "cpu_iowait"),
        gauge("tunewarden_host_disk_busy_ratio", "Share of the time in which the busiest disk worked.", "disk_busy"),
        gauge("tunewarden_host_memory_size_bytes", "Memory of the host.", "memory_total"),
        gauge("tunewarden_host_memory_available_bytes", "Memory that programs can still have.", "memory_available"),
        _counter(
            "tunewarden_host_disk_read_bytes_total", "Bytes read from all disks.", ("node",), values("disk_read_bytes")
        ),
    ]


def _host_value(host: HostSample, field: str) -> float | None:
    value: float | None = getattr(host, field)
    return value


def _jobs(board: Board, now: float) -> list[Metric]:
    entries = [(_job_labels(entry), entry) for entry in board.jobs(now)]

    def values(field: str) -> Samples:
        return [(labels, getattr(entry.heartbeat.job, field)) for labels, entry in entries]

    return [
        _step_seconds(entries),
        *(_gauge(f"tunewarden_job_{name}", text, _JOB, values(field)) for name, text, field in _JOB_GAUGES),
        *(_counter(f"tunewarden_job_{name}", text, _JOB, values(field)) for name, text, field in _JOB_COUNTERS),
        _gauge(
            "tunewarden_job_phase",
            "1 for the phase that the job is in, 0 for the others.",
            (*_JOB, "phase"),
            _phases(entries),
        ),
        _gauge(
            "tunewarden_job_info",
            "Always 1; what the job is.",
            (*_JOB, "trainer", "state", "enforce", "held"),
            [((*labels, *_about(entry)), 1.0) for labels, entry in entries],
        ),
        _gauge(
            "tunewarden_job_gpu",
            "Always 1 for each card that a job uses: to join a job to the series of its cards.",
            ("training_job_id", "uuid", "node"),
            _cards_of_jobs(entries),
        ),
    ]


_JOB_GAUGES = (
    ("planned_steps", "Optimizer steps that the whole training is to make.", "total_steps"),
    ("loss", "The last loss that the trainer wrote.", "loss"),
    ("resident_memory_bytes", "Resident memory of all processes of the job.", "rss_bytes"),
    ("cpu_cores", "CPU cores that the job's processes use.", "cpu_cores"),
    ("log_idle_seconds", "Since when the job has written nothing.", "log_idle_s"),
    ("steps_per_second", "Optimizer steps a second over the last minute.", "step_rate"),
    ("median_steps_per_second", "Median of the minute rates of this generation.", "step_rate_median"),
    ("last_state_step", "The step of the newest complete checkpoint.", "last_state_step"),
    ("resumed_step", "The step from which this generation went on.", "resumed_step"),
)
_JOB_COUNTERS = (
    ("optimizer_steps_total", "Optimizer steps of the whole training, over all generations.", "step"),
    ("data_wait_seconds_total", "Time of the steps that was spent waiting for data.", "data_wait_seconds_sum"),
    ("read_bytes_total", "Bytes that the job's processes read from storage.", "read_bytes"),
    ("oom_lines_total", "Out-of-memory lines in the job's log.", "oom_lines"),
)


def _job_labels(entry: Entry) -> tuple[str, str, str, str]:
    return (entry.job.name, entry.job.job_id, str(entry.heartbeat.generation), entry.job.node)


def _about(entry: Entry) -> tuple[str, str, str, str]:
    job = entry.job
    return (job.trainer, entry.heartbeat.state, str(job.enforce).lower(), str(job.held).lower())


def _step_seconds(entries: list[tuple[tuple[str, str, str, str], Entry]]) -> Metric:
    text = "Wall time of the optimizer steps of this generation, the wait for data included."
    family = SummaryMetricFamily("pytorch_step_duration_seconds", text, labels=_JOB)
    for labels, entry in entries:
        job = entry.heartbeat.job
        if job.step_seconds_count is not None and job.step_seconds_sum is not None:
            family.add_metric(labels, count_value=job.step_seconds_count, sum_value=job.step_seconds_sum)
    return family


def _phases(entries: list[tuple[tuple[str, str, str, str], Entry]]) -> Samples:
    for labels, entry in entries:
        if entry.heartbeat.job.phase is not None:
            for phase in PHASES:  # a phase of a newer trainer is 0 everywhere rather than a series of its own
                yield (*labels, phase), float(entry.heartbeat.job.phase == phase)


def _cards_of_jobs(entries: list[tuple[tuple[str, str, str, str], Entry]]) -> Samples:
    for _, entry in entries:
        cards = entry.heartbeat.gpus_of_job if entry.heartbeat.gpus_of_job is not None else entry.job.gpus
        for gpu in cards or ():
            yield (entry.job.job_id, gpu.uuid, entry.job.node), 1.0
