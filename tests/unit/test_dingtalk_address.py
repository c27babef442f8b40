"""The robot's URL in the settings, and the signature of a send."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from tunewarden.adapters.dingtalk_address import proxy_for, robot_address, warnings_of
from tunewarden.domain.target import Secret, Target
from tunewarden.errors import SettingsError

URL = "https://oapi.dingtalk.com/robot/send?access_token=tok3n"
NOW = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)


def target(url: str = URL, **changes: object) -> Target:
    return Target(name="ops", robot_url=Secret(url), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (URL + "&timestamp=1&sign=x", "it holds sign, timestamp"),
        (URL + "&secret=SECabc", "it holds secret"),
        (URL + "&at=138", "not at"),
        ("https://oapi.dingtalk.com/robot/send", "no access_token"),
        ("https://oapi.dingtalk.com/robot/send?access_token=", "no access_token"),
        ("http://oapi.dingtalk.com/robot/send?access_token=tok3n", "https://"),
        ("https://oapi.dingtalk.com/topapi/x?access_token=tok3n", "the form"),
        ("https://user@oapi.dingtalk.com/robot/send?access_token=tok3n", "the form"),
        ("https://evil.example/robot/send?access_token=tok3n", "evil.example is not allowed"),
        ("https://oapi.dingtalk.com.evil.example/robot/send?access_token=tok3n", "is not allowed"),
        ("http://127.0.0.1:8080/robot/send?access_token=tok3n", "127.0.0.1 is not allowed"),
        ("http://169.254.169.254/robot/send?access_token=tok3n", "is not allowed"),
        ("https://oapi.dingtalk.com:x/robot/send?access_token=tok3n", "no URL"),
        ("", "(none) is not allowed"),
    ],
)
def test_a_wrong_url_is_refused_with_its_fault_and_without_its_token(url: str, said: str):
    """The message names the target and the fault; the token stays out of it."""
    with pytest.raises(SettingsError) as caught:
        robot_address(target(url))

    text = str(caught.value)
    assert text.startswith("target ops: robot URL: ") and said in text
    assert [word for word in ("tok3n", "SECabc") if word in text] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_is_spoken_to_only_when_it_is_allowed(host: str):
    """A stand-in on this host works by plain http, once the settings name it."""
    shown = f"[{host}]" if ":" in host else host
    address = robot_address(target(f"http://{shown}:8080/robot/send?access_token=t", allowed_hosts=(host,)))

    assert address.base == f"http://{shown}:8080/robot/send"


def test_an_allowed_host_beyond_loopback_needs_https():
    """A relay inside the company is fine; the token doesn't go over the network in the clear."""
    with pytest.raises(SettingsError, match="https"):
        robot_address(target("http://relay.example/robot/send?access_token=t", allowed_hosts=("relay.example",)))


def signature_of(url: str) -> tuple[str, str]:
    query = parse_qs(urlsplit(url).query)
    return query["timestamp"][0], query["sign"][0]


def test_the_signature_verifies_as_dingtalk_writes_it_down():
    """HMAC-SHA256 of "timestamp, newline, secret" under the secret, base64, over the decoded query."""
    timestamp, sign = signature_of(robot_address(target(secret=Secret("SECabc"))).signed(NOW))
    digest = hmac.new(b"SECabc", f"{timestamp}\nSECabc".encode(), hashlib.sha256).digest()

    assert (timestamp, sign) == ("1796007600000", base64.b64encode(digest).decode())


def test_each_send_is_signed_anew():
    """61 minutes later an old signature would be refused; the next one has its own time."""
    address = robot_address(target(secret=Secret("SECabc")))
    first, second = (signature_of(address.signed(NOW + timedelta(minutes=minutes))) for minutes in (0, 61))

    assert int(second[0]) - int(first[0]) == 61 * 60 * 1000
    assert first[1] != second[1]


def test_without_a_secret_nothing_is_signed():
    """Keyword mode: the address is the token alone."""
    assert robot_address(target()).signed(NOW) == URL


@pytest.mark.parametrize(("changes", "count"), [({}, 1), ({"keyword": "GPU"}, 0), ({"secret": Secret("SECabc")}, 0)])
def test_a_target_without_secret_and_keyword_is_warned_of(changes: dict[str, object], count: int):
    """It can work only by the robot's IP list."""
    assert len(warnings_of(target(**changes))) == count


@pytest.mark.parametrize(
    ("no_proxy", "proxy"),
    [
        ("", "http://proxy:3128"),
        ("localhost,10.0.0.0", "http://proxy:3128"),
        ("oapi.dingtalk.com", None),
        ("localhost, .dingtalk.com", None),
        ("*", None),
    ],
)
def test_no_proxy_is_honoured(no_proxy: str, proxy: str | None):
    """The forms that curl and Python know."""
    assert proxy_for("oapi.dingtalk.com", "http://proxy:3128", no_proxy) == proxy


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_is_never_reached_by_a_proxy(host: str):
    """A stand-in on this host is spoken to directly, whatever the environment says."""
    assert proxy_for(host, "http://proxy:3128", "") is None


def test_a_proxy_without_a_scheme_is_taken():
    """`HTTPS_PROXY=proxy:3128` is common, and curl takes it."""
    assert proxy_for("oapi.dingtalk.com", "proxy:3128", "") == "http://proxy:3128"
