"""Each cause of low utilisation: a real process provokes it, the real samplers measure, a real Prometheus answers.

Only the card is simulated: its memory is the process's real memory, its utilisation the trainer's real CPU share.
"""

import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acceptance.prometheus_process import PrometheusProcess
from tests.acceptance.real_process import eventually
from tests.acceptance.served_board import served
from tunewarden.adapters.rule_files import shipped_rule_files
from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.domain.diagnosis import DIAGNOSIS_QUERIES, Diagnosis, diagnose, queries
from tunewarden.domain.job import Gpu, Job, JobState
from tunewarden.domain.sample import Heartbeat
from tunewarden.sampling.gpu import GpuSource, open_gpu_source
from tunewarden.sampling.host import HostReading, HostSampler
from tunewarden.sampling.simulated import SimulatedCard

PROGRAM = Path(__file__).with_name("provoked_job.py")
CAUSES = ("loader", "cpu", "disk", "small_kernels", "not_training", "unknown")
WINDOW_S = 8
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class ProvokedJob:
    """One real training process and what an agent would measure of it. Its node and its job are named by the cause."""

    def __init__(self, cause: str, number: int, folder: Path) -> None:
        folder.mkdir()
        self.cause = cause
        self.folder = folder
        self.card = SimulatedCard.parse(f"24GiB/128MiB@{number}")
        self._process = subprocess.Popen([sys.executable, str(PROGRAM), cause, str(folder)])
        self._source: GpuSource = open_gpu_source(f"24GiB/128MiB@{number}", self.pids, lambda: [self._process.pid])
        self._cpu: tuple[float, float] | None = None

    def pids(self) -> list[int]:
        process = psutil.Process(self._process.pid)
        return [process.pid, *(child.pid for child in process.children(recursive=True))]

    def stop(self) -> None:
        for pid in reversed(self.pids()):
            psutil.Process(pid).kill()
        self._process.wait()

    def job(self) -> Job:
        return Job(
            job_id=self.cause,
            name=self.cause,
            host_id="h",
            node=self.cause,
            generation=1,
            state=JobState.RUNNING,
            gpus=(Gpu(uuid=self.card.uuid, index=self.card.index),),
            registered_at=NOW,
            seen_at=NOW,
        )

    def heartbeat(self, host: HostReading) -> Heartbeat:
        progress = self.folder / "progress.json"
        return Heartbeat.from_wire(
            {
                "generation": 1,
                "state": "running",
                "gpus": [dataclasses.asdict(gpu) for gpu in self._source.read().gpus],
                "host": dataclasses.asdict(host),
                "job": {**(json.loads(progress.read_text()) if progress.exists() else {}), **self._use()},
            }
        )

    def _use(self) -> dict[str, Any]:
        """CPU cores since the last look, and the bytes that came from storage."""
        now = time.monotonic()
        processes = [psutil.Process(pid) for pid in self.pids()]
        seconds = sum(sum(process.cpu_times()[:2]) for process in processes)
        before, self._cpu = self._cpu, (now, seconds)
        return {
            "cpu_cores": None if before is None else max(0.0, (seconds - before[1]) / (now - before[0])),
            "read_bytes": sum(process.io_counters().read_bytes for process in processes),
        }


@contextmanager
def heartbeats(jobs: list[ProvokedJob], board: SampleBoard) -> Iterator[None]:
    """Every job's heartbeat on the board, twice a second."""
    ended = threading.Event()
    sampler = HostSampler()

    def beat() -> None:
        while not ended.wait(0.5):
            host = sampler.read()
            for job in jobs:
                board.put(job.job(), job.heartbeat(host), time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def diagnoses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Diagnosis]]:
    """All six jobs at once under one Prometheus, each with the diagnosis from its answers over a full window."""
    folder = tmp_path_factory.mktemp("diagnosis")
    board = SampleBoard()
    with ExitStack() as stack:
        jobs = [ProvokedJob(cause, number, folder / cause) for number, cause in enumerate(CAUSES)]
        for job in jobs:
            stack.callback(job.stop)
        stack.enter_context(heartbeats(jobs, board))
        address = stack.enter_context(served(board))
        prometheus = stack.enter_context(
            PrometheusProcess(folder / "prometheus", scrape={"tunewarden": [address]}, rules=shipped_rule_files())
        )
        full = f"min(count_over_time(gpu:utilization:ratio[{WINDOW_S}s])) >= {WINDOW_S - 2}"
        eventually(lambda: prometheus.query(full), within_s=60)
        yield {job.cause: diagnose(asked(prometheus, job)) for job in jobs}


def asked(prometheus: PrometheusProcess, job: ProvokedJob) -> dict[str, float | None]:
    """Prometheus's answer to each of the shipped queries."""
    texts = queries(uuid=job.card.uuid, node=job.cause, training_job_id=job.cause, window=f"{WINDOW_S}s")
    return {name: prometheus.value(text) for name, text in texts.items()}


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause != "unknown"])
def test_the_cause_is_found(diagnoses: dict[str, Diagnosis], cause: str) -> None:
    """The process that was made slow in one way is diagnosed so, with every number measured."""
    diagnosis = diagnoses[cause]

    assert diagnosis.cause == cause, diagnosis
    assert set(DIAGNOSIS_QUERIES) - set(diagnosis.numbers) <= {"step_seconds", "data_wait_share"}


def test_without_step_numbers_it_is_unknown(diagnoses: dict[str, Diagnosis]) -> None:
    """A process that writes no progress.json: the missing numbers are named."""
    diagnosis = diagnoses["unknown"]

    assert (diagnosis.cause, diagnosis.missing) == ("unknown", ("step_rate", "step_seconds", "data_wait_share"))
    assert diagnosis.numbers["gpu_utilization"] < 0.3
