"""What is pushed: the series of /metrics, as Prometheus's own reader understands them; and what `run` takes for it."""

import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.api.exposition import exposition
from tunewarden.api.jobs_wire import Registration
from tunewarden.commandline.run import read_labels
from tunewarden.domain.sample import Heartbeat
from tunewarden.errors import SettingsError
from tunewarden.supervisor.pushgateway import Pushgateway, text_of

REGISTRATION: dict[str, Any] = {
    "protocol": 1,
    "host_id": "h",
    "node": "n1",
    "name": 'a"b\\c\nd',
    "run_id": "j1-g2",
    "generation": 2,
    "labels": {"owner": "李", "node": "x"},
    "trainer": "lora-yaml",
    "config_name": "cat.yaml",
}
HEARTBEAT: dict[str, Any] = {
    "generation": 2,
    "state": "running",
    "job": {
        "step": 120,
        "loss": "nan",
        "phase": "train",
        "source": "log",
        "cpu_cores": 0.1,
        "torch_peak": 1 << 40,
        "step_seconds_sum": 1e-9,
        "step_seconds_count": 3,
    },
}
NOT_PUSHED = {"tunewarden_job_info", "tunewarden_job_gpu"}


def samples(text: str) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    """Names, labels and values, NaN included."""
    families = text_string_to_metric_families(text)
    found = [sample for family in families for sample in family.samples if sample.name not in NOT_PUSHED]
    return sorted((sample.name, tuple(sorted(sample.labels.items())), repr(sample.value)) for sample in found)


def test_what_is_pushed_is_what_the_service_shows() -> None:
    """Names, labels, types and values, whatever stands in a label."""
    board, now = SampleBoard(), datetime(2026, 1, 1, tzinfo=UTC)
    board.put(Registration.model_validate(REGISTRATION).job("j1", now), Heartbeat.from_wire(HEARTBEAT), 0.0)
    shown = exposition(board, CollectorRegistry(), 0.0).decode()
    pushed = text_of(REGISTRATION, HEARTBEAT).decode()
    comments = {line for line in pushed.splitlines() if line.startswith("#")}

    assert samples(pushed) == samples(shown)
    assert len(samples(pushed)) > 10
    assert comments <= set(shown.splitlines())


def test_promtool_finds_nothing_wrong() -> None:
    """Names, types and help texts."""
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text_of(REGISTRATION, HEARTBEAT), capture_output=True, check=False
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.mark.parametrize("word", ["node=x", "job=x", "__a=x", "training_job=x", "generation=2", "a-b=x", "=x", "a"])
def test_run_refuses_a_label_that_would_be_shown_under_another_name(word: str) -> None:
    """Better than one that nobody finds."""
    with pytest.raises(SettingsError, match="--label"):
        read_labels([word])


def test_run_takes_the_kind_of_model_as_a_label() -> None:
    """That one is ours, and the user's to say."""
    assert read_labels(["model_type=pony", "owner=li=2"]) == {"model_type": "pony", "owner": "li=2"}


class Calls:
    """A gateway that keeps what it is asked; it answers `status`."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str, float]] = []
        self.status = 202
        calls = self

        class Gateway(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                calls.made.append((self.command, self.path, time.monotonic()))
                self.send_response(calls.status)
                self.end_headers()

            do_PUT = do_DELETE = do_POST = do_GET = handle_any

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/base/"

    def methods(self) -> list[str]:
        return [method for method, _, _ in self.made]


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    made.thread.start()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def until(calls: Calls, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(calls.made) < count:
        assert time.monotonic() < deadline, calls.made
        time.sleep(0.01)


def test_pushes_keep_their_distance_and_the_group_is_deleted_at_the_end(calls: Calls) -> None:
    """However often a heartbeat comes: one push in `every_s` seconds, to one group, replaced whole."""
    gateway = Pushgateway(calls.url, "j1", newest=lambda: (REGISTRATION, dict(HEARTBEAT)), every_s=0.4)
    gateway.start()
    until(calls, 4)
    gateway.close(10)
    times = [at for method, _, at in calls.made if method == "PUT"]

    assert calls.methods() == ["PUT"] * (len(calls.made) - 1) + ["DELETE"]
    assert {path for _, path, _ in calls.made} == {"/base/metrics/job/lora-training/training_job_id/j1"}
    assert min(after - before for before, after in pairwise(times)) > 0.35


def test_an_old_heartbeat_is_not_pushed_again(calls: Calls) -> None:
    """It would look fresh: the gateway stamps the time of the push."""
    newest = (REGISTRATION, HEARTBEAT)
    gateway = Pushgateway(calls.url, "j1", newest=lambda: newest, every_s=0.01)
    gateway.start()
    until(calls, 1)
    time.sleep(0.2)
    gateway.close(10)

    assert calls.methods() == ["PUT", "DELETE"]


def test_nothing_is_pushed_before_a_heartbeat_and_a_refusal_is_told_once(
    calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """The group is deleted all the same: an agent before this one may have pushed."""
    silent = Pushgateway(calls.url, "j1", newest=lambda: None)
    silent.start()
    silent.close(10)
    before = calls.methods()
    calls.status = 400
    refused = Pushgateway(calls.url, "j1", newest=lambda: (REGISTRATION, dict(HEARTBEAT)), every_s=0.01)
    refused.start()
    until(calls, 5)
    refused.close(10)

    assert before == ["DELETE"]
    assert calls.methods()[-1] == "DELETE"
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == ["it answers 400"]


def test_a_heartbeat_that_can_not_be_shown_ends_no_thread(calls: Calls) -> None:
    """The next one is pushed."""
    bodies = iter([{"generation": "x"}, HEARTBEAT])
    gateway = Pushgateway(calls.url, "j1", newest=lambda: (REGISTRATION, next(bodies, HEARTBEAT)), every_s=0.01)
    gateway.start()
    until(calls, 1)
    gateway.close(10)

    assert "PUT" in calls.methods()
