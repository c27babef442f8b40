"""/-/healthy, /-/ready and /metrics."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from tunewarden.api.auth import Denied, Door, Entry, authorization

EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Health:
    """What the routes need. `problems` are one line each, empty when the service can do its work."""

    problems: Callable[[], Awaitable[list[str]]]
    exposition: Callable[[], bytes]
    metrics_door: Door | None  # None: open, for only this machine can reach us


def health_router(health: Health) -> APIRouter:
    """The three routes."""
    router = APIRouter(include_in_schema=False)

    @router.get("/-/healthy")
    async def healthy() -> PlainTextResponse:
        return PlainTextResponse("tunewarden is healthy\n")

    @router.get("/-/ready")
    async def ready() -> PlainTextResponse:
        problems = await health.problems()
        if problems:
            return PlainTextResponse("\n".join(problems) + "\n", status_code=503)
        return PlainTextResponse("tunewarden is ready\n")

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        if health.metrics_door is not None:
            entry = health.metrics_door.check(authorization(request.scope["headers"]))
            if entry is not Entry.OPEN:
                raise Denied(entry)
        return Response(health.exposition(), headers={"content-type": EXPOSITION_TYPE})

    return router
