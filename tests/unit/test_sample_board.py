"""The board of newest samples, and the text that /metrics makes of it."""

import json
import math
import re
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.api.exposition import exposition
from tunewarden.domain.job import Gpu, Job, JobState
from tunewarden.domain.sample import Heartbeat

JOBS_API = Path(__file__).parents[2] / "docs" / "reference" / "jobs-api.md"
METRICS = JOBS_API.with_name("metrics.md")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def documented() -> dict[str, Any]:
    """The heartbeat that the contract page prints."""
    found = re.search(r"## Heartbeat\n\n```json\n(.*?)```", JOBS_API.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    body: dict[str, Any] = json.loads(found[1])
    return body


def job(job_id: str = "j1", node: str = "n1", state: JobState = JobState.RUNNING) -> Job:
    return Job(
        job_id=job_id,
        name="cat-lora",
        host_id="h",
        node=node,
        generation=1,
        state=state,
        gpus=(Gpu(uuid="GPU-a", index=0),),
        registered_at=NOW,
        seen_at=NOW,
    )


def card(uuid: str = "GPU-a", **values: Any) -> dict[str, Any]:
    return {"uuid": uuid, "index": 0, "memory_used": 3, "memory_free": 1, "memory_total": 5, **values}


def heartbeat(**body: Any) -> Heartbeat:
    return Heartbeat.from_wire({"generation": 1, "state": "running", **body})


def series(board: SampleBoard, now: float, registry: CollectorRegistry | None = None) -> dict[str, float]:
    """Every sample of /metrics as `name{label="value",…}` in sorted label order."""
    text = exposition(board, registry or CollectorRegistry(), now).decode()
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_documented_heartbeat_is_read_whole() -> None:
    """Nothing that the contract page shows is lost on the way."""
    body = documented()
    read = Heartbeat.from_wire(body)

    assert (read.generation, read.state, read.can) == (1, "running", {"save", "stop", "resume"})
    assert read.gpus_of_job == (Gpu(uuid="GPU-…", index=0),)
    assert {name: getattr(read.job, name) for name in body["job"]} == body["job"]
    assert {name: getattr(read.host, name) for name in body["host"]} == body["host"]
    gpu = body["gpus"][0]
    processes = gpu.pop("processes")
    assert {name: getattr(read.gpus[0], name) for name in gpu} == gpu
    assert [{name: getattr(read.gpus[0].processes[0], name) for name in processes[0]}] == processes


@pytest.mark.parametrize("wrong", ["12", True, math.nan, math.inf, [], {}, 10**400, -1, 1.5])
def test_a_value_of_the_wrong_type_is_none(wrong: Any) -> None:
    """A number that is none is not measured; the rest of the heartbeat stays."""
    read = heartbeat(gpus=[card(memory_used=wrong)], job={"step": wrong, "phase": "train"}, unknown=1)

    assert (read.gpus[0].memory_used, read.job.step, read.job.phase) == (None, None, "train")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("gpus", 1), ("gpus", [1, None, {}]), ("gpus", [{"uuid": "GPU-a"}]), ("host", []), ("job", "x"), ("can", 3)],
)
def test_a_part_of_the_wrong_shape_is_empty(field: str, wrong: Any) -> None:
    """A card without uuid or index can't be told from another, so it is no card."""
    read = heartbeat(**{field: wrong})

    assert (read.gpus, read.host.cpu_busy, read.job.step, read.can) == ((), None, None, None)


@pytest.mark.parametrize("body", [{}, {"generation": 0, "state": "running"}, {"generation": 1}, {"state": "running"}])
def test_a_heartbeat_without_generation_or_state_is_refused(body: dict[str, Any]) -> None:
    """Without them it can't be told which launch it speaks of."""
    with pytest.raises(ValueError, match="generation"):
        Heartbeat.from_wire(body)


@pytest.mark.parametrize(
    ("used", "free", "ratio"), [(3, 1, 0.75), (0, 4, 0.0), (None, 1, None), (1, None, None), (0, 0, None)]
)
def test_the_memory_ratio_is_of_what_programs_can_have(used: int | None, free: int | None, ratio: float | None) -> None:
    """used / (used + free): the driver's reserve, the rest of the total, is left out."""
    assert heartbeat(gpus=[card(memory_used=used, memory_free=free)]).gpus[0].memory_ratio == ratio


def test_the_articles_names_are_there_in_their_units() -> None:
    """The articles' queries find bytes and 0 to 100, with the labels device, uuid and node."""
    board = SampleBoard()
    steps = {"step_seconds_sum": 5.5, "step_seconds_count": 4}
    board.put(job(), heartbeat(gpus=[card(utilization=98.0)], job=steps), 0.0)
    found = series(board, 1.0)

    labels = " device=0 node=n1 uuid=GPU-a"
    job_labels = " generation=1 model_type=unknown node=n1 training_job=cat-lora training_job_id=j1"
    assert {name: found[name] for name in found if not name.startswith("tunewarden")} == {
        "gpu_memory_used" + labels: 3,
        "gpu_memory_free" + labels: 1,
        "gpu_memory_total" + labels: 5,
        "gpu_utilization" + labels: 98,
        "pytorch_step_duration_seconds_count" + job_labels: 4,
        "pytorch_step_duration_seconds_sum" + job_labels: 5.5,
    }


def test_what_was_not_measured_has_no_series() -> None:
    """Unknown is never shown as 0."""
    board = SampleBoard()
    board.put(job(), heartbeat(), 0.0)

    assert {name.split(" ")[0] for name in series(board, 1.0)} == {"tunewarden_job_info", "tunewarden_job_gpu"}


def test_a_lost_job_leaves_the_metrics() -> None:
    """Three heartbeats later nothing of it is shown."""
    board = SampleBoard()
    board.put(job(), heartbeat(gpus=[card()]), 0.0)

    assert (bool(series(board, 15.0)), series(board, 15.1), board.newest("j1", 15.1)) == (True, {}, None)


@pytest.mark.parametrize("state", [JobState.ENDED, JobState.LOST])
def test_an_ended_job_leaves_the_metrics_at_once(state: JobState) -> None:
    """Its last heartbeat says so."""
    board = SampleBoard()
    board.put(job(), heartbeat(gpus=[card()]), 0.0)
    board.put(job(state=state), heartbeat(gpus=[card()]), 1.0)

    assert series(board, 1.0) == {}


def test_a_card_of_two_jobs_has_one_series_and_the_fresher_reading() -> None:
    """Both agents of a host see all its cards; spelling of the uuid makes no second card."""
    board = SampleBoard()
    board.put(job("j1"), heartbeat(gpus=[card(memory_used=30, age_s=0.1)]), 0.0)
    board.put(job("j2"), heartbeat(gpus=[card("gpu-A", memory_used=40, age_s=5.0)]), 1.0)
    used = [value for name, value in series(board, 2.0).items() if name.startswith("gpu_memory_used")]

    assert used == [30]


def test_the_same_index_on_two_hosts_is_two_cards() -> None:
    """Cards are told apart by node and uuid, never by index."""
    board = SampleBoard()
    board.put(job("j1", "n1"), heartbeat(gpus=[card("GPU-a")]), 0.0)
    board.put(job("j2", "n2"), heartbeat(gpus=[card("GPU-b")]), 0.0)

    assert sorted(found.node for found in board.cards(1.0)) == ["n1", "n2"]


def test_a_reading_of_a_hanging_driver_is_left_out() -> None:
    """A minute old means that nothing is known about now."""
    board = SampleBoard()
    board.put(job(), heartbeat(gpus=[card(age_s=59.0)]), 0.0)

    assert (len(board.cards(1.0)), len(board.cards(1.1))) == (1, 0)


def test_the_board_is_bounded() -> None:
    """The job that has been silent longest makes room."""
    board = SampleBoard(most_jobs=2)
    for name in ("j1", "j2", "j1", "j3"):
        board.put(job(name), heartbeat(), 0.0)

    assert [entry.job.job_id for entry in board.jobs(0.0)] == ["j1", "j3"]


def test_the_phase_is_one_of_six() -> None:
    """One series is 1; a word that we do not know makes no series of its own."""
    board = SampleBoard()
    board.put(job("j1"), heartbeat(job={"phase": "eval"}), 0.0)
    board.put(job("j2"), heartbeat(job={"phase": "dreaming"}), 0.0)
    phases = {name: value for name, value in series(board, 0.0).items() if "tunewarden_job_phase" in name}

    assert (len(phases), [name.split("phase=")[1].split(" ")[0] for name, value in phases.items() if value]) == (
        12,
        ["eval"],
    )


def test_the_services_own_metrics_follow() -> None:
    """One scrape gives both."""
    registry = CollectorRegistry()
    Counter("tunewarden_test_things", "Things.", registry=registry).inc()

    assert series(SampleBoard(), 0.0, registry)["tunewarden_test_things_total"] == 1.0


def test_labels_with_quotes_and_newlines_stay_one_value() -> None:
    """A job's name is a user's text."""
    board = SampleBoard()
    name = 'a"b\\c\nd{} 1'
    board.put(Job(**{**job().__dict__, "name": name}), heartbeat(job={"step": 1}), 0.0)
    text = exposition(board, CollectorRegistry(), 0.0).decode()
    assert len(series(board, 0.0)) == 3
    names = {
        sample.labels["training_job"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "training_job" in sample.labels
    }

    assert names == {name}


def everything() -> bytes:
    """All that can be shown of one job."""
    board = SampleBoard()
    board.put(job(), Heartbeat.from_wire({**documented(), "job": {**documented()["job"], "resumed_step": 3}}), 0.0)
    return exposition(board, CollectorRegistry(), 0.0)


def test_the_reference_page_lists_what_is_shown() -> None:
    """Every name of /metrics is on the page, and the page names nothing else of ours."""
    shown = set(re.findall(rb"^# TYPE (\w+)", everything(), re.MULTILINE))
    page = set(re.findall(r"`((?:gpu|pytorch|tunewarden)_\w+)", METRICS.read_text(encoding="utf-8")))

    assert page == {name.decode() for name in shown}


def test_promtool_complains_of_the_articles_name_only() -> None:
    """`promtool check metrics` on all that can be shown: gpu_memory_total is named as the article names it."""
    checked = subprocess.run(["promtool", "check", "metrics"], input=everything(), capture_output=True, check=False)

    assert checked.stderr.decode().splitlines() + checked.stdout.decode().splitlines() == [
        'gpu_memory_total non-counter metrics should not have "_total" suffix'
    ]


def test_many_jobs_are_shown_in_time() -> None:
    """300 jobs with ten labels each: the service has one thread, and acknowledges webhooks on it meanwhile."""
    board = SampleBoard()
    for number in range(300):
        labels = {f"label{each}": "x" * 20 for each in range(10)}
        one = Job(**{**job(f"j{number}").__dict__, "labels": labels})
        board.put(one, Heartbeat.from_wire(documented()), 0.0)
    began = time.process_time()
    text = exposition(board, CollectorRegistry(), 1.0)

    assert text.count(b"\ntunewarden_job_loss{") == 300
    assert time.process_time() - began < 1.0  # it takes 0.15 s
