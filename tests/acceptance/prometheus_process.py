"""A real Prometheus (Debian's 2.42) for one test.

    with PrometheusProcess(
        tmp_path / "prometheus",
        scrape={"tunewarden": ["127.0.0.1:8080"]},
        rules=[Path("rules/recording/gpu.yaml")],
        alertmanagers=["127.0.0.1:9093"],
    ) as prometheus:
        prometheus.query("up")       # [{"metric": {...}, "value": [t, "1"]}]
        prometheus.value("sum(up)")  # 1.0, or None when there is no series
        prometheus.alerts()          # GET /api/v1/alerts

Scrapes and evaluates every second; the first scrape comes up to 5 s after the start, when its discovery has run.
`config` replaces the whole generated configuration. Stopped when the block ends.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.real_process import RealProcess


class PrometheusProcess(RealProcess):
    """`scrape` maps a job name to its targets `host:port`; `labels` are target labels of all of them (`node`)."""

    name = "prometheus"

    def __init__(
        self,
        folder: Path,
        *,
        scrape: Mapping[str, Sequence[str]] | None = None,
        rules: Sequence[Path] = (),
        alertmanagers: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        interval: str = "1s",
        bearer_token: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(folder)
        self.config_path = folder / "prometheus.yml"
        self._config = (
            dict(config)
            if config is not None
            else self._generated(scrape or {}, rules, alertmanagers, labels or {}, interval, bearer_token)
        )

    @staticmethod
    def _generated(
        scrape: Mapping[str, Sequence[str]],
        rules: Sequence[Path],
        alertmanagers: Sequence[str],
        labels: Mapping[str, str],
        interval: str,
        bearer_token: str | None,
    ) -> dict[str, Any]:
        auth = {"authorization": {"credentials": bearer_token}} if bearer_token else {}
        return {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(path.resolve()) for path in rules],
            "scrape_configs": [
                {"job_name": job, **auth, "static_configs": [{"targets": list(targets), "labels": dict(labels)}]}
                for job, targets in scrape.items()
            ],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
        }

    def argv(self) -> list[str]:
        self.config_path.write_text(json.dumps(self._config, indent=1), encoding="utf-8")  # JSON is YAML too
        return [
            "prometheus",
            f"--config.file={self.config_path}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-lifecycle",
            "--log.level=warn",
            # A notification that fires before Alertmanager is discovered (5 s) is dropped, and comes again after this.
            "--rules.alert.resend-delay=2s",
        ]

    def _get(self, path: str, **params: str) -> Any:
        answer = httpx.get(self.url + path, params=params, timeout=10, trust_env=False)
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The instant vector that `promql` gives now. A scalar answer is one sample without labels."""
        data = self._get("/api/v1/query", query=promql)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        result: list[dict[str, Any]] = data["result"]
        return result

    def value(self, promql: str) -> float | None:
        """The only sample of `promql`; None when there is none, AssertionError when there are several."""
        result = self.query(promql)
        assert len(result) < 2, result
        return float(result[0]["value"][1]) if result else None

    def alerts(self) -> list[dict[str, Any]]:
        """The pending and firing alerts."""
        alerts: list[dict[str, Any]] = self._get("/api/v1/alerts")["alerts"]
        return alerts
