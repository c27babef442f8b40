"""The HTTP application: the webhook in front, the API and health behind it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.adapters.store import deliveries
from tunewarden.adapters.store.engine import Store
from tunewarden.api.app import create_app
from tunewarden.api.auth import Door, Guard
from tunewarden.api.deps import ApiDeps
from tunewarden.api.exposition import exposition
from tunewarden.api.health import Health, health_router
from tunewarden.api.jobs import jobs_router
from tunewarden.api.people import people_router
from tunewarden.api.webhook import Receiver
from tunewarden.config import Settings
from tunewarden.pipeline.acts import ServiceActs
from tunewarden.pipeline.moves import Acting
from tunewarden.ports import Clock
from tunewarden.telemetry import Metrics


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What opens the doors. `fresh`: the webhook's token was made just now."""

    webhook: str
    agent: str
    metrics: str | None
    basic: bytes | None
    fresh: bool


def application(
    settings: Settings,
    tokens: Tokens,
    store: Store,
    clock: Clock,
    acting: Acting,
    board: SampleBoard,
    metrics: Metrics,
    stopping: asyncio.Event,
    targets: tuple[str, ...],
    problems: Callable[[], list[str]],
) -> Receiver:
    """The webhook in front, the API and health behind it."""
    webhook, agent = tokens.webhook.encode(), tokens.agent.encode()
    readers = (agent, tokens.metrics.encode()) if tokens.metrics else (agent,)
    deps = ApiDeps(
        store=store,
        acts=ServiceActs(store, acting, clock),
        board=board,
        clock=clock,
        guard=Guard(door=Door(tokens=(agent,), others=(webhook,))),
        stopping=stopping,
        targets=targets,
    )

    async def what_is_wrong() -> list[str]:
        trouble = await store.check()
        return [*problems(), *([trouble] if trouble else [])]

    health = Health(
        problems=what_is_wrong,
        exposition=lambda: exposition(board, metrics.registry, clock.monotonic()),
        metrics_door=None if settings.loopback else Door(tokens=readers, others=(webhook,)),
    )

    async def commit(body: bytes, remote: str, received_at: float) -> None:
        row = deliveries.row(source="alertmanager", received_at=received_at, body=body, remote=remote)
        await store.append(deliveries.INSERT, row, topic=deliveries.TOPIC)

    api = create_app(routers=[jobs_router(deps), people_router(deps), health_router(health)], metrics=metrics)
    return Receiver(
        api,
        commit=commit,
        door=Door(tokens=(webhook,), others=(agent,), basic=tokens.basic),
        max_body_bytes=settings.max_body_bytes,
        metrics=metrics,
        wall=time.time,
    )
