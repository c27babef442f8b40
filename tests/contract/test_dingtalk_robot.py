"""The DingTalk robot against a strict stand-in, broken servers, proxies and certificates."""

import asyncio
import logging
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from tests.acceptance.dingtalk_stand_in import SECRET, TOKEN, DingTalkStandIn
from tunewarden.adapters.dingtalk import DingTalkRobot, body_of
from tunewarden.domain.message import Message
from tunewarden.domain.outbox import Outcome, SendResult
from tunewarden.domain.target import Secret, Target
from tunewarden.errors import SettingsError
from tunewarden.testing import FakeClock

TEXT = "### 已恢复 · cat-lora\n\n@+852-12345678"
MESSAGE = Message(title="已恢复 cat-lora", text=TEXT, at_mobiles=("+852-12345678",))
PASSWORD = "pr0xyPassw0rd"
OK_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"errcode":0,"errmsg":"ok"}'


def real_time() -> FakeClock:
    return FakeClock(datetime.now(UTC))


def send(target: Target, message: Message = MESSAGE, clock: FakeClock | None = None, **options) -> SendResult:
    """One post, from a robot of its own."""

    async def post() -> SendResult:
        robot = DingTalkRobot(target, clock or real_time(), **options)
        try:
            return await robot.send(message)
        finally:
            await robot.aclose()

    return asyncio.run(post())


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[DingTalkStandIn]:
    with DingTalkStandIn(tmp_path / "dingtalk") as robot:
        yield robot


def _whole_request(connection: socket.socket) -> bytes:
    """Head and body: closing with unread bytes would reset the connection before the answer is read."""
    data = b""
    while part := connection.recv(65536):
        data += part
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if end and (length is None or len(body) >= int(length[1])):
            break
    return data


@contextmanager
def server(*answers: bytes | None, tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """A loopback server that answers each connection with the next bytes; None: closes without an answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            try:
                plain, _ = listener.accept()
                with tls.wrap_socket(plain, server_side=True) if tls else plain as connection:
                    seen.append(_whole_request(connection))
                    if answer is not None:
                        connection.sendall(answer)
            except OSError:
                continue  # the client gave up: it doesn't trust us

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], seen
    finally:
        listener.close()
        thread.join(5)


def target_at(port: int, *, scheme: str = "http", host: str = "127.0.0.1", **changes) -> Target:
    url = f"{scheme}://{host}:{port}/robot/send?access_token={TOKEN}"
    return Target(name="ops", robot_url=Secret(url), secret=Secret(SECRET), allowed_hosts=(host,), **changes)


def test_a_message_arrives_whole(stand_in: DingTalkStandIn):
    """Signed, in UTF-8, with its title, its text and its mentions: the strict robot takes it."""
    result = send(stand_in.target())

    (post,) = stand_in.posts()
    assert (result.outcome, post["taken"]) == (Outcome.SENT, True)
    assert (post["title"], post["text"], post["mentions"]) == (MESSAGE.title, MESSAGE.text, ["+852-12345678"])
    assert post["bytes"] == len(body_of(MESSAGE))


def test_a_clock_that_moves_61_minutes_signs_anew(tmp_path: Path):
    """Both sends verify, each at its own hour: no signature is kept."""
    clock = real_time()
    signs = []
    for offset in (0, 61 * 60):
        with DingTalkStandIn(tmp_path / str(offset), "--clock-offset", str(offset)) as robot:
            signs.append(send(robot.target(), clock=clock).outcome)
        clock.advance(61 * 60)

    assert signs == [Outcome.SENT, Outcome.SENT]


def test_a_wrong_clock_is_named_with_its_error(tmp_path: Path):
    """The robot refuses a timestamp 70 minutes off; its Date header says by how much."""
    with DingTalkStandIn(tmp_path, "--clock-offset", "4200") as robot:
        result = send(robot.target())

    assert result.outcome is Outcome.PERMANENT
    assert "this host's clock is wrong" in result.detail
    assert "(70 min) behind DingTalk's" in result.detail or "(69 min) behind DingTalk's" in result.detail


def test_a_wrong_secret_is_refused_by_the_robot(stand_in: DingTalkStandIn):
    """The stand-in does verify: with another secret nothing gets through."""
    result = send(stand_in.target(secret=Secret("SECother")))

    assert (result.outcome, result.whole_target, stand_in.taken()) == (Outcome.PERMANENT, True, [])
    assert "signature" in result.detail


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        (Message(title="t", text=""), Outcome.PERMANENT),
        (Message(title="t", text="no mention here", at_mobiles=("138",)), Outcome.PERMANENT),
        (Message(title="t", text="字" * 7000), Outcome.SHRINK),
    ],
    ids=["empty", "mention not in the text", "21,000 bytes"],
)
def test_the_robot_refuses_what_dingtalk_refuses(stand_in: DingTalkStandIn, message: Message, outcome: Outcome):
    """The stand-in is strict, so a message that it takes is one that DingTalk takes."""
    assert send(stand_in.target(), message).outcome is outcome


def test_a_missing_keyword_is_refused(tmp_path: Path):
    """310000 with the text about keywords is told as that."""
    with DingTalkStandIn(tmp_path, "--keyword", "GPU-ALERT") as robot:
        result = send(robot.target())

    assert "keyword" in result.detail


@pytest.mark.parametrize(
    ("answer", "outcome", "lost", "said"),
    [
        ("hang:5", Outcome.RETRY, True, "no answer from 127.0.0.1"),
        ("close", Outcome.RETRY, True, "closed the connection without an answer"),
        ("http:500", Outcome.RETRY, False, "HTTP 500"),
        ("html:502", Outcome.RETRY, True, "HTTP 502"),
        ("errcode:-1", Outcome.RETRY, False, "busy"),
        ("errcode:300001", Outcome.PERMANENT, False, "token does not exist"),
        ("errcode:302033", Outcome.UNKNOWN_CODE, False, "302033"),
    ],
)
def test_failures_of_a_real_robot(stand_in: DingTalkStandIn, answer: str, outcome: Outcome, lost: bool, said: str):
    """What is known and what isn't: only an answer that never came may have been a delivery."""
    stand_in.script([answer])
    result = send(stand_in.target(), answer_seconds=0.5)

    assert (result.outcome, result.lost, said in result.detail) == (outcome, lost, True)


def test_a_robot_that_is_away_was_not_reached():
    """Connection refused: nothing went out, so the next try needs no mark."""
    with server() as (port, _):
        pass
    result = send(target_at(port))

    assert (result.outcome, result.lost) == (Outcome.RETRY, False)
    assert "no connection to 127.0.0.1" in result.detail


def test_a_drip_of_an_answer_ends():
    """An answer that never ends is given up as a whole, whatever its parts do."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not stop.wait(0.05):
                connection.sendall(b" ")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    result = send(target_at(listener.getsockname()[1]), total_seconds=0.4)
    stop.set()
    thread.join(5)
    listener.close()

    assert (result.outcome, result.lost) == (Outcome.RETRY, True)


def all_request_errors() -> list[type[httpx.RequestError]]:
    """Every exception of the library that a request can end with."""
    found, queue = [], [httpx.RequestError]
    while queue:
        kind = queue.pop()
        found.append(kind)
        queue.extend(kind.__subclasses__())
    return found


@pytest.mark.parametrize("kind", all_request_errors(), ids=lambda kind: kind.__name__)
def test_every_error_of_the_library_is_a_result(kind: type[httpx.RequestError]):
    """None escapes, and none is taken for a delivery."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise kind(f"went wrong at {request.url}")

    result = send(target_at(1), transport=httpx.MockTransport(fail))

    assert result.outcome is Outcome.RETRY
    assert TOKEN not in result.detail


NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


@pytest.mark.parametrize("kind", NEVER_SENT, ids=lambda kind: kind.__name__)
def test_an_error_before_the_body_is_not_a_lost_answer(kind: type[httpx.RequestError]):
    """Where nothing went out nothing can be repeated."""

    def fail(_request: httpx.Request) -> httpx.Response:
        raise kind("x")

    assert send(target_at(1), transport=httpx.MockTransport(fail)).lost is False


def test_a_proxy_carries_the_post():
    """With `proxy` set the post goes to the proxy, which gets the name and password."""
    with server(OK_ANSWER) as (port, seen):
        proxy = Secret(f"http://me:{PASSWORD}@127.0.0.1:{port}")
        result = send(target_at(9, host="localhost", proxy=proxy))

    assert result.outcome is Outcome.SENT
    assert seen[0].startswith(b"POST http://localhost:9/robot/send?")
    assert b"Proxy-Authorization: Basic " in seen[0]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_asks_for_a_password_is_named(scheme: str):
    """407 to the post, or to the tunnel of an https robot: the person is sent to the proxy, not to DingTalk."""
    answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    with server(answer) as (port, _):
        result = send(target_at(9, scheme=scheme, host="localhost", proxy=Secret(f"http://127.0.0.1:{port}")))

    assert (result.outcome, result.whole_target) == (Outcome.PERMANENT, True)
    assert f"the proxy 127.0.0.1:{port} asks for a name and password" in result.detail


def test_the_environment_is_not_read(stand_in: DingTalkStandIn, monkeypatch: pytest.MonkeyPatch):
    """A proxy comes from the settings alone."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    assert send(stand_in.target()).outcome is Outcome.SENT


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-out", cert, "-keyout", key),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.mark.parametrize("trusted", [True, False])
def test_a_ca_bundle_is_trusted_besides_the_usual_ones(certificate: tuple[Path, Path], trusted: bool):
    """A company that intercepts TLS names its CA; without it the answer says what to do."""
    cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with server(OK_ANSWER, tls=context) as (port, _):
        result = send(target_at(port, scheme="https", ca_bundle=str(cert) if trusted else ""))

    assert result.outcome is (Outcome.SENT if trusted else Outcome.RETRY)
    assert ("`ca_bundle`" in result.detail) is not trusted


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ca_bundle": "/does/not/exist.pem"}, "ca_bundle /does/not/exist.pem can't be used"),
        ({"ca_bundle": __file__}, "ca_bundle"),
        ({"proxy": Secret(f"ftp://me:{PASSWORD}@proxy:1")}, "proxy: it must have the form"),
        ({"proxy": Secret(f"http://me:{PASSWORD}@proxy:port")}, "proxy: it must have the form"),
    ],
)
def test_a_robot_that_can_not_be_made_says_why(changes: dict, said: str):
    """Found at start, not at the first alert; and without the password."""
    with pytest.raises(SettingsError) as caught:
        DingTalkRobot(target_at(9, **changes), real_time())

    assert said in str(caught.value)
    assert PASSWORD not in str(caught.value)


FAILURES = [
    "http:500",
    "html:502",
    "close",
    "hang:5",
    "errcode:-1",
    *(f"errcode:{code}" for code in (130101, 300001, 300005, 400102, 43004, 460101, 430101, 302033)),
    *(f"errcode:310000:{text}" for text in ("keywords not in content", "invalid timestamp", "sign not match", "ip")),
]


def test_leaks_no_secret(stand_in: DingTalkStandIn, caplog: pytest.LogCaptureFixture):
    """Whatever fails, neither a result nor a log line at any level holds the token, the secret or a signature."""
    caplog.set_level(logging.DEBUG)
    words = []
    for failure in ["ok", *FAILURES]:
        stand_in.script([failure])
        words.append(repr(send(stand_in.target(), answer_seconds=0.5)))
    with server(None) as (port, _):
        words.append(repr(send(target_at(9, host="localhost", proxy=Secret(f"http://me:{PASSWORD}@127.0.0.1:{port}")))))
    words += [record.getMessage() for record in caplog.records]
    words += [stand_in.evidence.read_text(), stand_in.log_path.read_text()]

    assert len(stand_in.posts()) == 1 + len(FAILURES)
    assert [line for line in words for secret in (TOKEN, SECRET, PASSWORD, "sign=") if secret in line] == []
