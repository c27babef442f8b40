"""The queries of the articles, as printed, in a real Prometheus that scrapes the service, for real jobs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.prometheus_process import PrometheusProcess
from tests.acceptance.real_process import RealProcess, eventually, free_port
from tests.acceptance.world import COMMAND, CONFIG, TRAINER, ServiceProcess, training_config
from tunewarden.adapters.rule_files import shortened_rules
from tunewarden.processes.ending import end_generation

BARS = str(Path(__file__).with_name("bar_trainer.py"))
QUERIES = [
    'gpu_memory_used{device="0", job="lora-training"}',
    '(gpu_memory_used{device="0"} / gpu_memory_total{device="0"}) * 100',
    'gpu_utilization{device="0"}',
    "rate(pytorch_step_duration_seconds_count[1m])",
    "(1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes) * 100",
]


class NodeExporterProcess(RealProcess):
    """A real one."""

    name = "node-exporter"
    ready_path = "/"

    def argv(self) -> list[str]:
        return ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{self.port}"]


class Site:
    """A service, and what scrapes it, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        settings = folder / "settings.yaml"
        self.service = ServiceProcess(folder / "service", settings)
        self.service.port = free_port()
        whole = {"port": self.service.port, "state_dir": str(self.state), "heartbeat": "500ms"}
        settings.write_text(json.dumps(whole), encoding="utf-8")
        self.environment = {**os.environ, "TUNEWARDEN_CONFIG": str(settings)}
        self.jobs: list[subprocess.Popen[bytes]] = []

    def run(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        """`tunewarden run` in a folder of its own."""
        folder = self.folder / name
        folder.mkdir()
        with (folder / "terminal.log").open("wb") as log:
            process = subprocess.Popen(
                [COMMAND, "run", "--name", name, *words],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.jobs.append(process)
        return process

    def close(self) -> None:
        self.service.stop()
        for process in self.jobs:
            if process.poll() is None:
                process.kill()
                process.wait()
        for run in (self.state / "runs").glob("*"):
            end_generation(None, (), run.name, wait_term_s=0.1)


@contextmanager
def sited(folder: Path) -> Iterator[Site]:
    site = Site(folder)
    try:
        site.service.start(attempts=1)
        yield site
    finally:
        site.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with sited(tmp_path) as made:
        yield made


def scraping(site: Site, exporter: RealProcess, folder: Path) -> PrometheusProcess:
    """Prometheus as the articles set it up; the pages say honor_labels for tunewarden."""
    targets = {"lora-training": site.service.port, "lora-training-node": exporter.port}
    jobs = [
        {"job_name": name, "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for name, port in targets.items()
    ]
    rules = shortened_rules(folder / "rules", {"for: 1m": "for: 1s"})
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": jobs,
    }
    return PrometheusProcess(folder / "prometheus", config=config)


def test_the_queries_of_the_articles_return_data_for_a_job(site: Site, tmp_path: Path) -> None:
    """As printed; with the labels to tell runs apart; a loss of NaN is an alert; and a job that ended is gone."""
    (tmp_path / CONFIG).write_text(training_config({"epochs": 100_000}), encoding="utf-8")
    trainer = (sys.executable, str(TRAINER), "--config", str(tmp_path / CONFIG))
    site.run("cat", "--simulate-gpu", "24GiB/256MiB", "--label", "owner=li", "--", *trainer)
    words = ("--label", "model_type=sd15", "--label", "owner=wang", "--", sys.executable, BARS, "nan")
    dog = site.run("dog", *words)
    with NodeExporterProcess(tmp_path / "node") as exporter, scraping(site, exporter, tmp_path) as prometheus:
        answers = {query: eventually(partial(prometheus.query, query), within_s=60) for query in QUERIES}
        rates = eventually(lambda: both(prometheus, QUERIES[3]), within_s=60)
        alert = eventually(lambda: [each for each in prometheus.alerts() if each["state"] == "firing"], within_s=30)
        loss = prometheus.query("tunewarden_job_loss")
        dog.terminate()
        dog.wait(30)
        eventually(lambda: len(prometheus.query('tunewarden_job_info{training_job="dog"}')) == 0, within_s=30)
        left = prometheus.query('{training_job="dog", __name__=~"pytorch.*|tunewarden.*"}')

    assert 0 < float(answers[QUERIES[1]][0]["value"][1]) <= 100
    assert {name: row["metric"].get("source") for name, row in rates.items()} == {"cat": None, "dog": "log"}
    assert {name: row["metric"]["owner"] for name, row in rates.items()} == {"cat": "li", "dog": "wang"}
    assert {name: row["metric"]["model_type"] for name, row in rates.items()} == {"cat": "lora-yaml", "dog": "sd15"}
    assert {name: row["metric"].get("config_name") for name, row in rates.items()} == {"cat": CONFIG, "dog": None}
    assert float(rates["dog"]["value"][1]) < 20  # it makes ten a second, and the minute is not full
    assert [row["value"][1] for row in loss if row["metric"]["training_job"] == "dog"] == ["NaN"]
    assert [(each["labels"]["alertname"], each["labels"]["training_job"]) for each in alert] == [
        ("TrainingLossNotFinite", "dog")
    ]
    assert left == []


def both(prometheus: PrometheusProcess, query: str) -> dict[str, dict[str, Any]]:
    """The rows by job, once both jobs make steps."""
    rows = {row["metric"]["training_job"]: row for row in prometheus.query(query) if float(row["value"][1]) > 1}
    return rows if set(rows) == {"cat", "dog"} else {}
