"""The receiver and its store alone, in a process of its own: `python -m tests.receiver_app STATE_DIR PORT`.

It makes the token as `tunewarden serve` does. `baseline` instead of STATE_DIR serves tests/bench/baseline.py.
"""

import asyncio
import sys
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from starlette.types import ASGIApp

from tests.bench import baseline
from tunewarden.adapters.store import deliveries
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.tokens import ensure_token
from tunewarden.api.app import create_app
from tunewarden.api.auth import Door
from tunewarden.api.health import Health, health_router
from tunewarden.api.server import listen, run, serve
from tunewarden.api.webhook import Receiver
from tunewarden.telemetry import Metrics, set_up_logging

MAX_BODY_BYTES = 32 * 1024 * 1024


def receiver(store: Store, token: str, *, max_body_bytes: int = MAX_BODY_BYTES, basic: bytes | None = None) -> Receiver:
    """The receiver over `store`, wired as bootstrap does it."""
    metrics = Metrics(registry=CollectorRegistry())

    async def commit(body: bytes, remote: str, received_at: float) -> None:
        row = deliveries.row(source="alertmanager", received_at=received_at, body=body, remote=remote)
        await store.append(deliveries.INSERT, row, topic=deliveries.TOPIC)

    async def problems() -> list[str]:
        trouble = await store.check()
        return [trouble] if trouble else []

    health = Health(problems=problems, exposition=lambda: generate_latest(metrics.registry), metrics_door=None)
    return Receiver(
        create_app(routers=[health_router(health)], metrics=metrics),
        commit=commit,
        door=Door(tokens=(token.encode(),), others=(b"agent-token",), basic=basic),
        max_body_bytes=max_body_bytes,
        metrics=metrics,
        wall=time.time,
    )


async def _serve(app: ASGIApp, port: int) -> None:
    await serve(app, listen("127.0.0.1", port), stopping=asyncio.Event(), on_ready=lambda: None)


async def _main(state: str, port: int) -> None:
    set_up_logging()
    if state == "baseline":
        await _serve(baseline.app, port)
        return
    token, _made = ensure_token(Path(state) / "webhook.token")
    with Store(Path(state) / "tunewarden.db") as store:
        await _serve(receiver(store, token), port)


if __name__ == "__main__":
    run(_main(sys.argv[1], int(sys.argv[2])))
