"""What the demo's check asks over HTTP, answered from a test's own values: ALERTS and Alertmanager's counters."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COUNTERS = """\
# TYPE alertmanager_notifications_total counter
alertmanager_notifications_total{{integration="webhook"}} {sent}
alertmanager_notifications_total{{integration="email"}} 9
# TYPE alertmanager_notifications_failed_total counter
alertmanager_notifications_failed_total{{integration="webhook"}} {failed}
alertmanager_notifications_failed_total{{integration="email"}} 9
"""


@dataclass(kw_only=True)
class Outside:
    """`fired`: the uuids of the alerts that fired."""

    url: str = ""
    fired: list[str] = field(default_factory=lambda: ["GPU-1", "GPU-2"])
    sent: int = 4
    failed: int = 0

    def fail_one(self) -> None:
        self.failed = 1

    def answer(self, path: str) -> str:
        if path.startswith("/metrics"):
            return COUNTERS.format(sent=self.sent, failed=self.failed)
        result = [{"metric": {"uuid": uuid}, "value": [0, "5"]} for uuid in self.fired]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


@contextmanager
def outside() -> Iterator[Outside]:
    """Served on a free loopback port."""
    made = Outside()

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = made.answer(self.path).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
