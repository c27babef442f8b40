"""Saved, stopped and resumed from outside: a script with transformers' Trainer that knows nothing of it."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.hooked import Hooked

SCRIPT = "trainer_script.py"
STEPS = 12  # 24 samples, 2 x 2 an update, 2 epochs
Start = Callable[..., Hooked]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def resumed(hooked: Start, state: dict[str, Any], *args: str, **plan: Any) -> Hooked:
    hook = {"resume_by": "hook", "base_step": state["step"], **plan}
    return hooked(SCRIPT, *args, generation=2, hook=hook, resume=state)


@pytest.fixture(scope="module")
def stopped(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Hooked, dict[str, Any], bool]:
    """A run of 2 x 2, under way, that was told to save and stop; its state; whether it outlived a SIGTERM.

    transformers' JIT checkpoint is on: it catches SIGTERM, and its own checkpoint would end train().
    """
    job = Hooked(trainer_python, tmp_path_factory.mktemp("stopped"), 1).start(SCRIPT, "--jit", "--pace", "0.05")
    job.wait_for("progress.json", lambda progress: progress["step"] >= 2)
    job.ask("save_and_stop")
    receipt = job.wait_for("receipt.json")
    assert receipt["ok"], receipt
    job.running.terminate()
    time.sleep(0.2)  # what would end at once has ended
    alive = job.running.poll() is None
    job.running.kill()
    job.ends()
    return job, {"step": receipt["step"], "path": receipt["path"]}, alive


def test_save_and_stop_parks_behind_a_whole_checkpoint(stopped: tuple[Hooked, dict[str, Any], bool]) -> None:
    """The checkpoint is one of the Trainer's own, beside JIT; what the script does after train() never runs."""
    job, state, alive = stopped
    folder = Path(state["path"])
    hello = job.read("hello.json") or {}
    step = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["global_step"]

    assert folder == job.out / f"checkpoint-{state['step']}"
    assert step == state["step"] >= 2
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"} <= {x.name for x in folder.iterdir()}
    assert sorted(x.name for x in job.out.iterdir()) == [folder.name]
    assert (hello["framework"], hello["can"]) == ("transformers", ["save", "stop", "resume"])
    assert (job.read("progress.json") or {})["last_state"] == state
    assert alive
    assert "trained" not in job.output
    assert job.log == ""


def test_half_the_batch_with_twice_the_accumulation_ends_with_the_planned_updates(
    hooked: Start, stopped: tuple[Hooked, dict[str, Any], bool], tmp_path: Path
) -> None:
    """1 x 4 after 2 x 2. The script asks for the newest checkpoint, killed half-way: not that one is taken."""
    _, state, _ = stopped
    half = tmp_path / "out" / f"checkpoint-{STEPS - 1}"
    shutil.copytree(state["path"], half)
    (half / "checkpoint-is-incomplete.txt").write_text("in progress", encoding="utf-8")
    (half / "optimizer.pt").unlink()
    job = resumed(hooked, state, "--batch", "1", "--accumulation", "4", "--resume", "--workers", "2")
    result = job.result()
    last = job.read("progress.json") or {}

    assert job.read("resumed.json") == state
    assert (result["global_step"], result["max_steps"]) == (STEPS, STEPS)
    assert (result["updates"], result["last_epoch"]) == (STEPS, STEPS)
    assert (last["step"], last["total_steps"], last["phase"]) == (STEPS, STEPS, "finished")
    assert last["micro_steps"] == 4 * (STEPS - state["step"])
    assert last["step_seconds_count"] == STEPS - state["step"]
    assert 0 < last["data_wait_seconds_sum"] < last["step_seconds_sum"]


def test_half_the_batch_alone_is_refused_before_the_first_step(
    hooked: Start, stopped: tuple[Hooked, dict[str, Any], bool]
) -> None:
    """transformers#43708: it would make twice the updates at a learning rate that jumps up again."""
    _, state, _ = stopped
    job = resumed(hooked, state, "--batch", "1", "--accumulation", "2")
    status = job.ends()
    crash = job.read("crash.json") or {}

    assert (status, job.read("resumed.json")) == (1, None)
    assert "cannot_resume" in crash["error"]
    assert f"{STEPS} updates were planned, and this run would make {2 * STEPS}" in crash["error"]
    assert crash["at_load"]
    assert not (job.out / "final").exists()


def test_a_save_at_a_step_where_the_trainer_saves_too(hooked: Start) -> None:
    """Its own checkpoint at every step, an evaluation, and a loss that its NaN filter hides from its log.

    What the receipt names is not written once more, and the script's callbacks hear of every checkpoint.
    """
    flags = ("--save-steps", "1", "--eval-steps", "3", "--nan-from", "4", "--pace", "0.15", "--epochs", "1")
    job = hooked(SCRIPT, *flags, request="save")
    evaluates = job.wait_for("progress.json", lambda progress: progress["phase"] == "eval")
    result = job.result()
    receipt = job.read("receipt.json") or {}
    last = job.read("progress.json") or {}

    assert (receipt["ok"], receipt["step"], receipt["path"]) == (True, 1, str(job.out / "checkpoint-1"))
    assert (Path(receipt["path"]) / "tunewarden.json").exists()
    assert result["told_of"] == [1, 2, 3, 4, 5, 6]
    assert evaluates["step"] == 3
    assert last["last_state"] == {"step": 6, "path": str(job.out / "checkpoint-6")}
    assert (last["step"], last["micro_steps"], last["loss"]) == (6, 12, "nan")
    assert 1.8 < last["step_seconds_sum"] < 1.8 + 3.6  # two evaluations of 1.8 s are no part of it
    assert "{'loss': 'nan'" not in job.output
    assert not list(job.out.glob("*.partial"))


def test_after_out_of_memory_it_goes_on_from_the_last_whole_step_to_the_true_total(hooked: Start) -> None:
    """The state is named in crash.json; the next run, whose plan is 7 updates, ends there as by itself."""
    first = hooked(SCRIPT, "--oom-at", "5")
    status = first.ends()
    crash = first.read("crash.json") or {}
    second = resumed(hooked, crash["state"], total_steps=7, stop_at_total=True)
    result = second.result()

    assert status == 1
    assert (crash["step"], crash["phase"], crash["consistent"], crash["at_load"]) == (5, "train", True, False)
    assert crash["state"] == {"step": 5, "path": str(first.out / "checkpoint-5")}
    assert second.read("resumed.json") == crash["state"]
    assert (result["global_step"], result["updates"]) == (7, 7)
    assert weights(second.out / "final") == weights(second.out / "checkpoint-7")
