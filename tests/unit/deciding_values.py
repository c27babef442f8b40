"""Values for tests of deciding: a job, an alert and the shipped policies, with what each test changes."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tunewarden.adapters.policy_file import load_policies
from tunewarden.domain.alert import Alert, AlertStatus, fingerprint_of
from tunewarden.domain.choice import Rules
from tunewarden.domain.decide import decide
from tunewarden.domain.decision import Decision
from tunewarden.domain.episode import EpisodeEvent
from tunewarden.domain.evidence import Answer, Evidence
from tunewarden.domain.history import History, OpenRemediation
from tunewarden.domain.job import Gpu, Job, JobState
from tunewarden.domain.policy import Policy
from tunewarden.domain.remediation import State
from tunewarden.domain.resolution import Meant
from tunewarden.domain.sample import Heartbeat
from tunewarden.shipped import shipped_dir

NOW = datetime(2026, 12, 1, 3, 0, tzinfo=UTC)
GIB = 1024**3
SHIPPED = {policy.name: policy for policy in load_policies([shipped_dir("rules") / "policies"])}
CONFIRMED = 'gpu:memory_used:ratio{uuid="GPU-1"} > 0.95'


def a_job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "job_id": "j1",
        "name": "cat-lora",
        "host_id": "h1",
        "node": "gpu-node-1",
        "generation": 1,
        "state": JobState.RUNNING,
        "gpus": (Gpu(uuid="GPU-1", index=0),),
        "host_gpus": (Gpu(uuid="GPU-1", index=0),),
        "can": frozenset({"save", "stop", "resume"}),
        "registered_at": NOW - timedelta(hours=1),
        "seen_at": NOW,
    }
    return Job(**(values | changes))


def an_alert(name: str = "GpuMemoryNearlyFull", *, resolved: bool = False, **labels: str) -> Alert:
    all_labels = {"alertname": name, "uuid": "GPU-1", "node": "gpu-node-1", **labels}
    return Alert(
        fingerprint=fingerprint_of(all_labels),
        status=AlertStatus.RESOLVED if resolved else AlertStatus.FIRING,
        labels=all_labels,
        starts_at=NOW,
        ends_at=NOW if resolved else None,
    )


def an_oom(**labels: str) -> Alert:
    return an_alert("TrainingJobEnded", training_job_id="j1", cause="cuda_oom", generation="1", **labels)


def a_heartbeat(*, processes: list[Mapping[str, Any]] | None = None, used: float = 0.97, **job: Any) -> Heartbeat:
    card = {
        "uuid": "GPU-1",
        "index": 0,
        "memory_used": int(24 * GIB * used),
        "memory_free": 24 * GIB - int(24 * GIB * used),
        "processes": processes or [],
    }
    return Heartbeat.from_wire({"generation": 1, "state": "running", "gpus": [card], "job": job})


def evidence(*, sign: bool = True, confirmed: bool | None = True, age_s: float = 1.0, **changes: Any) -> Evidence:
    """A rate that has fallen to a tenth where `sign`; Prometheus's answer, None for none."""
    job = {"step_rate": 0.2 if sign else 2.0, "step_rate_median": 2.0}
    answers = {} if confirmed is None else {CONFIRMED: Answer(holds=confirmed, age_s=age_s)}
    return Evidence(**({"answers": answers, "heartbeat": a_heartbeat(**job)} | changes))


def an_open(**changes: Any) -> OpenRemediation:
    values: dict[str, Any] = {"remediation_id": "R-AAAAAA", "state": State.ORDERED, "cancellable": True}
    return OpenRemediation(**(values | changes))


def decided(alert: Alert | None = None, **changes: Any) -> Decision:
    """The decision about pressure on a healthy, enforced job with all evidence there, but for `changes`."""
    alert = alert or an_alert()
    job = changes.pop("job", a_job())
    values: dict[str, Any] = {
        "event": EpisodeEvent.OPENED,
        "messaged": False,
        "meant": Meant(job=job, uuid="GPU-1"),
        "policies": tuple(SHIPPED.values()),
        "history": History(),
        "evidence": evidence(),
        "rules": Rules(enforce=True),
        "now": NOW,
    }
    return decide(alert, **(values | changes))


def policy(name: str = "vram-pressure") -> Policy:
    return SHIPPED[name]
