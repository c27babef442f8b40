"""The FastAPI application: routers are handed in; here is what they all share."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tunewarden.adapters.tokens import WEBHOOK_PATH
from tunewarden.api.auth import Denied
from tunewarden.api.webhook import BODIES
from tunewarden.api.wire import Payload
from tunewarden.errors import StoreUnavailable
from tunewarden.telemetry import Metrics

log = structlog.get_logger(__name__)

_TEXTS = {
    401: "wrong or missing token",
    403: "this token is for another part of the API",
    404: "no such path",
    405: "wrong method",
    422: "wrong shape",
    500: "an error of the service; its log says more",
    503: "can't store now, send again",
}


def create_app(*, routers: Sequence[APIRouter], metrics: Metrics) -> FastAPI:
    """The API without the webhook, which stands before it (webhook.Receiver). No redirects, no pages from elsewhere."""
    app = FastAPI(
        title="tunewarden", redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json"
    )
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _http_errors(metrics))
    app.add_exception_handler(Denied, _denied)
    app.add_exception_handler(RequestValidationError, _wrong_shape)
    app.add_exception_handler(StoreUnavailable, _not_stored)
    app.add_exception_handler(Exception, _unexpected)
    made = app.openapi

    def openapi() -> dict[str, Any]:
        return with_webhook(made())

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the schema
    return app


def with_webhook(schema: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI description with the webhook added: it is no FastAPI route."""
    payload = Payload.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(payload.pop("$defs", {}), Payload=payload)
    schema["components"].setdefault("securitySchemes", {})["webhook"] = {"type": "http", "scheme": "bearer"}
    answers = {
        str(status): {"description": text.decode(), "content": {"application/json": {"schema": {"type": "object"}}}}
        for status, text in BODIES.items()
    }
    operation = {
        "operationId": "alertmanager",
        "summary": "Take a delivery of Alertmanager",
        "security": [{"webhook": []}],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Payload"}}},
        },
        "responses": answers,
    }
    schema.setdefault("paths", {})[WEBHOOK_PATH] = {"post": operation}
    return schema


Handler = Callable[[Request, Exception], Awaitable[JSONResponse]]


def _error(status: int) -> JSONResponse:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": _TEXTS.get(status, "not possible")}, status_code=status, headers=headers)


def _http_errors(metrics: Metrics) -> Handler:
    async def answer(request: Request, error: Exception) -> JSONResponse:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404 and request.method == "POST":
            metrics.wrong_paths.inc()
            log.warning(
                "nothing is here; Alertmanager's url must end in the right path",
                action="wrong_path",
                path=request.url.path[:200],
                right_path=WEBHOOK_PATH,
            )
        return _error(status)

    return answer


async def _denied(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Denied)
    log.warning("a request had no good token", action="api_denied", path=request.url.path[:200])
    return _error(int(error.entry))


async def _wrong_shape(_request: Request, _failure: Exception) -> JSONResponse:
    return _error(422)


async def _not_stored(_request: Request, error: Exception) -> JSONResponse:
    log.error("a request can't be stored", action="api_not_stored", detail=str(error))
    return _error(503)


async def _unexpected(_request: Request, _failure: Exception) -> JSONResponse:
    return _error(500)  # Starlette logs the traceback, and raises it to the server's log
