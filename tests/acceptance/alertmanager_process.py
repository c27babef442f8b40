"""A real Alertmanager (Debian's 0.25) for one test.

    with AlertmanagerProcess(tmp_path / "alertmanager", webhook_url="http://127.0.0.1:8080/api/v1/alertmanager",
                             credentials_file=token_path) as alertmanager:
        alertmanager.send([{"labels": {"alertname": "GpuMemoryNearlyFull", "uuid": "GPU-1"}}])
        alertmanager.alerts()   # GET /api/v2/alerts

The generated configuration flushes at once (group_wait 0s, group_interval 1s); `config` replaces it whole.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.real_process import RealProcess


class AlertmanagerProcess(RealProcess):
    """Stopped when the block ends. Restart it by hand with `stop()` and `start()`: its data stay."""

    name = "alertmanager"

    def __init__(
        self,
        folder: Path,
        *,
        webhook_url: str = "http://127.0.0.1:9/",
        credentials_file: Path | None = None,
        group_by: Sequence[str] = ("alertname", "uuid", "training_job_id"),
        repeat_interval: str = "4h",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(folder)
        self.config_path = folder / "alertmanager.yml"
        webhook: dict[str, Any] = {"url": webhook_url, "send_resolved": True}
        if credentials_file is not None:
            webhook["http_config"] = {"authorization": {"credentials_file": str(credentials_file)}}
        self._config = (
            dict(config)
            if config is not None
            else {
                "route": {
                    "receiver": "tunewarden",
                    "group_by": list(group_by),
                    "group_wait": "0s",
                    "group_interval": "1s",
                    "repeat_interval": repeat_interval,
                },
                "receivers": [{"name": "tunewarden", "webhook_configs": [webhook]}],
            }
        )

    def argv(self) -> list[str]:
        self.config_path.write_text(json.dumps(self._config, indent=1), encoding="utf-8")  # JSON is YAML too
        return [
            "prometheus-alertmanager",
            f"--config.file={self.config_path}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=",  # alone: no gossip port
            "--log.level=debug",
        ]

    def send(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """POST /api/v2/alerts as Prometheus does."""
        httpx.post(self.url + "/api/v2/alerts", json=list(alerts), timeout=10, trust_env=False).raise_for_status()

    def alerts(self) -> list[dict[str, Any]]:
        """What it lists now, silenced ones included."""
        answer = httpx.get(self.url + "/api/v2/alerts", timeout=10, trust_env=False)
        alerts: list[dict[str, Any]] = answer.raise_for_status().json()
        return alerts
