"""`vram-95-stop` switched on in the settings, and what it must not touch.

One world: a job that is stopped, one whose GPU idles, one on a card that a program of somebody else fills, and that
program, which was not started by `tunewarden run`.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.world import IDLE_TOO, TRAINER, Job, World, training_config
from tunewarden.demo.evidence import gone, sha256

LONG = {"train_samples": 4000, "step_seconds": 0.05}
FULL = {**LONG, "activation_mb_per_sample": 58}
IDLE = {**LONG, "activation_mb_per_sample": 20, "loader_sleep": 0.1, "step_seconds": 0}
SHARED_CARD = "GPU-5a5a5a5a-shared"  # of nvml_card.c
THEN = "{run} && touch went-on; echo $? > code; touch next"


@dataclass(frozen=True, kw_only=True)
class Stops:
    """The world when all has happened that will."""

    world: World
    foreign: "subprocess.Popen[bytes]"
    foreign_folder: Path

    def job(self, name: str) -> Job:
        return self.world.jobs[name]


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stops]:
    folder = tmp_path_factory.mktemp("stops")
    settings = {"enforce": True, "policies": {"vram-95-stop": {"enabled": True}}}
    foreign = start_foreign(folder / "foreign")
    try:
        with World(folder, settings=settings, rules=IDLE_TOO) as world:
            play(world, foreign)
            yield Stops(world=world, foreign=foreign, foreign_folder=folder / "foreign")
    finally:
        foreign.kill()
        foreign.wait()


def start_foreign(folder: Path) -> "subprocess.Popen[bytes]":
    """A trainer that speaks the control directory's words but was started by hand."""
    folder.mkdir()
    (folder / "control").mkdir()
    (folder / "config.yaml").write_text(training_config({**LONG, "save_steps": 100000}), encoding="utf-8")
    environment = {**os.environ, "TUNEWARDEN_CONTROL_DIR": str(folder / "control")}
    command = [sys.executable, str(TRAINER), "--config", "config.yaml"]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)


def play(world: World, foreign: "subprocess.Popen[bytes]") -> None:
    world.run("stopped", config=FULL, card=0, shell=THEN)
    world.run("idle", config=IDLE, card=1)
    shared = run_on_shared_card(world)
    world.until(lambda: shared.pids(1) and shared.step() > 0)
    holders = world.folder / "holders"
    holders.write_text(f"{foreign.pid} 16000\n{next(iter(shared.pids(1)))} 8000\n", encoding="ascii")
    a_minute_ago = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    labels = {"alertname": "GpuMemoryNearlyFull", "uuid": "GPU-of-somebody-else", "node": "elsewhere"}
    world.alertmanager.send([{"labels": labels, "startsAt": a_minute_ago}])
    world.until(lambda: world.job_has_ended("stopped") and world.titles("stopped", "GpuMemoryNearlyFull")[1:])
    world.until(lambda: world.titles("idle", "GpuUtilizationLow") and world.titles("shared", "GpuMemoryNearlyFull"))
    world.until(lambda: [post for post in world.robots["phone"].posts() if "elsewhere" in post["text"]])


def run_on_shared_card(world: World) -> Job:
    """On the card of nvml_card.c, read by the real NVML binding."""
    library = world.folder / "nvml"
    library.mkdir()
    source, out = Path(__file__).with_name("nvml_card.c"), str(library / "libnvidia-ml.so.1")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", out, str(source)], check=True)
    (world.folder / "holders").touch()
    environment = {"LD_LIBRARY_PATH": str(library), "NVML_CARD": str(world.folder / "holders")}
    return world.run("shared", config=LONG, env=environment, simulated=False)


def test_the_job_is_saved_and_stopped(stops: Stops) -> None:
    """A receipt, a whole state, nothing alive; no second generation and no other config."""
    job = stops.job("stopped")

    assert job.receipt(1)["ok"] is True
    assert Path(job.receipt(1)["path"]).exists()
    assert job.seen[1]
    assert gone(job.seen[1], job.job_id)
    assert not job.seen[2]
    assert not list(job.folder.glob("*.tunewarden-*"))


def test_a_stop_says_why_and_that_nothing_lives(stops: Stops) -> None:
    """Two messages: acting and stopped, with the checkpoint."""
    decided, outcome = stops.world.robots["phone"].about("stopped", "GpuMemoryNearlyFull")

    assert [post["title"].split(" / ")[-1].split()[0] for post in (decided, outcome)] == ["Acting", "Stopped"]
    assert f"Checkpoint: step {stops.job('stopped').receipt(1)['step']}" in outcome["text"].replace("\\", "")


def test_what_follows_the_run_does_not_go_on_after_a_stop(stops: Stops) -> None:
    """`run … && upload` stops there with 75; the lines after it go on."""
    folder = stops.job("stopped").folder

    assert (folder / "code").read_text("ascii") == "75\n"
    assert not (folder / "went-on").exists()
    assert (folder / "next").exists()


def test_an_idle_gpu_is_told_with_its_cause(stops: Stops) -> None:
    """The loader sleeps: the message says so with the numbers that decided, and the job is left alone."""
    job = stops.job("idle")
    (text,) = (post["text"] for post in stops.world.robots["phone"].about("idle", "GpuUtilizationLow"))

    assert "Cause: the data loader: the GPU waits for batches" in text
    assert "原因：数据加载" in text
    assert "Measured: GPU utilisation" in text
    assert not job.file(1, "stop.taken")
    assert len(job.pids(1)) == 1


def test_a_job_beside_a_larger_foreign_process_is_left_alone(stops: Stops) -> None:
    """The card is full, but of somebody else's memory: the message names who holds it."""
    job = stops.job("shared")
    (text,) = (post["text"] for post in stops.world.robots["phone"].about("shared", "GpuMemoryNearlyFull"))

    assert stops.world.prometheus.value(f'gpu:memory_used:ratio{{uuid="{SHARED_CARD}"}}') == pytest.approx(
        24000 / 24576
    )
    assert f"({stops.foreign.pid})" in text
    assert not job.file(1, "stop.taken")
    assert len(job.pids(1)) == 1


def test_a_process_that_was_not_started_by_run_is_never_touched(stops: Stops) -> None:
    """Alerts meant its card, and it could have been told to stop; it trains on and nobody asked it anything."""
    asked = [path.name for path in (stops.foreign_folder / "control").iterdir() if path.name.startswith("stop")]
    texts = [post["text"] for post in stops.world.robots["phone"].posts() if "elsewhere" in post["text"]]

    assert stops.foreign.poll() is None
    assert asked == []
    assert len(texts) == 1
    assert "the alert names no job" in texts[0]


def test_the_configs_are_as_they_were(stops: Stops) -> None:
    """Whatever was done."""
    changed = [job.name for job in stops.world.jobs.values() if sha256(job.config) != job.config_sha256]

    assert changed == []
