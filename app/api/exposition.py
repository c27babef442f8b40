"""The samples of all agents as Prometheus text, under the articles' names: docs/reference/metrics.md lists them."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tunewarden.domain.job_series import Family, Kind, Point, families, job_labels
from tunewarden.domain.sample import CardOnHost, Entry, HostSample
from tunewarden.domain.series_text import rendered

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[Sequence[str], float | None]]

_CARD = ("device", "uuid", "node")


class Board(Protocol):
    """The newest samples: adapters.sample_board. Old entries are left out."""

    def jobs(self, now_monotonic: float) -> list[Entry]: ...
    def cards(self, now_monotonic: float) -> list[CardOnHost]: ...
    def hosts(self, now_monotonic: float) -> Iterable[tuple[str, HostSample]]: ...


def exposition(board: Board, registry: CollectorRegistry, now_monotonic: float) -> bytes:
    """The text of /metrics: what the board holds now, then the service's own metrics in `registry`."""
    samples = CollectorRegistry(auto_describe=False)
    samples.register(_Collected([*_cards(board, now_monotonic), *_hosts(board, now_monotonic)]))
    return generate_latest(samples) + rendered(_jobs(board, now_monotonic)) + generate_latest(registry)


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


def _jobs(board: Board, now: float) -> list[Family]:
    entries = [(_job_labels(entry), entry) for entry in board.jobs(now)]
    about = tuple(Point(suffix="", labels={**labels, **_about(entry)}, value=1.0) for labels, entry in entries)
    cards = tuple(_cards_of_jobs(entry for _, entry in entries))
    cards_text = "Always 1 for each card that a job uses: to join a job to the series of its cards."
    return [
        *families((labels, entry.heartbeat.job) for labels, entry in entries),
        Family(name="tunewarden_job_info", kind=Kind.GAUGE, text="Always 1; what the job is.", points=about),
        Family(name="tunewarden_job_gpu", kind=Kind.GAUGE, text=cards_text, points=cards),
    ]


def _job_labels(entry: Entry) -> dict[str, str]:
    job = entry.job
    return job_labels(
        name=job.name,
        job_id=job.job_id,
        generation=entry.heartbeat.generation,
        node=job.node,
        config_name=job.config_name,
        model_type=job.model_type or job.trainer,
        user=job.labels,
    )


def _about(entry: Entry) -> dict[str, str]:
    job, beat = entry.job, entry.heartbeat
    words = {"trainer": job.trainer, "framework": beat.job.framework or "", "state": beat.state}
    switches = {"enforce": str(job.enforce).lower(), "held": str(job.held).lower()}
    return {name: text for name, text in {**words, **switches}.items() if text}


def _cards_of_jobs(entries: Iterable[Entry]) -> Iterable[Point]:
    for entry in entries:
        cards = entry.heartbeat.gpus_of_job if entry.heartbeat.gpus_of_job is not None else entry.job.gpus
        for uuid in dict.fromkeys(gpu.uuid for gpu in cards or ()):
            labels = {"training_job_id": entry.job.job_id, "uuid": uuid, "node": entry.job.node}
            yield Point(suffix="", labels=labels, value=1.0)
