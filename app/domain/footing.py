"""On what a ladder's next rung is chosen for one case, and what a decision then says about it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tunewarden.domain.case import Case
from tunewarden.domain.diagnosis import Cause
from tunewarden.domain.job import Job
from tunewarden.domain.job_event import facts_of_event
from tunewarden.domain.ladder import Footing, Ladder, Rung, next_rung, rungs_left
from tunewarden.domain.policy import Step
from tunewarden.domain.sample import Heartbeat

CONSENT = ("remediation_allow", "resolution")  # a job's label that says yes to smaller images
RUNG = "rung"
_SHORT_SHARE = 0.15  # of the host's memory available: at less, nothing that takes more of it


def rung_of(case: Case) -> Rung | None:
    """The rung that a policy's ladder offers now; None without a ladder, or where none is left."""
    step = ladder_step(case)
    return next_rung(step.ladder, footing_of(case, step)) if step is not None and step.ladder is not None else None


def ladder_step(case: Case) -> Step | None:
    """The step of the policy that leaves its knobs to a ladder."""
    return next((step for step in case.policy.steps if step.ladder is not None), None)


def with_rung(case: Case) -> Case:
    """The case with the chosen knobs in place of the ladder; as it is without a ladder, or with nothing left on it."""
    step, rung = ladder_step(case), rung_of(case)
    if step is None or rung is None:
        return case
    chosen = replace(step, knobs=rung.knobs, rung=rung.name)
    steps = tuple(chosen if each is step else each for each in case.policy.steps)
    return replace(case, policy=replace(case.policy, steps=steps))


def footing_of(case: Case, step: Step) -> Footing:
    """What is known of the job, its host and its past."""
    facts = facts_of_event(case.alert)
    consent = CONSENT[1] in case.job.labels.get(CONSENT[0], "").replace(",", " ").split()
    return Footing(
        knobs=case.job.knobs,
        changeable=case.job.changeable,
        taken=case.history.rungs_taken,
        refused=case.history.rungs_refused,
        fragmented=facts.get("fragmented") == "yes",
        host_memory_short=host_memory_short(case.evidence.heartbeat),
        cpus=case.job.cpus,
        resolution_allowed=step.allow_resolution_change or consent,
        effective_batch_allowed=step.allow_effective_batch_change,
    )


def host_memory_short(heartbeat: Heartbeat | None) -> bool | None:
    """Whether the job's host has hardly any memory left; None: not measured."""
    host = heartbeat.host if heartbeat is not None else None
    if host is None or host.memory_available is None or not host.memory_total:
        return None
    return host.memory_available / host.memory_total < _SHORT_SHARE


def suggestion(diagnosis: Mapping[str, Any], job: Job | None, heartbeat: Heartbeat | None) -> dict[str, Any]:
    """The facts of a notice about a slow loader: the next rung, and those that would follow it. Nothing is done."""
    if diagnosis.get("cause") != Cause.LOADER or job is None or job.knobs is None:
        return {}
    footing = Footing(
        knobs=job.knobs,
        changeable=job.changeable,
        host_memory_short=host_memory_short(heartbeat),
        cpus=job.cpus,
    )
    rungs = rungs_left(Ladder.LOADER, footing)
    if not rungs:
        return {}
    words = [_change(job.knobs, rung.knobs) for rung in rungs]
    then = {"suggested_then": ", ".join(words[1:])} if words[1:] else {}
    return {"suggested": words[0], RUNG: rungs[0].name.value, **then}


def _change(knobs: Mapping[str, str], asked: Mapping[str, str]) -> str:
    return ", ".join(f"{knob} {knobs.get(knob, '')} → {value}".replace("  ", " ") for knob, value in asked.items())
