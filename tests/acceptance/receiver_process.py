"""The receiver and its store in a process of its own, for one test."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.real_process import RealProcess

REPOSITORY = Path(__file__).resolve().parents[2]
_START = "import runpy, sys; sys.path.insert(0, '{}'); runpy.run_module('tests.receiver_app', run_name='__main__')"


class ReceiverProcess(RealProcess):
    """tests.receiver_app, pinned to one core if `core` is given. `state` "baseline" is the bench's yardstick."""

    name = "receiver"

    def __init__(self, folder: Path, *, state: str = "", core: int | None = None) -> None:
        super().__init__(folder)
        self.state = state or str(folder / "state")
        self._core = core
        if self.state == "baseline":
            self.ready_path = "/openapi.json"

    def argv(self) -> list[str]:
        pinned = [] if self._core is None else ["taskset", "-c", str(self._core)]
        return [*pinned, sys.executable, "-c", _START.format(REPOSITORY), self.state, str(self.port)]

    @property
    def token_file(self) -> Path:
        return Path(self.state) / "webhook.token"

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip() if self.token_file.exists() else "none"

    @property
    def webhook(self) -> str:
        return self.url + "/api/v1/alertmanager"

    def post(self, body: bytes, *, path: str = "/api/v1/alertmanager", **headers: str) -> httpx.Response:
        """POST as Alertmanager does; redirects are not followed."""
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **headers}
        return httpx.post(self.url + path, content=body, headers=sent, timeout=30, trust_env=False)

    def stored(self) -> list[bytes]:
        """The bodies in the store, oldest first; read beside the running process."""
        return [row[0] for row in self.rows("SELECT body FROM deliveries ORDER BY delivery_id")]

    def rows(self, query: str) -> list[Any]:
        conn = sqlite3.connect(f"file:{self.state}/tunewarden.db?mode=ro", uri=True)
        try:
            return conn.execute(query).fetchall()
        finally:
            conn.close()

    def metric(self, series: str) -> float:
        """The value of one series of /metrics, 0 when there is none."""
        for line in httpx.get(self.url + "/metrics", trust_env=False).text.splitlines():
            if line.startswith(series + " "):
                return float(line.split()[-1])
        return 0.0
