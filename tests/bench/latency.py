"""From the 202 of a delivery to the stop request in the job's control directory, with a real Prometheus between.

Everything is real: `tunewarden serve` and `run`, the example trainer, a Prometheus that scrapes the service's /metrics,
the shipped recording rules, and the shipped policy `vram-pressure` with its thresholds and pauses lowered. Without
`enforce` it saves; with it, it replaces the job by a generation with a smaller batch. Both are asked by the same file.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path

from tests.acceptance.prometheus_process import PrometheusProcess
from tests.acceptance.real_process import eventually
from tests.bench.rows import Row
from tests.bench.service import RunProcess, ServiceProcess
from tests.bench.stop_watch import StopWatch

SAVES = 100
REPLACEMENTS = 6
WAIT_S = 15.0
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "my_style_lora.yaml"
CARD = "24GiB/256MiB"
# What the shipped policy's values become: thresholds that any job's memory is over, and no pauses.
EASIER = {
    "0.95": "0.02",
    "save_interval: 30m": "save_interval: 0s",
    "cooldown: 10m": "cooldown: 0s",
    "replacements: 3": "replacements: 1000",
    "verify_for: 5m": "verify_for: 1s",
    "steps: 50": "steps: 1",
}
# The job: long enough, and for replacements a batch that can be halved that often.
JOB = {"epochs: 10": "epochs: 10000", "activation_mb_per_sample: 16": "activation_mb_per_sample: 0"}
LARGE_BATCH = {"batch_size: 4 ": f"batch_size: {2 ** (REPLACEMENTS + 1)} "}
SETTINGS = """\
prometheus_url: {prometheus}
enforce: {enforce}
heartbeat: {heartbeat}
shipped_policies: false
policy_dirs: [{policies}]
limits: {{actions_per_hour: 100000, share_from_jobs: 1000}}
"""


def easier_policy(folder: Path) -> Path:
    """A folder with the one policy."""
    text = (ROOT / "rules" / "policies" / "vram-pressure.yaml").read_text(encoding="utf-8")
    folder.mkdir()
    (folder / "vram-pressure.yaml").write_text(replaced(text, EASIER), encoding="utf-8")
    return folder


def replaced(text: str, values: Mapping[str, str]) -> str:
    """`text` with each key replaced; AssertionError when one is not there any more."""
    for old, new in values.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


class Scene:
    """A running service with one job on a simulated card, and what a delivery to it needs."""

    def __init__(
        self, service: ServiceProcess, run: RunProcess, prometheus: PrometheusProcess, *, calm_s: float
    ) -> None:
        self.service, self._run_dir = service, run.run_dir
        self._connection = HTTPConnection("127.0.0.1", service.port, timeout=10)
        self._number, self._starts_at = 0, ""
        eventually(self._job, within_s=60)
        (job,) = service.get("/jobs")["jobs"]
        self.job_id, self._node = job["job_id"], job["node"]
        self._uuid = job["gpus"][0]["uuid"]
        self._prometheus, self._calm_s = prometheus, calm_s
        eventually(self._confirmed, within_s=60)

    def _job(self) -> bool:
        """Whether the service knows of the job that it is on its card and training."""
        return any(job["gpus"] and job["step"] for job in self.service.get("/jobs")["jobs"])

    def sample(self) -> float:
        """Seconds from the answer 202 to the stop request, for one alert of an episode of its own."""
        generation = self.service.get(f"/jobs/{self.job_id}")["generation"]
        watch = StopWatch(self._run_dir / f"g{generation}")
        self._number += 1
        self._starts_at = datetime.now(UTC).isoformat()
        try:
            accepted = self._deliver()
            seen = watch.wait(WAIT_S)
        finally:
            watch.close()
        if seen is None:
            raise AssertionError(f"no stop request within {WAIT_S} s: {self.service.log_path.read_text()[-2000:]}")
        self._deliver(resolved=True)  # an alert that fires on is looked at again each second, and would save again
        return max(0.0, seen - accepted)

    def _deliver(self, *, resolved: bool = False) -> float:
        labels = {"alertname": "GpuMemoryNearlyFull", "uuid": self._uuid, "node": self._node, "n": str(self._number)}
        alert = {
            "status": "resolved" if resolved else "firing",
            "labels": labels,
            "annotations": {"summary": "The card is nearly full."},
            "startsAt": self._starts_at,
            "endsAt": datetime.now(UTC).isoformat() if resolved else "0001-01-01T00:00:00Z",
            "generatorURL": "http://prometheus:9090/graph",
            "fingerprint": f"{self._number:016x}",
        }
        body = {"version": "4", "status": "firing", "groupKey": "{}:{}", "receiver": "tunewarden", "alerts": [alert]}
        headers = {"Authorization": f"Bearer {self.service.token('webhook')}", "Content-Type": "application/json"}
        self._connection.request("POST", "/api/v1/alertmanager", json.dumps(body).encode(), headers)
        answer = self._connection.getresponse()
        accepted = time.perf_counter()
        assert answer.status == 202, answer.read()
        answer.read()
        return accepted

    def settle(self) -> None:
        """Until the remediation has ended and the job trains; then a pause of random length: no two beats meet."""
        eventually(lambda: self._newest_ended() and self._job(), within_s=60, every_s=0.2)
        time.sleep(random.uniform(0.2, 0.8) + self._calm_s)
        eventually(self._confirmed)

    def _confirmed(self) -> bool:
        return bool(self._prometheus.query(f'gpu:memory_used:ratio{{uuid="{self._uuid}"}} > 0.02'))

    def _newest_ended(self) -> bool:
        found = self.service.get("/remediations?limit=1")["remediations"]
        return bool(found) and not found[0]["open"]


@contextmanager
def scene(folder: Path, *, enforce: bool) -> Iterator[Scene]:
    """Prometheus, the service and one job."""
    policies = easier_policy(folder / "policies")
    service = ServiceProcess(folder / "service")
    rules = sorted((ROOT / "rules" / "recording").glob("*.yaml"))
    scrape = {"tunewarden": [f"127.0.0.1:{service.port}"]}
    with PrometheusProcess(
        folder / "prometheus", scrape=scrape, rules=rules, interval="1s" if enforce else "5s"
    ) as prometheus:
        # A replacement has recovered when heartbeats say so: there the default would be waiting.
        heartbeat = "1s" if enforce else "5s"
        values = {"prometheus": prometheus.url, "enforce": str(enforce).lower(), "heartbeat": heartbeat}
        service.add(SETTINGS.format(**values, policies=policies).splitlines())
        job = folder / "job"
        job.mkdir()
        (job / "lora.yaml").write_text(
            replaced(EXAMPLE.read_text(encoding="utf-8"), JOB | (LARGE_BATCH if enforce else {})), encoding="utf-8"
        )
        argv = [sys.executable, str(ROOT / "tests" / "bench" / "trainer.py"), "--config", "lora.yaml"]
        with service, RunProcess(service, job, ["--simulate-gpu", CARD], argv) as run:
            yield Scene(service, run, prometheus, calm_s=3.0 if enforce else 0.0)


def measure(count: int, *, enforce: bool) -> list[float]:
    """Seconds of `count` samples, in order. The first delivery is not counted: it fills caches."""
    with (
        tempfile.TemporaryDirectory(prefix="tunewarden-bench-") as folder,
        scene(Path(folder), enforce=enforce) as played,
    ):
        found = []
        for _ in range(count + 1):
            found.append(played.sample())
            played.settle()
    return found[1:]


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def saves() -> list[Row]:
    """The rows of the goal: median and p99 over many saves of one job."""
    found = [seconds * 1000 for seconds in measure(SAVES, enforce=False)]
    name = "accepted → stop request in the job's folder"
    note = f"{len(found)} saves; fastest {min(found):.0f}, slowest {max(found):.0f} ms"
    return [
        Row(name=f"{name}: median", goal=50, value=statistics.median(found), unit="ms", note=note),
        Row(name=f"{name}: p99", goal=250, value=percentile(found, 99), unit="ms", note=note),
    ]


def replacements() -> list[Row]:
    """The same for replacements, which also read the card and write the adjusted config; few, for each starts a job."""
    found = [seconds * 1000 for seconds in measure(REPLACEMENTS, enforce=True)]
    note = f"{len(found)} replacements; fastest {min(found):.0f}, slowest {max(found):.0f} ms"
    name = "… of a replacement, adjusted config included: median"
    return [Row(name=name, goal=50, value=statistics.median(found), unit="ms", note=note)]


MEASURES = (saves, replacements)
