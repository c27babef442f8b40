"""A server program of the system, run on a free loopback port for one test, and stopped by its own pid."""

import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx

T = TypeVar("T")

READY_WITHIN_S = 60.0  # a loaded machine takes half a minute to import the service
STOP_WITHIN_S = 10.0


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def eventually(read: Callable[[], T], *, within_s: float = 20.0, every_s: float = 0.05) -> T:
    """The first truthy value that `read` returns; AssertionError with the last value when the deadline passes."""
    deadline = time.monotonic() + within_s
    while True:
        value = read()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"nothing within {within_s} s; the last answer was {value!r}")
        time.sleep(every_s)


class RealProcess:
    """A context manager around one program: `argv(port)` starts it, `ready_path` answers 200 when it can be used.

    Its output is in `log_path`; a program that dies or is late fails the test with the end of that log.
    A port may be taken between the choice and the bind, so a program that ends at once is tried again on another.
    """

    name: str
    ready_path = "/-/ready"
    ready_within_s = READY_WITHIN_S

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / f"{self.name}.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def argv(self) -> list[str]:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, attempts: int = 3) -> None:
        """Start and wait until it is ready. A second call after `stop` keeps the port and the data."""
        for attempt in range(attempts):
            self.port = self.port or free_port()
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(self.argv(), cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)
            if self._wait_ready():
                return
            self.stop()
            self.port = 0 if attempt + 1 < attempts else self.port
        raise AssertionError(f"{self.name} did not become ready:\n{self.log_path.read_text()[-3000:]}")

    def _wait_ready(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + self.ready_within_s
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx.get(self.url + self.ready_path, timeout=2, trust_env=False).status_code == 200:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """TERM, then KILL after 10 s; harmless when it has ended."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
