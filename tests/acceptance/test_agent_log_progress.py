"""A trainer that speaks to nobody: what a real agent reads of its steps, and tells the service."""

import base64
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agent_world import World, eventually, world
from tests.unit.test_event_file import REAL

BARS = str(Path(__file__).with_name("bar_trainer.py"))
# Writes the bytes of a real event file as TensorBoard would name it; with a bar that shows no loss, or without one.
WRITER = """
import base64, os, pathlib, sys, time
folder = pathlib.Path("logs", "network_train")
folder.mkdir(parents=True)
(folder / f"events.out.tfevents.1796086534.host.{os.getpid()}.0").write_bytes(base64.b64decode(sys.argv[1]))
(folder / "events.out.tfevents.1796086534.host.1.0").write_bytes(b"not ours")
if sys.argv[2] == "bar":
    for step in (0, 7):
        sys.stderr.write(f"\\rsteps:   7%|#  | {step}/100 [00:01<00:20,  7.00it/s]")
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def told(run: World, **wanted: Any) -> dict[str, Any]:
    """The newest job section that says all this."""

    def look() -> dict[str, Any] | None:
        for body in reversed(run.service.seen.heartbeats):
            job: dict[str, Any] = body["job"]
            if all(job.get(name) == value for name, value in wanted.items()):
                return job
        return None

    found: dict[str, Any] = eventually(look, timeout=30, what=f"{wanted}: {run.service.seen.heartbeats[-1:]}")
    return found


@pytest.mark.parametrize(("bar", "step", "phase"), [("no bar", 3, None), ("bar", 7, "train")])
def test_tensorboards_events_tell_what_no_bar_does(run: World, bar: str, step: int, phase: str | None) -> None:
    """The step of the bar where there is one, and the loss of the events."""
    words = [sys.executable, "-c", WRITER, base64.b64encode(REAL).decode(), bar, "--logging_dir=logs"]
    run.start(words)
    job = told(run, loss=0.125)

    assert (job["step"], job["phase"], job["source"]) == (step, phase, "log")


def test_a_bar_tells_steps_and_a_loss_of_nan(run: World) -> None:
    """And an agent that takes over reads on: the step does not fall."""
    run.start([sys.executable, BARS, "nan"])
    first = told(run, loss="nan", source="log", phase="train")
    before = run.identity("agent")
    os.kill(before.pid, signal.SIGKILL)
    eventually(lambda: run.identity("agent") != before, what="another agent")
    count = len(run.service.seen.heartbeats)
    eventually(lambda: len(run.service.seen.heartbeats) > count + 2, timeout=30, what="its heartbeats")
    after = run.service.seen.heartbeats[-1]["job"]

    assert after["step"] >= first["step"] > 3
    assert after["step_seconds_count"] >= first["step_seconds_count"]
    assert (after["total_steps"], after["loss"], after["source"]) == (100_000, "nan", "log")
