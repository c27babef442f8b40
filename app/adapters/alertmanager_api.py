"""Which alerts Alertmanager has now: GET /api/v2/alerts (0.16 and later)."""

import re

import httpx

from tunewarden.errors import Permanent, Retryable

TIMEOUT_S = 2.0


class AlertmanagerApi:
    """One Alertmanager. `client` is the caller's: it closes it."""

    def __init__(self, url: str, client: httpx.AsyncClient, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._client = client
        self._timeout_s = timeout_s

    async def firing(self) -> frozenset[str]:
        """The fingerprints of all alerts that fire, silenced and inhibited ones included; resolved ones aren't listed.

        Raises Retryable when it can't be asked now, Permanent when what answers is no Alertmanager.
        """
        shown = re.sub(r"//[^/@]*@", "//", self._url)
        try:
            answer = await self._client.get(self._url + "/api/v2/alerts", timeout=self._timeout_s)
        except httpx.HTTPError as error:
            raise Retryable(f"{shown} can't be reached ({type(error).__name__})") from None
        except httpx.InvalidURL as error:
            raise Permanent(f"{shown} is no URL: {error}") from None
        if answer.status_code >= 500 or answer.status_code == 429:
            raise Retryable(f"{shown} answered {answer.status_code}")
        try:
            rows = answer.raise_for_status().json()
            return frozenset(str(row["fingerprint"]) for row in rows)
        except (httpx.HTTPStatusError, ValueError, TypeError, KeyError):
            raise Permanent(f"{shown} answered {answer.status_code} and no list of alerts") from None
