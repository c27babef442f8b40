"""A sample board's /metrics over HTTP, for a real Prometheus to scrape."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry

from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.api.exposition import CONTENT_TYPE, exposition


@contextmanager
def served(board: SampleBoard) -> Iterator[str]:
    """Gives the address `host:port`."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(exposition(board, CollectorRegistry(), time.monotonic()))

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
