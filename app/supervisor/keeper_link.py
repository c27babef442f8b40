"""The agent's end of the socket pair with the keeper, and what the keeper has said so far."""

import json
import os
import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunewarden.processes.identity import ProcessId

_READ = 1 << 16


@dataclass(kw_only=True)
class Situation:
    """How things stand with the job, by the keeper's word. Changed by the agent's main thread only."""

    generation: int = 1
    launcher: ProcessId | None = None
    fds: dict[str, int] = field(default_factory=dict)
    endings: dict[int, int | None] = field(default_factory=dict)  # generation -> exit status, None: nobody reaped it
    launch_errors: dict[int, str] = field(default_factory=dict)
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
            case "launched":
                self.generation = int(message["generation"])
                self.launcher = _process(message)
            case "launch_failed":
                self.launch_errors[int(message["generation"])] = str(message.get("error") or "")
            case "ended":
                self.endings[int(message["generation"])] = _status(message.get("exit_status"))
            case "interrupt":
                self.interrupts = max(self.interrupts, int(message.get("count") or 1))
            case "terminate":
                self.interrupts = max(self.interrupts, 1)

    def _greet(self, message: Mapping[str, Any]) -> None:
        self.generation = int(message["generation"])
        self.launcher = _process(message)
        self.fds = {str(name): int(fd) for name, fd in (message.get("fds") or {}).items()}
        self.interrupts = max(self.interrupts, int(message.get("interrupts") or 0))
        if message.get("ended") is not None:
            self.endings[self.generation] = _status(message["ended"])
        self.greeted = True


class KeeperLink:
    """One JSON object a line, both ways, on a stream socket. Only the main thread uses it.

    `wake()` may be called from any thread: it ends a `pump` that waits.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._buffer = b""
        self.situation = Situation()

    def pump(self, timeout: float) -> None:
        """Take in what the keeper said; wait up to `timeout` seconds for something to happen."""
        waits_on: list[Any] = [self._wake_read]
        if not self.situation.keeper_lost:
            waits_on.append(self._socket)
        ready, _, _ = select.select(waits_on, [], [], max(0.0, timeout))
        if self._wake_read in ready:
            os.read(self._wake_read, _READ)
        if self._socket in ready:
            self._receive()

    def wake(self) -> None:
        """End a waiting `pump`."""
        try:
            os.write(self._wake_write, b".")
        except BlockingIOError:
            return  # the pipe is full of wakes already

    def launch(self, generation: int, argv: list[str], env: Mapping[str, str], cwd: str) -> None:
        """Ask for the next launcher."""
        self._send({"type": "launch", "generation": generation, "argv": argv, "env": dict(env), "cwd": cwd})

    def say(self, text: str) -> None:
        """A line on the person's terminal."""
        self._send({"type": "say", "text": text})

    def finish(self, exit_code: int) -> None:
        """The run is over."""
        self._send({"type": "finish", "exit_code": exit_code})

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.situation.keeper_lost = True
            return
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            if line.strip():
                self.situation.take(json.loads(line))

    def _send(self, message: Mapping[str, Any]) -> None:
        if self.situation.keeper_lost:
            return
        try:
            self._socket.setblocking(True)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            self._socket.setblocking(False)
        except OSError:
            self.situation.keeper_lost = True


def _process(message: Mapping[str, Any]) -> ProcessId | None:
    pid, ticks = message.get("pid"), message.get("start_ticks")
    return ProcessId(pid=int(pid), start_ticks=int(ticks)) if pid and ticks is not None else None


def _status(value: object) -> int | None:
    return value if isinstance(value, int) else None
