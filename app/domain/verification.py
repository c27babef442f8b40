"""Whether the new generation of a job recovered. Pure: evidence in, verdict out.

From the first optimizer step of generation N+1, until `verify_for` and `steps` have passed, whichever is later. Fresh
samples only: what can't be measured is unknown, never good.
"""

from dataclasses import dataclass
from enum import StrEnum

from tunewarden.domain.policy import Expectation
from tunewarden.domain.reason import Reason


class Recovery(StrEnum):
    """The four outcomes, the end of watching, and `not yet`."""

    NOT_YET = "not_yet"
    RECOVERED = "recovered"
    RUNNING_NOT_RECOVERED = "running_not_recovered"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    SUPERSEDED = "superseded"  # a person ended it meanwhile


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of the new generation. Times are epoch seconds of the service's clock, receipts and no host's time.

    `died`: the cause of its end, None while it lives. `holds`: whether the alert's condition still holds; None when it
    could not be measured. `required_step`: the receipt's step, or the newest complete state's; None: nothing to resume.
    `counts_steps`: generation N reported steps, so silence of N+1 is a fault and not a trainer that never does.
    """

    launched_at: float
    required_step: int | None = None
    resumed_step: int | None = None
    counts_steps: bool = True
    died: str | None = None
    first_step: int | None = None
    first_step_at: float | None = None
    step: int | None = None
    step_at: float | None = None  # when `step` was first seen
    fresh: bool = True  # the newest sample is at most three heartbeats old
    holds: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict and why."""

    recovery: Recovery
    reason: Reason


NOT_YET = Finding(recovery=Recovery.NOT_YET, reason=Reason.POLICY_MATCHED)


def verdict(evidence: Evidence, expect: Expectation, now: float) -> Finding:
    """What the evidence says at `now`."""
    if evidence.died is not None:
        return _after_death(evidence)
    if _fell_short(evidence):
        return _found(Recovery.BROKEN, Reason.NOT_RESUMED)
    deadline_s = expect.deadline.total_seconds()
    if evidence.first_step_at is None:
        return _without_a_step(evidence, late=now >= evidence.launched_at + deadline_s)
    if not long_enough(evidence, expect, now):
        return _while_it_runs(evidence, stuck=now >= (evidence.step_at or evidence.first_step_at) + deadline_s)
    return _at_the_end(evidence, expect, now)


def long_enough(evidence: Evidence, expect: Expectation, now: float) -> bool:
    """True once the time and the steps have passed; only then the condition is asked for."""
    if evidence.first_step_at is None or evidence.first_step is None or evidence.step is None:
        return False
    made = evidence.step - evidence.first_step
    return now >= evidence.first_step_at + expect.verify_for.total_seconds() and made >= expect.steps


def _after_death(evidence: Evidence) -> Finding:
    made_steps = evidence.first_step is not None
    match evidence.died:
        case "cuda_oom" | "oom_at_load" | "oom_in_sampling":
            return _found(Recovery.BROKEN, Reason.DIED_OF_OOM_AGAIN)
        case "host_oom":
            return _found(Recovery.BROKEN, Reason.DIED_OF_HOST_OOM_AGAIN)
        case "nan":
            return _found(Recovery.BROKEN, Reason.LOSS_NOT_FINITE)
        case "user_stop":
            return _found(Recovery.SUPERSEDED, Reason.USER_STOP)
        case "policy_stop" | "replaced":
            return _found(Recovery.SUPERSEDED, Reason.SUPERSEDED)
        case "finished" if _fell_short(evidence):
            return _found(Recovery.BROKEN, Reason.NOT_RESUMED)
        case "finished" if made_steps or not evidence.counts_steps:
            return _found(Recovery.RECOVERED, Reason.RECOVERED)
        case "finished" | "finished_without_steps":  # over with exit code 0 and no step: nothing was trained
            return _found(Recovery.BROKEN, Reason.NO_STEP)
    return _found(Recovery.BROKEN, Reason.DIED_AGAIN)


def _fell_short(evidence: Evidence) -> bool:
    """True when it can be told that the training did not go on from where it was saved."""
    if evidence.required_step is None:
        return False
    if evidence.resumed_step is not None:
        return evidence.resumed_step < evidence.required_step
    return evidence.first_step is not None and evidence.first_step < evidence.required_step


def _without_a_step(evidence: Evidence, *, late: bool) -> Finding:
    if not late:
        return NOT_YET
    if evidence.fresh and evidence.counts_steps:
        return _found(Recovery.BROKEN, Reason.NO_STEP)
    return _found(Recovery.UNKNOWN, Reason.NO_DATA)


def _while_it_runs(evidence: Evidence, *, stuck: bool) -> Finding:
    if not stuck:
        return NOT_YET
    return _found(Recovery.BROKEN, Reason.NO_STEP) if evidence.fresh else _found(Recovery.UNKNOWN, Reason.NO_DATA)


def _at_the_end(evidence: Evidence, expect: Expectation, now: float) -> Finding:
    if evidence.required_step is not None and evidence.resumed_step is None:
        return _found(Recovery.BROKEN, Reason.NOT_RESUMED)  # no resumed.json: nothing proves that it went on
    if evidence.fresh and evidence.holds is not None:
        if evidence.holds:
            return _found(Recovery.RUNNING_NOT_RECOVERED, Reason.STILL_FULL)
        return _found(Recovery.RECOVERED, Reason.RECOVERED)
    last = max(evidence.launched_at, evidence.first_step_at or 0.0) + expect.verify_for.total_seconds()
    if now >= last + expect.deadline.total_seconds():
        return _found(Recovery.UNKNOWN, Reason.NO_DATA)
    return NOT_YET


def _found(recovery: Recovery, reason: Reason) -> Finding:
    return Finding(recovery=recovery, reason=reason)
