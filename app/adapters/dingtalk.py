"""The DingTalk custom robot: one POST a message, signed at the moment it is sent."""

import asyncio
import json
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tunewarden.adapters.dingtalk_address import RobotAddress, robot_address
from tunewarden.adapters.dingtalk_answers import Answer, classify, proxy_refused
from tunewarden.domain.message import Message
from tunewarden.domain.outbox import Outcome, SendResult
from tunewarden.domain.target import Target
from tunewarden.errors import SettingsError
from tunewarden.ports import Clock

LIMIT_BYTES = 20_000  # of the whole body (errcode 460101); the official page says "about 20,000 bytes"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
TOTAL_SECONDS = 20.0  # an answer that drips byte by byte never times out otherwise

# Every error of a request, the most special first: may the message have been delivered, and what to say.
_FAILURES: tuple[tuple[type[Exception], bool, str], ...] = (
    (httpx.ProxyError, False, "the proxy {proxy} could not be used"),
    (httpx.ConnectTimeout, False, "no connection to {via} within 5 s"),
    (httpx.PoolTimeout, False, "no free connection to {via}"),
    (httpx.ConnectError, False, "no connection to {via}"),
    (httpx.UnsupportedProtocol, False, "the address of the robot or of the proxy can't be used"),
    (httpx.LocalProtocolError, False, "the request could not be written"),
    (httpx.ReadTimeout, True, "no answer from {host} within 10 s"),
    (httpx.WriteTimeout, True, "{host} did not take the whole message in time"),
    (httpx.RemoteProtocolError, True, "{host} closed the connection without an answer"),
    (httpx.HTTPError, True, "the connection to {host} broke"),
)


class DingTalkRobot:
    """One robot. Made from a checked target; raises SettingsError when the address or the CA file can't be used."""

    limit_bytes = LIMIT_BYTES

    def __init__(
        self,
        target: Target,
        clock: Clock,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        total_seconds: float = TOTAL_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._address: RobotAddress = robot_address(target)
        self._clock = clock
        self._proxy = _proxy_host(target)
        self._total_seconds = total_seconds
        self._client = httpx.AsyncClient(
            trust_env=False,  # the environment is read in one place, the settings
            proxy=target.proxy.reveal() if target.proxy else None,
            verify=_trusted(target),
            # A kept connection that the robot has just closed looks like a lost answer, and would be marked so.
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=httpx.Timeout(answer_seconds, connect=CONNECT_SECONDS),
            follow_redirects=False,
            transport=transport,
        )
        silence_addresses()

    def size(self, message: Message) -> int:
        return len(body_of(message))

    async def send(self, message: Message) -> SendResult:
        url = self._address.signed(self._clock.now())
        headers = {"Content-Type": "application/json; charset=utf-8"}
        try:
            async with asyncio.timeout(self._total_seconds):
                response = await self._client.post(url, content=body_of(message), headers=headers)
        except TimeoutError:
            detail = f"no whole answer from {self._address.host} in time"
            return SendResult(outcome=Outcome.RETRY, detail=detail, lost=True)
        except httpx.HTTPError as error:
            return self._failed(error)
        answer = Answer(status=response.status_code, body=response.content, date=response.headers.get("Date", ""))
        return classify(answer, proxy=self._proxy, now=self._clock.now())

    async def aclose(self) -> None:
        await self._client.aclose()

    def _failed(self, error: httpx.HTTPError) -> SendResult:
        """The texts are our own: an exception of the library may hold an address, and the address holds the token."""
        if isinstance(error, httpx.ProxyError) and "407" in str(error):
            return proxy_refused(self._proxy)
        lost, words = next((lost, words) for kind, lost, words in _FAILURES if isinstance(error, kind))
        host = self._address.host
        via = f"{host} through the proxy {self._proxy}" if self._proxy else host
        detail = words.format(host=host, via=via, proxy=self._proxy) + _hint(error)
        return SendResult(outcome=Outcome.RETRY, detail=detail, lost=lost)


def body_of(message: Message) -> bytes:
    """The JSON body. Characters stay as UTF-8: escaped as \\uXXXX a Chinese text is twice as large."""
    at: Mapping[str, object] = {
        "atMobiles": list(message.at_mobiles),
        "atUserIds": list(message.at_user_ids),
        "isAtAll": False,
    }
    body = {"msgtype": "markdown", "markdown": {"title": message.title, "text": message.text}, "at": at}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class _NoAddresses(logging.Filter):
    """httpx logs every request with its whole address at INFO; ours holds the access token and the signature."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "access_token" not in record.getMessage()


def silence_addresses() -> None:
    """Keeps robot addresses out of httpx's own log. Safe to call again."""
    logger = logging.getLogger("httpx")
    if not any(isinstance(present, _NoAddresses) for present in logger.filters):
        logger.addFilter(_NoAddresses())


def _trusted(target: Target) -> ssl.SSLContext | bool:
    """The authorities to trust: the usual ones, and those of the target's bundle besides."""
    if not target.ca_bundle:
        return True
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cafile=Path(target.ca_bundle))
    except OSError as error:  # an ssl.SSLError too
        raise SettingsError(
            f"target {target.name}: ca_bundle {target.ca_bundle} can't be used ({error.strerror or error}); "
            "it must be a PEM file that this service can read"
        ) from None
    return context


def _proxy_host(target: Target) -> str:
    """host:port of the proxy, without the name and password that its URL may hold; empty without a proxy."""
    if target.proxy is None:
        return ""
    try:
        parts = urlsplit(target.proxy.reveal())
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"}:
        raise SettingsError(f"target {target.name}: proxy: it must have the form http://[name:password@]host:port")
    return f"{host}:{port}" if port else host


def _hint(error: BaseException) -> str:
    """What to look at, from the error below httpx's."""
    text = str(error).lower()
    if "certificate verify failed" in text:
        return ": its certificate is signed by nobody that is trusted (name the company's CA file in `ca_bundle`)"
    if "name or service not known" in text or "name resolution" in text or "nodename nor servname" in text:
        return ": the name can't be resolved (DNS of this host or container)"
    if "refused" in text:
        return ": connection refused"
    return ""
