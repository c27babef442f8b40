"""The stand-ins of nothing: a real Prometheus and a real Alertmanager start, answer and end."""

from pathlib import Path

from tests.acceptance.alertmanager_process import AlertmanagerProcess
from tests.acceptance.prometheus_process import PrometheusProcess
from tests.acceptance.real_process import eventually


def test_prometheus_scrapes_alertmanager_and_sends_it_an_alert(tmp_path: Path) -> None:
    """A rule that always fires reaches the Alertmanager that Prometheus also scrapes."""
    rules = tmp_path / "rules.yaml"
    rules.write_text('groups: [{name: g, rules: [{alert: Always, expr: "vector(1)", labels: {severity: none}}]}]')
    with AlertmanagerProcess(tmp_path / "a") as alertmanager:
        address = alertmanager.url.removeprefix("http://")
        with PrometheusProcess(
            tmp_path / "p", scrape={"am": [address]}, rules=[rules], alertmanagers=[address]
        ) as prometheus:
            up = eventually(lambda: prometheus.value('up{job="am"}'))
            listed = eventually(alertmanager.alerts)

    assert (up, [alert["labels"]["alertname"] for alert in listed]) == (1.0, ["Always"])
