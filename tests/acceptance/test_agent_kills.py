"""SIGKILL of the real agent at every boundary of every phase: nothing is done twice, nothing is skipped."""

import hashlib
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.acceptance.agent_world import World, eventually, world
from tunewarden.processes.identity import alive, identify, read_stat
from tunewarden.supervisor.phases import POINTS, TABLE

KILLER = Path(__file__).with_name("killing_agent.py")
TINY = Path(__file__).with_name("tiny_trainer.py")
# Two phases have an effect with two halves: what is asked of another process, and its answer.
HALVES = ["save.request:after_effect", "launch.request:after_effect"]
CASES = [f"{row.name}:{point}" for row in TABLE for point in POINTS] + HALVES


def begin(made: World, where: str) -> None:
    made.start(agent_argv=[sys.executable, "-E", "-P", str(KILLER), where])
    made.until_step(2)


def read_ppid(pid: int) -> int:
    found = read_stat(pid)
    assert found is not None
    return found.ppid


@pytest.mark.parametrize("where", CASES)
def test_a_replace_survives_a_kill(tmp_path: Path, where: str) -> None:
    """One save, one generation 2, no survivors and an untouched config, wherever the agent is killed."""
    with world(tmp_path) as made:
        begin(made, where)
        before = made.config.read_bytes()
        first = made.trainer()

        made.issue("o-1", "replace", knobs={"batch_size": "/2"})
        launched = made.service.until_report("o-1", "launched", timeout=40)["detail"]
        made.until_step(launched["resume_step"] + 1, generation=2)

        assert (made.run_dir / "killed").read_text() == where
        reports = [phase for phase in made.service.reported("o-1") if phase != "accepted"]  # it may be left out
        assert reports == ["planned", "saved", "stopped", "launched"]
        states = sorted((tmp_path / "output" / "lora").glob("state-*"))
        assert [path.name for path in states] == [f"state-{launched['resume_step']:06}.json"]
        assert made.read("stop.taken")["request_id"] == "r-o-1"
        assert made.read("resumed.json", 2)["step"] == launched["resume_step"]
        assert not made.control(3).exists()
        assert made.members() == [made.trainer(2).pid]
        assert not alive(first)
        assert hashlib.sha256(made.config.read_bytes()).digest() == hashlib.sha256(before).digest()
        assert [path.name for path in tmp_path.glob("*.yaml")].count("lora.tunewarden-g2.yaml") == 1
        assert len(list(tmp_path.glob("*.yaml"))) == 2
        assert made.service.seen.faults == []


@pytest.mark.parametrize(
    "where", ["stop:before_intent", "stop:after_intent", "stop:after_effect", "stop:after_outcome"]
)
def test_a_stop_survives_a_kill(tmp_path: Path, where: str) -> None:
    """A stop order ends with 75 and nothing alive, wherever the agent is killed."""
    with world(tmp_path) as made:
        begin(made, where)

        made.issue("o-1", "stop")
        made.service.until_report("o-1", "stopped", timeout=40)

        assert made.exit_code() == 75
        assert (made.run_dir / "killed").read_text() == where
        assert made.members() == []
        eventually(lambda: [each["cause"] for each in made.service.seen.events] == ["policy_stop"])


@pytest.mark.parametrize("where", ["save:after_intent", "save.request:after_effect", "save:after_effect"])
def test_a_save_survives_a_kill(tmp_path: Path, where: str) -> None:
    """The trainer is asked once, though it trains on and would take a second request."""
    with world(tmp_path) as made:
        made.start([sys.executable, str(TINY), "good"], agent_argv=[sys.executable, "-E", "-P", str(KILLER), where])
        made.until_step(2)

        made.issue("o-1", "save")
        made.service.until_report("o-1", "saved", timeout=40)
        made.until_step(made.step() + 3)

        assert (made.run_dir / "killed").read_text() == where
        assert (tmp_path / "requests").read_text().splitlines() == ["r-o-1"]


def test_a_kill_amid_the_ending(tmp_path: Path) -> None:
    """Killed with the script frozen and the trainer deaf to TERM: the next agent ends both."""
    with world(tmp_path) as made:
        trainer = f"{sys.executable} {TINY} deaf"
        made.start(["sh", "-c", f"{trainer}; echo gone-on > after"])
        made.until_step(2)

        made.issue("o-1", "stop")
        script = identify(read_ppid(made.trainer().pid))
        assert script is not None
        eventually(lambda: (stat := read_stat(script.pid)) is not None and stat.state == "T", what="the frozen script")
        os.kill(made.identity("agent").pid, signal.SIGKILL)
        made.service.until_report("o-1", "stopped", timeout=40)

        assert made.exit_code() == 75
        assert made.members() == []
        assert not (tmp_path / "after").exists()


def test_an_order_that_kills_the_agent_is_given_up(tmp_path: Path) -> None:
    """After three starts over one order the agent refuses it, and the job trains on."""
    with world(tmp_path) as made:
        begin(made, "always:plan:after_effect")

        made.issue("o-1", "stop")
        refused = made.service.until(lambda: made.service.reported("o-1").get("refused"), 30, "refused")

        assert refused["reason"] == "agent_restarted"
        assert alive(made.trainer())
        assert not (made.control() / "stop").exists()
