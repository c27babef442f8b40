"""The address of a DingTalk robot: what may stand in the settings, and the signature of each send."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from urllib.parse import parse_qsl, quote, urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed leaves it out

from tunewarden.domain.target import Secret, Target
from tunewarden.errors import SettingsError

DINGTALK_HOST = "oapi.dingtalk.com"
_SEND_PATH = "/robot/send"
_SIGNING = frozenset({"timestamp", "sign", "secret"})


@dataclass(frozen=True, kw_only=True)
class RobotAddress:
    """Where a robot is, taken apart: the host is no secret, the token is."""

    base: str  # scheme://host[:port]/robot/send
    host: str
    token: Secret
    secret: Secret | None

    def signed(self, now: datetime) -> str:
        """The full address of a post at `now`. The signature holds for an hour, so it is made anew for each send.

        HMAC-SHA256 of "timestamp in ms, newline, secret" under the secret, base64, URL-encoded.
        """
        url = f"{self.base}?access_token={quote(self.token.reveal(), safe='')}"
        if self.secret is None:
            return url
        key = self.secret.reveal()
        timestamp = int(now.timestamp() * 1000)
        digest = hmac.new(key.encode(), f"{timestamp}\n{key}".encode(), hashlib.sha256).digest()
        return f"{url}&timestamp={timestamp}&sign={quote(base64.b64encode(digest), safe='')}"


def robot_address(target: Target) -> RobotAddress:
    """The address of the target's robot.

    Raises SettingsError, which never repeats the URL, when it isn't one that DingTalk shows or its host isn't allowed.
    """
    where = f"target {target.name}: robot URL"
    try:
        parts = urlsplit(target.robot_url.reveal().strip())
        host, port_number = parts.hostname or "", parts.port
    except ValueError:
        raise SettingsError(f"{where}: it is no URL") from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if host != DINGTALK_HOST and host not in target.allowed_hosts:
        raise SettingsError(
            f"{where}: the host {host or '(none)'} is not allowed; "
            f"it must be {DINGTALK_HOST} or be named in allowed_hosts"
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise SettingsError(f"{where}: it must begin with https://")
    if parts.path != _SEND_PATH or parts.username is not None or parts.fragment:
        raise SettingsError(f"{where}: it must have the form https://{DINGTALK_HOST}{_SEND_PATH}?access_token=…")
    _check_query(where, query)
    port = f":{port_number}" if port_number else ""
    shown = f"[{host}]" if ":" in host else host
    base = f"{parts.scheme}://{shown}{port}{_SEND_PATH}"
    return RobotAddress(base=base, host=host, token=Secret(query["access_token"]), secret=target.secret)


def _check_query(where: str, query: Mapping[str, str]) -> None:
    signing = sorted(_SIGNING & query.keys())
    if signing:
        raise SettingsError(
            f"{where}: it holds {', '.join(signing)}; give the URL as DingTalk shows it and the secret as `secret`: "
            "each send is signed anew, and a fixed signature is refused after an hour"
        )
    if not query.get("access_token"):
        raise SettingsError(f"{where}: it has no access_token")
    others = sorted(query.keys() - {"access_token"})
    if others:
        raise SettingsError(f"{where}: only access_token may stand in the query, not {', '.join(others)}")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warnings_of(target: Target) -> list[str]:
    """What `check` says about a target that is not wrong but may not work."""
    if target.secret is None and not target.keyword:
        return [
            f"target {target.name}: neither `secret` nor `keyword` is set: DingTalk takes its messages only if the "
            "robot's security is an IP list that holds this host"
        ]
    return []


def proxy_for(host: str, https_proxy: str, no_proxy: str) -> str | None:
    """The proxy for a host by the values of HTTPS_PROXY and NO_PROXY, which only the settings read.

    Never for loopback, which a proxy can't reach. Like curl it takes a proxy without a scheme.
    """
    if not https_proxy or _is_loopback(host) or proxy_bypass_environment(host, {"no": no_proxy}):
        return None
    return https_proxy if "://" in https_proxy else f"http://{https_proxy}"
