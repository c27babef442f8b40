"""The stages, each with what it needs."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import httpx

from tunewarden.adapters.alertmanager_api import AlertmanagerApi
from tunewarden.adapters.dingtalk_address import proxy_for, robot_address
from tunewarden.adapters.prometheus import Prometheus
from tunewarden.adapters.store import outbox
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.prune import PruneAges
from tunewarden.api.wire import alerts_of
from tunewarden.config import Settings, environment
from tunewarden.domain.budget import Caps
from tunewarden.domain.choice import Rules
from tunewarden.domain.policy import Policy
from tunewarden.domain.target import Secret, Target
from tunewarden.messages.render import Renderer
from tunewarden.pipeline.commands import Commands
from tunewarden.pipeline.deciding import Deciding
from tunewarden.pipeline.diagnosing import Diagnosing
from tunewarden.pipeline.dispatcher import Dispatcher
from tunewarden.pipeline.gathering import Sources
from tunewarden.pipeline.moves import Acting
from tunewarden.pipeline.reporter import Reporter
from tunewarden.pipeline.upkeep import Upkeep
from tunewarden.pipeline.verifier import NoPrometheus, Verifier
from tunewarden.pipeline.watch import MISSED_HEARTBEATS, SHORTEST_SILENCE_S, Watch
from tunewarden.pipeline.worker import Worker
from tunewarden.ports import Clock, Robot
from tunewarden.telemetry import Metrics


class Stage(Protocol):
    """Something that runs until it is told to stop."""

    async def run(self, stopping: asyncio.Event) -> None: ...


def targets_of(settings: Settings) -> list[Target]:
    """The robots of the settings, the default one first, each with the proxy that holds for it."""
    variables = environment()
    https_proxy = variables.get("HTTPS_PROXY") or variables.get("https_proxy") or ""
    no_proxy = variables.get("NO_PROXY") or variables.get("no_proxy") or ""
    found = []
    for section in settings.dingtalk:
        target = section.target()
        proxy = proxy_for(robot_address(target).host, https_proxy, no_proxy)
        if target.proxy is None and proxy:
            target = replace(target, proxy=Secret(proxy))
        found.append(target)
    return sorted(found, key=lambda target: target.name != settings.default_target)


def stages_of(
    settings: Settings,
    policies: tuple[Policy, ...],
    store: Store,
    clock: Clock,
    acting: Acting,
    metrics: Metrics,
    client: httpx.AsyncClient,
    targets: Sequence[Target],
    robots: Mapping[str, Robot],
) -> list[tuple[str, Stage]]:
    """The stages by name, in the order in which an event goes through them."""
    heartbeat_s = settings.heartbeat.total_seconds()
    prometheus = Prometheus(settings.prometheus_url, client) if settings.prometheus_url else None
    alertmanager = AlertmanagerApi(settings.alertmanager_url, client) if settings.alertmanager_url else None
    sources = Sources(
        prometheus=prometheus,
        alertmanager=alertmanager,
        diagnose=Diagnosing(prometheus) if prometheus else None,
    )
    dispatcher = Dispatcher(
        store,
        clock,
        alerts_of,
        deciding_of(settings, policies),
        sources=sources,
        acting=acting,
        metrics=metrics,
        expires_after=settings.episode_expires_after,
    )
    commands = Commands(store, acting, clock, owner=secrets.token_hex(6), own=environment())
    reporter = Reporter(
        store=outbox.OutboxRows(store, clock),
        targets=targets,
        robots=robots,
        clock=clock,
        renderer=Renderer(),
        boundary=acting.boundary,
        counted=lambda target, outcome: metrics.messages.labels(target=target, outcome=outcome).inc(),
    )
    return [
        ("dispatcher", dispatcher),
        ("worker", Worker(store, acting, clock, commands, prometheus or NoPrometheus())),
        ("verifier", Verifier(store, acting, clock, prometheus or NoPrometheus(), heartbeat_s=heartbeat_s)),
        ("watch", Watch(store, acting, clock, silence_s=silence_s(heartbeat_s))),
        ("reporter", WokenReporter(store, reporter)),
        ("upkeep", Upkeep(store, clock, _ages(settings), every=settings.prune.every)),
    ]


def deciding_of(settings: Settings, policies: tuple[Policy, ...]) -> Deciding:
    """What the settings and the policies say about deciding."""
    caps = Caps(
        actions_per_hour=settings.limits.actions_per_hour,
        share_from_jobs=settings.limits.share_from_jobs,
        share_percent=settings.limits.share_percent,
    )
    return Deciding(
        policies=policies,
        rules=Rules(enforce=settings.enforce, caps=caps),
        node_aliases=settings.node_aliases,
        close_after=settings.episode_close_after,
        heartbeat_s=settings.heartbeat.total_seconds(),
    )


def silence_s(heartbeat_s: float) -> float:
    """How long a job may say nothing: three heartbeats, and at least 15 s."""
    return max(MISSED_HEARTBEATS * heartbeat_s, SHORTEST_SILENCE_S)


def _ages(settings: Settings) -> PruneAges:
    kept = settings.prune
    return PruneAges(
        deliveries=kept.deliveries,
        decisions=kept.decisions,
        remediations=kept.remediations,
        audit=kept.audit,
        outbox=kept.outbox,
        deliveries_bytes=kept.deliveries_bytes,
    )


class WokenReporter:
    """The reporter, woken by every commit that added a message."""

    def __init__(self, store: Store, reporter: Reporter) -> None:
        self._store, self._reporter = store, reporter

    async def run(self, stopping: asyncio.Event) -> None:
        waking = asyncio.create_task(self._wake(stopping))
        try:
            await self._reporter.run(stopping)
        finally:
            waking.cancel()

    async def _wake(self, stopping: asyncio.Event) -> None:
        with self._store.subscribe(outbox.TOPIC) as woken:
            while not stopping.is_set():
                await woken.wait(60.0)
                self._reporter.wake()
