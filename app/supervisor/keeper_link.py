"""The agent's end of the socket pair with the keeper, and what the keeper has said so far."""

import json
import logging
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunewarden.processes.identity import ProcessId, identify, read_stat

EXPIRED = "expired"  # the keeper's word for a launch that it read too late
_READ = 1 << 16
_HUNG_S = 60.0  # the main thread looks here every half second, and ends a job for half a minute at most
_ASKS = frozenset({"hello", "interrupt", "terminate", "ping"})  # the keeper wants to know that these were heard
_STOPPED = frozenset("Tt")
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Situation:
    """How things stand with the job, by the keeper's word. Changed by the agent's main thread only."""

    generation: int = 1
    launcher: ProcessId | None = None
    joined: tuple[ProcessId, ...] = ()  # the processes that a watcher follows, in place of a launcher's tree
    fds: dict[str, int] = field(default_factory=dict)
    endings: dict[int, int | None] = field(default_factory=dict)  # generation -> exit status, None: nobody reaped it
    ended_at: dict[int, float] = field(default_factory=dict)  # generation -> when that was heard, on CLOCK_MONOTONIC
    launch_errors: dict[str, str] = field(default_factory=dict)  # id of the request -> what is wrong
    suspended: bool = False  # Ctrl-Z: the keeper and the job stand still
    interrupts: int = 0  # Ctrl-C, or SIGTERM to `run`
    greeted: bool = False
    keeper_lost: bool = False

    @property
    def ended(self) -> bool:
        """Whether the launcher of the newest generation is gone."""
        return self.generation in self.endings

    def take(self, message: Mapping[str, Any]) -> None:
        """Take one message of the keeper in; unknown types are passed over."""
        match message.get("type"):
            case "hello":
                self._greet(message)
            case "joined":
                self.joined = _processes(message)
            case "launched":
                self.generation = int(message["generation"])
                self.launcher = _process(message)
            case "launch_failed":
                self.launch_errors[str(message.get("id"))] = str(message.get("error") or "")
            case "suspended":
                self.suspended = True
            case "resumed":
                self.suspended = False
            case "ended":
                self.endings[int(message["generation"])] = _status(message.get("exit_status"))
                self.ended_at[int(message["generation"])] = time.monotonic()
            case "interrupt":
                self.interrupts = max(self.interrupts, int(message.get("count") or 1))
            case "terminate":
                self.interrupts = max(self.interrupts, 1)

    def _greet(self, message: Mapping[str, Any]) -> None:
        self.generation = int(message["generation"])
        self.launcher = _process(message)
        self.joined = _processes(message)
        self.fds = {str(name): int(fd) for name, fd in (message.get("fds") or {}).items()}
        self.interrupts = max(self.interrupts, int(message.get("interrupts") or 0))
        if message.get("ended") is not None or message.get("gone"):
            self.endings[self.generation] = _status(message["ended"])
        self.greeted = True


class KeeperLink:
    """One JSON object a line, both ways, on a stream socket. Only the main thread uses it.

    `wake()` may be called from any thread: it ends a `pump` that waits. A thread of its own listens and says `heard`,
    for the main thread may be busy ending a job; where that hangs, nothing is heard.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        # Not from the run folder: the job may write there.
        self.keeper = _parent_at(self._socket)
        self._inbox: deque[Mapping[str, Any] | None] = deque()  # None: the keeper has closed the talk
        self._sending = threading.Lock()
        self._pumped_at = time.monotonic()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.situation = Situation()
        threading.Thread(target=self._listen, daemon=True, name="keeper-link").start()

    @property
    def on_hold(self) -> bool:
        """Whether the keeper stands still, by its word (Ctrl-Z) or by a SIGSTOP: it launches nothing then."""
        if self.situation.keeper_lost:
            return False
        stat = read_stat(self.keeper.pid) if self.keeper else None
        stopped = stat is not None and stat.id == self.keeper and stat.state in _STOPPED
        return self.situation.suspended or stopped

    def pump(self, timeout: float) -> None:
        """Take in what the keeper said; wait up to `timeout` seconds for something to happen."""
        ready, _, _ = select.select([self._wake_read], [], [], max(0.0, timeout))
        if ready:
            os.read(self._wake_read, _READ)
        self._pumped_at = time.monotonic()
        while self._inbox:
            message = self._inbox.popleft()
            if message is None:
                self.situation.keeper_lost = True
            else:
                self.situation.take(message)
                if message.get("type") in _ASKS and not message.get("heard"):
                    self._send({"type": "heard"})

    def wake(self) -> None:
        """End a waiting `pump`."""
        try:
            os.write(self._wake_write, b".")
        except BlockingIOError:
            return  # the pipe is full of wakes already

    def launch(
        self, generation: int, argv: list[str], env: Mapping[str, str], cwd: str, *, request_id: str, expires_at: float
    ) -> None:
        """Ask for the next launcher. The keeper refuses from `expires_at` (CLOCK_MONOTONIC of this boot) on."""
        named = {"id": request_id, "expires_at": expires_at}
        self._send({"type": "launch", **named, "generation": generation, "argv": argv, "env": dict(env), "cwd": cwd})

    def say(self, text: str) -> None:
        """A line on the person's terminal."""
        self._send({"type": "say", "text": text})

    def finish(self, exit_code: int) -> None:
        """The run is over."""
        self._send({"type": "finish", "exit_code": exit_code})

    def _listen(self) -> None:
        """The thread: take messages in, say `heard` where the main thread lives, and wake it."""
        buffer = b""
        while data := self._read():
            *lines, buffer = (buffer + data).split(b"\n")
            for line in filter(bytes.strip, lines):
                try:
                    message = dict(json.loads(line))
                except (ValueError, TypeError):
                    log.exception("the keeper said what is no JSON object")
                    continue
                alive = time.monotonic() - self._pumped_at < _HUNG_S
                message["heard"] = message.get("type") in _ASKS and alive and self._transmit({"type": "heard"})
                self._inbox.append(message)
            self.wake()
        self._inbox.append(None)
        self.wake()

    def _read(self) -> bytes:
        try:
            return self._socket.recv(_READ)
        except OSError:
            return b""

    def _send(self, message: Mapping[str, Any]) -> None:
        if not self.situation.keeper_lost and not self._transmit(message):
            self.situation.keeper_lost = True

    def _transmit(self, message: Mapping[str, Any]) -> bool:
        try:
            with self._sending:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True


def _parent_at(talk: socket.socket) -> ProcessId | None:
    """Our parent, where it is who made this socket pair; None where that has died already."""
    pid, _, _ = struct.unpack("3i", talk.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    found = identify(pid)
    # In this order: while it is our parent, nobody else has its pid.
    return found if pid == os.getppid() else None


def _process(message: Mapping[str, Any]) -> ProcessId | None:
    pid, ticks = message.get("pid"), message.get("start_ticks")
    return ProcessId(pid=int(pid), start_ticks=int(ticks)) if pid and ticks is not None else None


def _processes(message: Mapping[str, Any]) -> tuple[ProcessId, ...]:
    return tuple(ProcessId(pid=int(pid), start_ticks=int(ticks)) for pid, ticks in message.get("roots") or ())


def _status(value: object) -> int | None:
    return value if isinstance(value, int) else None
