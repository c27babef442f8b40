"""One night on one host with the shipped rules and policies: what happens to jobs in and out of trouble.

The settings are as shipped (no `enforce`); the jobs that may be stopped were started with `run --enforce`. The jobs run
side by side, each on a card of its own, so that the night takes half a minute; each test looks at one of them.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.world import CONFIG, TRAINER, Job, World, training_config
from tunewarden.demo.evidence import gone, read_json, sha256

STEPS = 360
TRAINING = {"train_samples": STEPS * 4 // 10, "step_seconds": 0.08}
CREEPING = {**TRAINING, "activation_mb_per_sample": 54, "leak_mb_per_step": 0.016}
FLAT = {**TRAINING, "activation_mb_per_sample": 58}
OOM = {**TRAINING, "activation_mb_per_sample": 40, "leak_mb_per_step": 0.1, "oom_at_mb": 180, "save_steps": 20}
NAMES = ("rescued", "watched", "flat", "oom")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Played until every job has ended and the robots have heard of each end."""
    with World(tmp_path_factory.mktemp("night"), settings={"limits": {"share_from_jobs": 100}}) as world:
        world.run("rescued", config=CREEPING, options=["--enforce"], card=0)
        world.run("watched", config=CREEPING, card=1)
        world.run("flat", config=FLAT, options=["--enforce"], card=2)
        world.run("oom", config=OOM, card=3)
        world.until(lambda: all(job.process.poll() is not None for job in world.jobs.values()), within_s=90)
        world.until(lambda: all(finished(world, name) for name in NAMES))
        yield world


def finished(world: World, name: str) -> bool:
    return all(any("Finished" in title for title in world.titles(name, robot=robot)) for robot in world.robots)


def short_ids(world: World, name: str) -> set[str]:
    """The ids of the remediations in the messages about this job."""
    texts = [post["text"] for robot in world.robots.values() for post in robot.about(name)]
    return {found for text in texts for found in re.findall(r"R-[A-Z0-9]{6}", text)}


def uninterrupted(folder: Path, config: dict[str, object]) -> dict[str, object]:
    """What the trainer makes of this config alone, without waiting and without filling memory."""
    fast = {**config, "step_seconds": 0, "activation_mb_per_sample": 0, "leak_mb_per_step": 0, "oom_at_mb": 0}
    (folder / CONFIG).write_text(training_config(fast), encoding="utf-8")
    subprocess.run([sys.executable, str(TRAINER), "--config", CONFIG], cwd=folder, check=True, capture_output=True)
    return read_json(folder / "output" / "my_style_lora" / "my_style_lora.json")


def half_the_batch(job: Job) -> tuple[int, int]:
    """How many lines of the adjusted config say what it must, and how many differ from the original's."""
    old, new = job.config.read_text("utf-8").splitlines(), job.beside(2).read_text("utf-8").splitlines()
    said = sum(line.startswith(("batch_size: 2 ", "gradient_accumulation_steps: 2 ")) for line in new)
    return said, sum(before != after for before, after in zip(old, new, strict=True))


def test_pressure_is_saved_stopped_and_goes_on_from_its_checkpoint(night: World) -> None:
    """Generation 2 goes on from the receipt's step, nothing of generation 1 lives, and `run` ends with 0."""
    job = night.jobs["rescued"]

    assert job.receipt(1)["ok"] is True
    assert 0 < job.receipt(1)["step"] == job.file(2, "resumed.json")["step"]
    assert job.seen[1]
    assert gone(job.seen[1], job.job_id)
    assert job.process.returncode == 0


def test_the_adjusted_config_is_a_new_file_with_two_lines_changed(night: World) -> None:
    """Batch 4 becomes 2 and accumulation 1 becomes 2; what the person wrote stays, to the byte."""
    job = night.jobs["rescued"]

    assert half_the_batch(job) == (2, 2)
    assert sha256(job.config) == job.config_sha256


def test_the_rescued_job_ends_as_an_uninterrupted_one(night: World, tmp_path: Path) -> None:
    """The same steps, the same samples and the same loss: nothing was trained twice or left out."""
    result, expected = night.jobs["rescued"].result, uninterrupted(tmp_path, CREEPING)

    assert result["steps"] == expected["steps"] == STEPS
    assert result["samples"] == expected["samples"]
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-9)


def test_a_remediation_is_two_messages_with_one_id(night: World) -> None:
    """Decided and outcome; the third, restarted, goes only to the robot that asked for it."""
    assert night.titles("rescued") == [
        "Acting rescued batch_size /2",
        "Recovered rescued batch_size 4→2",
        "Finished rescued",
    ]
    assert night.titles("rescued", robot="desk") == [
        "Acting rescued batch_size /2",
        "Restarted rescued batch_size 4→2",
        "Recovered rescued batch_size 4→2",
        "Finished rescued",
    ]
    assert len(short_ids(night, "rescued")) == 1


def test_the_messages_say_why_and_what_was_changed(night: World) -> None:
    """The first names the second sign, the last the change, the checkpoint and the step."""
    decided, outcome, _ = (post["text"].replace("\\", "") for post in night.robots["phone"].about("rescued"))
    step = night.jobs["rescued"].receipt(1)["step"]

    assert "memory is predicted to run out" in decided
    assert "batch_size 4 → 2, gradient_accumulation 1 → 2" in outcome
    assert f"Checkpoint: step {step} · " in outcome
    assert str(night.jobs["rescued"].beside(2)) in outcome


def test_without_enforce_it_is_saved_and_trains_on(night: World) -> None:
    """One process from start to end, one receipt for a save, no other config; the message says what it would do."""
    job = night.jobs["watched"]
    decided = night.robots["phone"].about("watched", "GpuMemoryNearlyFull")[0]["text"]

    assert job.receipt(1)["ok"] is True
    assert job.file(1, "stop.taken")["mode"] == "save"
    assert Path(job.receipt(1)["path"]).exists()
    assert len(job.seen[1]) == 1
    assert not job.seen[2]
    assert not list(job.folder.glob("*.tunewarden-*"))
    assert job.result["steps"] == STEPS
    assert "Would have: save a checkpoint, stop, restart from it" in decided
    assert "本来会：保存检查点，停止，再从检查点重启" in decided


def test_flat_at_97_percent_is_one_message_and_nothing_else(night: World) -> None:
    """It could be stopped (`--enforce`), but nothing says that it goes wrong: no save, no order, one message."""
    job = night.jobs["flat"]
    fired = night.prometheus.value(f'count_over_time(ALERTS{{alertstate="firing", uuid="{job.uuid}"}}[5m])')

    assert fired is not None
    assert fired > 5
    assert night.titles("flat") == ["Notice flat GpuMemoryNearlyFull", "Finished flat"]
    assert not any(job.file(1, name) for name in ("stop", "stop.taken", "stop.withdrawn", "receipt.json"))
    assert len(job.seen[1]) == 1
    assert job.result["steps"] == STEPS


def test_a_job_that_died_of_oom_comes_back(night: World, tmp_path: Path) -> None:
    """From its newest state with half the batch and without `enforce`, to the end of an uninterrupted run."""
    job, expected = night.jobs["oom"], uninterrupted(tmp_path, OOM)

    assert "CUDA out of memory" in job.file(1, "crash.json")["error"]
    assert 0 < job.file(2, "resumed.json")["step"] <= job.file(1, "crash.json")["step"]
    assert half_the_batch(job) == (2, 2)
    assert gone(job.seen[1], job.job_id)
    assert job.process.returncode == 0
    assert (job.result["steps"], job.result["samples"]) == (STEPS, expected["samples"])
    assert job.result["loss"] == pytest.approx(expected["loss"], rel=1e-9)
    assert [title.split()[0] for title in night.titles("oom")] == ["Acting", "Recovered", "Finished"]


def test_every_message_passed_the_robots_checks(night: World) -> None:
    """Signature, size, form and rate, as a robot that knows nothing of us judged them."""
    received = [post for robot in night.robots.values() for post in robot.posts()]

    assert received
    assert {(post["errcode"], post["errmsg"]) for post in received} == {(0, "ok")}
    assert [post["title"] for post in received if post["mentions"]] == []  # nobody had to get up


def test_no_secret_is_in_a_log_or_a_process_list(night: World) -> None:
    """Neither token, nor the robots' secrets and access tokens, in anything that was logged or written for a person."""
    tokens = [night.state / "webhook.token", night.state / "agent.token"]
    secrets = {token.read_text("ascii").strip() for token in tokens}
    secrets |= {word for robot in night.robots.values() for word in (robot.secret, robot.token)}
    runs = [path for path in (night.state / "runs").rglob("*") if path.is_file()]
    logs = [*night.folder.rglob("*.log"), *runs, *(robot.log for robot in night.robots.values())]

    assert len(logs) > 10
    assert [path for path in logs for secret in secrets if secret.encode() in path.read_bytes()] == []
    assert any(b"tunewarden" in line for line in night.command_lines)
    assert [line for line in night.command_lines for secret in secrets if secret.encode() in line] == []
