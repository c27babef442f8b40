"""The keeper in trouble: an agent that hangs, a run folder that is gone, files in it that the job has written."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.keeper_run import KeeperRun
from tests.acceptance.real_process import eventually
from tunewarden.supervisor.keeper_agent import Agent, Inherited
from tunewarden.supervisor.run_folder import RunFolder

STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("got INT", flush=True))
signal.signal(signal.SIGTERM, lambda *_: print("got TERM", flush=True))
print("READY", flush=True)
while True:
    time.sleep(0.05)
"""
WAITS_FOR = "while [ ! -e {0} ]; do sleep 0.05; done; "


def stop_agent(run: KeeperRun, count: int = 1) -> None:
    eventually(lambda: run.said("hello")[count - 1 : count])
    os.kill(run.hello(count)["agent"], signal.SIGSTOP)


@pytest.mark.parametrize(
    ("signum", "answer"), [(signal.SIGINT, b"got INT"), (signal.SIGTERM, b"got TERM")], ids=["ctrl-c", "terminate"]
)
def test_a_signal_passes_by_an_agent_that_hangs(tmp_path: Path, signum: int, answer: bytes) -> None:
    """Once is enough: unheard after 5 s the keeper answers it, and starts another agent that knows of it."""
    with KeeperRun(tmp_path).in_pipes(sys.executable, "-c", STUBBORN) as run:
        run.hello()
        eventually(lambda: b"READY" in run.log())
        stop_agent(run)

        os.kill(run.keeper_pid, signum)

        assert eventually(lambda: answer in run.log(), within_s=8)
        assert run.hello(2)["interrupts"] == 1


def test_an_agent_that_hangs_at_the_jobs_end_is_replaced(tmp_path: Path) -> None:
    """It no longer answers pings: the next one says how the run ends."""
    with KeeperRun(tmp_path) as run:
        run.in_pipes("sh", "-c", WAITS_FOR.format("go") + "exit 3")
        stop_agent(run)

        (tmp_path / "go").touch()

        assert run.ends(within_s=12) == 3
        assert [message["ended"] for message in run.said("hello")] == [None, 3]


def test_an_agent_that_answers_may_take_its_time(tmp_path: Path) -> None:
    """The job has ended, and an order may still come: pings keep it, as long as they are heard."""
    with KeeperRun(tmp_path) as run:
        run.answer({"ended": [[]], "ping": [[], {"type": "finish", "exit_code": 75}]})
        run.in_pipes("true")

        assert run.ends(within_s=15) == 75
        assert len(run.said("hello")) == 1


def test_agents_that_all_hang_are_started_seldom(tmp_path: Path) -> None:
    """After five in a row the next comes half a minute later, however long each was waited for."""
    inherited = Inherited(
        argv=["sleep", "60"], env=dict(os.environb), drains={}, lock_fd=os.dup(0), ignored=frozenset()
    )
    agent, now, starts = Agent(RunFolder(tmp_path), inherited, 0.0), 0.0, []
    for _ in range(6):
        now = max(now, agent.next_start)
        starts.append(now)
        agent.start({}, now)
        assert agent.pid is not None and not agent.silent(now + 59)
        now += 60
        assert agent.silent(now)
        agent.give_up()
        os.waitpid(agent.pid, 0)
        agent.ended(now)
    os.close(inherited.lock_fd)

    assert starts == [0, 60, 120, 180, 240, 330]


def test_a_launch_that_is_read_too_late_is_refused(tmp_path: Path) -> None:
    """The keeper was stopped meanwhile, and the agent may have undone what the launch needs."""
    launch = {"type": "launch", "id": "l-1", "generation": 2, "argv": ["echo", "late"], "env": {}, "cwd": "/"}
    late = {**launch, "expires_at": time.monotonic() - 0.01}
    with KeeperRun(tmp_path) as run:
        run.answer({"ended": [late], "launch_failed": [{"type": "finish", "exit_code": 75}]})
        run.in_pipes("true")

        assert run.ends() == 75
        assert [(each["id"], each["error"]) for each in run.said("launch_failed")] == [("l-1", "expired")]
        assert run.log() == b""


def test_a_run_folder_that_is_gone_costs_the_agent_only(tmp_path: Path) -> None:
    """The job and its output go on, one line says what is wrong, and the code is the job's."""
    with KeeperRun(tmp_path).in_pipes("sh", "-c", WAITS_FOR.format("go") + "echo on; exit 4") as run:
        agent = run.hello()["agent"]
        shutil.rmtree(run.state / "runs")

        os.kill(agent, signal.SIGKILL)
        assert run.process is not None and run.process.stdout is not None and run.process.stderr is not None
        said = run.process.stderr.readline()
        (tmp_path / "go").touch()

        assert run.ends() == 4
        assert b"can't be written (No such file or directory): the job goes on" in said
        assert (run.process.stdout.read(), run.process.stderr.read()) == (b"on\n", b"")


@pytest.mark.parametrize("content", ['{"name": "../../uv"}', "broken"])
def test_a_spec_that_the_job_has_written_decides_nothing(tmp_path: Path, content: str) -> None:
    """The name's lock is deleted and no other file; the code is the job's."""
    (tmp_path / "uv.lock").touch()
    script = f"echo '{content}' > $TUNEWARDEN_CONTROL_DIR/../spec.json; exit 7"
    with KeeperRun(tmp_path).in_pipes("sh", "-c", script) as run:
        assert run.ends() == 7
        assert (tmp_path / "uv.lock").exists()
        assert list((run.state / "jobs").iterdir()) == []


def test_a_state_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """One line, and 2; the job is not started."""
    (tmp_path / "state").write_text("a file")
    run = KeeperRun(tmp_path)
    done = subprocess.run(run.command("touch", "ran"), cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"the state folder {run.state} can't be written" in done.stderr
    assert not (tmp_path / "ran").exists()
