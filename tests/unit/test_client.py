"""The command line's side of the jobs API."""

import getpass
import http.server
import os
import threading
from pathlib import Path

import pytest

from tunewarden.commandline.client import ServiceClient


def test_a_user_without_a_name_is_named_by_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that was started with `--user 12345` has no line in /etc/passwd for it."""
    seen: list[str | None] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["X-Tunewarden-Actor"])
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_words: object) -> None:
            """Nothing on the terminal."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    token = tmp_path / "agent.token"
    token.write_text("t\n", encoding="ascii")
    monkeypatch.setattr(getpass, "getuser", nameless)
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        ServiceClient(f"http://127.0.0.1:{server.server_port}", token).get("/")

    assert seen == [f"uid {os.getuid()}"]
