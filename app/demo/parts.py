"""The processes of the demo: each with a log of its own, each stopped by its pid."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx

from tunewarden.errors import TunewardenError

STOP_WAIT_S = 10.0
READY_WAIT_S = 30.0


class PartFailed(TunewardenError):
    """A part of the demo did not start."""


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass(kw_only=True)
class Part:
    """One started process."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def tail(self, lines: int = 5) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@dataclass(kw_only=True)
class Parts:
    """Everything that the demo started, in order; stopped in the opposite order."""

    folder: Path
    environment: Mapping[str, str]
    started: list[Part] = field(default_factory=list)

    def start(self, name: str, argv: Sequence[str], cwd: Path | None = None) -> Part:
        """Start a program in a session of its own, so that Ctrl-C in the terminal reaches the demo alone."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as stream:
            process = self._popen(argv, stream, cwd)
        part = Part(name=name, process=process, log=log)
        self.started.append(part)
        return part

    def _popen(self, argv: Sequence[str], stream: IO[bytes], cwd: Path | None) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=cwd or self.folder,
            env=dict(self.environment),
            start_new_session=True,
        )

    def wait_ready(self, part: Part, url: str) -> None:
        """Wait until `url` answers 200.

        Raises PartFailed with the end of the part's log when it ends first, or does not answer in time.
        """
        wait_until(lambda: part.process.poll() is not None or _answers(url), READY_WAIT_S)
        if part.process.poll() is not None or not _answers(url):
            raise PartFailed(f"{part.name} did not start (log {part.log}):\n{part.tail()}")

    def stop_all(self) -> None:
        """End what was started, last first: TERM, wait, KILL, each by its own pid."""
        for part in reversed(self.started):
            if part.process.poll() is None:
                part.process.terminate()
        for part in reversed(self.started):
            try:
                part.process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                part.process.kill()
                part.process.wait()


def wait_until(condition: Callable[[], bool], seconds: float, every: float = 0.1) -> bool:
    """Ask until it holds; False when the time is over."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    return False
