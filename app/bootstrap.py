"""The only place that wires: adapters to stages to the HTTP application. Tests override parts by keyword."""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import structlog
from prometheus_client import CollectorRegistry

from tunewarden.adapters.dingtalk import DingTalkRobot
from tunewarden.adapters.policy_file import load_policies
from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.tokens import alertmanager_lines, ensure_token
from tunewarden.api.server import listen, run
from tunewarden.api.server import serve as serve_http
from tunewarden.api.webhook import Receiver
from tunewarden.api.wire import alerts_of
from tunewarden.config import Settings
from tunewarden.domain.policy import Limits, Policy
from tunewarden.errors import SettingsError
from tunewarden.pipeline.moves import Acting
from tunewarden.pipeline.simulate import simulate
from tunewarden.pipeline.telling import TellTargets
from tunewarden.pipeline.watch import MISSED_HEARTBEATS
from tunewarden.ports import Boundary, Clock, NoBoundary, Robot
from tunewarden.shipped import shipped_dir
from tunewarden.telemetry import Metrics, set_up_logging
from tunewarden.wiring.application import Tokens, application
from tunewarden.wiring.stages import Stage, deciding_of, stages_of, targets_of

log = structlog.get_logger(__name__)

STAGE_WAIT_S = 8.0  # how long the stages may take to end what they began


class SystemClock:
    """The clock of this host."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Service:
    """Everything of one running service: the ASGI application, the stages, and what to close at the end."""

    app: Receiver
    stages: Sequence[tuple[str, Stage]]
    store: Store
    client: httpx.AsyncClient
    robots: Sequence[Robot]
    stopping: asyncio.Event
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def close(self) -> None:
        for robot in self.robots:
            await robot.aclose()
        await self.client.aclose()
        self.store.close()


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Run the service until SIGTERM or Ctrl-C. `say` shows a line to the person who started it.

    Raises SettingsError, StoreLocked or StoreUnavailable when it can't start.
    """
    set_up_logging()
    policies = policies_of(settings)
    tokens = open_tokens(settings)
    sock = listen(settings.host, settings.port)
    if settings.port == 0:
        settings = settings.model_copy(update={"port": sock.getsockname()[1]})

    async def main() -> None:
        service = build(settings, policies, tokens)
        try:
            await run_service(service, sock, lambda: _greet(settings, tokens, say))
        finally:
            await service.close()

    run(main())


def policies_of(settings: Settings) -> tuple[Policy, ...]:
    """The shipped policies and the settings' own. Raises FaultsFound with every fault."""
    shipped = (shipped_dir("rules") / "policies",) if settings.shipped_policies else ()
    folders = (*settings.policy_dirs, *shipped)
    limits = Limits(replacements=settings.limits.replacements_per_day, cooldown=settings.cooldown)
    return load_policies([Path(folder).expanduser() for folder in folders], settings.policies, limits)


def open_tokens(settings: Settings) -> Tokens:
    """Read the tokens, making those that are not there. Raises SettingsError."""
    webhook, fresh = ensure_token(settings.webhook_token)
    agent, _ = ensure_token(settings.agent_token)
    metrics = ensure_token(settings.metrics_token_file.expanduser())[0] if settings.metrics_token_file else None
    basic = None
    if settings.webhook_user is not None and settings.webhook_password_file is not None:
        try:
            password = settings.webhook_password_file.expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"webhook_password_file can't be read: {type(error).__name__}") from None
        basic = f"{settings.webhook_user}:{password}".encode()
    return Tokens(webhook=webhook, agent=agent, metrics=metrics, basic=basic, fresh=fresh)


def build(
    settings: Settings,
    policies: tuple[Policy, ...],
    tokens: Tokens,
    *,
    clock: Clock | None = None,
    boundary: Boundary | None = None,
) -> Service:
    """Wire a service. Call it in the event loop that it will run in."""
    clock, boundary = clock or SystemClock(), boundary or NoBoundary()
    metrics = Metrics(registry=CollectorRegistry())
    store = Store(settings.store)
    client = httpx.AsyncClient(trust_env=False)  # Prometheus and Alertmanager are near: no proxy
    stopping = asyncio.Event()
    targets = targets_of(settings)
    tell = TellTargets(
        targets=tuple(target.name for target in targets),
        verbose=frozenset(target.name for target in targets if target.verbose),
    )
    acting = Acting(
        boundary=boundary,
        tell=tell,
        low_on_space=lambda: store.low_on_space,
        broken_in_a_row=settings.limits.broken_in_a_row,
    )
    board = SampleBoard(keep_s=MISSED_HEARTBEATS * settings.heartbeat.total_seconds())
    robots = {target.name: DingTalkRobot(target, clock) for target in targets}
    running: dict[str, asyncio.Task[None]] = {}
    return Service(
        app=application(
            settings, tokens, store, clock, acting, board, metrics, stopping, tell.targets, lambda: ended(running)
        ),
        stages=stages_of(settings, policies, store, clock, acting, metrics, client, targets, robots),
        store=store,
        client=client,
        robots=tuple(robots.values()),
        stopping=stopping,
        running=running,
    )


def simulated(body: bytes, settings: Settings) -> list[dict[str, Any]]:
    """What would be decided about a webhook body, against the jobs of the settings' store. Acts on nothing.

    Raises NotJson or WrongShape for another body, FaultsFound for faulty policies.
    """
    deciding = deciding_of(settings, policies_of(settings))
    return simulate(body, alerts_of, deciding, store=settings.store, now=SystemClock().now())


def ended(running: Mapping[str, "asyncio.Task[None]"]) -> list[str]:
    """A line for each stage that has ended although nobody told it to."""
    return [f"the stage {name} has ended" for name, task in running.items() if task.done()]


async def run_service(service: Service, sock: socket.socket, on_ready: Callable[[], None]) -> None:
    """Run the stages and the HTTP server until `stopping` is set; then the stages end what they began."""
    tasks = {name: asyncio.create_task(stage.run(service.stopping), name=name) for name, stage in service.stages}
    service.running.update(tasks)
    try:
        await serve_http(service.app, sock, stopping=service.stopping, on_ready=on_ready)
    finally:
        service.stopping.set()
        _done, late = await asyncio.wait(tasks.values(), timeout=STAGE_WAIT_S)
        for task in late:
            log.warning("a stage did not end in time", action="stage_cancelled", stage=task.get_name())
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


def _greet(settings: Settings, tokens: Tokens, say: Callable[[str], None]) -> None:
    say(f"tunewarden listens at {settings.service_url}")
    if tokens.fresh:
        say("For alertmanager.yml (the route to `tunewarden` is yours to add):")
        say(alertmanager_lines(settings.service_url, settings.webhook_token))
    else:
        say("`tunewarden check --alertmanager` prints the lines for alertmanager.yml")
