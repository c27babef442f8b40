"""What happened to a job by itself, told by its agent; it becomes an alert and takes the road of Alertmanager's."""

from dataclasses import dataclass
from datetime import datetime

from tunewarden.domain.alert import Alert, AlertStatus, fingerprint_of
from tunewarden.domain.job import Job

ENDED_ALERT = "TrainingJobEnded"
OTHER_ALERTS = {"not_resumed": "TrainingJobNotResumed"}  # by kind; the job trains on, so it has not ended
OPT_OUT = ("remediation", "off")
_OOM = "cuda_oom"
_OURS = frozenset({"replaced"})  # the job goes on: its end was a step of an order
_BY_ITSELF = frozenset({"failed", "killed", "unknown"})


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """One event. `waits_s`: how long the job's `run` would wait for an order that launches the next generation."""

    event_id: str
    generation: int
    kind: str = "ended"
    cause: str = "unknown"
    exit_status: int | None = None
    step: int | None = None
    last_state_step: int | None = None
    waits_s: float | None = None
    evidence: str = ""

    @property
    def ends_the_job(self) -> bool:
        """False for the end of a generation that an order of ours replaces."""
        return self.kind == "ended" and self.cause not in _OURS


def alert_of(event: JobEvent, job: Job, now: datetime) -> Alert:
    """The alert that stands for an event: its fingerprint is the event's own, so that no two are one episode."""
    labels = {
        "alertname": OTHER_ALERTS.get(event.kind, ENDED_ALERT),
        "training_job_id": job.job_id,
        "training_job": job.name,
        "node": job.node,
        "generation": str(event.generation),
        "cause": event.cause,
    }
    told = {
        "evidence": event.evidence,
        "step": event.step,
        "last_state_step": event.last_state_step,
        "exit_status": event.exit_status,
        "waits_s": event.waits_s,
    }
    return Alert(
        fingerprint=fingerprint_of({**labels, "event_id": event.event_id}),
        status=AlertStatus.FIRING,
        labels=labels,
        annotations={name: str(value) for name, value in told.items() if value not in (None, "")},
        starts_at=now,
    )


def should_wait(event: JobEvent, job: Job, *, verifying: bool, may_go_back: bool) -> bool:
    """Whether the job's `run` is to wait for an order.

    After an out-of-memory end, unless a person holds the job, it opted out, or this generation was itself the answer
    to something (`verifying`): after a second such death a person looks. After another death only if the previous
    knobs can be brought back (`may_go_back`).
    """
    if not event.waits_s or event.kind != "ended" or job.held or job.labels.get(OPT_OUT[0]) == OPT_OUT[1]:
        return False
    if event.cause == _OOM:
        return not verifying
    return event.cause in _BY_ITSELF and verifying and may_go_back
