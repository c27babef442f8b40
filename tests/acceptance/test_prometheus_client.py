"""The clients of Prometheus and Alertmanager against the real programs."""

import asyncio
import http.server
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests.acceptance.alertmanager_process import AlertmanagerProcess
from tests.acceptance.prometheus_process import PrometheusProcess
from tests.acceptance.real_process import eventually, free_port
from tunewarden.adapters.alertmanager_api import AlertmanagerApi
from tunewarden.adapters.prometheus import Prometheus
from tunewarden.domain.evidence import Answer, substitute
from tunewarden.errors import Permanent, Retryable

T = TypeVar("T")
HOSTILE = '"} or vector(1) or x{a="\\'


class Exporter(http.server.ThreadingHTTPServer):
    """Shows one gauge of one card; `broken` makes each scrape fail."""

    broken = False


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Exporter)
        self.send_response(500 if self.server.broken else 200)
        self.end_headers()
        label = HOSTILE.replace("\\", "\\\\").replace('"', '\\"')
        self.wfile.write(f'ratio{{uuid="GPU-1"}} 0.97\nratio{{uuid="{label}"}} 0.5\nnot_a_number NaN\n'.encode())

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        return None


@pytest.fixture(scope="module")
def exporter() -> Iterator[Exporter]:
    """A page to scrape."""
    server = Exporter(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def prometheus(exporter: Exporter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusProcess]:
    """A Prometheus that has scraped the page."""
    folder = tmp_path_factory.mktemp("prometheus")
    with PrometheusProcess(folder, scrape={"card": [f"127.0.0.1:{exporter.server_port}"]}) as process:
        eventually(lambda: process.value('ratio{uuid="GPU-1"}'))
        yield process


def asked(url: str, work: Callable[[Prometheus], Coroutine[Any, Any, T]], *, timeout_s: float = 2.0) -> T:
    """What `work` returns with a client of that URL."""

    async def ask() -> T:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await work(Prometheus(url, client, timeout_s=timeout_s))

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("expr", "holds", "value"),
    [
        ('ratio{uuid="GPU-1"} > 0.95', True, 0.97),
        ('ratio{uuid="GPU-1"} > 0.99', False, None),
        ("not_a_number", True, None),
        ('scalar(ratio{uuid="GPU-1"}) > bool 0.95', True, 1.0),
        ('ratio{uuid="GPU-1"} > 0.95  # of used and free', True, 0.97),
        ('ratio{uuid="GPU-9"} or ratio{uuid="GPU-1"}', True, 0.97),
    ],
)
def test_an_answer_holds_when_it_is_not_empty(
    prometheus: PrometheusProcess, expr: str, holds: bool, value: float | None
) -> None:
    """And it says how old the sample behind it is, by Prometheus's own clock."""
    answer = asked(prometheus.url, lambda client: client.ask(expr))

    assert (answer.holds, answer.value) == (holds, value)
    assert answer.age_s is not None
    assert 0.0 <= answer.age_s < 10.0


def test_no_series_is_no_data(prometheus: PrometheusProcess) -> None:
    """Empty because it does not hold, and empty because nothing is there, are two things."""
    answer = asked(prometheus.url, lambda client: client.ask('ratio{uuid="GPU-9"} > 0.95'))

    assert answer == Answer(holds=False, age_s=None)


def test_an_expression_without_a_series_is_as_fresh_as_can_be(prometheus: PrometheusProcess) -> None:
    """vector(1) reads no sample."""
    assert asked(prometheus.url, lambda client: client.ask("vector(1)")) == Answer(holds=True, age_s=0.0, value=1.0)


def test_a_hostile_value_finds_its_own_series_and_nothing_else(prometheus: PrometheusProcess) -> None:
    """The real parser reads the escaped value back."""
    expr = substitute('ratio{uuid="$uuid"} < 0.6', {"uuid": HOSTILE})
    assert expr is not None

    answer = asked(prometheus.url, lambda client: client.ask(expr))

    assert (answer.holds, answer.value) == (True, 0.5)


def test_a_refused_expression_is_permanent_and_says_why(prometheus: PrometheusProcess) -> None:
    """bad_data."""
    with pytest.raises(Permanent, match="parse error"):
        asked(prometheus.url, lambda client: client.ask("sum(ratio) by"))


def test_what_fails_is_left_out_of_many(prometheus: PrometheusProcess) -> None:
    """One bad expression takes no other's evidence."""
    answers = asked(prometheus.url, lambda client: client.ask_all(["vector(1)", "sum(", "vector(1)"]))

    assert list(answers) == ["vector(1)"]


def test_the_scrape_interval_is_asked(prometheus: PrometheusProcess) -> None:
    """The test's Prometheus scrapes every second."""
    assert asked(prometheus.url, lambda client: client.scrape_interval_s()) == 1.0


def test_a_prometheus_that_is_away_is_retryable() -> None:
    """And the interval is the default then."""
    url = f"http://user:secret@127.0.0.1:{free_port()}"

    with pytest.raises(Retryable) as caught:
        asked(url, lambda client: client.ask("vector(1)"))

    assert "secret" not in str(caught.value)
    assert asked(url, lambda client: client.scrape_interval_s()) == 15.0


def test_one_that_hangs_costs_no_more_than_the_time_out() -> None:
    """The accepted alert waits no longer than that for its evidence."""

    async def play() -> float:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            answers = await Prometheus(url, client, timeout_s=0.3).ask_all(["vector(1)", "up", "down"])
        server.close()
        assert answers == {}
        return loop.time() - began

    assert asyncio.run(play()) < 2.0


def test_something_else_than_prometheus_is_permanent(exporter: Exporter) -> None:
    """A wrong URL in the settings is named."""
    with pytest.raises(Permanent):
        asked(f"http://127.0.0.1:{exporter.server_port}", lambda client: client.ask("up"))


def test_alertmanager_lists_what_fires(tmp_path: Path) -> None:
    """By the fingerprints of its webhooks; a resolved alert is not listed."""
    with AlertmanagerProcess(tmp_path / "alertmanager") as alertmanager:
        alertmanager.send([{"labels": {"alertname": "A"}}, {"labels": {"alertname": "B"}}])

        async def ask() -> frozenset[str]:
            async with httpx.AsyncClient(trust_env=False) as client:
                return await AlertmanagerApi(alertmanager.url, client).firing()

        both = eventually(lambda: len(found := asyncio.run(ask())) == 2 and found)
        gone = {"labels": {"alertname": "B"}, "endsAt": "2020-01-01T00:00:00Z", "startsAt": "2019-01-01T00:00:00Z"}
        alertmanager.send([gone])

        assert eventually(lambda: len(asyncio.run(ask())) == 1)
        assert {row["fingerprint"] for row in alertmanager.alerts()} < both


def test_an_alertmanager_that_is_away_is_retryable() -> None:
    """Then nobody knows what is listed."""

    async def ask() -> frozenset[str]:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await AlertmanagerApi(f"http://127.0.0.1:{free_port()}", client).firing()

    with pytest.raises(Retryable):
        asyncio.run(ask())
