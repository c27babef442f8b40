"""The receiver: POST /api/v1/alertmanager. Check, commit the raw body, answer. Work begins after the answer.

A plain ASGI application in front of FastAPI: a delivery does not need routing, dependencies or response models, and
they cost more than the commit. Alertmanager retries 5xx and nothing else (notify/util.go), so 503 is for what may be
better next time, 4xx for what won't. Bodies of answers are fixed: Alertmanager writes them into its log.
"""

import time
from asyncio import timeout
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tunewarden.adapters.tokens import WEBHOOK_PATH
from tunewarden.api.auth import Door, Entry, authorization
from tunewarden.api.wire import NotJson, WrongShape, parse
from tunewarden.errors import StoreUnavailable
from tunewarden.telemetry import Metrics

log = structlog.get_logger(__name__)

PATHS = frozenset({WEBHOOK_PATH, WEBHOOK_PATH + "/"})
BODY_WITHIN_S = 60.0  # a body that comes slower than this is given up

# All that is ever said: status -> body.
BODIES: dict[int, bytes] = {
    202: b'{"status":"accepted"}',
    400: b'{"error":"not JSON"}',
    401: b'{"error":"wrong or missing token"}',
    403: b'{"error":"this token is for another part of the API"}',
    405: b'{"error":"only POST"}',
    408: b'{"error":"the body did not come in time"}',
    413: b'{"error":"the body is too large"}',
    422: b'{"error":"not an Alertmanager payload of version 4"}',
    503: b'{"error":"can\'t store now, send again"}',
}

Commit = Callable[[bytes, str, float], Awaitable[None]]  # body, remote address, received_at (epoch seconds)


class TooLarge(Exception):
    """The body is larger than max_body_bytes."""


class Gone(Exception):
    """The client went away before its body was whole."""


class WallClock(Protocol):
    def __call__(self) -> float: ...


class Receiver:
    """Answers the webhook's paths and hands everything else to `app`."""

    def __init__(
        self, app: ASGIApp, *, commit: Commit, door: Door, max_body_bytes: int, metrics: Metrics, wall: WallClock
    ) -> None:
        self._app = app
        self._commit = commit
        self._door = door
        self._max_body_bytes = max_body_bytes
        self._metrics = metrics
        self._wall = wall
        self._answers = {status: _answer(status, body) for status, body in BODIES.items()}
        self._counters = {status: metrics.deliveries.labels(status=str(status)) for status in BODIES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        try:
            status = await self._status(scope, receive)
        except Gone:
            self._metrics.deliveries.labels(status="aborted").inc()
            return
        except Exception:  # the receiver's loop boundary: an error of ours must not lose the event, so 503
            log.exception("a delivery failed", action="delivery_failed")
            status = HTTPStatus.SERVICE_UNAVAILABLE
        self._counters[status].inc()
        start, body = self._answers[status]
        await send(start)
        await send(body)
        self._metrics.delivery_seconds.observe(time.perf_counter() - begun)

    async def _status(self, scope: Scope, receive: Receive) -> int:
        remote = scope["client"][0] if scope.get("client") else ""
        if scope["method"] != "POST":
            # A proxy that redirects http to https by 301 turns Alertmanager's POST into a GET, and all alerts are lost.
            log.warning("the webhook takes only POST", action="webhook_method", method=scope["method"], remote=remote)
            return 405
        entry = self._door.check(authorization(scope["headers"]))
        if entry is not Entry.OPEN:
            log.warning("a delivery had no good token", action="webhook_denied", status=int(entry), remote=remote)
            return int(entry)
        try:
            body = await self._body(scope, receive)
            parse(body)
            await self._commit(body, remote, self._wall())
        except TooLarge:
            log.error(
                "a delivery is too large: Alertmanager won't send it again", action="webhook_too_large", remote=remote
            )
            return 413
        except TimeoutError:
            return 408
        except NotJson:
            log.warning("a delivery is not JSON", action="webhook_not_json", remote=remote, bytes=len(body))
            return 400
        except WrongShape as error:
            log.warning(
                "a delivery has the wrong shape", action="webhook_wrong_shape", remote=remote, detail=str(error)
            )
            return 422
        except StoreUnavailable as error:
            log.error("a delivery can't be stored", action="webhook_not_stored", remote=remote, detail=str(error))
            return 503
        self._metrics.delivery_bytes.inc(len(body))
        return 202

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body. What is sent beyond the limit is dropped by the server after the answer."""
        if _content_length(scope) > self._max_body_bytes:
            raise TooLarge
        message = await receive()
        body: bytes = _chunk(message)
        if not message.get("more_body", False):
            return self._within(body)
        parts = [body]
        size = len(body)
        async with timeout(BODY_WITHIN_S):
            while message.get("more_body", False):
                message = await receive()
                parts.append(_chunk(message))
                size += len(parts[-1])
                if size > self._max_body_bytes:
                    raise TooLarge
        return b"".join(parts)

    def _within(self, body: bytes) -> bytes:
        if len(body) > self._max_body_bytes:
            raise TooLarge
        return body


def _chunk(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise Gone
    chunk: bytes = message.get("body", b"")
    return chunk


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


def _answer(status: int, body: bytes) -> tuple[Message, Message]:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 405:
        headers.append((b"allow", b"POST"))
    return (
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    )
