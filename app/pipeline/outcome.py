"""What a person is told about a remediation: its restart and its outcome, from its rows alone."""

from collections.abc import Mapping
from typing import Any

from tunewarden.domain.job import Job
from tunewarden.domain.message import Change, Fact, Notice, NoticeKind, Severity
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Remediation, State

# Where nothing goes on by itself: a person must act, so the message says `@`.
_NEEDS_A_PERSON = frozenset({State.BROKEN, State.UNCERTAIN, State.UNKNOWN, State.FAILED})
_PUZZLES = frozenset({Reason.STILL_ALIVE, Reason.KEEPER_LOST, Reason.AGENT_RESTARTED, Reason.HOST_REBOOTED})
_CALM = frozenset({State.RECOVERED, State.DONE, State.CANCELLED, State.SUPERSEDED})

# Our facts, and the names that docs/reference/messages.md has for them.
_NAMES = {
    "resumed_step": "resumed_step",
    "step_now": "step_now",
    "launched_generation": "generation",
    "new_config_path": "config_path",
    "exit_status": "exit_status",
    "unsaved_steps": "unsaved_steps",
    "text": "detail",
}


# The key of the config that says where to resume from, by trainer: what a person writes to go on by hand.
_RESUME_KEYS = {"lora-yaml": "resume_from_checkpoint"}

# Where a checkpoint's step and its path stand in our facts: what the new generation wrote itself, what the order saved,
# what the launch resumed from.
_STATES = (("newest_step", "newest_checkpoint"), ("receipt_step", "checkpoint"), ("resume_step", "resume_path"))


def outcome_notice(remediation: Remediation, job: Job | None) -> Notice:
    """The second message of a remediation: what changed, the checkpoint, recovered or not."""
    urgent = remediation.state in _NEEDS_A_PERSON or remediation.reason in _PUZZLES
    calm = remediation.state in _CALM
    return Notice(
        kind=NoticeKind.OUTCOME,
        reason=remediation.reason,
        short_id=remediation.remediation_id,
        job_name=job.name if job else "",
        node=job.node if job else "",
        alert_name=str(remediation.facts.get("alertname", "")),
        severity=Severity.CRITICAL if urgent else Severity.INFO if calm else Severity.WARNING,
        mention=urgent,
        changes=_changes(remediation.facts),
        numbers=_numbers(remediation.facts),
        facts=_facts(remediation, job),
    )


def restarted_notice(remediation: Remediation, job: Job | None) -> Notice:
    """The third message, for verbose targets: the new generation is started."""
    return Notice(
        kind=NoticeKind.RESTARTED,
        reason=remediation.reason,
        short_id=remediation.remediation_id,
        job_name=job.name if job else "",
        node=job.node if job else "",
        alert_name=str(remediation.facts.get("alertname", "")),
        severity=Severity.INFO,
        changes=_changes(remediation.facts),
        facts=_facts(remediation, job),
    )


def breaker_notice(broken: Remediation) -> Notice:
    """The breaker opened: nothing acts until a person closes it."""
    return Notice(
        kind=NoticeKind.SELF_ALERT,
        reason=Reason.BREAKER_OPEN,
        short_id=broken.remediation_id,
        severity=Severity.CRITICAL,
        mention=True,
        facts={"detail": f"the last remediation was {broken.remediation_id}; `tunewarden breaker close` closes it"},
    )


def lost_notice(job: Job, reason: Reason = Reason.JOB_LOST) -> Notice:
    """A job's agent is gone, or its host was started again; the message holds the command that goes on."""
    return Notice(
        kind=NoticeKind.NOTICE,
        reason=reason,
        short_id=job.job_id[:12],
        job_name=job.name,
        node=job.node,
        severity=Severity.CRITICAL,
        mention=True,
        facts={"resume_command": resume_command(job), "generation": job.generation},
    )


def resume_command(job: Job) -> str:
    """What a person types on the job's host. The service knows no command lines: those stay on the host."""
    return f"tunewarden run --name {job.name} -- COMMAND"


def _facts(remediation: Remediation, job: Job | None) -> dict[str, Fact]:
    source = remediation.facts
    facts: dict[str, Fact] = {
        shown: value for name, shown in _NAMES.items() if isinstance(value := source.get(name), str | int | float)
    }
    batch = source.get("effective_batch")
    if isinstance(batch, Mapping):
        facts |= {
            "effective_batch_before": str(batch.get("from", "")),
            "effective_batch_after": str(batch.get("to", "")),
        }
    facts |= _price(source)
    facts |= _state(source, newest=remediation.state in _NEEDS_A_PERSON)
    facts["policy"] = remediation.policy
    facts["action"] = "+".join(step.kind.value for step in remediation.plan.steps)
    if job is not None and remediation.state in _NEEDS_A_PERSON:
        facts["resume_command"] = resume_command(job)
        facts |= {"resume_key": key} if (key := _RESUME_KEYS.get(job.trainer)) else {}
    return facts


def _price(source: Mapping[str, Any]) -> dict[str, Fact]:
    """What the change has cost: the time of a step before and after, as it was measured."""
    before, after = source.get("step_seconds_before"), source.get("step_seconds_after")
    if not isinstance(before, int | float) or not isinstance(after, int | float) or before <= 0:
        return {}
    change = f"{100 * (after / before - 1):+.0f} %"
    return {"step_seconds_before": f"{before:.3g}", "step_seconds_after": f"{after:.3g}", "step_seconds_change": change}


def _state(source: Mapping[str, Any], *, newest: bool) -> dict[str, Fact]:
    """The farthest state that is known, and its path if that was told with it.

    `newest`: with those that the new generation wrote. Not simply the last one: a generation that began anew has
    written states that lie behind what was saved.
    """
    places = _STATES if newest else _STATES[1:]
    known = [(step, source.get(path)) for name, path in places if isinstance(step := source.get(name), int)]
    if not known:
        return {}
    step, path = max(known, key=lambda state: (state[0], state[1] is not None))
    return {"step": step, "checkpoint": path} if isinstance(path, str) else {"step": step}


def _changes(facts: Mapping[str, Any]) -> tuple[Change, ...]:
    items = facts.get("changes")
    return tuple(
        Change(knob=str(item.get("knob", "")), before=str(item.get("from", "")), after=str(item.get("to", "")))
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, Mapping)
    )


def _numbers(facts: Mapping[str, Any]) -> dict[str, Fact]:
    """How full the card is now. The numbers of the decision were told with it; they are old by now."""
    now = facts.get("vram_now")
    return {"vram_ratio": now} if isinstance(now, int | float) else {}
