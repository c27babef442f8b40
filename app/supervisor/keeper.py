"""The keeper of a run: parent of the job, owner of the terminal and of the log. Standard library only.

    python -E -P -m tunewarden.supervisor.keeper RUN_DIR LOCK_FD [AGENT_COMMAND …]

It knows nothing of orders, trainers or the service: the agent does, and may die at any time. The talk between them is
docs/reference/keeper-protocol.md. One thread, one loop; nothing in it waits for anything but the next event.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunewarden.processes.ending import freeze, thaw
from tunewarden.processes.identity import identify
from tunewarden.supervisor.keeper_agent import Agent, Inherited
from tunewarden.supervisor.keeper_job import Job
from tunewarden.supervisor.keeper_launch import environment_at_start
from tunewarden.supervisor.keeper_log import SAID_BY_US, OomWatch, OutputLog
from tunewarden.supervisor.keeper_signals import Signals, stop_ourselves
from tunewarden.supervisor.keeper_streams import Source, stay_open, wire
from tunewarden.supervisor.run_folder import RunFolder, lock_file, name_fits, unlock, write_identity

_PR_SET_CHILD_SUBREAPER = 36
_ALONE_S = 10.0  # after the job's end, how long an agent may take to come back before the run ends without one
_LEAVE_S = 3.0  # for the agent to end after `finish`, so that the lock on the name is free when `run` returns
_OOM_EVERY_S = 1.0
_STOPPED_BY_CTRL_C = 130
_SIGNALS_OF_CTRL_C = {1: signal.SIGINT, 2: signal.SIGTERM, 3: signal.SIGKILL}


class Keeper:
    """One run, from its first launch to its exit code."""

    def __init__(self, folder: RunFolder, lock_fd: int, agent_argv: Sequence[str]) -> None:
        self._folder = folder
        # Read once: the job may write into this folder, and what it writes there decides nothing.
        self._spec = folder.read_spec()
        self._lock_fd = lock_fd
        self._signals = Signals()
        self._wiring = wire()
        self._log = OutputLog(str(folder.log_file))
        self._watches = {source.fd: OomWatch() for source in self._wiring.sources}
        env = environment_at_start()
        inherited = Inherited(
            argv=agent_argv,
            env=env,
            drains=self._wiring.drains,
            lock_fd=lock_fd,
            ignored=self._signals.ignored,
        )
        self._agent = Agent(folder, inherited, time.monotonic())
        self._job = Job(folder, self._spec, self._wiring, env, self._signals.ignored)
        self._interrupts = 0
        self._acted_alone = False
        self._unheard: int | None = None  # SIGINT or SIGTERM that the agent was told of and has not heard
        self._trouble_told = False
        self._finish_code: int | None = None  # what the agent said
        self._exit_code: int | None = None  # set: the run is over, only output is still to be written
        self._closed_at = 0.0
        self._oom_told_at = float("-inf")

    def run(self) -> int:
        """Carry the job to its end; returns the exit code of `run`."""
        own = identify(os.getpid())
        if own is not None:
            with contextlib.suppress(OSError):  # a full disk must not end the job
                write_identity(self._folder.keeper_file, own)
        try:
            self._job.launch(1, self._spec["argv"], {}, self._spec["cwd"])
        except OSError as error:
            self._say(f"can't start {self._spec['argv'][0]}: {error.strerror}")
            self._close(127 if isinstance(error, FileNotFoundError | NotADirectoryError) else 126)
        try:
            self._wiring.take_terminal()
            while not self._over():
                self._turn()
        finally:
            self._wiring.give_back_terminal()
        if name_fits(self._spec["name"]):
            unlock(lock_file(self._folder.path.parent.parent, self._spec["name"]), self._lock_fd)
        return self._exit_code or 0

    # The loop

    def _turn(self) -> None:
        """One turn: what time has brought, then the events."""
        self._advance(time.monotonic())
        if self._over():
            return
        waits_for = self._interest()
        poll = select.poll()
        for fd, events in waits_for.items():
            poll.register(fd, events)
        for fd, _ in poll.poll(self._patience_ms()):
            self._react(fd, waits_for[fd])

    def _interest(self) -> dict[int, int]:
        """The descriptors to wait for. An output whose sink is full is not read: then the job waits, as without us."""
        wants = {self._signals.fd: select.POLLIN}
        if self._agent.fd is not None:
            wants[self._agent.fd] = select.POLLIN | (select.POLLOUT if self._agent.waiting else 0)
        for sink in self._wiring.sinks:
            if sink.waiting:
                wants[sink.fd] = select.POLLOUT
        if self._exit_code is not None:
            return wants
        for source in self._wiring.sources:
            if not source.sink.full:
                wants[source.fd] = select.POLLIN
        keys = self._wiring.keys
        if keys is not None and keys.waiting:
            wants[keys.fd] = select.POLLOUT
        elif keys is not None and keys.terminal.raw and not keys.terminal.gone:
            wants[keys.terminal.fd] = select.POLLIN
        return wants

    def _react(self, fd: int, wanted: int) -> None:
        keys = self._wiring.keys
        if fd == self._signals.fd:
            for signum in self._signals.take():
                self._on_signal(signum)
        elif fd == self._agent.fd:
            self._agent.flush()
            self._listen()
        elif keys is not None and fd == keys.terminal.fd and wanted == select.POLLIN:
            keys.take()
            keys.flush()
        elif keys is not None and fd == keys.fd:
            keys.flush()
        for sink in self._wiring.sinks:
            if fd == sink.fd:
                sink.flush()
        for source in self._wiring.sources:
            if fd == source.fd:
                self._pass_on(source, source.read())

    def _advance(self, now: float) -> None:
        """What is due by now: an agent to start, a run to end."""
        self._agent.end_if_deaf(now)
        self._give_up_silent_agent(now)
        self._tell_trouble()
        if self._exit_code is not None:
            if now >= self._closed_at + _LEAVE_S:
                self._agent.kill()
            return
        if self._finish_code is not None and self._job.exit_status is not None:
            self._close(self._finish_code)
        elif self._agent.pid is None and now >= self._agent.next_start:
            state = {**self._job.started, "ended": self._job.exit_status, "interrupts": self._interrupts}
            self._agent.start(state, now)
        elif self._job.exit_status is not None and self._agent.pid is None:
            # No agent, and none to come soon enough: the job's end is the run's end.
            limit = max(self._job.ended_at, self._agent.lost_at) + _ALONE_S
            if now >= limit or self._agent.next_start > limit:
                self._close(_STOPPED_BY_CTRL_C if self._acted_alone else self._job.shell_code)
        elif self._awaits_finish and now >= self._agent.ping_at:
            self._agent.ask({"type": "ping"}, now)

    @property
    def _awaits_finish(self) -> bool:
        """Whether the job has ended and the agent has the next word: only as long as it answers."""
        return self._job.exit_status is not None and self._finish_code is None and self._agent.fd is not None

    def _give_up_silent_agent(self, now: float) -> None:
        """An agent that hangs is as good as none: its signals are ours, and another one is started."""
        if self._agent.silent(now):
            self._listen()  # we may have been stopped ourselves, with its answer unread
        if not self._agent.silent(now):
            return
        self._log.write(b"tunewarden: the agent did not answer and is started again\n")
        self._agent.give_up()
        if self._unheard is not None:
            self._act_alone(self._unheard)

    def _listen(self) -> None:
        for message in self._agent.receive(time.monotonic()):
            self._on_message(message)

    def _tell_trouble(self) -> None:
        trouble = self._log.trouble or self._agent.trouble
        if trouble is not None and not self._trouble_told:
            self._trouble_told = True
            self._say(f"the run folder {self._folder.path} can't be written ({trouble}): the job goes on")

    def _patience_ms(self) -> float | None:
        """How long the next turn may wait: for ever, unless something falls due."""
        now = time.monotonic()
        due: list[float] = []
        if self._agent.pid is None and self._exit_code is None:
            due.append(self._agent.next_start)
        elif self._agent.pid is not None and self._exit_code is not None:
            due.append(self._closed_at + _LEAVE_S)
        due.extend(at for at in (self._agent.deaf_until, self._agent.answer_by) if at is not None)
        if self._awaits_finish and self._exit_code is None:
            due.append(self._agent.ping_at)
        return max(0.0, min(due) - now) * 1000 + 1 if due else None

    def _over(self) -> bool:
        if self._exit_code is None:
            return False
        return self._agent.pid is None and not self._wiring.waiting

    # The job

    def _reap(self) -> None:
        """Take the exit status of every child that has ended: the launcher, the agent, and what the job left to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._agent.pid:
                for message in self._agent.ended(time.monotonic()):
                    self._on_message(message)
            elif self._job.reaped(pid, os.waitstatus_to_exitcode(status)):
                self._drain()  # first, so that the agent finds the job's last words in the log
                generation, exit_status = self._job.generation, self._job.exit_status
                self._agent.send({"type": "ended", "generation": generation, "exit_status": exit_status})
                self._agent.ping_at = time.monotonic()

    def _pass_on(self, source: Source, data: bytes) -> None:
        self._log.write(data)
        source.sink.put(data)
        line = self._watches[source.fd].feed(data)
        now = time.monotonic()
        if line is not None and now >= self._oom_told_at + _OOM_EVERY_S:
            self._oom_told_at = now
            self._agent.send({"type": "output", "oom_line": line})

    def _drain(self) -> None:
        for source in self._wiring.sources:
            for piece in source.drain():
                self._pass_on(source, piece)

    # What comes from the person

    def _on_signal(self, signum: int) -> None:
        match signum:
            case signal.SIGCHLD:
                self._reap()
            case signal.SIGINT:
                self._interrupt()
            case signal.SIGTERM:
                self._terminate()
            case signal.SIGQUIT:
                self._job.signal_all(signal.SIGQUIT, self._agent.pid)
            case signal.SIGHUP:
                self._wiring.hang_up()  # SSH drop: the job goes on, its output goes to the log
            case signal.SIGTSTP:
                self._suspend()
            case signal.SIGCONT | signal.SIGWINCH:
                self._wiring.take_terminal()

    def _interrupt(self) -> None:
        """Ctrl-C: the agent's to answer. Without one, or after three, the keeper acts itself."""
        self._interrupts += 1
        if self._exit_code is not None:
            for sink in self._wiring.sinks:
                sink.lose()
        elif self._interrupts > 3 or not self._ask(signal.SIGINT, {"type": "interrupt", "count": self._interrupts}):
            self._act_alone(signal.SIGINT)
            if self._interrupts > 3 and self._job.exit_status is not None:
                self._close(_STOPPED_BY_CTRL_C)

    def _terminate(self) -> None:
        self._interrupts = max(self._interrupts, 1)
        if not self._ask(signal.SIGTERM, {"type": "terminate"}):
            self._act_alone(signal.SIGTERM)

    def _ask(self, signum: int, message: Mapping[str, Any]) -> bool:
        """Leave a signal to the agent. False where there is none."""
        asked = self._agent.ask(message, time.monotonic())
        if asked and self._unheard != signal.SIGINT:  # Ctrl-C is counted, and stronger
            self._unheard = signum
        return asked

    def _act_alone(self, signum: int) -> None:
        """Answer a signal without the agent, to each process of the job."""
        self._unheard = None
        if signum == signal.SIGINT:
            self._acted_alone = True
            signum = _SIGNALS_OF_CTRL_C[min(self._interrupts, 3)]
        self._job.signal_all(signum, self._agent.pid)

    def _suspend(self) -> None:
        """Ctrl-Z: the job stops, then we; both go on together."""
        self._agent.send({"type": "suspended"})
        frozen = freeze(self._job.members(self._agent.pid))
        self._wiring.give_back_terminal()
        stop_ourselves()
        self._wiring.take_terminal()
        thaw(frozen)
        self._agent.send({"type": "resumed"})

    # What comes from the agent

    def _on_message(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"type": "launch", "generation": int(), "argv": [*_], "env": dict(), "cwd": str()}:
                self._relaunch(message)
            case {"type": "heard"}:
                self._agent.heard(time.monotonic())
                if self._agent.answer_by is None:
                    self._unheard = None
            case {"type": "say", "text": str(text)}:
                self._say(text)
            case {"type": "finish", "exit_code": int(exit_code)}:
                self._finish_code = exit_code
            case _:
                self._log.write(f"tunewarden: the agent said what the keeper doesn't know: {message}\n".encode())

    def _relaunch(self, request: Mapping[str, Any]) -> None:
        over = "the run is over" if self._finish_code is not None or self._exit_code is not None else None
        error = over or self._job.relaunch(request)
        named = {"id": request.get("id")}
        if error is None:
            self._agent.send({"type": "launched", **named, **self._job.started})
        else:
            failed = {"type": "launch_failed", **named, "generation": request["generation"], "error": error}
            self._agent.send(failed)

    def _say(self, text: str) -> None:
        """Show lines as ours on the person's terminal and in the log. What could move the cursor is taken out."""
        for line in text.splitlines():
            shown = SAID_BY_US + "".join(letter if letter.isprintable() else " " for letter in line)
            self._log.write(f"{shown}\n".encode("utf-8", "replace"))
            self._wiring.say(shown)

    def _close(self, exit_code: int) -> None:
        """The run is over: what is still in the pipes goes out, then we end."""
        self._drain()
        self._exit_code = exit_code
        self._closed_at = time.monotonic()


def _become_subreaper() -> None:
    """What the job leaves behind becomes our child. Without the kernel's help it is found by its marker only."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(words: Sequence[str]) -> int:
    """The keeper's command line: the run folder, the descriptor of the lock, the agent's command if it is another."""
    stay_open()
    _become_subreaper()
    run_dir, lock_fd, *agent_argv = words
    os.set_inheritable(int(lock_fd), False)  # the agent gets it, the job must not
    if not agent_argv:
        agent_argv = [sys.executable, "-E", "-P", "-m", "tunewarden.supervisor.agent", run_dir]
    return Keeper(RunFolder(Path(run_dir)), int(lock_fd), agent_argv).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
