"""The whole road of the numbers: from inside a real accelerate loop, by hook and agent, to what Prometheus is shown."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.agent_world import World, eventually, world
from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.api.exposition import exposition
from tunewarden.api.jobs_wire import Registration
from tunewarden.domain.sample import Heartbeat

LOOP = str(Path(__file__).with_name("accelerate_loop.py"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def newest(run: World, step: int) -> dict[str, Any] | None:
    """The newest heartbeat, once the hook has told of so many steps."""
    body: dict[str, Any] = run.service.seen.heartbeats[-1] if run.service.seen.heartbeats else {"job": {}}
    job = body["job"]
    return body if job.get("source") == "hook" and (job.get("step") or 0) >= step and job.get("loss") else None


def test_a_real_trainers_numbers_are_shown(run: World, trainer_python: Path) -> None:
    """Optimizer steps apart from micro-steps, their seconds, the loss, the phase; no torch memory without CUDA."""
    words = ["--steps", "2000", "--accumulation", "2", "--pace", "0.02"]
    run.start([str(trainer_python), LOOP, "out", *words], hook=True)
    body = eventually(lambda: newest(run, 20), timeout=60, what=f"the hook's numbers: {run.log()}")
    board = SampleBoard()
    registered = Registration.model_validate(run.service.seen.registrations[-1]).job(run.job_id, datetime.now(UTC))
    board.put(registered, Heartbeat.from_wire(body), 0.0)
    text = exposition(board, CollectorRegistry(), 0.0).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    shown = {sample.name: sample.value for sample in samples}
    job = body["job"]

    assert job["framework"] == "accelerate"
    assert shown["tunewarden_job_optimizer_steps_total"] == job["step"] >= 20
    assert abs(shown["tunewarden_job_micro_steps_total"] - 2 * job["step"]) <= 2
    assert job["step"] - 2 <= shown["pytorch_step_duration_seconds_count"] <= job["step"]
    mean = shown["pytorch_step_duration_seconds_sum"] / shown["pytorch_step_duration_seconds_count"]
    assert 0.04 <= mean < 5  # two micro-steps of 20 ms and more
    assert [s.labels["phase"] for s in samples if s.name == "tunewarden_job_phase" and s.value] == ["train"]
    assert shown["tunewarden_job_loss"] > 0
    assert shown["tunewarden_job_step_idle_seconds"] < 5
    assert [sample.name for sample in samples if "torch" in sample.name.removeprefix("pytorch")] == []
    assert [sample for sample in samples if "source" in sample.labels] == []
