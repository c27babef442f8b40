"""The keeper's agent: started, talked to over a socket pair, started again when it dies. Standard library only."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunewarden.processes.identity import identify
from tunewarden.supervisor.keeper_launch import Launch, start
from tunewarden.supervisor.run_folder import RunFolder, write_identity

_SOCKET_FD = 3
_QUICK_STARTS = 5  # so many in a minute, then one every half minute
_WINDOW_S = 60.0
_SLOW_S = 30.0
_HEARD_S = 5.0  # within which an agent says `heard`
_WAKING_S = 60.0  # but `hello` so long after its start, for Python has to be read from a slow disk
_DEAF_S = 5.0  # an agent that has closed its socket and does not end
_UNSENT_BYTES = 1 << 20
_READ_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Inherited:
    """What each agent gets: its command, the environment, the drains by name, and the lock on the job's name."""

    argv: Sequence[str]
    env: Mapping[bytes, bytes]
    drains: Mapping[str, int]
    lock_fd: int | None  # None: the job has no name of its own to hold
    ignored: frozenset[int]


class Agent:
    """At most one agent process at a time. Times are of a monotonic clock, in seconds."""

    def __init__(self, folder: RunFolder, inherited: Inherited, now: float) -> None:
        self.pid: int | None = None
        self.lost_at = now  # since when there is no agent, where there is none
        self.next_start = now
        self._folder = folder
        self._inherited = inherited
        self._starts: list[float] = []
        self._socket: socket.socket | None = None
        self._unsent = b""
        self._unread = b""
        self.deaf_until: float | None = None  # it has closed the talk, and is killed then
        self.answer_by: float | None = None  # then it must have said `heard`
        self.ping_at = now
        self.trouble: str | None = None  # why its log can't be written
        self._owed = 0  # so many times
        self._awake = False  # it has said it once
        self._silences = 0  # agents in a row that never said it

    @property
    def fd(self) -> int | None:
        """The descriptor of the talk, or None without an agent."""
        return None if self._socket is None else self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._unsent)

    def start(self, state: Mapping[str, Any], now: float) -> None:
        """Start an agent and greet it with the whole state. A failure counts as a death."""
        self._starts = [at for at in self._starts if now - at < _WINDOW_S] + [now]
        try:
            with contextlib.ExitStack() as opened:
                ours, names = self._start(opened)
        except OSError:  # of a folder that is gone, a table of files that is full: the job must not end for it
            self._plan(now)
            return
        ours.setblocking(False)
        self._socket, self._unsent, self._unread, self.deaf_until = ours, b"", b"", None
        self.answer_by, self._owed, self._awake = None, 0, False
        self._note_identity()
        self.ask({"type": "hello", "fds": names, **state}, now)

    def _start(self, opened: contextlib.ExitStack) -> tuple[socket.socket, dict[str, int]]:
        """Start the process; returns our end of the talk and the drains' numbers. Raises OSError."""
        ours, theirs = socket.socketpair()
        opened.callback(theirs.close)
        fds, names = self._descriptors(theirs)
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        opened.callback(os.close, nothing)
        log = self._open_log(opened, nothing)
        launch = Launch(
            argv=self._inherited.argv,
            env=self._inherited.env,
            cwd=str(self._folder.path),
            fds={0: nothing, 1: log, 2: log, **fds},
            only_these=True,
            ignored=self._inherited.ignored,
        )
        try:
            self.pid = start(launch)
        except OSError as error:
            ours.close()
            os.write(log, f"the agent can't be started: {error}\n".encode())
            raise
        return ours, names

    def _open_log(self, opened: contextlib.ExitStack, nothing: int) -> int:
        try:
            log = os.open(self._folder.agent_log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            return nothing
        opened.callback(os.close, log)
        return log

    def _note_identity(self) -> None:
        process = None if self.pid is None else identify(self.pid)
        if process is not None:
            with contextlib.suppress(OSError):  # a full disk must not end the job
                write_identity(self._folder.agent_file, process)

    def _descriptors(self, theirs: socket.socket) -> tuple[dict[int, int], dict[str, int]]:
        """The agent's descriptors and ours, and the drains' numbers there. One pty is one descriptor, named twice."""
        fds = {_SOCKET_FD: theirs.fileno()}
        numbers: dict[int, int] = {}
        for drain in self._inherited.drains.values():
            if drain not in numbers:
                numbers[drain] = _SOCKET_FD + len(fds)
                fds[numbers[drain]] = drain
        if self._inherited.lock_fd is not None:
            fds[_SOCKET_FD + len(fds)] = self._inherited.lock_fd
        return fds, {name: numbers[drain] for name, drain in self._inherited.drains.items()}

    def send(self, message: Mapping[str, Any]) -> bool:
        """Tell the agent. False where there is none: the next one is greeted with the state anyway."""
        if self._socket is None:
            return False
        if len(self._unsent) < _UNSENT_BYTES:
            self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()
        return True

    def ask(self, message: Mapping[str, Any], now: float) -> bool:
        """Tell the agent what it must say `heard` to. False where there is none."""
        if not self.send(message):
            return False
        self._owed += 1
        limit = now + _HEARD_S
        self.ping_at = limit
        if message["type"] in ("hello", "ping") and not self._awake:  # a person's signal waits for no slow start
            limit = self._starts[-1] + _WAKING_S
        self.answer_by = limit if self.answer_by is None else min(limit, self.answer_by)
        return True

    def heard(self, now: float) -> None:
        """It answers."""
        self._silences, self._awake = 0, True
        self._owed = max(0, self._owed - 1)
        self.answer_by = now + _HEARD_S if self._owed else None

    def silent(self, now: float) -> bool:
        """Whether it owes an answer for too long."""
        return self.answer_by is not None and now >= self.answer_by

    def give_up(self) -> None:
        """KILL an agent that hangs; from now on there is none, and the next starts as soon as it is reaped."""
        self._silences += 1
        self._hang_up()
        self.kill()

    def flush(self) -> None:
        if self._socket is None or not self._unsent:
            return
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:  # it has gone, but what it said before is still to be read
            self._unsent = b""

    def receive(self, now: float) -> list[dict[str, Any]]:
        """What the agent has said; lines that are not JSON objects are passed over."""
        data = self._read()
        if data == b"":
            self._hang_up()
            self.deaf_until = now + _DEAF_S
        *lines, self._unread = (self._unread + (data or b"")).split(b"\n")
        return [message for line in lines if (message := _parsed(line)) is not None]

    def _read(self) -> bytes | None:
        """What has come; None: nothing yet; empty: the other end is closed."""
        if self._socket is None:
            return None
        try:
            return self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._unsent = b""
        self.answer_by, self._owed = None, 0

    def ended(self, now: float) -> list[dict[str, Any]]:
        """The agent was reaped. Returns what it had said last."""
        while data := self._read():
            self._unread += data
        last_words = self.receive(now)
        self._hang_up()
        self.pid = None
        self.deaf_until = None
        self._plan(now)
        return last_words

    def _plan(self, now: float) -> None:
        self.lost_at = now
        recent = [at for at in self._starts if now - at < _WINDOW_S]
        quick = len(recent) < _QUICK_STARTS and self._silences < _QUICK_STARTS
        self.next_start = now if quick else now + _SLOW_S

    def end_if_deaf(self, now: float) -> None:
        """KILL an agent that has closed the talk and lives on: there may be only one, so the next waits for its end."""
        if self.deaf_until is not None and now >= self.deaf_until:
            self.kill()

    def kill(self) -> None:
        """KILL the agent. It is our child and not reaped yet, so the pid is its own."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self.deaf_until = None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
