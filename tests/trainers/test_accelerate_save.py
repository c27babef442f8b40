"""Saved, stopped and resumed from outside: an accelerate loop that knows nothing of it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.hooked import BOUND, Hooked

LOOP = "accelerate_loop.py"
STEPS = 12
Start = Callable[..., Hooked]


@pytest.fixture(scope="module")
def uninterrupted(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a run that nobody disturbed; it has no control directory, so the hook does nothing."""
    job = Hooked(trainer_python, tmp_path_factory.mktemp("alone"), 1)
    job.start(LOOP, env={"TUNEWARDEN_CONTROL_DIR": ""})

    assert job.result() == {"updates": STEPS, "last_epoch": STEPS}
    assert not (job.control / "hello.json").exists()
    return weights(job.out / "final")


def weights(state: Path) -> bytes:
    return (state / "model.safetensors").read_bytes()


def facts(state: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((state / "tunewarden.json").read_text(encoding="utf-8"))
    return content


def stop(job: Hooked) -> dict[str, Any]:
    """As the agent does: the receipt, then the end of the parked trainer. Gives {"step", "path"}."""
    receipt = job.wait_for("receipt.json")
    assert receipt["ok"], receipt
    job.running.terminate()
    job.ends()
    return {"step": receipt["step"], "path": receipt["path"]}


def resumed(hooked: Start, state: dict[str, Any], *args: str) -> Hooked:
    """Generation 2, to the planned total."""
    hook = {"resume_by": "hook", "base_step": state["step"], "total_steps": STEPS, "stop_at_total": True}
    return hooked(LOOP, *args, generation=2, hook=hook, resume=state)


def test_a_peft_loop_with_workers_saves_on_request_and_trains_on(hooked: Start) -> None:
    """peft, two DataLoader workers, accumulation 2: the state is complete, the run ends with all its updates."""
    job = hooked(LOOP, "--peft", "--workers", "2", "--accumulation", "2", "--pace", "0.02")
    job.wait_for("hello.json", lambda hello: "save" in hello["can"])
    job.ask("save")
    receipt = job.wait_for("receipt.json")
    result = job.result()
    state = Path(receipt["path"])

    assert (receipt["request_id"], receipt["ok"], receipt["cause"], receipt["consistent"]) == (
        "r-1",
        True,
        "request",
        True,
    )
    assert state == job.out / f"step-{receipt['step']:08d}"
    assert {"model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"} <= {
        path.name for path in state.iterdir()
    }
    assert facts(state)["optimizer_steps"] == receipt["step"]
    assert not list(job.out.glob("*.partial"))
    assert (result["updates"], result["last_epoch"]) == (STEPS, STEPS)
    assert job.log == ""


@pytest.mark.parametrize("style", ["accumulate", "plain", "zero_first", "scheduler_last", "loose_scheduler"])
def test_a_stopped_and_resumed_run_ends_as_an_uninterrupted_one(
    hooked: Start, uninterrupted: bytes, style: str
) -> None:
    """In whatever order the loop steps: same weights, same number of updates, same place in the schedule."""
    state = stop(hooked(LOOP, "--style", style, request="save_and_stop"))
    second = resumed(hooked, state, "--style", style)
    status = second.ends()
    last = second.read("progress.json")
    total = second.out / f"step-{STEPS:08d}"

    assert status == 0, second.output
    assert second.read("resumed.json") == state
    assert last is not None
    assert (last["step"], last["phase"], last["last_state"]["step"]) == (STEPS, "finished", STEPS)
    assert facts(total)["scheduler_epochs"] == [STEPS]
    assert facts(total)["optimizer_steps"] == STEPS
    assert weights(total) == uninterrupted
    if style in ("loose_scheduler", "zero_first"):  # their update is through where the next begins: too late
        assert "trained" not in second.output
    else:  # the loader gives no more batches: the script comes to its own end, and writes its own result
        assert second.result() == {"updates": STEPS, "last_epoch": STEPS}


def test_a_loop_that_counts_for_itself_comes_to_its_own_end_at_the_total(hooked: Start) -> None:
    """The state of the total is saved, and the script still writes its own result."""
    job = hooked(LOOP, "--steps", "4", hook={"total_steps": 4, "stop_at_total": True})

    assert job.result() == {"updates": 4, "last_epoch": 4}
    assert facts(job.out / "step-00000004")["cause"] == "total"


def test_a_file_asks_whatever_handlers_the_script_installs(hooked: Start, tmp_path: Path) -> None:
    """transformers' JIT checkpoint, Lightning and many scripts catch SIGTERM: the hook installs no handler at all."""
    own = tmp_path / "own"
    own.mkdir()
    code = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: open('termed', 'w').close())\n"
    (own / "sitecustomize.py").write_text(code, encoding="utf-8")
    job = hooked(LOOP, "--workers", "2", request="save_and_stop", env={"PYTHONPATH": str(own)})
    receipt = job.wait_for("receipt.json")
    job.running.terminate()
    deadline = time.monotonic() + BOUND
    while not (tmp_path / "termed").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert receipt["ok"]
    assert job.running.poll() is None
    assert (job.read("pid.0.json") or {})["pid"] == (job.read("hello.json") or {})["pid"] == job.running.pid
