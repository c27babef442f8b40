"""What happened to a job by itself, told by its agent; it becomes an alert and takes the road of Alertmanager's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tunewarden.domain.alert import Alert, AlertStatus, fingerprint_of
from tunewarden.domain.cause import MAY_GO_BACK, RESTARTABLE
from tunewarden.domain.job import Job

ENDED_ALERT = "TrainingJobEnded"
OTHER_ALERTS = {"not_resumed": "TrainingJobNotResumed"}  # by kind; the job trains on, so it has not ended
OPT_OUT = ("remediation", "off")
FACT = "fact_"  # before the name of an annotation that holds one of an event's facts
_OURS = frozenset({"replaced"})  # the job goes on: its end was a step of an order


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
    facts: Mapping[str, str | int | float] = field(default_factory=dict)

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
    if "xid" in event.facts:  # so that a policy can tell one fault of a card from another
        labels["xid"] = str(event.facts["xid"])
    told = {
        "evidence": event.evidence,
        "step": event.step,
        "last_state_step": event.last_state_step,
        "exit_status": event.exit_status,
        "waits_s": event.waits_s,
        **{FACT + name: fact for name, fact in event.facts.items()},
    }
    return Alert(
        fingerprint=fingerprint_of({**labels, "event_id": event.event_id}),
        status=AlertStatus.FIRING,
        labels=labels,
        annotations={name: str(value) for name, value in told.items() if value not in (None, "")},
        starts_at=now,
    )


def facts_of_event(alert: Alert) -> dict[str, str]:
    """The facts of the event that an alert stands for, as text; empty for an alert of Alertmanager's."""
    if alert.name not in (ENDED_ALERT, *OTHER_ALERTS.values()):
        return {}
    return {name.removeprefix(FACT): text for name, text in alert.annotations.items() if name.startswith(FACT)}


def should_wait(event: JobEvent, job: Job, *, verifying: bool, may_go_back: bool) -> bool:
    """Whether the job's `run` is to wait for an order.

    After an end that other knobs can answer, unless a person holds the job, it opted out, or this generation was
    itself the answer to something (`verifying`): after a second such death a person looks. After another death only if
    the previous knobs can be brought back (`may_go_back`).
    """
    if not event.waits_s or event.kind != "ended" or job.held or job.labels.get(OPT_OUT[0]) == OPT_OUT[1]:
        return False
    if event.cause in RESTARTABLE:
        return not verifying
    return event.cause in MAY_GO_BACK and verifying and may_go_back
