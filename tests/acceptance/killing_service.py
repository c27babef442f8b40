"""Real service processes that kill themselves by SIGKILL at one named moment, driven over HTTP.

A nursery imports everything once and forks a process for each life, so that a life costs no import. It holds the
listening socket: the next life serves the same address. Commands are JSON lines on stdin, answers on stdout.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.jobs_service import RealClock, Times, Wiring
from tunewarden.adapters.store.engine import Store
from tunewarden.api.server import listen, run, serve
from tunewarden.telemetry import set_up_logging


class Kill:
    """Dies when `where` (`transition:point`) is reached the first time in this life."""

    def __init__(self, where: str) -> None:
        self._where = where

    def reach(self, transition: str, point: str) -> None:
        if f"{transition}:{point}" == self._where:
            os.kill(os.getpid(), signal.SIGKILL)


async def _live(sock: socket.socket, order: dict[str, Any]) -> None:
    with Store(Path(order["store"])) as store:
        wiring = Wiring(
            store=store, clock=RealClock(), boundary=Kill(order["kill"]), times=Times(**order.get("times", {}))
        )
        app = wiring.app()
        loops = [asyncio.create_task(each) for each in wiring.stages({})]
        await serve(app, sock, stopping=wiring.stopping, on_ready=lambda: None)
        await asyncio.gather(*loops)


def _be_born(sock: socket.socket, order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    with open(order["log"], "a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    set_up_logging()
    run(_live(sock, order))
    os._exit(0)


def _nurse() -> None:
    """start → {"pid"}; wait → {"status"} of that pid (negative: the signal), or null when it lives on; stop."""
    sock = listen("127.0.0.1", 0)
    sock.listen(64)
    _say({"port": sock.getsockname()[1]})
    born: list[int] = []
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "start":
            born.append(_be_born(sock, order))
            _say({"pid": born[-1]})
        elif order["do"] == "stop":
            os.kill(order["pid"], signal.SIGTERM)
            _say({})
        else:
            status = _reap(order["pid"], order["within_s"])
            if status is not None:
                born.remove(order["pid"])
            _say({"status": status})
    for pid in born:  # the tests are gone: nobody is left to stop these
        os.kill(pid, signal.SIGKILL)


def _reap(pid: int, within_s: float) -> int | None:
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Nursery:
    """The tests' side: starts lives, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.killing_service"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = f"http://127.0.0.1:{self._answer()['port']}"
        self.pid = 0

    def start(self, store: Path, *, kill: str = "", **times: float) -> None:
        """A life over `store`; it dies at `kill`."""
        self.pid = self._do(do="start", store=str(store), kill=kill, log=str(store) + ".log", times=times)["pid"]

    def status(self, within_s: float) -> int | None:
        """How the life ended, or None when it lives on."""
        status: int | None = self._do(do="wait", pid=self.pid, within_s=within_s)["status"]
        if status is not None:
            self.pid = 0
        return status

    def stop(self) -> None:
        """End the life that runs, as a signal does; fails when it doesn't end."""
        if self.pid:
            self._do(do="stop", pid=self.pid)
            pid = self.pid
            if self.status(15.0) is None:
                os.kill(pid, signal.SIGKILL)  # the next test must not meet it
                self.status(5.0)
                raise AssertionError("the service did not stop")

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(15)
        self._process.stdout.close()

    def _do(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


if __name__ == "__main__":
    _nurse()
