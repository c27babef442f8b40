"""Ctrl-Z amid an order, with the real keeper and agent: nothing begins on a job that stands still."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.agent_world import World, eventually, world
from tunewarden.processes.identity import alive, identify
from tunewarden.supervisor.run_folder import write_identity

AGENT = Path(__file__).with_name("suspending_agent.py")
QUIET_S = 1.0  # long enough for the agent to begin what it must not


def begin(made: World, where: str) -> None:
    made.start(agent_argv=[sys.executable, "-E", "-P", str(AGENT), where], suspendable=True)
    made.until_step(2)


def go_on(made: World) -> None:
    assert made.process is not None
    os.kill(made.process.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("go:after_outcome", ["planned"]),
        ("save:after_outcome", ["planned", "saved"]),
        ("stop:after_outcome", ["planned", "saved", "stopped"]),
    ],
)
def test_a_replace_waits_for_the_person(tmp_path: Path, where: str, told: list[str]) -> None:
    """Suspended before a phase: it is begun after `fg`, and the replace ends as any other."""
    with world(tmp_path) as made:
        begin(made, where)
        trainer = made.trainer()
        made.issue("o-1", "replace", knobs={"batch_size": "/2"})
        eventually((made.run_dir / "suspended").exists, timeout=30, what="the suspension")
        time.sleep(QUIET_S)

        assert [phase for phase in made.service.reported("o-1") if phase != "accepted"] == told
        assert alive(trainer) is (where != "stop:after_outcome")
        assert bool(made.read("stop.taken")) is (where != "go:after_outcome")
        assert not (made.control() / "stop").exists()
        assert not made.control(2).exists()

        go_on(made)
        launched = made.service.until_report("o-1", "launched", timeout=40)["detail"]
        made.until_step(launched["resume_step"] + 1, generation=2)

        assert made.members() == [made.trainer(2).pid]
        assert (tmp_path / "lora.tunewarden-g2.yaml").exists()


def test_an_order_that_expires_meanwhile_leaves_the_job_as_it_was(tmp_path: Path) -> None:
    """Suspended before its first act, and for longer than the order may take: the job trains on after `fg`."""
    with world(tmp_path) as made:
        begin(made, "go:after_outcome")
        made.issue("o-1", "replace", knobs={"batch_size": "/2"}, expires_in_s=3)
        refused = made.service.until(lambda: made.service.reported("o-1").get("refused"), 30, "refused")
        step = made.step()
        go_on(made)
        made.until_step(step + 3)

        assert refused["reason"] == "expired"
        assert not (made.control() / "stop").exists()
        assert not (tmp_path / "lora.tunewarden-g2.yaml").exists()


STRANGER = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"


def test_the_keeper_is_known_by_the_socket(tmp_path: Path) -> None:
    """The job writes a stranger's identity into keeper.json: what the stranger has started is none of the job's."""
    with (
        world(tmp_path) as made,
        subprocess.Popen([sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger,
    ):
        assert stranger.stdout is not None
        child, own = identify(int(stranger.stdout.readline())), identify(stranger.pid)
        assert child is not None and own is not None
        try:
            made.start()
            made.until_step(2)
            write_identity(made.run_dir / "keeper.json", own)
            first = made.identity("agent")
            os.kill(first.pid, signal.SIGKILL)
            eventually(lambda: made.identity("agent") != first, what="the next agent")

            made.issue("o-1", "stop")

            assert made.exit_code() == 75
            assert alive(child)
        finally:
            os.kill(child.pid, signal.SIGKILL)
            stranger.communicate(b"\n")
