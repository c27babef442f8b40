"""The person's terminal: what a job sees of it, and Ctrl-C, Ctrl-Z, SIGTERM and the modes at the end."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.keeper_run import KeeperRun
from tests.acceptance.real_process import eventually
from tunewarden.processes.identity import read_stat

# Says READY, then counts signals: INT once is survived, TERM too.
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: print("got INT", flush=True))
signal.signal(signal.SIGTERM, lambda *_: print("got TERM", flush=True))
print("READY", flush=True)
while True:
    time.sleep(0.05)
"""
NO_AGENT = ["/no/such/agent"]


def state(pid: int) -> str:
    stat = read_stat(pid)
    return stat.state if stat else "gone"


def test_a_terminal_stays_a_terminal(tmp_path: Path) -> None:
    """All three streams, the controlling terminal and the size are the job's."""
    script = "test -t 0 && test -t 1 && test -t 2 && echo three; stty size < /dev/tty"
    with KeeperRun(tmp_path).on_terminal("sh", "-c", script) as run:
        assert run.ends() == 0
        assert run.terminal is not None

        assert run.terminal.shows(b"three\r\n31 97\r\n")


def test_lines_end_as_without_us(tmp_path: Path) -> None:
    """One carriage return a line, in each way of starting."""
    with KeeperRun(tmp_path).on_terminal("printf", r"a\nb\n") as run:
        run.ends()
        assert run.terminal is not None

        assert run.terminal.shows(b"b\r\n") == b"a\r\nb\r\n"


def test_without_a_keyboard_lines_end_as_without_us(tmp_path: Path) -> None:
    """`run … < /dev/null` on a terminal."""
    with KeeperRun(tmp_path).on_terminal("sh", "-c", "test -t 1 && printf 'a\\nb\\n'", redirect="< /dev/null") as run:
        run.ends()
        assert run.terminal is not None

        assert run.terminal.shows(b"b\r\n") == b"a\r\nb\r\n"


def test_errors_in_a_pipe_stay_in_a_pipe(tmp_path: Path) -> None:
    """`run … 2> file` on a terminal: per stream."""
    script = "test -t 1 && echo shown; test -t 2 || echo kept >&2"
    with KeeperRun(tmp_path).on_terminal("sh", "-c", script, redirect="2> errors") as run:
        run.ends()
        assert run.terminal is not None

        assert run.terminal.shows(b"shown\r\n") == b"shown\r\n"
        assert (tmp_path / "errors").read_bytes() == b"kept\n"


def test_a_new_size_reaches_the_job(tmp_path: Path) -> None:
    """SIGWINCH and the size pass through."""
    script = "trap 'stty size' WINCH; echo READY; while :; do sleep 0.05; done"
    with KeeperRun(tmp_path).on_terminal("bash", "-c", script) as run:
        assert run.terminal is not None
        run.terminal.shows(b"READY")

        run.terminal.resize(44, 132)

        assert run.terminal.shows(b"44 132")


def test_keys_reach_the_job(tmp_path: Path) -> None:
    """Typed once, echoed once, read once."""
    with KeeperRun(tmp_path).on_terminal("sh", "-c", "echo READY; read line; echo got $line") as run:
        assert run.terminal is not None
        run.terminal.shows(b"READY")

        run.terminal.type(b"hello\r")

        assert run.terminal.shows(b"got hello\r\n") == b"READY\r\nhello\r\ngot hello\r\n"
        assert run.ends() == 0


@pytest.mark.parametrize("script", ["exit 0", "stty -echo raw; exit 1", "kill -KILL $$", "kill -KILL $PPID"])
def test_the_modes_of_the_terminal_are_restored(tmp_path: Path, script: str) -> None:
    """After every end of the job, as before it. (A killed keeper can't: the shell does.)"""
    with KeeperRun(tmp_path) as run:
        run.on_terminal("sh", "-c", "sleep 0.2; " + script)
        assert run.terminal is not None
        before = run.terminal.modes()
        raw = eventually(lambda: run.terminal is not None and run.terminal.modes() != before)
        run.ends()

        assert raw
        assert (run.terminal.modes() == before) is ("PPID" not in script)


def test_ctrl_c_is_counted_and_is_the_agents(tmp_path: Path) -> None:
    """The job itself does not get the signal: the agent decides."""
    with KeeperRun(tmp_path).on_terminal(sys.executable, "-c", STUBBORN) as run:
        assert run.terminal is not None
        run.hello()
        run.terminal.shows(b"READY")
        for count in (1, 2, 3):
            run.terminal.type(b"\x03")
            eventually(lambda count=count: len(run.said("interrupt")) == count)

        assert [message["count"] for message in run.said("interrupt")] == [1, 2, 3]
        assert b"got" not in run.log()


def test_sigterm_is_told_as_terminate(tmp_path: Path) -> None:
    """And counts as one interrupt for the agent that comes after."""
    with KeeperRun(tmp_path).on_terminal(sys.executable, "-c", STUBBORN) as run:
        assert run.terminal is not None
        run.terminal.shows(b"READY")
        first = run.hello()

        os.kill(run.keeper_pid, signal.SIGTERM)
        eventually(lambda: run.said("terminate"))
        os.kill(first["agent"], signal.SIGKILL)

        assert run.hello(2)["interrupts"] == 1
        assert b"got" not in run.log()


def test_without_an_agent_ctrl_c_is_answered_by_the_keeper(tmp_path: Path) -> None:
    """INT, then TERM, then KILL, to each process by itself; the code is 130."""
    with KeeperRun(tmp_path, agent=NO_AGENT).on_terminal(sys.executable, "-c", STUBBORN) as run:
        assert run.terminal is not None
        run.terminal.shows(b"READY")
        run.terminal.type(b"\x03")
        run.terminal.shows(b"got INT")
        run.terminal.type(b"\x03")
        run.terminal.shows(b"got TERM")
        run.terminal.type(b"\x03")

        assert run.ends() == 130


def test_an_agent_that_hangs_does_not_hold_the_person(tmp_path: Path) -> None:
    """After the third Ctrl-C the keeper kills the job itself, and ends."""
    with KeeperRun(tmp_path) as run:
        run.answer({"ended": [[]]})
        run.on_terminal(sys.executable, "-c", STUBBORN)
        assert run.terminal is not None
        run.terminal.shows(b"READY")
        os.kill(run.hello()["agent"], signal.SIGSTOP)
        for _ in range(5):
            run.terminal.type(b"\x03")
            time.sleep(0.2)  # the kernel makes one signal of two that come at once

        assert run.ends() == 130


def test_ctrl_backslash_reaches_the_job(tmp_path: Path) -> None:
    """SIGQUIT is the person's own act, as without us; the keeper survives it."""
    with KeeperRun(tmp_path).on_terminal("sh", "-c", "echo READY; exec sleep 600") as run:
        assert run.terminal is not None
        run.terminal.shows(b"READY")
        run.hello()
        run.terminal.type(b"\x1c")

        assert run.ends() == 128 + signal.SIGQUIT


def test_a_trainer_outlives_its_launcher(tmp_path: Path) -> None:
    """The launcher leads the session of the pty; its death does not hang up on the trainer, which prints on."""
    steps = "import time\nfor i in range(400):\n print('on', i, flush=True)\n time.sleep(0.05)"
    script = f'{sys.executable} -c "{steps}" & wait'
    with KeeperRun(tmp_path) as run:
        run.answer({"ended": [[]]})
        run.on_terminal("bash", "-c", script)
        assert run.terminal is not None
        run.terminal.shows(b"on 3")

        os.kill(run.hello()["pid"], signal.SIGKILL)
        eventually(lambda: run.said("ended"))
        run.terminal.forget()

        assert run.terminal.shows(b"on 100")


def test_ctrl_z_stops_and_fg_goes_on(tmp_path: Path) -> None:
    """In a shell: the whole job stops, the shell has its terminal back, fg goes on with the same processes."""
    script = "sleep 600 & echo child $!; echo READY; read line; echo got $line; kill $!"
    with KeeperRun(tmp_path).on_terminal("sh", "-c", script, shell=True) as run:
        assert run.terminal is not None
        run.terminal.shows(b"READY\r\n")
        job = run.hello()["pid"]
        child = int(run.log().split()[1])
        keeper = read_stat(job)
        assert keeper is not None

        run.terminal.type(b"\x1a")
        run.terminal.shows(b"Stopped")
        eventually(lambda: [state(pid) for pid in (keeper.ppid, job, child)] == ["T", "T", "T"])
        run.terminal.forget()
        run.terminal.type(b"echo $((40 + 2))\n")
        run.terminal.shows(b"42")
        run.terminal.type(b"fg\n")
        eventually(lambda: [state(pid) for pid in (keeper.ppid, job, child)] == ["S", "S", "S"])
        run.terminal.shows(b"fg\r\n")
        run.terminal.type(b"hello\r")

        run.terminal.forget()

        assert run.terminal.shows(b"ready> ").startswith(b"hello\r\ngot hello\r\n")


def test_in_the_background_the_job_runs_on(tmp_path: Path) -> None:
    """`run … &` in a shell: keys and modes are the shell's, the output is shown, nothing stops."""
    with KeeperRun(tmp_path).on_terminal("true", shell=True) as run:
        assert run.terminal is not None
        run.terminal.shows(b"ready> ")
        line = " ".join(f"'{word}'" for word in run.command("sh", "-c", "sleep 0.7; echo in the background"))
        run.terminal.forget()
        run.terminal.type(f"{line} &\n".encode())
        run.terminal.type(b"echo $((40 + 2))\n")
        run.terminal.shows(b"42")

        assert run.terminal.shows(b"in the background")
