"""Who may come in: bearer tokens, and basic authentication for the webhook."""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from fastapi import Request

from tunewarden.adapters.tokens import same


class Entry(IntEnum):
    """The answer of a door, as an HTTP status."""

    OPEN = 200
    UNKNOWN = 401  # no credentials, or wrong ones
    FORBIDDEN = 403  # the credentials of another door


class Denied(Exception):
    """The caller may not come in."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self.entry = entry


@dataclass(frozen=True, kw_only=True)
class Door:
    """What opens one part of the API. `others` are good tokens for other parts: they get 403, which says so."""

    tokens: tuple[bytes, ...]
    others: tuple[bytes, ...] = ()
    basic: bytes | None = None  # b"user:password"

    def __post_init__(self) -> None:
        if not self.tokens or not all(self.tokens):
            raise ValueError("a door without a token would be open to everybody")

    def check(self, authorization: bytes | None) -> Entry:
        """Look at the value of the Authorization header. Every known secret is compared, whatever the first said."""
        scheme, _, rest = (authorization or b"").partition(b" ")
        given = rest.strip()
        kind = scheme.lower()
        if kind == b"basic" and self.basic is not None:
            return Entry.OPEN if same(_decoded(given), self.basic) else Entry.UNKNOWN
        if kind != b"bearer":
            return Entry.UNKNOWN
        if _any_same(given, self.tokens):
            return Entry.OPEN
        return Entry.FORBIDDEN if _any_same(given, self.others) else Entry.UNKNOWN


def _any_same(given: bytes, tokens: Iterable[bytes]) -> bool:
    return sum(same(given, token) for token in tokens) > 0  # no early end tells which one it was


def _decoded(value: bytes) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return b""


def authorization(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The first Authorization header of an ASGI scope."""
    for name, value in headers:
        if name == b"authorization":
            return value
    return None


@dataclass(frozen=True, kw_only=True)
class Guard:
    """A FastAPI dependency that lets only the door's callers in; `create_app` answers the others.

    Raises Denied.
    """

    door: Door

    def __call__(self, request: Request) -> None:
        entry = self.door.check(authorization(request.scope["headers"]))
        if entry is not Entry.OPEN:
            raise Denied(entry)
