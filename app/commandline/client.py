"""The command line's side of the jobs API."""

import getpass
import os
from pathlib import Path
from typing import Any

import httpx

from tunewarden.errors import TunewardenError

TIMEOUT_S = 10.0


class ServiceAway(TunewardenError):
    """The service can't be reached."""


class ServiceRefused(TunewardenError):
    """The service refuses."""


class ServiceClient:
    """Calls the service with the agent token; the environment's proxies are ignored, loopback needs none."""

    def __init__(self, url: str, token_file: Path) -> None:
        self._url = url.rstrip("/")
        self._token_file = token_file

    def get(self, path: str) -> Any:
        """The JSON answer of a GET.

        Raises ServiceAway or ServiceRefused.
        """
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer of a POST.

        Raises ServiceAway or ServiceRefused.
        """
        return self._call("POST", path, body or {})

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Authorization": f"Bearer {self._token()}", "X-Tunewarden-Actor": _person()}
        try:
            answer = httpx.request(
                method, self._url + path, json=body, headers=headers, timeout=TIMEOUT_S, trust_env=False
            )
        except httpx.HTTPError as error:
            raise ServiceAway(
                f"no service answers at {self._url} ({error}): start it with `tunewarden serve`, or set TUNEWARDEN_URL"
            ) from error
        if answer.status_code == 401:
            raise ServiceRefused(
                f"{self._url} does not know the token in {self._token_file}: use the file that `serve` made"
            )
        content = answer.json() if answer.headers.get("content-type", "").startswith("application/json") else {}
        if answer.is_error:
            reason = f" ({content['reason']})" if content.get("reason") else ""
            raise ServiceRefused(f"{content.get('error') or f'the service answered {answer.status_code}'}{reason}")
        return content

    def _token(self) -> str:
        try:
            return self._token_file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise ServiceAway(
                f"{self._token_file} can't be read ({error.strerror}): `tunewarden serve` makes it at its first start; "
                "on another host, copy it there and set TUNEWARDEN_AGENT_TOKEN_FILE"
            ) from error


def _person() -> str:
    """The user's name for the audit; the uid where it has none, as in a container that was started with `--user`."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return f"uid {os.getuid()}"
