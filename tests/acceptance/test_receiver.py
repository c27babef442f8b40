"""The receiver over a real socket: every status that Alertmanager can get, and what is in the store afterwards."""

import base64
import json
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.acceptance.real_process import eventually
from tests.acceptance.receiver_process import ReceiverProcess
from tests.bench.acks import many_alerts
from tunewarden.api.webhook import BODIES
from tunewarden.api.wire import alerts_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "alertmanager-0.25"
BODY = (GOLDEN / "firing-one-gpu.json").read_bytes()
PATH = "/api/v1/alertmanager"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReceiverProcess]:
    """One process for the tests that only ask; each looks at what it added."""
    process = ReceiverProcess(tmp_path_factory.mktemp("receiver"))
    process.start()
    yield process
    process.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ReceiverProcess]:
    process = ReceiverProcess(tmp_path)
    process.start()
    yield process
    process.stop()


@pytest.mark.parametrize("path", [PATH, PATH + "/"])
def test_a_delivery_is_stored_as_it_came(shared: ReceiverProcess, path: str) -> None:
    """202 with a fixed body, with and without a trailing slash, and the exact bytes are in the store."""
    answer = shared.post(BODY, path=path)

    assert (answer.status_code, answer.content) == (202, BODIES[202])
    assert shared.stored()[-1] == BODY


def test_the_same_delivery_twice_is_two_rows(shared: ReceiverProcess) -> None:
    """No unique key on content: sorting copies out is the episode's work."""
    before = len(shared.stored())

    assert [shared.post(BODY).status_code for _ in range(2)] == [202, 202]
    assert len(shared.stored()) == before + 2


REFUSED = {
    "empty": (b"", 400),
    "broken": (b'{"version": "4", "alerts": [', 400),
    "text": (b"alert!", 400),
    "not-utf-8": (b"\xff\xfe\xfa", 400),
    "empty-object": (b"{}", 422),
    "list": (b"[]", 422),
    "alerts-of-a-wrong-type": (b'{"version": "4", "alerts": {"a": 1}}', 422),
    "version-3": (b'{"version": "3", "alerts": []}', 422),
    "dingtalk": (b'{"msgtype": "text", "text": {"content": "hi"}, "at": {"isAtAll": true}}', 422),
}


@pytest.mark.parametrize(("body", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_delivery_is_refused_for_good(shared: ReceiverProcess, body: bytes, status: int) -> None:
    """4xx, which Alertmanager does not retry; a short fixed answer; nothing stored; counted."""
    series = f'tunewarden_deliveries_total{{status="{status}"}}'
    stored, counted = len(shared.stored()), shared.metric(series)

    answer = shared.post(body)

    assert (answer.status_code, answer.content) == (status, BODIES[status])
    assert len(shared.stored()) == stored
    assert shared.metric(series) == counted + 1


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Bearer agent-token", 403),
        ("bearer {token}", 202),
        ("Bearer  {token}", 202),
        ("Token {token}", 401),
        ("Basic " + base64.b64encode(b"prom:pw").decode(), 401),
        ("Basic !!!", 401),
        ("Bearer " + "x" * 20_000, 401),
    ],
)
def test_only_the_right_token_comes_in(shared: ReceiverProcess, authorization: str, status: int) -> None:
    """The agents' token gets 403, everything else 401."""
    answer = shared.post(BODY, Authorization=authorization.format(token=shared.token))

    assert (answer.status_code, answer.content) == (status, BODIES[status])


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_another_method_is_told_and_counted(shared: ReceiverProcess, method: str) -> None:
    """A proxy that redirects by 301 turns the POST into a GET: 200 there would lose every alert."""
    answer = httpx.request(method, shared.webhook, trust_env=False)

    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert '"webhook_method"' in shared.log_path.read_text()


@pytest.mark.parametrize(
    "path", ["/", "/webhook", "/api/v1/alertmanager/x", "/api/v2/alerts", "/dingtalk/ops/send", "//"]
)
def test_another_path_is_told_with_the_right_one(shared: ReceiverProcess, path: str) -> None:
    """404, never a redirect; the log says what the url must end in."""
    before = shared.metric("tunewarden_wrong_path_requests_total")

    answer = shared.post(BODY, path=path)

    assert (answer.status_code, answer.json()) == (404, {"error": "no such path"})
    assert shared.metric("tunewarden_wrong_path_requests_total") == before + 1
    assert '"right_path": "/api/v1/alertmanager"' in shared.log_path.read_text()


@pytest.mark.parametrize("count", [500, 10_000])
def test_many_alerts_in_a_body_are_stored(own: ReceiverProcess, count: int) -> None:
    """One row, all alerts in it, and the memory stays in bounds."""
    body = many_alerts(count)

    answer = own.post(body)

    assert answer.status_code == 202
    assert len(alerts_of(own.stored()[0])) == count
    assert psutil.Process(own.pid).memory_info().rss < 300_000_000


def _head(process: ReceiverProcess, length: int) -> bytes:
    lines = (f"POST {PATH} HTTP/1.1", "Host: x", f"Authorization: Bearer {process.token}", f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(own: ReceiverProcess) -> None:
    """413 by its Content-Length, counted and logged as an error: Alertmanager won't send it again."""
    with socket.create_connection(("127.0.0.1", own.port), timeout=10) as sock:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {own.token}\r\nContent-Length: {1 << 40}\r\n\r\n"
        )
        sock.sendall(head.encode())
        answer = sock.recv(4096)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert own.metric('tunewarden_deliveries_total{status="413"}') == 1
    assert '"webhook_too_large"' in own.log_path.read_text()


def test_a_body_that_hides_its_length_is_counted_while_it_is_read(own: ReceiverProcess) -> None:
    """Chunked, 40 MB: 413, and the memory never held it all."""
    chunk = b"x" * 65_536

    answer = httpx.post(
        own.webhook,
        content=(chunk for _ in range(640)),
        headers={"Authorization": f"Bearer {own.token}"},
        trust_env=False,
        timeout=30,
    )

    assert answer.status_code == 413
    assert own.stored() == []


def test_a_client_that_leaves_after_its_body_is_served_once(own: ReceiverProcess) -> None:
    """Alertmanager cancelled a slow request and sends again: both are rows, none is lost or half-written."""
    with socket.create_connection(("127.0.0.1", own.port), timeout=10) as sock:
        sock.sendall(_head(own, len(BODY)) + BODY)
    eventually(own.stored)

    assert own.post(BODY).status_code == 202
    assert own.stored() == [BODY, BODY]


def test_a_client_that_leaves_within_its_body_leaves_nothing(own: ReceiverProcess) -> None:
    """Half a body is no delivery."""
    with socket.create_connection(("127.0.0.1", own.port), timeout=10) as sock:
        sock.sendall(_head(own, len(BODY)) + BODY[:100])
    eventually(lambda: own.metric('tunewarden_deliveries_total{status="aborted"}') == 1)

    assert own.stored() == []


def test_hostile_labels_are_bytes_like_any_other(shared: ReceiverProcess) -> None:
    """Paths, shell and markdown in labels are stored as they came."""
    labels = {
        "alertname": "$(touch /tmp/x); rm -rf /",
        "a": "../../etc/passwd",
        "LD_PRELOAD": "/x.so",
        "b": "[x](y)\n# `",
    }
    body = json.dumps({"version": "4", "alerts": [{"status": "firing", "labels": labels}]}).encode()

    assert shared.post(body).status_code == 202
    assert alerts_of(shared.stored()[-1])[0].labels == labels


def test_no_answer_or_log_line_holds_the_token_or_the_body(shared: ReceiverProcess) -> None:
    """Alertmanager logs our answers; our log is read by many."""
    secret = "SECRETX-in-a-body"
    for body in (BODY, secret.encode(), json.dumps({"version": secret}).encode()):
        assert secret not in shared.post(body).text
    shared.post(BODY, Authorization="Bearer SECRETX-token")

    log = shared.log_path.read_text()

    assert "SECRETX" not in log
    assert shared.token not in log


def test_a_store_that_is_locked_gives_503_and_heals(own: ReceiverProcess) -> None:
    """503 is what Alertmanager retries; the next delivery is stored."""
    # Another program holds SQLite's write lock for longer than our patience (2 s).
    other = sqlite3.connect(f"{own.state}/tunewarden.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    refused = own.post(BODY)
    ready = httpx.get(own.url + "/-/ready", trust_env=False, timeout=10)
    other.execute("ROLLBACK")
    other.close()

    assert (ready.status_code, "can't be written" in ready.text) == (503, True)
    assert httpx.get(own.url + "/-/ready", trust_env=False, timeout=10).status_code == 200
    assert (refused.status_code, refused.content) == (503, BODIES[503])
    assert own.post(BODY).status_code == 202
    assert own.stored() == [BODY]


def test_it_stops_at_once_and_leaves_with_0(own: ReceiverProcess) -> None:
    """SIGTERM with an idle keep-alive connection open: the process is gone in a second, the store closed."""
    client = httpx.Client(trust_env=False)
    client.get(own.url + "/-/healthy")
    process = psutil.Process(own.pid)

    process.terminate()
    code = process.wait(timeout=3)
    client.close()

    assert code in (0, None)
    assert not (Path(own.state) / "tunewarden.db-wal").exists()
