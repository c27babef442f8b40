"""The decisions of policies that only notify. Pure."""

from typing import Any

from tunewarden.domain.case import notifies, numbers_of
from tunewarden.domain.decision import Decision, Verdict
from tunewarden.domain.evidence import Evidence
from tunewarden.domain.policy import Policy
from tunewarden.domain.reason import Reason
from tunewarden.domain.resolution import Meant

_RECHECK_S = 60.0


def only_told(policy: Policy, meant: Meant, evidence: Evidence, messaged: bool) -> Decision:
    """The decision of a policy without an acting step; it waits while the job is in a phase without steps."""
    phase = _silent_phase(policy, evidence)
    if phase:
        return Decision(
            verdict=Verdict.WAIT,
            reason=Reason.STEPS_NOT_DUE,
            policy=policy.name,
            job_id=meant.job.job_id if meant.job else "",
            recheck_s=_RECHECK_S,
            facts={"phase": phase},
        )
    return Decision(
        verdict=Verdict.NOTIFY,
        reason=Reason.NOTIFY_ONLY,
        policy=policy.name,
        job_id=meant.job.job_id if meant.job else "",
        steps=policy.steps,
        message=not messaged and notifies(policy),
        facts=numbers_of(evidence, meant.uuid) | (_stall_of(evidence) if policy.silent_in else {}),
    )


def _silent_phase(policy: Policy, evidence: Evidence) -> str:
    """The phase in which the policy keeps silent, if the job is in one by a fresh heartbeat."""
    heartbeat = evidence.fresh_heartbeat
    phase = heartbeat.job.phase if heartbeat is not None else None
    return phase if phase is not None and phase in policy.silent_in else ""


def _stall_of(evidence: Evidence) -> dict[str, Any]:
    """What a job says while no step comes: its phase, and since when it is silent."""
    heartbeat = evidence.fresh_heartbeat
    if heartbeat is None:
        return {}
    job = heartbeat.job
    found = {
        "phase": job.phase,
        "step_idle_s": job.step_idle_s,
        "step_seconds_median": job.step_seconds_median,
        "log_idle_s": job.log_idle_s,
    }
    return {name: value for name, value in found.items() if value is not None}
