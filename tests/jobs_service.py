"""The jobs API and the stages behind it, wired as bootstrap does it, without the receiver and the dispatcher."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.adapters.store.engine import Store
from tunewarden.api.app import create_app
from tunewarden.api.auth import Door, Guard
from tunewarden.api.deps import ApiDeps
from tunewarden.api.jobs import jobs_router
from tunewarden.api.people import people_router
from tunewarden.api.server import listen
from tunewarden.pipeline.acts import ServiceActs
from tunewarden.pipeline.commands import Commands
from tunewarden.pipeline.moves import Acting
from tunewarden.pipeline.telling import TellTargets
from tunewarden.pipeline.verifier import Asks, NoPrometheus, Verifier
from tunewarden.pipeline.watch import Watch
from tunewarden.pipeline.worker import Worker
from tunewarden.ports import Boundary, Clock, NoBoundary
from tunewarden.telemetry import Metrics

TOKEN = "agents-and-people"
TARGET = "ops"


class RealClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return monotonic()


@dataclass(frozen=True, kw_only=True)
class Times:
    """Shortened for tests; in seconds."""

    order_expires_s: float = 60.0
    silence_s: float = 3600.0
    lease_s: float = 4.0  # a renewal may come late on a loaded machine
    heartbeat_s: float = 5.0
    poll_s: float = 0.05


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """One service over one store."""

    store: Store
    clock: Clock = field(default_factory=RealClock)
    boundary: Boundary = field(default_factory=NoBoundary)
    prometheus: Asks = field(default_factory=NoPrometheus)
    times: Times = field(default_factory=Times)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    board: SampleBoard = field(default_factory=SampleBoard)

    @property
    def acting(self) -> Acting:
        tell = TellTargets(targets=(TARGET,))
        return Acting(boundary=self.boundary, tell=tell, order_expires_s=self.times.order_expires_s)

    def app(self) -> FastAPI:
        deps = ApiDeps(
            store=self.store,
            acts=ServiceActs(self.store, self.acting, self.clock),
            board=self.board,
            clock=self.clock,
            guard=Guard(door=Door(tokens=(TOKEN.encode(),), others=(b"webhook-token",))),
            stopping=self.stopping,
            targets=(TARGET,),
        )
        metrics = Metrics(registry=CollectorRegistry())
        return create_app(routers=[jobs_router(deps), people_router(deps)], metrics=metrics)

    def stages(self, own: dict[str, str]) -> list[Coroutine[Any, Any, None]]:
        """The loops of the stages; `own` is the environment from which a command's names are let through."""
        times, acting = self.times, self.acting
        commands = Commands(self.store, acting, self.clock, owner="test", own=own, lease_s=times.lease_s)
        worker = Worker(self.store, acting, self.clock, commands, self.prometheus, poll_s=times.poll_s)
        verifier = Verifier(
            self.store,
            acting,
            self.clock,
            self.prometheus,
            heartbeat_s=times.heartbeat_s,
            poll_s=times.poll_s,
        )
        watch = Watch(self.store, acting, self.clock, silence_s=times.silence_s, poll_s=times.poll_s)
        return [worker.run(self.stopping), verifier.run(self.stopping), watch.run(self.stopping)]


class Service:
    """A running service in a thread of this process, and a client that has the token."""

    def __init__(self, wiring: Wiring, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.wiring = wiring
        self.store = wiring.store
        self.url = f"http://127.0.0.1:{port}"
        self.loop = loop
        self.client = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20.0)

    def polled(self, job_id: str) -> bool:
        """True while a long poll waits for an order of this job."""
        return bool(self.store._board.waiting_for([f"orders:{job_id}"]))

    def stop(self) -> None:
        """As the signal does it."""
        self.loop.call_soon_threadsafe(self.wiring.stopping.set)


@contextmanager
def running(
    path: Path,
    *,
    clock: Clock | None = None,
    prometheus: Asks | None = None,
    times: Times | None = None,
    stages: bool = True,
    own: dict[str, str] | None = None,
) -> Iterator[Service]:
    """A service over the store at `path`, over real HTTP."""
    started: list[Service] = []
    failed: list[BaseException] = []
    ready = threading.Event()

    async def main() -> None:
        with Store(path) as store:
            wiring = Wiring(
                store=store,
                clock=clock or RealClock(),
                prometheus=prometheus or NoPrometheus(),
                times=times or Times(),
            )
            sock = listen("127.0.0.1", 0)
            config = uvicorn.Config(wiring.app(), lifespan="off", log_config=None, timeout_graceful_shutdown=3)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve([sock]))
            loops = [asyncio.create_task(each) for each in (wiring.stages(own or {}) if stages else [])]
            while not server.started:
                await asyncio.sleep(0.005)
            started.append(Service(wiring, sock.getsockname()[1], asyncio.get_running_loop()))
            ready.set()
            await wiring.stopping.wait()
            server.should_exit = True
            await asyncio.gather(serving, *loops)

    def thread() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the test's thread
            failed.append(error)
        finally:
            ready.set()

    running_thread = threading.Thread(target=thread)
    running_thread.start()
    assert ready.wait(20), "the service did not start"
    try:
        if started:
            yield started[0]
    finally:
        if started:
            started[0].client.close()
            started[0].stop()
        running_thread.join(20)
    if failed:
        raise failed[0]
