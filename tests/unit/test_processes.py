"""Who a process is, which belong to a job, and how all of them are ended: with real processes, /proc as the witness."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.real_process import eventually
from tunewarden.processes import tree
from tunewarden.processes.ending import Ended, end_generation, freeze, signal_one, thaw
from tunewarden.processes.identity import (
    ProcessId,
    alive,
    boot_id,
    identify,
    own_namespace,
    pid_namespace,
    read_stat,
)
from tunewarden.processes.tree import Beyond, Member, members, named, strangers

MARKER = f"job{os.getpid()}"

# A trainer with four children: plain, ignoring TERM, in a session of its own, and one whose parent is gone.
TRAINER = """
import os, signal, sys, time
folder = sys.argv[1]
def child(name, *, deaf=False, session=False, orphan=False):
    if os.fork():
        return
    if session:
        os.setsid()
    if orphan and os.fork():
        os._exit(0)
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"{folder}/{name}.partial", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{folder}/{name}.partial", f"{folder}/{name}.pid")
    time.sleep(600)
    os._exit(0)
child("plain"); child("deaf", deaf=True); child("session", session=True); child("orphan", session=True, orphan=True)
if "deaf-trainer" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(f"{folder}/trainer.partial", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{folder}/trainer.partial", f"{folder}/trainer.pid")
time.sleep(600)
"""
LAUNCHER = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
NAMES = ("plain", "deaf", "session", "orphan", "trainer")


class Job:
    """bash -> launcher -> trainer -> four children, with a line after the launcher that must not run."""

    def __init__(self, folder: Path, *trainer_words: str) -> None:
        self.folder = folder
        (folder / "trainer.py").write_text(TRAINER)
        (folder / "launcher.py").write_text(LAUNCHER)
        words = " ".join(("trainer.py", str(folder), *trainer_words))
        self.process = subprocess.Popen(
            ["bash", "-c", f"{sys.executable} launcher.py {words}; touch uploaded"],
            cwd=folder,
            env={**os.environ, "TUNEWARDEN_JOB": MARKER},
        )
        self.launcher = known(self.process.pid)
        eventually(lambda: all((folder / f"{name}.pid").exists() for name in NAMES))
        self.pids = {name: int((folder / f"{name}.pid").read_text()) for name in NAMES}

    @property
    def trainer(self) -> ProcessId:
        return known(self.pids["trainer"])

    def end(self, **limits: float) -> Ended:
        return end_generation(self.launcher, [self.trainer], MARKER, **{"wait_term_s": 0.3, **limits})

    def living(self) -> list[str]:
        return [name for name, pid in self.pids.items() if living(pid)]

    @property
    def uploaded(self) -> bool:
        return (self.folder / "uploaded").exists()


def known(pid: int) -> ProcessId:
    process = identify(pid)
    assert process is not None
    return process


def living(pid: int) -> bool:
    process = identify(pid)
    return process is not None and alive(process)


def state(pid: int) -> str:
    stat = read_stat(pid)
    return stat.state if stat else "gone"


def pids(found: tuple[Member, ...]) -> set[int]:
    return {member.id.pid for member in found}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    clear(made)


@pytest.fixture
def deaf_job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, "deaf-trainer")
    yield made
    clear(made)


def clear(job: Job) -> None:
    for member in members((job.launcher,), MARKER):
        os.kill(member.id.pid, signal.SIGKILL)
    job.process.wait()
    eventually(lambda: members((), MARKER) == ())  # the next test looks for the same marker


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that sleep, and ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**settings: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"], **settings))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_process_is_known_by_its_start_too(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    """A pid with other start ticks is another process."""
    process = known(sleeper().pid)
    another = ProcessId(process.pid, process.start_ticks + 1)

    assert (alive(process), alive(another), identify(2**22 + 1)) == (True, False, None)


def test_a_zombie_is_not_alive() -> None:
    """A process that has ended and was not reaped is known, but does not live."""
    process = subprocess.Popen(["true"])
    identity = known(process.pid)
    eventually(lambda: state(process.pid) == "Z")

    assert (identify(process.pid), alive(identity)) == (identity, False)

    process.wait()


def test_a_command_name_may_hold_brackets_and_blanks(tmp_path: Path) -> None:
    """The stat line is cut after the last bracket."""
    program = tmp_path / "a) Z 1 (b"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o700)
    process = subprocess.Popen([program, "600"])
    stat = read_stat(process.pid)

    assert stat is not None and (stat.ppid, stat.running) == (os.getpid(), True)

    process.kill()
    process.wait()


def test_boot_and_namespace_are_readable() -> None:
    """Both are what the kernel says of ourselves."""
    assert (len(boot_id()), own_namespace(), pid_namespace(2**22 + 1)) == (36, pid_namespace(os.getpid()), None)


def test_members_are_what_descends_and_what_carries_the_marker(job: Job) -> None:
    """Children in other sessions and orphans are found, parents before their children."""
    found = members((job.launcher,), MARKER)
    order = [member.id.pid for member in found]

    assert pids(found) >= {job.process.pid, *job.pids.values()}
    assert order.index(job.process.pid) < order.index(job.pids["trainer"]) < order.index(job.pids["plain"])
    assert all(member.rss_bytes > 0 and member.uid == os.getuid() for member in found)


def test_members_without_their_launcher_are_found_by_the_marker(job: Job) -> None:
    """The launcher was killed: its trainer is still the job's."""
    job.process.kill()
    job.process.wait()

    assert pids(members((job.launcher,), MARKER)) >= set(job.pids.values())


def test_a_process_of_another_marker_or_none_is_no_member(
    job: Job, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Neither ourselves, nor our parent, nor a longer marker that begins alike."""
    others = {
        sleeper().pid,
        sleeper(env={"TUNEWARDEN_JOB": MARKER + "1"}).pid,
        sleeper(env={"NOT_TUNEWARDEN_JOB": MARKER}).pid,
        os.getpid(),
        os.getppid(),
        1,
    }

    assert not pids(members((job.launcher,), MARKER)) & others


def test_a_root_of_another_start_is_no_member(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    """The pid was given to another process since."""
    process = known(sleeper().pid)

    assert members((ProcessId(process.pid, process.start_ticks - 1),), MARKER) == ()


def test_a_child_that_emptied_its_environment_is_found_below_the_subreaper(
    sleeper: Callable[..., subprocess.Popen[bytes]],
) -> None:
    """What carries no marker is found as the subreaper's child, unless it is spared."""
    stranger, agent = sleeper(env={}), sleeper(env={})

    found = pids(members((), MARKER, subreaper=os.getpid(), spare=(agent.pid,)))

    assert (stranger.pid in found, agent.pid in found, os.getpid() in found) == (True, False, False)


def test_a_process_of_another_user_is_never_a_member(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it carries the marker and descends from the launcher: here it is we who are somebody else."""
    monkeypatch.setattr(os, "getuid", lambda: 54321)

    assert members((job.launcher,), MARKER) == ()


def test_a_process_of_another_pid_namespace_is_never_a_member(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pids of a container are not ours to signal: here it is we who are in another."""
    monkeypatch.setattr(tree, "own_namespace", lambda: 54321)

    assert members((job.launcher,), MARKER) == ()


# A user and a pid namespace that are not ours need root; any user may make a pid namespace below a user namespace.
ELSEWHERE = {
    Beyond.USER: ("setpriv", "--reuid=65534", "--clear-groups"),
    Beyond.NAMESPACE: ("unshare", "-pf"),
}
FOREIGN = ELSEWHERE if os.getuid() == 0 else {Beyond.NAMESPACE: ("unshare", "-Upf")}


class ForeignJob:
    """A shell of ours, and a `sleep` below it that is not ours to signal."""

    def __init__(self, folder: Path, beyond: Beyond) -> None:
        self.beyond = beyond
        words = " ".join(FOREIGN[beyond])
        self.process = subprocess.Popen(
            ["sh", "-c", f"{words} sleep 600; touch went-on"],
            cwd=folder,
            env={**os.environ, "TUNEWARDEN_JOB": MARKER},
        )
        self.launcher = known(self.process.pid)
        self.stranger = eventually(self._find).id

    def _find(self) -> Member | None:
        found = strangers((self.launcher,), MARKER)
        return found[-1] if found and found[-1].cmdline[0] == "sleep" else None

    def clear(self) -> None:
        for process in (self.launcher, self.stranger):
            signal_one(process, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(params=FOREIGN, ids=lambda beyond: beyond.name)
def foreign_job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ForeignJob]:
    """sh -> a launcher that goes elsewhere -> sleep."""
    made = ForeignJob(tmp_path, request.param)
    yield made
    made.clear()


def test_what_runs_elsewhere_is_a_stranger_of_the_job(foreign_job: ForeignJob) -> None:
    """A process below the launcher that dropped its user, or has pids of its own: known, named, and no member."""
    found = strangers((foreign_job.launcher,), MARKER)

    assert [(each.id, each.beyond) for each in found] == [(foreign_job.stranger, foreign_job.beyond)]
    assert foreign_job.stranger.pid not in pids(members((foreign_job.launcher,), MARKER))
    assert named(found).startswith(f"pid {foreign_job.stranger.pid} {foreign_job.beyond}")


def test_a_stranger_survives_the_end_of_its_job(foreign_job: ForeignJob) -> None:
    """What is ours ends; the stranger is never signalled, and nobody calls the job complete."""
    ended = end_generation(foreign_job.launcher, [], MARKER)

    assert (alive(foreign_job.launcher), alive(foreign_job.stranger), ended.complete) == (False, True, False)
    assert ended.survivors == (foreign_job.stranger,)
    assert [each.beyond for each in ended.beyond_reach] == [foreign_job.beyond]


def test_a_launcher_of_another_user_is_a_stranger(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole job is somebody else's: nothing of it is signalled, all of it survives."""
    monkeypatch.setattr(os, "getuid", lambda: 54321)

    ended = job.end()

    assert {each.pid for each in ended.survivors} >= {job.process.pid, *job.pids.values()}
    assert (ended.pids, sorted(job.living())) == ((), sorted(NAMES))


def test_nothing_of_a_generation_is_left(job: Job, sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Every process ends, the script does not go on, and a process that looks alike is untouched."""
    twin = sleeper(env={**os.environ, "TUNEWARDEN_JOB": "another"})

    ended = job.end()

    assert (job.living(), ended.survivors, ended.without_pidfd) == ([], (), False)
    assert {process.pid for process in ended.pids} >= {job.process.pid, *job.pids.values()}
    assert (job.process.wait(), job.uploaded) == (-signal.SIGKILL, False)
    assert living(twin.pid)


def test_a_script_whose_trainer_is_ended_alone_does_go_on(job: Job) -> None:
    """The danger is real: without the freeze the next line runs."""
    os.kill(job.pids["trainer"], signal.SIGKILL)
    job.process.wait()

    assert job.uploaded


def test_the_launcher_may_be_the_trainer(tmp_path: Path) -> None:
    """`run -- python train.py`: TERM first, so that it may clean up."""
    words = "import signal,sys,time\nsignal.signal(15, lambda *_: sys.exit(7))\nopen('armed','w')\ntime.sleep(600)"
    trainer = subprocess.Popen([sys.executable, "-c", words], cwd=tmp_path)
    eventually((tmp_path / "armed").exists)
    identity = known(trainer.pid)

    ended = end_generation(identity, [identity], MARKER)

    assert (ended.pids, trainer.wait()) == ((identity,), 7)


def test_without_a_known_trainer_no_script_goes_on(job: Job) -> None:
    """What has children is frozen, what has none is ended."""
    ended = end_generation(job.launcher, [], MARKER, wait_term_s=0.3)

    assert (job.living(), ended.complete, job.process.wait(), job.uploaded) == ([], True, -signal.SIGKILL, False)


def test_what_may_not_be_killed_lives_and_its_script_waits(deaf_job: Job) -> None:
    """No KILL: the trainer trains on, the scripts above it are frozen and named, and `thaw` lets them go on."""
    ended = deaf_job.end(may_kill=lambda: False)  # type: ignore[arg-type]

    assert {"trainer", "deaf"} <= set(deaf_job.living())
    assert not ended.complete and deaf_job.process.pid in {process.pid for process in ended.frozen}
    assert state(deaf_job.process.pid) == "T"

    thaw(ended.frozen)

    assert eventually(lambda: state(deaf_job.process.pid) == "S")


def test_ending_again_ends_what_was_left(deaf_job: Job) -> None:
    """After a refused KILL a second call with leave to kill leaves nothing, and the script has not gone on."""
    deaf_job.end(may_kill=lambda: False)  # type: ignore[arg-type]

    ended = deaf_job.end()

    assert (deaf_job.living(), ended.complete, deaf_job.process.wait(), deaf_job.uploaded) == (
        [],
        True,
        -signal.SIGKILL,
        False,
    )


def test_a_trainer_that_is_not_the_jobs_is_not_touched(
    job: Job, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A pid file that names a stranger: the stranger lives, and is told as a survivor."""
    stranger = known(sleeper().pid)

    ended = end_generation(job.launcher, [stranger], MARKER, wait_term_s=0.3)

    assert (alive(stranger), ended.survivors, job.living()) == (True, (stranger,), [])


def test_a_stopped_trainer_takes_its_term(tmp_path: Path) -> None:
    """A trainer that Ctrl-Z has stopped gets CONT after TERM, and is not killed."""
    words = "import signal,sys,time\nsignal.signal(15, lambda *_: sys.exit(7))\nopen('armed','w')\ntime.sleep(600)"
    trainer = subprocess.Popen([sys.executable, "-c", words], cwd=tmp_path)
    eventually((tmp_path / "armed").exists)
    trainer.send_signal(signal.SIGSTOP)
    eventually(lambda: state(trainer.pid) == "T")

    end_generation(known(trainer.pid), [known(trainer.pid)], MARKER)

    assert trainer.wait() == 7


def test_ending_what_is_gone_does_nothing() -> None:
    """Twice is as good as once, and fast."""
    began = time.monotonic()

    ended = end_generation(ProcessId(2**22 + 1, 1), [], MARKER)

    assert ended == Ended(pids=(), survivors=(), frozen=(), without_pidfd=False)
    assert time.monotonic() - began < 2


def test_where_pidfd_is_refused_start_ticks_are_compared(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old kernel or a strict seccomp filter: the job still ends, and it is said."""

    def refuse(_pid: int, _flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "no pidfd")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    wrong = ProcessId(job.pids["plain"], job.trainer.start_ticks - 1)

    assert signal_one(wrong, signal.SIGKILL) is False

    ended = job.end()

    assert (job.living(), ended.complete, ended.without_pidfd) == ([], True, True)


def test_a_signal_never_reaches_a_pid_that_was_given_away(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Wrong start ticks: nothing is sent."""
    process = sleeper()
    now = known(process.pid)

    assert signal_one(ProcessId(now.pid, now.start_ticks - 1), signal.SIGKILL) is False
    assert alive(now)
    assert signal_one(now, signal.SIGKILL) is True
    assert process.wait() == -signal.SIGKILL


def test_only_what_was_frozen_is_thawed(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    """A process that somebody else has stopped stays stopped."""
    first, second = (sleeper(env={"TUNEWARDEN_JOB": MARKER}) for _ in range(2))
    second.send_signal(signal.SIGSTOP)
    eventually(lambda: state(second.pid) == "T")

    frozen = freeze(members((), MARKER))

    assert [process.pid for process in frozen] == [first.pid]
    assert eventually(lambda: state(first.pid) == "T")

    thaw(frozen)

    assert eventually(lambda: state(first.pid) == "S")
    assert state(second.pid) == "T"
