"""The service, from the agent's side: one method a call of docs/reference/jobs-api.md."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from tunewarden.errors import Permanent, Retryable

PROTOCOL = 1
LONG_POLL_S = 30.0
_CONNECT_S = 3.0
_READ_S = 10.0
_WORTH_RETRYING = frozenset({408, 425, 429})
_TOKEN_REFUSED = frozenset({401, 403})


class NoToken(Retryable):
    """The token can't be read, or the service refuses it: another may lie in its file at any time."""


class UnknownJob(Permanent):
    """The service does not know this job: register again."""


class Service:
    """Raises Retryable where a later call may do, UnknownJob for 404, Permanent for any other refusal.

    The token is read from its file for each call, so a rotated token works at once. Safe to use from several threads.
    """

    def __init__(self, url: str, token_file: Path | None, job_id: str) -> None:
        base = url.rstrip("/")
        self._token_file = token_file
        self._job = f"/api/v1/jobs/{quote(job_id, safe='')}"
        # A proxy is for the world outside: it can't reach our own loopback, and must not see the token on the way.
        self._http = httpx.Client(
            base_url=base,
            trust_env=not is_loopback(base),
            timeout=httpx.Timeout(_READ_S, connect=_CONNECT_S),
            follow_redirects=False,
        )

    def register(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._json(self._call("PUT", self._job, body))

    def heartbeat(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._json(self._call("POST", f"{self._job}/heartbeat", body))

    def report(self, order_id: str, phase: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        path = f"{self._job}/orders/{quote(order_id, safe='')}/reports/{quote(phase, safe='')}"
        return self._json(self._call("PUT", path, body))

    def event(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._json(self._call("POST", f"{self._job}/events", body))

    def order(self, generation: int, wait_s: float = LONG_POLL_S) -> Mapping[str, Any] | None:
        """The open order of this job, as it came; None when there was none for `wait_s` seconds."""
        answer = self._call(
            "GET",
            f"{self._job}/order",
            params={"generation": generation, "wait": int(wait_s)},
            timeout=httpx.Timeout(wait_s + _READ_S, connect=_CONNECT_S),
        )
        return None if answer.status_code == 204 else self._json(answer)

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, json=body, headers=self._headers(), **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Retryable(f"{method} {path}: {error!r}") from error
        if answer.is_success:
            return answer
        text = f"{method} {path}: {answer.status_code}"
        if answer.status_code == 404:
            raise UnknownJob(text)
        if answer.status_code in _TOKEN_REFUSED:
            which = f"the token in {self._token_file}" if self._token_file else "a call without a token"
            raise NoToken(f"the service refuses {which} ({answer.status_code})")
        if answer.status_code in _WORTH_RETRYING or answer.status_code >= 500:
            raise Retryable(text)
        raise Permanent(text)

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError as error:
            raise NoToken(f"no token lies in {self._token_file} (`tunewarden serve` makes it, on its host)") from error
        except OSError as error:
            raise NoToken(f"the token in {self._token_file} can't be read ({error.strerror})") from error
        return {"Authorization": f"Bearer {token}"}

    @staticmethod
    def _json(answer: httpx.Response) -> Mapping[str, Any]:
        if not answer.content:
            return {}
        try:
            raw = answer.json()
        except ValueError as error:
            raise Retryable(f"{answer.request.url.path}: the answer is no JSON") from error
        return raw if isinstance(raw, dict) else {}


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine itself."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
