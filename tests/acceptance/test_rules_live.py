"""The shipped rules in a real Prometheus on our own /metrics: fires, names the job, reaches Alertmanager, resolves."""

import time
from datetime import UTC, datetime
from pathlib import Path

from tests.acceptance.alertmanager_process import AlertmanagerProcess
from tests.acceptance.prometheus_process import PrometheusProcess
from tests.acceptance.real_process import eventually
from tests.acceptance.served_board import served
from tunewarden.adapters.rule_files import shortened_rules
from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.domain.job import Gpu, Job, JobState
from tunewarden.domain.sample import Heartbeat

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CARD = {"uuid": "GPU-0a", "index": 1, "memory_total": 120}
JOB = Job(
    job_id="j1",
    name="cat-lora",
    host_id="h",
    node="n1",
    generation=1,
    state=JobState.RUNNING,
    gpus=(Gpu(uuid="GPU-0a", index=1),),
    registered_at=NOW,
    seen_at=NOW,
)


def beat(board: SampleBoard, *, used: int) -> None:
    """A heartbeat of now, on a board that keeps it for the whole test."""
    card = {**CARD, "memory_used": used, "memory_free": 100 - used}
    board.put(JOB, Heartbeat.from_wire({"generation": 1, "state": "running", "gpus": [card]}), time.monotonic())


def test_a_nearly_full_card_is_told_with_its_job_and_resolves(tmp_path: Path) -> None:
    """96 of the 100 bytes that programs can have is one alert that names the job; 50 of them is none."""
    board = SampleBoard(keep_s=60.0)
    beat(board, used=96)
    rules = shortened_rules(tmp_path / "rules", {"for: 3m": "for: 2s"})
    with AlertmanagerProcess(tmp_path / "a") as alertmanager, served(board) as address:
        told = alertmanager.url.removeprefix("http://")
        with PrometheusProcess(
            tmp_path / "p", scrape={"tunewarden": [address]}, rules=rules, alertmanagers=[told]
        ) as prometheus:
            labels = eventually(alertmanager.alerts)[0]["labels"]
            beat(board, used=50)
            eventually(lambda: not prometheus.alerts())
            eventually(lambda: not alertmanager.alerts())

    assert labels == {
        "alertname": "GpuMemoryNearlyFull",
        "node": "n1",
        "gpu": "1",
        "uuid": "GPU-0a",
        "training_job_id": "j1",
        "severity": "warning",
    }
