"""Prometheus's instant queries: what it answers, and how old the samples behind the answer are.

The age is Prometheus's own (`time() - timestamp(...)`): the times of two hosts are never compared. A recorded series
is as old as its rule's last evaluation; a target that is gone leaves no series at all.
"""

import asyncio
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx
import structlog

from tunewarden.domain.duration import parse_duration
from tunewarden.domain.evidence import Answer
from tunewarden.domain.promql import PromqlError, selectors
from tunewarden.errors import Permanent, Retryable

log = structlog.get_logger(__name__)

TIMEOUT_S = 2.0
DEFAULT_INTERVAL_S = 15.0
_INTERVAL_KEPT_S = 60.0
_AT_ONCE = 16
_AGE = "tunewarden_age_of"  # the label of a row that is an age
# The global section comes first in what Prometheus shows of its configuration (2.42 and 3.x).
_GLOBAL = re.compile(r"^global:\n((?:[ ]+.*\n)*)", re.MULTILINE)
_INTERVALS = re.compile(r"^  (?:scrape|evaluation)_interval: (\S+)$", re.MULTILINE)


class Prometheus:
    """One Prometheus. `client` is the caller's: it closes it. The URL may hold a path and user:password@."""

    def __init__(self, url: str, client: httpx.AsyncClient, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._client = client
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._interval_s = DEFAULT_INTERVAL_S
        self._interval_asked_at = -math.inf

    async def ask(self, expr: str) -> Answer:
        """The answer to one expression.

        Raises Retryable when Prometheus can't be reached or is busy, Permanent when it refuses the expression.
        """
        try:
            read = selectors(expr)
        except PromqlError as error:
            raise Permanent(f"{expr}: {error}") from None
        try:
            rows = await self._query(_with_ages(expr, read))
        except Permanent:  # a scalar, or refused: asked alone, so that the error is about what the person wrote
            rows = await self._query(expr)
            rows += await self._query(_ages(read)) if read else []
        found = [_number(row) for row in rows if not _is_age(row)]
        seen = [_number(row) for row in rows if _is_age(row)]
        missing = len(seen) < len(read)
        return Answer(
            holds=bool(found),
            age_s=None if missing and not found else max(seen, default=0.0),
            value=found[0] if found and math.isfinite(found[0]) else None,
        )

    async def ask_all(self, exprs: Iterable[str]) -> Mapping[str, Answer]:
        """The answers to all expressions, each asked once, within the time-out of one. What fails is left out."""
        asked = {expr: asyncio.create_task(self.ask(expr)) for expr in dict.fromkeys(exprs)}
        if not asked:
            return {}
        done, late = await asyncio.wait(asked.values(), timeout=self._timeout_s)
        for query in late:
            query.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return {expr: query.result() for expr, query in asked.items() if query in done and _worked(expr, query)}

    async def scrape_interval_s(self) -> float:
        """The longer of the global scrape and evaluation intervals: a recorded series is no younger than that.

        Asked at most once a minute; 15 s while it isn't known.
        """
        if time.monotonic() - self._interval_asked_at < _INTERVAL_KEPT_S:
            return self._interval_s
        self._interval_asked_at = time.monotonic()
        try:
            data = await self._get("/api/v1/status/config", {})
            section = _GLOBAL.search(str(data.get("yaml", "")))
            found = _INTERVALS.findall(section[1]) if section else []
            lengths = [parse_duration(text).total_seconds() for text in found]
            self._interval_s = max(lengths, default=DEFAULT_INTERVAL_S)
        except (Retryable, Permanent, ValueError) as error:
            log.info("the scrape interval can't be asked", action="prometheus_unasked", error=str(error))
        return self._interval_s

    async def _query(self, expr: str) -> list[Any]:
        data = await self._get("/api/v1/query", {"query": expr})
        result = data.get("result")
        if data.get("resultType") in ("scalar", "string"):
            result = [{"value": result}]
        if not isinstance(result, list):
            raise Permanent(f"{self._shown}: the answer has no result")
        return result

    async def _get(self, path: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        method = "POST" if form else "GET"
        try:
            async with self._slots:
                answer = await self._client.request(
                    method, self._url + path, data=form or None, timeout=self._timeout_s
                )
        except httpx.HTTPError as error:
            raise Retryable(f"{self._shown} can't be reached ({type(error).__name__})") from None
        except httpx.InvalidURL as error:
            raise Permanent(f"{self._shown} is no URL: {error}") from None
        return self._data(answer)

    def _data(self, answer: httpx.Response) -> Mapping[str, Any]:
        if answer.status_code >= 500 or answer.status_code == 429:
            raise Retryable(f"{self._shown} answered {answer.status_code}")
        try:
            body = answer.json()
        except ValueError:
            raise Permanent(f"{self._shown} answered {answer.status_code} and no JSON: is it a Prometheus?") from None
        if not isinstance(body, dict) or body.get("status") != "success" or not isinstance(body.get("data"), dict):
            error = str(body.get("error", ""))[:300] if isinstance(body, dict) else ""
            raise Permanent(f"{self._shown} refused ({answer.status_code}): {error}")
        data: Mapping[str, Any] = body["data"]
        return data

    @property
    def _shown(self) -> str:
        """The URL without user:password@."""
        return re.sub(r"//[^/@]*@", "//", self._url)


def _with_ages(expr: str, read: Sequence[str]) -> str:
    """The expression and its ages as one: a round trip costs more than what Prometheus does for it."""
    return f"({expr}\n) or {_ages(read)}" if read else expr  # the line may end in a comment


def _ages(read: Sequence[str]) -> str:
    """The age of each selector's oldest sample, in seconds; one that finds no series is left out."""
    ages = (f'label_replace(max(time() - timestamp({each})), "{_AGE}", "{at}", "", "")' for at, each in enumerate(read))
    return " or ".join(ages)


def _is_age(row: Any) -> bool:
    return isinstance(row, dict) and _AGE in (row.get("metric") or {})


def _number(row: Any) -> float:
    try:
        return float(row["value"][1])
    except (TypeError, KeyError, IndexError, ValueError):
        return math.nan


def _worked(expr: str, query: "asyncio.Task[Answer]") -> bool:
    error = query.exception()
    if error is None:
        return True
    if not isinstance(error, Retryable | Permanent):
        raise error
    log.warning("Prometheus gave no evidence", action="prometheus_unasked", expr=expr, error=str(error))
    return False
