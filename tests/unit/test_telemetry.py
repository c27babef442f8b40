"""Log records: one JSON line each, an action in all of them, a secret in none."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from tunewarden.telemetry import Metrics, redacted, set_up_logging


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log of a service that runs without a terminal; the test's own logging is put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    set_up_logging(stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _records(log: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.mark.parametrize(
    "text",
    [
        "POST https://oapi.dingtalk.com/robot/send?access_token=SECRETX&timestamp=1&sign=SECRETX%3D",
        "url='http://u:SECRETX@proxy:3128/' failed",
        "Authorization: Bearer SECRETX-abcdefgh",
        "authorization: basic U0VDUkVUWA==SECRETX",
        "password=SECRETX",
        "api_key=SECRETX&x=1",
    ],
)
def test_secrets_are_hidden_in_text(text: str) -> None:
    """What comes before and after them stays readable."""
    shown = redacted(text)

    assert "SECRETX" not in shown
    assert "**********" in shown


@pytest.mark.parametrize("text", ["batch_size 4 -> 2", "signal=15 design=x", "http://prometheus:9090/graph?g0.expr=x"])
def test_other_text_stays(text: str) -> None:
    """Only what is named like a secret is hidden."""
    assert redacted(text) == text


def test_every_record_has_an_action_and_hides_its_secrets(log: io.StringIO) -> None:
    """Ours, those of other libraries, nested values and tracebacks."""
    logger = structlog.get_logger("test")
    logger.info("one", action="a", detail={"url": ["x?access_token=SECRETX"]}, agent_token="SECRETX")
    logging.getLogger("other").warning("GET /x?token=%s", "SECRETX")
    try:
        raise ValueError("https://u:SECRETX@host/")
    except ValueError:
        logger.exception("failed", action="b")

    records = _records(log)

    assert [record["action"] for record in records] == ["a", "log", "b"]
    assert "SECRETX" not in log.getvalue()
    assert "ValueError" in str(records[2]["exception"])


def test_http_clients_do_not_log_their_urls(log: io.StringIO) -> None:
    """httpx writes each request's URL at INFO; a robot's holds its token."""
    logging.getLogger("httpx").info("HTTP Request: POST https://oapi.dingtalk.com/robot/send")

    assert log.getvalue() == ""


def test_two_records_of_metrics_do_not_meet() -> None:
    """Nothing is registered globally: each service (and test) has counters of its own."""
    first, second = Metrics(registry=CollectorRegistry()), Metrics(registry=CollectorRegistry())
    first.deliveries.labels(status="202").inc()

    assert b'tunewarden_deliveries_total{status="202"} 1.0' in generate_latest(first.registry)
    assert b'status="202"' not in generate_latest(second.registry)
