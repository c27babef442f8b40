"""What a person is told about a decision: one notice, by the names of docs/reference/messages.md."""

from collections.abc import Mapping
from typing import Any

from tunewarden.domain.advice import advice_of
from tunewarden.domain.alert import Alert
from tunewarden.domain.cause import Cause as EndCause
from tunewarden.domain.decision import Decision, Verdict
from tunewarden.domain.diagnosis import DIAGNOSIS_QUERIES
from tunewarden.domain.job import Job
from tunewarden.domain.job_event import facts_of_event
from tunewarden.domain.message import Fact, Notice, NoticeKind, Severity
from tunewarden.domain.policy import StepKind
from tunewarden.domain.reason import Reason

_NUMBERS = frozenset(
    {"vram_ratio", "step", "step_rate_median", "step_idle_s", "step_seconds_median", "log_idle_s", *DIAGNOSIS_QUERIES}
)
_LISTS = ("names", "missing")  # shown by name; attempts are told as the detail
# Nothing goes on by itself here: a person must act.
_NEEDS_A_PERSON = frozenset(
    {
        Reason.JOB_BUDGET_SPENT,
        Reason.NO_RUNG_LEFT,
        Reason.HOURLY_BUDGET_SPENT,
        Reason.FLEET_SHARE_SPENT,
        Reason.BREAKER_OPEN,
        Reason.JOB_LOST,
    }
)
_DESCRIBES = ("description", "summary", "evidence")  # the last: what an agent saw at the end of a job
_OF_AN_END = ("fragmented", "xid", "path", "states_path")
_BYTES = ("tried_bytes", "free_bytes", "total_bytes", "unused_bytes", "states_bytes")
NOT_FINITE_ALERT = "TrainingLossNotFinite"
_FROM_ANNOTATIONS = ("step", "total_steps", "exit_status", "checkpoint", "unsaved_steps")


def decision_notice(decision: Decision, alert: Alert, job: Job | None, short_id: str) -> Notice:
    """The message of one decision: `decided` where a remediation begins, else a single notice."""
    urgent = decision.reason in _NEEDS_A_PERSON
    return Notice(
        kind=NoticeKind.DECIDED if decision.verdict is Verdict.ACT else NoticeKind.NOTICE,
        reason=decision.reason,
        short_id=short_id,
        job_name=job.name if job else alert.labels.get("training_job", ""),
        node=job.node if job else alert.labels.get("node", ""),
        alert_name=alert.name,
        severity=Severity.CRITICAL if urgent else _severity(alert),
        mention=urgent,
        numbers={name: value for name, value in _plain(decision.facts).items() if name in _NUMBERS},
        facts=_facts(decision, alert, job),
    )


def breaker_opened(reason: Reason, job: Job, remediation_id: str) -> Notice:
    """A cap is reached: nothing acts until a person closes the breaker."""
    return Notice(
        kind=NoticeKind.SELF_ALERT,
        reason=reason,
        short_id=remediation_id,
        job_name=job.name,
        node=job.node,
        severity=Severity.CRITICAL,
        mention=True,
        facts={"detail": f"the last one allowed is {remediation_id}; `tunewarden breaker close` closes the breaker"},
    )


def _facts(decision: Decision, alert: Alert, job: Job | None) -> dict[str, Fact]:
    facts = {name: value for name, value in _plain(decision.facts).items() if name not in _NUMBERS}
    for name in _LISTS:
        if isinstance(items := decision.facts.get(name), list) and items:
            facts[name] = ", ".join(items)
    for name in _FROM_ANNOTATIONS:
        if alert.annotations.get(name):
            facts.setdefault(name, alert.annotations[name])
    if alert.labels.get("cause") and alert.labels.get("generation"):  # an agent's event
        facts |= {"ended": alert.labels["cause"], "generation": alert.labels["generation"]}
        facts |= _of_the_end(alert, job)
    elif alert.name == NOT_FINITE_ALERT:
        facts["advice"] = advice_of(EndCause.NAN, {}, job.knobs if job else None)
    if detail := _detail(decision.facts):
        facts["detail"] = detail
    action = _action(decision, ended="ended" in facts)
    described = next((text for name in _DESCRIBES if (text := alert.annotations.get(name))), "")
    # Never generatorURL: it is long, comes from whoever posts alerts, and leads nowhere from a phone.
    url = alert.annotations.get("runbook_url", "")
    named = {"policy": decision.policy, "action": action, "description": described, "url": url}
    if decision.verdict is Verdict.ACT:  # only the part that is allowed is done
        named["would_have"] = _would_have(decision)
    named["planned"] = ", ".join(f"{knob} {value}" for step in decision.steps for knob, value in step.knobs.items())
    return facts | {name: value for name, value in named.items() if value}


def _of_the_end(alert: Alert, job: Job | None) -> dict[str, Fact]:
    """The numbers of the death, and what a person can do about it."""
    told = facts_of_event(alert)
    facts: dict[str, Fact] = {name: told[name] for name in _OF_AN_END if name in told}
    facts |= {name: int(told[name]) for name in _BYTES if told.get(name, "").isdecimal()}
    advice = advice_of(alert.labels["cause"], told, job.knobs if job else None)
    return facts | ({"advice": advice} if advice else {})


def _action(decision: Decision, *, ended: bool) -> str:
    """The names of the steps. A job that has ended can't be saved or stopped any more: it is launched again."""
    if decision.verdict is not Verdict.ACT and (would_have := _would_have(decision)):
        return would_have
    kinds = [step.kind for step in decision.steps if step.kind is not StepKind.NOTIFY]
    return "+".join("relaunch" if ended and kind is StepKind.REPLACE else kind.value for kind in kinds)


def _would_have(decision: Decision) -> str:
    """What would be done if it were allowed. A stop or a replacement saves by itself: their save is not named."""
    words = decision.facts.get("would_have")
    words = words if isinstance(words, list) else []
    return "+".join(word for word in words if word != StepKind.SAVE or len(words) == 1)


def _detail(facts: Mapping[str, Any]) -> str:
    """Why it could not be confirmed, and the attempts that were made."""
    found = [str(facts["detail"])] if facts.get("detail") else []
    if isinstance(facts.get("attempts"), list):
        found.append(", ".join(facts["attempts"]))
    return "; ".join(found)


def _severity(alert: Alert) -> Severity:
    known = {member.value: member for member in Severity}
    return known.get(alert.labels.get("severity", ""), Severity.WARNING)


def _plain(facts: Mapping[str, Any]) -> dict[str, Fact]:
    found = {name: value for name, value in facts.items() if isinstance(value, str | int | float)}
    return {name: value for name, value in found.items() if not isinstance(value, bool)}
