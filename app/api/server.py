"""uvicorn, in the way the service needs it."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

import uvicorn
import uvloop
from starlette.types import ASGIApp

from tunewarden.errors import SettingsError

T = TypeVar("T")

# Alertmanager (Go, prometheus/common) keeps idle connections for 300 s. A server that closes earlier makes the
# occasional POST fail and be repeated.
KEEP_ALIVE_S = 320
GRACE_S = 5  # requests that run when we are told to stop
BACKLOG = 2048


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the service's main coroutine on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port that is taken is told before anything starts. Port 0: any free one.

    Raises SettingsError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise SettingsError(f"can't listen on {host}:{port}: {error.strerror}; change `host` or `port`") from None
    return sock


class _Server(uvicorn.Server):
    """Sets `stopping` in the moment of the signal, so that long polls end before uvicorn waits for them."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


async def serve(app: ASGIApp, sock: socket.socket, *, stopping: asyncio.Event, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, or until the caller sets `stopping`. Returns when every request is answered."""
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )
    server = _Server(config, stopping, on_ready)
    # uvicorn raises the signal again once it has shut down. With the default behaviour in place that would end the
    # process before the stages and the store are closed.
    # It must not swallow one that comes before uvicorn has its own in place either.
    loop = asyncio.get_running_loop()

    def told(_sig: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are at the end already
            loop.call_soon_threadsafe(stopping.set)

    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, told)
    watch = asyncio.create_task(_stop_with(server, stopping))
    try:
        await server.serve([sock])
    finally:
        watch.cancel()
        stopping.set()


async def _stop_with(server: uvicorn.Server, stopping: asyncio.Event) -> None:
    await stopping.wait()
    server.should_exit = True
