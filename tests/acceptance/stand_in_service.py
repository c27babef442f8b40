"""A strict stand-in for the service: speaks docs/reference/jobs-api.md and records everything."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tunewarden.api.jobs_wire import EventBody, Registration, ReportBody
from tunewarden.domain.order import ENDING_PHASES, OrderKind, Phase
from tunewarden.domain.reason import Reason
from tunewarden.domain.sample import Heartbeat

TOKEN = "an-agents-token"
REGISTRATION = {
    "protocol", "host_id", "boot_id", "node", "name", "generation", "run_id", "state", "enforce", "labels", "trainer",
    "can", "ranks", "multi_node", "gpus", "host_gpus", "wall", "config_name", "model_type", "knobs", "changeable",
    "host", "by", "framework", "no_hook",
}  # fmt: skip
HEARTBEAT = {"protocol", "generation", "state", "wall", "can", "gpus_of_job", "gpus", "host", "job"}
JOB = {
    "step", "total_steps", "phase", "loss", "step_seconds_sum", "step_seconds_count", "data_wait_seconds_sum",
    "rss_bytes", "cpu_cores", "read_bytes", "oom_lines", "log_idle_s", "step_rate", "step_rate_median", "resumed_step",
    "last_state_step", "last_state_path", "micro_steps", "source", "step_idle_s", "step_seconds_median",
    "data_wait_share", "torch_allocated", "torch_reserved", "torch_peak", "torch_retries", "torch_ooms", "framework",
}  # fmt: skip
HOST = {"cpu_busy", "cpu_iowait", "disk_busy", "disk_read_bytes", "memory_total", "memory_available"}
EVENT = {
    "protocol", "event_id", "generation", "kind", "cause", "exit_status", "step", "last_state_step", "waits_s",
    "evidence", "facts",
}  # fmt: skip
STATES = {"running", "waiting", "ended"}


@dataclass
class Seen:
    """What has come, in order. `faults` must stay empty."""

    registrations: list[dict[str, Any]] = field(default_factory=list)
    heartbeats: list[dict[str, Any]] = field(default_factory=list)
    reports: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    polls: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class StandIn:
    """One job's service. `go` answers a planned report; `wait` an event; an order stays open until its last report."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.go: Callable[[dict[str, Any]], bool] = lambda _report: True
        self.wait: bool | None = None
        self.down = False  # answers 503 to everything
        self.registered = False
        self.tokens = [TOKEN]
        self.changed = threading.Condition()
        self._orders: list[dict[str, Any]] = []
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Serve; again on the same port after `stop`."""
        stand_in = self

        class Handler(_Handler):
            world = stand_in

        ThreadingHTTPServer.allow_reuse_address = True
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self.changed:
            self.changed.notify_all()

    def issue(self, order_id: str, kind: str, *, job_id: str, generation: int = 1, **more: Any) -> dict[str, Any]:
        """Open an order."""
        order = {
            "protocol": 1,
            "order_id": order_id,
            "job_id": job_id,
            "generation": generation,
            "kind": kind,
            "knobs": {},
            "confirm": [],
            "expires_in_s": 30.0,
            "save_first": True,
            "lose_unsaved": False,
            "allow_effective_batch_change": False,
            "after_oom": False,
            "unknown_field_of_a_newer_service": {"x": 1},
            **more,
        }
        with self.changed:
            self._orders.append(order)
            self.changed.notify_all()
        return order

    def open_order(self) -> dict[str, Any] | None:
        with self.changed:
            return next((order for order in self._orders if not self._ended(order)), None)

    def reported(self, order_id: str) -> dict[str, dict[str, Any]]:
        """The last report of each phase, in order of their first arrival."""
        with self.changed:
            return {phase: body for each, phase, body in self.seen.reports if each == order_id}

    def until(self, done: Callable[[], Any], timeout: float = 20.0, what: str = "") -> Any:
        """Wait for what comes from the agent; fails after `timeout` seconds."""
        with self.changed:
            self.changed.wait_for(lambda: bool(done()), timeout)
            found = done()
        assert found, f"not in time: {what}; {self.seen.reports[-3:]} {self.seen.events} {self.seen.faults}"
        return found

    def until_report(self, order_id: str, phase: str, timeout: float = 20.0) -> dict[str, Any]:
        """Wait for one report; fails at once where the order ends otherwise."""
        ends = {"refused", "superseded"}
        self.until(lambda: ({phase} | ends) & set(self.reported(order_id)), timeout, f"{phase} of {order_id}")
        reported = self.reported(order_id)
        assert phase in reported, reported
        return reported[phase]

    def _ended(self, order: Mapping[str, Any]) -> bool:
        phases = {Phase(phase) for each, phase, _ in self.seen.reports if each == order["order_id"]}
        return bool(phases & ENDING_PHASES[OrderKind(order["kind"])])

    # What the agent calls; each returns (status, body).

    def register(self, body: dict[str, Any]) -> tuple[int, Any]:
        self._require(body, REGISTRATION, "registration")
        if body.get("state") not in STATES:
            self.seen.faults.append(f"registration: state {body.get('state')}")
        self._understood(Registration.model_validate, body)
        self.registered = True
        self.seen.registrations.append(body)
        return 200, {"job_id": "x", "protocol": 1}

    def heartbeat(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not self.registered:
            return 404, {"error": "unknown job"}
        self._require(body, HEARTBEAT, "heartbeat")
        self._require(body.get("job", {}), JOB, "heartbeat.job")
        self._require(body.get("host", {}), HOST, "heartbeat.host")
        self._understood(Heartbeat.from_wire, body)
        self.seen.heartbeats.append(body)
        return 200, {"order": False, "held": False}

    def order(self, generation: int, wait: float) -> tuple[int, Any]:
        self.seen.polls.append(generation)
        deadline = time.monotonic() + min(wait, 30.0)
        server = self._server
        while (order := self.open_order()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or self._server is not server or self.down:
                return 204, None
            self.changed.wait(left)
        return 200, order

    def report(self, order_id: str, phase: str, body: dict[str, Any]) -> tuple[int, Any]:
        self._require(body, {"protocol", "generation", "reason", "detail"}, f"report {phase}")
        self._understood(ReportBody.model_validate, body)
        with suppress(ValueError):
            Phase(phase)
            if body["reason"] is not None:
                Reason(body["reason"])
            if (phase in ("refused", "superseded")) == (body["reason"] is None):
                self.seen.faults.append(f"report {phase}: reason {body['reason']}")
            self.seen.reports.append((order_id, phase, body))
            return 200, {"go": self.go(body) if phase == "planned" else True}
        self.seen.faults.append(f"report {phase}: {body}")
        return 422, {"error": "not understood"}

    def event(self, body: dict[str, Any]) -> tuple[int, Any]:
        self._require(body, EVENT, "event")
        self._understood(EventBody.model_validate, body)
        self.seen.events.append(body)
        return 202, {} if self.wait is None else {"wait": self.wait}

    def _understood(self, read: Callable[[dict[str, Any]], object], body: dict[str, Any]) -> None:
        """The service's own models take it."""
        try:
            read(body)
        except ValueError as error:
            self.seen.faults.append(str(error))

    def _require(self, body: Mapping[str, Any], keys: set[str], what: str) -> None:
        if set(body) != keys or (what.count(".") == 0 and body.get("protocol") != 1):
            self.seen.faults.append(f"{what}: {sorted(set(body) ^ keys)}")


class _Handler(BaseHTTPRequestHandler):
    world: StandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else head and body are two packets, and the second waits 40 ms for an ACK

    def handle(self) -> None:
        with suppress(ConnectionResetError):  # an agent that is killed
            super().handle()

    def do_GET(self) -> None:
        self._answer()

    do_PUT = do_POST = do_GET

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length)
        if len(sent) < length:  # an agent that is killed while it speaks
            return
        body = json.loads(sent) if sent else {}
        with suppress(BrokenPipeError, ConnectionResetError):
            with self.world.changed:
                status, answer = self._route(body)
                self.world.changed.notify_all()
            self._send(status, answer)

    def _route(self, body: dict[str, Any]) -> tuple[int, Any]:
        world, url = self.world, urlsplit(self.path)
        if world.down:
            return 503, {"error": "not now"}
        if self.headers.get("Authorization") not in [f"Bearer {token}" for token in world.tokens]:
            return 401, {"error": "no"}
        match (self.command, url.path.strip("/").split("/")[2:]):
            case ("PUT", ["jobs", _]):
                return world.register(body)
            case ("POST", ["jobs", _, "heartbeat"]):
                return world.heartbeat(body)
            case ("GET", ["jobs", _, "order"]):
                query = parse_qs(url.query)
                return world.order(int(query["generation"][0]), float(query["wait"][0]))
            case ("PUT", ["jobs", _, "orders", order_id, "reports", phase]):
                return world.report(order_id, phase, body)
            case ("POST", ["jobs", _, "events"]):
                return world.event(body)
        world.seen.faults.append(f"{self.command} {self.path}")
        return 404, {"error": "no such address"}

    def _send(self, status: int, answer: Any) -> None:
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: Any) -> None:
        return
