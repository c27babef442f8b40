"""The keeper of a run: its exit codes, streams, agent and deaths, with the real process and a scripted agent."""

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.keeper_run import KeeperRun, alive_pid
from tests.acceptance.real_process import eventually
from tunewarden.processes.identity import read_stat

# Prints its pid and counts steps into a file, twenty a second, and prints each.
STEPS = """
import os, time
print("pid", os.getpid(), flush=True)
for step in range(1, 1200):
    with open("step.partial", "w") as file:
        file.write(f"{step} {os.getpid()}")
    os.replace("step.partial", "step")
    print("step", step, "x" * 4000, flush=True)
    time.sleep(0.05)
"""
IGN = "grep SigIgn /proc/self/status; sleep 1"
MASKS = ["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"]
SLEEP = "import time; time.sleep(600)"


def step(folder: Path) -> int:
    """The last step that the job has written down; 0 before the first."""
    path = folder / "step"
    return int(path.read_text().split()[0]) if path.exists() else 0


def job_pid(folder: Path) -> int:
    return int((folder / "step").read_text().split()[1])


def grows(folder: Path, by: int = 5) -> bool:
    before = step(folder)
    return bool(eventually(lambda: step(folder) >= before + by))


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -INT $$", 130)],
)
def test_run_ends_with_the_jobs_code(tmp_path: Path, script: str, code: int) -> None:
    """The job's own code, 128 and the signal where it died of one."""
    with KeeperRun(tmp_path).in_pipes("sh", "-c", script) as run:
        assert run.ends() == code
        assert [message["exit_status"] for message in run.said("ended")] == [code if code < 128 else 128 - code]


def test_run_ends_with_the_agents_code(tmp_path: Path) -> None:
    """`finish` decides: 75 where a policy has stopped the job."""
    with KeeperRun(tmp_path) as run:
        run.answer({"ended": [{"type": "finish", "exit_code": 75}]})
        run.in_pipes("true")

        assert run.ends() == 75


def test_a_finish_before_the_end_waits_for_it(tmp_path: Path) -> None:
    """The agent may be quicker than SIGCHLD; the job is never left running."""
    with KeeperRun(tmp_path) as run:
        run.answer({"hello": [{"type": "finish", "exit_code": 9}]})
        run.in_pipes("sh", "-c", "sleep 0.5; echo done")

        assert run.ends() == 9
        assert run.log() == b"done\n"


def test_a_command_that_is_not_there_ends_with_127(tmp_path: Path) -> None:
    """One line says so, and nothing was made."""
    with KeeperRun(tmp_path).in_pipes("no-such-command") as run:
        assert (run.ends(), run.run_folders()) == (127, [])
        assert run.process is not None and run.process.stderr is not None
        assert run.process.stderr.read().count(b"\n") == 1


def test_a_command_that_cannot_be_executed_ends_with_126(tmp_path: Path) -> None:
    """A program whose interpreter is missing or that is no program fails at exec, after the check."""
    program = tmp_path / "program"
    program.write_bytes(b"\0not a program")
    program.chmod(0o700)
    with KeeperRun(tmp_path).in_pipes("./program") as run:
        assert run.ends() == 126
        assert run.process is not None and run.process.stderr is not None
        assert b"can't start ./program: Exec format error" in run.process.stderr.read()


def test_a_name_is_given_once(tmp_path: Path) -> None:
    """The second run of a living name ends with 2 and names the pid of the first; afterwards the name is free."""
    with KeeperRun(tmp_path).in_pipes(sys.executable, "-c", SLEEP) as run:
        run.hello()
        second = subprocess.run(run.command("true"), cwd=tmp_path, capture_output=True, text=True, check=False)

        assert second.returncode == 2
        assert f"pid {run.keeper_pid}" in second.stderr and second.stderr.count("\n") == 1

        os.kill(run.hello()["pid"], signal.SIGTERM)

        assert run.ends() == 143
        assert subprocess.run(run.command("true"), cwd=tmp_path, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "code"),
    [("训练-1.a_b", 0), ("x" * 64, 0), ("x" * 65, 2), ("a/b", 2), ("../a", 2), ("a b", 2), ("a\n", 2), ("😀", 2)],
)
def test_a_name_has_letters_and_digits(tmp_path: Path, name: str, code: int) -> None:
    """Letters of any script, digits, dot, underscore and dash: a name is part of a path."""
    run = KeeperRun(tmp_path)
    command = [name if word == "job" else word for word in run.command("true")]

    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == code


def test_the_default_name_is_the_folders(tmp_path: Path) -> None:
    """The working directory's name and a short id."""
    folder = tmp_path / "my lora (2)"
    folder.mkdir()
    run = KeeperRun(tmp_path)
    command = ["" if word == "job" else word for word in run.command("true")]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    spec = json.loads((run.folder() / "spec.json").read_text())

    assert spec["name"] == f"my-lora-2-{spec['job_id'][:6]}"


def test_the_run_folder_is_private_and_complete(tmp_path: Path) -> None:
    """Folders 0700, files 0600; the spec says what was asked for and holds no environment."""
    with KeeperRun(tmp_path).in_pipes("true", env={**os.environ, "SECRET": "s3cret"}) as run:
        run.ends()
        folder = run.folder()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]}
        spec = json.loads((folder / "spec.json").read_text())

        assert modes == {
            folder.name: 0o700,
            "g1": 0o700,
            "spec.json": 0o600,
            "keeper.json": 0o600,
            "agent.json": 0o600,
            "agent.log": 0o600,
            "output.log": 0o600,
        }
        assert (spec["job_id"], spec["argv"], spec["cwd"]) == (folder.name, ["true"], str(tmp_path))
        assert (spec["labels"], len(spec["host_id"]), spec["node"]) == ({"team": "a"}, 16, os.uname().nodename)
        assert "s3cret" not in (folder / "spec.json").read_text()
        assert list((run.state / "jobs").iterdir()) == []


@pytest.mark.parametrize("locale", [{}, {"LANG": "C.UTF-8"}], ids=["no-locale", "utf-8"])
def test_the_environment_reaches_the_job_unchanged(tmp_path: Path, locale: dict[str, str]) -> None:
    """Only our three variables are added: not even the LC_CTYPE that Python sets for itself."""
    given = {"PATH": "/usr/bin:/bin", "CONDA_PREFIX": "/opt/conda", "PYTHONPATH": ".", "ODD": "a=b\nc é", **locale}
    with KeeperRun(tmp_path).in_pipes("/usr/bin/env", "-0", env=given) as run:
        assert run.ends() == 0
        seen = dict(word.split("=", 1) for word in run.log().decode().split("\0") if word)

        assert seen == {
            **given,
            "TUNEWARDEN_JOB": run.folder().name,
            "TUNEWARDEN_CONTROL_DIR": str(run.folder() / "g1"),
            "TUNEWARDEN_GENERATION": "1",
        }


def test_no_descriptor_of_ours_reaches_the_job(tmp_path: Path) -> None:
    """The job has its three streams and nothing else: no lock, no socket, no log."""
    with KeeperRun(tmp_path).in_pipes("ls", "/proc/self/fd") as run:
        run.ends()

        assert run.log() == b"0\n1\n2\n3\n"  # 3 is the listing itself


def test_signals_of_the_job_are_as_a_shell_gives_them(tmp_path: Path) -> None:
    """Nothing is ignored or blocked that the person has not ignored."""
    with KeeperRun(tmp_path).in_pipes(*MASKS) as run:
        run.ends()
        blocked, ignored = (int(mask, 16) for mask in run.log().split()[1::2])

        assert blocked == 0
        assert ignored & 0x7FFFFFFF == 0  # 1 to 31: some hosts start everything with 32 ignored


@pytest.mark.parametrize("closing", ["<&-", "<&- >&- 2>&-"])
def test_streams_that_the_person_has_closed_cost_nothing(tmp_path: Path, closing: str) -> None:
    """No descriptor of ours takes the number of a closed one."""
    run = KeeperRun(tmp_path)
    command = ["bash", "-c", f"{shlex.join(run.command('sh', '-c', 'echo out; echo err >&2; exit 3'))} {closing}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)

    assert (done.returncode, run.log()) == (3, b"out\nerr\n")


def test_what_the_person_has_ignored_stays_ignored(tmp_path: Path) -> None:
    """`nohup run …`, or a shell's `&` in a script: SIGINT and SIGHUP are not for us, nor for the job."""
    run = KeeperRun(tmp_path)
    words = [
        word if "keeper_start" not in word else str(tmp_path / "start.py") for word in run.command("sh", "-c", IGN)
    ]
    start = (Path(__file__).parent / "keeper_start.py").read_text().replace("signal.SIG_DFL", "signal.SIG_IGN")
    (tmp_path / "start.py").write_text(start)
    with run:
        run.process = subprocess.Popen(words, cwd=tmp_path)
        run.hello()
        for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(run.keeper_pid, signum)

        assert run.ends() == 0
        assert int(run.log().split()[1], 16) & 0x7FFFFFFF == 0b111  # 1 to 31: what lies above is the host's own
        assert run.said("interrupt") == []


def test_a_pipe_stays_a_pipe_and_the_streams_apart(tmp_path: Path) -> None:
    """No terminal appears where there was none; both streams arrive where they were sent, and in the log."""
    with KeeperRun(tmp_path).in_pipes("sh", "-c", "test -t 1 || echo pipe; test -t 2 || echo errors >&2") as run:
        run.ends()
        assert run.process is not None and run.process.stdout is not None and run.process.stderr is not None

        assert (run.process.stdout.read(), run.process.stderr.read()) == (b"pipe\n", b"errors\n")
        assert run.log() == b"pipe\nerrors\n"


def test_standard_input_is_inherited(tmp_path: Path) -> None:
    """What is piped in is the job's to read."""
    with KeeperRun(tmp_path).in_pipes("cat", stdin=subprocess.PIPE) as run:
        assert run.process is not None and run.process.stdin is not None
        run.process.stdin.write(b"typed")
        run.process.stdin.close()

        assert (run.ends(), run.log()) == (0, b"typed")


def test_one_file_for_both_streams_keeps_their_order(tmp_path: Path) -> None:
    """`> file 2>&1`: lines are in the order in which they were printed."""
    run = KeeperRun(tmp_path)
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done"
    with (tmp_path / "both").open("wb") as both:
        subprocess.run(run.command("sh", "-c", script), cwd=tmp_path, stdout=both, stderr=both, check=True)

    assert (tmp_path / "both").read_text() == "".join(f"out {i}\nerr {i}\n" for i in range(1, 10))


def test_much_output_arrives_whole(tmp_path: Path) -> None:
    """A slow reader gets every byte, and the job waits for it as it would without us."""
    with KeeperRun(tmp_path).in_pipes("seq", "300000") as run:
        assert run.process is not None and run.process.stdout is not None
        received = run.process.stdout.read()

        assert received == "".join(f"{i}\n" for i in range(1, 300001)).encode()
        assert (run.ends(), run.log() == received) == (0, True)


def test_a_reader_that_leaves_does_not_end_the_job(tmp_path: Path) -> None:
    """`run … | head -1`: the output goes on into the log."""
    with KeeperRun(tmp_path).in_pipes("sh", "-c", "echo 1; sleep 0.3; seq 2 50000; exit 5") as run:
        assert run.process is not None and run.process.stdout is not None
        assert run.process.stdout.readline() == b"1\n"
        run.process.stdout.close()

        assert run.ends() == 5
        assert run.log().endswith(b"\n50000\n")


def test_what_outlives_the_job_does_not_hold_the_run(tmp_path: Path) -> None:
    """A child that keeps the output open is left alone; the run ends with its command."""
    with KeeperRun(tmp_path).in_pipes("sh", "-c", "sleep 600 & echo $!") as run:
        assert run.ends() == 0
        left = int(run.log())

        assert alive_pid(left)


def test_out_of_memory_lines_are_told(tmp_path: Path) -> None:
    """The agent hears of the line, at most once a second."""
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    with KeeperRun(tmp_path).in_pipes("sh", "-c", f"echo fine; for i in 1 2 3; do echo '{line}' >&2; done") as run:
        run.ends()

        assert [message["oom_line"] for message in run.said("output")] == [line]


def test_what_the_agent_says_is_shown_and_logged(tmp_path: Path) -> None:
    """Lines on standard error that begin with our name; nothing in them moves the cursor."""
    with KeeperRun(tmp_path) as run:
        run.answer({"hello": [{"type": "say", "text": "saving 检查点\x1b[2J\nstep 3"}]})
        run.in_pipes("sleep", "0.5")
        run.ends()
        assert run.process is not None and run.process.stderr is not None

        assert run.process.stderr.read().decode() == "tunewarden: saving 检查点 [2J\ntunewarden: step 3\n"
        assert run.log().decode() == "tunewarden: saving 检查点 [2J\ntunewarden: step 3\n"


def test_the_next_generation_is_launched(tmp_path: Path) -> None:
    """Its own control directory and number, what the agent adds, the same streams; then the run ends."""
    script = "echo $TUNEWARDEN_GENERATION $(basename $TUNEWARDEN_CONTROL_DIR) $EXTRA $PWD"
    launch = {
        "type": "launch",
        "generation": 2,
        "argv": ["sh", "-c", script],
        "env": {"EXTRA": "more"},
        "cwd": str(tmp_path / "elsewhere"),
    }
    (tmp_path / "elsewhere").mkdir()
    with KeeperRun(tmp_path) as run:
        run.answer({"ended": [launch]})
        run.in_pipes("sh", "-c", script)

        assert run.ends() == 0
        assert run.log().decode() == f"1 g1 {tmp_path}\n2 g2 more {tmp_path}/elsewhere\n"
        assert [message["generation"] for message in run.said("launched")] == [2]
        assert [message["generation"] for message in run.said("ended")] == [1, 2]


def test_a_launch_that_fails_is_told(tmp_path: Path) -> None:
    """No such command, and a launch while the job still runs: the job is left as it was."""
    early = {"type": "launch", "generation": 2, "argv": ["true"], "env": {}, "cwd": "/"}
    missing = {"type": "launch", "generation": 2, "argv": ["no-such-command"], "env": {}, "cwd": "/"}
    with KeeperRun(tmp_path) as run:
        run.answer({"hello": [early], "ended": [missing], "launch_failed": [[], {"type": "finish", "exit_code": 6}]})
        run.in_pipes("sleep", "0.7")

        assert run.ends() == 6
        errors = [message["error"] for message in run.said("launch_failed")]
        assert errors == ["generation 1 has not ended", "[Errno 2] No such file or directory: 'no-such-command'"]


def test_a_killed_agent_is_started_again(tmp_path: Path) -> None:
    """Training is not disturbed: the same pid, and its output goes on; the new agent hears the whole state."""
    with KeeperRun(tmp_path).on_terminal(sys.executable, "-u", "-c", STEPS) as run:
        assert run.terminal is not None
        run.terminal.shows(b"step 3")
        first, pid = run.hello(), job_pid(tmp_path)

        os.kill(first["agent"], signal.SIGKILL)
        second = run.hello(2)
        now = step(tmp_path)

        assert second["agent"] != first["agent"]
        assert {**second, "agent": 0} == {**first, "agent": 0}
        assert run.terminal.shows(f"step {now + 5} ".encode())
        assert job_pid(tmp_path) == pid


def test_an_agent_that_dies_at_once_is_started_five_times_a_minute(tmp_path: Path) -> None:
    """After that the job runs alone, and its end is the end of the run."""
    with KeeperRun(tmp_path) as run:
        run.answer({"hello": ["die"] * 9})
        run.in_pipes("sh", "-c", "sleep 1.5; exit 4")

        assert run.ends() == 4
        assert len(run.said("hello")) == 5


def test_without_any_agent_the_run_still_ends(tmp_path: Path) -> None:
    """An agent that can't even be started costs nothing but the agent."""
    with KeeperRun(tmp_path, agent=["/no/such/agent"]).in_pipes("sh", "-c", "echo on; exit 3") as run:
        assert (run.ends(), run.log()) == (3, b"on\n")
        assert "can't be started" in (run.folder() / "agent.log").read_text()


def test_an_agent_that_comes_back_after_the_jobs_end_is_asked(tmp_path: Path) -> None:
    """It died with the job: the next one hears `ended` in its greeting, and decides."""
    with KeeperRun(tmp_path) as run:
        run.answer({"ended": ["die"], "hello": [[], {"type": "finish", "exit_code": 75}]})
        run.in_pipes("sh", "-c", "sleep 0.5; exit 1")

        assert run.ends() == 75
        assert [message["ended"] for message in run.said("hello")] == [None, 1]


@pytest.mark.parametrize("terminal", [True, False], ids=["pty", "pipes"])
def test_a_killed_keeper_leaves_the_job_running(tmp_path: Path, terminal: bool) -> None:
    """No hang-up, no broken pipe, no full pipe: the agent drains what the job prints, and the name stays taken."""
    run = KeeperRun(tmp_path)
    command = (sys.executable, "-u", "-c", STEPS)
    with run.on_terminal(*command) if terminal else run.in_pipes(*command):
        agent = run.hello()["agent"]
        eventually(lambda: step(tmp_path) >= 3)
        pid = job_pid(tmp_path)

        os.kill(run.keeper_pid, signal.SIGKILL)
        run.ends()

        assert grows(tmp_path, by=30)  # 4 kB a step: more than a pipe holds
        assert (job_pid(tmp_path), alive_pid(pid)) == (pid, True)
        assert eventually(lambda: f"step {step(tmp_path) - 2} ".encode() in run.log())

        second = subprocess.run(run.command("true"), cwd=tmp_path, capture_output=True, text=True, check=False)

        assert (second.returncode, f"pid {agent}" in second.stderr) == (2, True)

        os.kill(pid, signal.SIGKILL)

        assert eventually(lambda: not alive_pid(agent))


def test_a_hang_up_leaves_the_job_running(tmp_path: Path) -> None:
    """SSH drops: the job goes on, the log grows, and the keeper carries it to its end."""
    with KeeperRun(tmp_path).on_terminal(sys.executable, "-u", "-c", STEPS) as run:
        assert run.terminal is not None
        run.terminal.shows(b"step 3")
        pid = job_pid(tmp_path)

        run.terminal.close()
        seen = step(tmp_path)

        assert grows(tmp_path, by=30)
        assert eventually(lambda: f"step {seen + 25} ".encode() in run.log())
        assert (job_pid(tmp_path), alive_pid(run.keeper_pid)) == (pid, True)

        os.kill(pid, signal.SIGTERM)

        assert run.ends() == 143


def test_orphans_of_the_job_become_the_keepers_children(tmp_path: Path) -> None:
    """A daemon of the job that has emptied its environment can still be found."""
    script = "setsid env -i sh -c 'echo $$; exec sleep 600' & sleep 1"
    with KeeperRun(tmp_path) as run:
        run.answer({"ended": [[]]})
        run.in_pipes("sh", "-c", script)
        eventually(lambda: run.said("ended"))
        orphan = int(run.log())
        parent = read_stat(orphan)

        assert parent is not None and parent.ppid == run.keeper_pid

        os.kill(orphan, signal.SIGKILL)

        assert eventually(lambda: read_stat(orphan) is None)  # and it is reaped


def test_the_keeper_is_small(tmp_path: Path) -> None:
    """It lives for days beside a job that wants the memory: under 16 MB."""
    with KeeperRun(tmp_path).on_terminal(sys.executable, "-c", SLEEP) as run:
        run.hello()
        keeper = read_stat(run.keeper_pid)

        assert keeper is not None and keeper.rss_bytes < 16 << 20
