"""`tunewarden watch` and `adopt` at work: the parent of a GUI, and of an agent for each training that is seen.

    python -E -P -m tunewarden.supervisor.watcher WATCH_DIR [-- COMMAND …]

Standard library only. The GUI keeps our terminal, our process group and our session: it is as if it had been started
without us, Ctrl-C and Ctrl-Z included. We end when it has ended, and with its exit code.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tunewarden.processes.identity import ProcessId, identify
from tunewarden.supervisor.announcement import (
    WATCH_VARIABLE,
    Announced,
    command_of,
    folder_of,
    parent_of,
    take_announcements,
    why_not_ours,
)
from tunewarden.supervisor.keeper_job import with_hook
from tunewarden.supervisor.keeper_launch import environment_at_start
from tunewarden.supervisor.keeper_log import SAID_BY_US
from tunewarden.supervisor.run_folder import write_identity
from tunewarden.supervisor.started_by import StartedBy
from tunewarden.supervisor.watched_job import WatchedJob, own_folder, spec_of
from tunewarden.trainers.command import find_script

_TURN_S = 0.25  # between two looks for announcements
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_COMMAND_NOT_FOUND, _NOT_EXECUTABLE, _INTERRUPTED = 127, 126, 130


class Watcher:
    """One `watch` or `adopt`, from its start to its exit code."""

    def __init__(self, watch_dir: Path, command: Sequence[str]) -> None:
        self._dir, self._command = watch_dir, command
        # Read once: what is watched may write into this folder, and what it writes there decides nothing.
        self._template: dict[str, Any] = json.loads((watch_dir / "watch.json").read_bytes())
        self._env = environment_at_start()
        self._jobs: dict[str, WatchedJob] = {}
        self._gui: subprocess.Popen[bytes] | None = None
        self._gui_id: ProcessId | None = None
        self._exit_code: int | None = None  # the GUI's, once it has ended
        self._interrupts = self._interrupts_of_gui = 0  # in all, and those that the GUI has seen
        self._said_going_on = False
        self._ignored = frozenset(signum for signum in _SIGNALS if signal.getsignal(signum) is signal.SIG_IGN)
        self._signals_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for signum in _SIGNALS:
            # SIGCHLD and SIGTERM always; what nohup has ignored stays ignored, here and in the GUI.
            if signum in (signal.SIGCHLD, signal.SIGTERM) or signum not in self._ignored:
                signal.signal(signum, _noted)

    def run(self, adopted: ProcessId | None = None) -> int:
        """Until the GUI, or the adopted process, has ended and every job is told of; returns the exit code."""
        own = identify(os.getpid())
        if own is not None:
            with contextlib.suppress(OSError):
                write_identity(self._dir / "watcher.json", own)
        if adopted is not None:
            self._adopt(adopted)
        elif self._command and not self._start_gui():
            return self._exit_code or _NOT_EXECUTABLE
        while not self._over(adopted is not None):
            self._turn()
        self._leave_nothing_empty()
        return self._exit_code if self._exit_code is not None else (_INTERRUPTED if self._interrupts else 0)

    def _leave_nothing_empty(self) -> None:
        """A watch that saw no training leaves no folder; those of jobs stay, as the run folders do."""
        with contextlib.suppress(OSError):
            if not any(path.is_dir() for path in self._dir.iterdir()):
                for path in self._dir.iterdir():
                    path.unlink()
                self._dir.rmdir()

    def _start_gui(self) -> bool:
        env = {**with_hook(self._env, self._template["hook"]), WATCH_VARIABLE.encode(): os.fsencode(self._dir)}
        try:
            self._gui = subprocess.Popen(list(self._command), env=env)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            self._exit_code = _COMMAND_NOT_FOUND if missing else _NOT_EXECUTABLE
            self._say(f"can't start {self._command[0]}: {error.strerror}")
            return False
        self._gui_id = identify(self._gui.pid)
        return True

    def _over(self, adopting: bool) -> bool:
        if self._command and self._exit_code is None:
            return False
        if self._jobs:
            # A person who doesn't want to wait: the agents go on by themselves until their jobs end.
            return self._interrupts > self._interrupts_of_gui
        return bool(adopting or self._command or self._interrupts)

    def _turn(self) -> None:
        agents = {job.agent.fd: job for job in self._jobs.values() if job.agent.fd is not None}
        poll = select.poll()
        poll.register(self._signals_fd, select.POLLIN)
        for fd, job in agents.items():
            poll.register(fd, select.POLLIN | (select.POLLOUT if job.agent.waiting else 0))
        for fd, _ in poll.poll(_TURN_S * 1000):
            if fd == self._signals_fd:
                for signum in os.read(self._signals_fd, 4096):
                    self._on_signal(signum)
            elif fd in agents:
                agents[fd].agent.flush()
                self._show(agents[fd].listen(time.monotonic()))
        self._look()
        now = time.monotonic()
        for job_id, job in list(self._jobs.items()):
            self._show(job.advance(now))
            if job.over:
                del self._jobs[job_id]
        if self._exit_code is not None and self._jobs and not self._said_going_on:
            self._tell_going_on()

    def _tell_going_on(self) -> None:
        living = [job for job in self._jobs.values() if not job.ended]
        if living:
            self._said_going_on = True
            names = ", ".join(job.name for job in living)
            self._say(f"{self._command[0]} has ended, and what it started trains on: watching {names} until it ends")

    # Jobs

    def _look(self) -> None:
        announced, refused = take_announcements(self._dir)
        for each in refused:
            self._say(f"passed over: {each}")
        for one in announced:
            job = self._jobs.get(one.job_id)
            if job is not None:
                job.join(one.process)
            else:
                self._begin(one)

    def _begin(self, one: Announced) -> None:
        in_a_cell = one.ends_with_cell or one.process == self._gui_id
        argv, cwd = self._launch_of(one.process), folder_of(one.process)
        if cwd is None:
            return
        spec = spec_of(self._template, one.job_id, argv=argv, cwd=cwd, started_by=StartedBy.WATCH, in_a_cell=in_a_cell)
        try:
            job = WatchedJob(one.folder, spec, self._env, self._ignored, time.monotonic())
        except OSError as error:
            self._say(f"{one.folder.path} can't be written ({error.strerror}): pid {one.process.pid} is not watched")
            return
        job.join(one.process)
        self._jobs[one.job_id] = job
        where = "its cell ends, its kernel does not" if in_a_cell else "nothing of the GUI is touched"
        self._say(
            f"a training has started (pid {one.process.pid}): it is the job {job.name}; "
            f"`tunewarden save {job.name}` saves it, `tunewarden stop {job.name}` saves and stops it ({where})"
        )

    def _launch_of(self, process: ProcessId) -> tuple[str, ...]:
        """The command that shows the config: the launcher's, where one with the same script stands above."""
        argv = command_of(process)
        parent, script = parent_of(process), find_script(argv)
        if parent is None or script is None or parent == self._gui_id or why_not_ours(parent) is not None:
            return argv
        above = command_of(parent)
        found = find_script(above)
        return above if found is not None and above[found.index] == argv[script.index] else argv

    def _adopt(self, process: ProcessId) -> None:
        cwd = folder_of(process)
        if cwd is None:
            self._say(f"pid {process.pid} has ended")
            return
        job_id = str(self._template["job_id"])
        spec = spec_of(
            self._template, job_id, argv=command_of(process), cwd=cwd, started_by=StartedBy.ADOPT, in_a_cell=True
        )
        job = WatchedJob(own_folder(self._dir, job_id), spec, self._env, self._ignored, time.monotonic())
        job.join(process)
        self._jobs[job_id] = job
        self._say(f"watching pid {process.pid} as the job {job.name}, for messages only: nothing is saved or stopped")

    # Signals and children

    def _on_signal(self, signum: int) -> None:
        match signum:
            case signal.SIGCHLD:
                self._reap()
            case signal.SIGINT:  # the GUI has got it too, where it came from the terminal
                self._interrupts += 1
            case signal.SIGTERM if self._gui is not None and self._exit_code is None:
                os.kill(self._gui.pid, signal.SIGTERM)  # our child and not reaped yet, so the pid is its own
            case signal.SIGTERM:
                self._interrupts += 1

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_reaped(pid, os.waitstatus_to_exitcode(status))

    def _on_reaped(self, pid: int, exit_status: int) -> None:
        if self._gui is not None and pid == self._gui.pid:
            self._exit_code = 128 - exit_status if exit_status < 0 else exit_status
            self._interrupts_of_gui = self._interrupts
            self._gui.returncode = exit_status
        for job in self._jobs.values():
            job.reaped(pid, exit_status)
            if pid == job.agent.pid:
                self._show(job.agent_ended(time.monotonic()))

    def _say(self, text: str) -> None:
        self._show([f"{SAID_BY_US}{text}"])

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines:
            shown = "".join(letter if letter.isprintable() else " " for letter in line)
            with contextlib.suppress(OSError):  # the terminal is gone
                os.write(2, f"{shown}\n".encode("utf-8", "replace"))


def _noted(_signum: int, _frame: FrameType | None) -> None:
    """The byte in the wake-up pipe says it all."""


def main(words: Sequence[str]) -> int:
    """`WATCH_DIR [-- COMMAND …]`, or `WATCH_DIR PID START_TICKS` to adopt a process."""
    watch_dir, *rest = words
    if rest and rest[0] != "--":
        pid, ticks = rest
        return Watcher(Path(watch_dir), ()).run(ProcessId(int(pid), int(ticks)))
    return Watcher(Path(watch_dir), rest[1:]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
