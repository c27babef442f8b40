"""The end of a generation: why, what the service is told, and what `run` ends with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tunewarden.domain.cause import MAY_GO_BACK, RESTARTABLE, Cause
from tunewarden.domain.order import OrderKind
from tunewarden.supervisor.cause import cause_of
from tunewarden.supervisor.death import Fact
from tunewarden.supervisor.death_facts import ending_of, with_room
from tunewarden.supervisor.orders import OrderRecord
from tunewarden.supervisor.outbox import EVENT
from tunewarden.supervisor.run import Run
from tunewarden.supervisor.started_by import StartedBy

STOPPED_BY_ORDER = 75
STOPPED_BY_PERSON = 130
UNKNOWN_END = 1
WAITS_S = 60.0  # how long `run` waits for an order after a death of out-of-memory, or a launch that failed


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a generation ended. `waits`: an order may still launch the next one. `exit_code` is what `run` ends with."""

    cause: Cause
    evidence: str
    exit_code: int
    waits: bool
    facts: Mapping[str, Fact] = field(default_factory=dict)


def judge(run: Run, records: Iterable[OrderRecord]) -> Verdict:
    """Why the newest generation has ended."""
    generation = run.situation.generation
    status = run.situation.endings.get(generation)
    stopped_by = _stopped_by(run, records, generation)
    if run.situation.interrupts:
        text = f"a person stopped what is ours; {run.lives_on}" if run.lives_on else "stopped by a person"
        return Verdict(cause=Cause.USER_STOP, evidence=text, exit_code=STOPPED_BY_PERSON, waits=False)
    if stopped_by is not None:
        failed_launch = stopped_by.order.kind is OrderKind.REPLACE and "stop" in stopped_by.outcomes
        text = f"stopped by order {stopped_by.order.order_id}"
        return Verdict(cause=Cause.POLICY_STOP, evidence=text, exit_code=STOPPED_BY_ORDER, waits=failed_launch)
    if run.spec.started_by is not StartedBy.RUN:
        if status == STOPPED_BY_PERSON:  # it says itself that it was interrupted, where a person could
            text = "interrupted where it runs"
            return Verdict(cause=Cause.USER_STOP, evidence=text, exit_code=STOPPED_BY_PERSON, waits=False)
        if status is None and run.control().crash() is None:
            return _vanished(run)
        status = 1 if status is None else status
    death = with_room(run, cause_of(ending_of(run, status)))
    # A generation that an order launched and that died before its first step may be taken back to the previous knobs.
    stillborn = death.cause in MAY_GO_BACK and generation > 1 and status is not None and run.steps_made() == 0
    # What somebody else has launched is launched again by them alone.
    waits = (death.cause in RESTARTABLE or stillborn) and run.spec.started_by is StartedBy.RUN
    code = _code(status, death.cause)
    return Verdict(cause=death.cause, evidence=death.evidence, exit_code=code, waits=waits, facts=dict(death.facts))


def _vanished(run: Run) -> Verdict:
    """The end of a process that is not our child: nobody tells us its exit status, and it has said nothing itself."""
    if run.spec.started_by is StartedBy.ADOPT:
        cause, evidence = Cause.UNKNOWN, "it has ended; how can't be seen, for it was adopted"
    else:
        cause, evidence = Cause.KILLED, "it vanished without an end of its own, as a GUI's stop button makes it vanish"
    return Verdict(cause=cause, evidence=evidence, exit_code=UNKNOWN_END, waits=False)


def _stopped_by(run: Run, records: Iterable[OrderRecord], generation: int) -> OrderRecord | None:
    """The order that ended this generation, or made its trainer park."""
    for record in records:
        if record.order.generation != generation or record.order.after_oom:
            continue
        parks = record.order.kind is not OrderKind.SAVE and "save" in record.intents
        receipt = run.control(generation).receipt(f"r-{record.order.order_id}") if parks else None
        if "stop" in record.intents or (receipt is not None and receipt.ok):
            return record
    return None


def _code(status: int | None, cause: Cause) -> int:
    """The job's own code, but never 0 for a restart that trained nothing: `run … && upload` must not go on."""
    if status is None or (status == 0 and cause is Cause.FINISHED_WITHOUT_STEPS):
        return UNKNOWN_END
    return status if status >= 0 else 128 - status


def tell(run: Run, verdict: Verdict, *, generation: int | None = None) -> str:
    """Post the event of a generation's end, once; returns its id."""
    number = generation or run.situation.generation
    progress = run.control(number).progress()
    event_id = f"{run.spec.job_id}-g{number}-ended"
    body = {
        "generation": number,
        "kind": "ended",
        "cause": verdict.cause,
        "exit_status": run.situation.endings.get(number),
        "step": progress.step if progress else None,
        "last_state_step": progress.last_state.step if progress and progress.last_state else None,
        "waits_s": WAITS_S if verdict.waits else 0.0,
        "evidence": verdict.evidence,
        "facts": dict(verdict.facts),
    }
    run.post(event_id, body)
    return event_id


def waiting_line(verdict: Verdict, generation: int) -> str:
    """What the person at the terminal is told while `run` waits."""
    happened = {
        Cause.CUDA_OOM: "out of memory",
        Cause.HOST_OOM: "out of host memory",
        Cause.POLICY_STOP: "stopped, and not launched again",
    }.get(verdict.cause, f"generation {generation} ended before its first step")
    return f"{happened}; waiting up to {WAITS_S:.0f} s for the service to bring it back"


def told_before(run: Run, generation: int) -> Verdict | None:
    """The verdict that was journaled before the agent was restarted."""
    event_id = f"{run.spec.job_id}-g{generation}-ended"
    for entry in run.journal.notes(EVENT):
        if entry.detail["event_id"] == event_id:
            status = entry.detail["exit_status"]
            cause = Cause(entry.detail["cause"])
            facts = entry.detail.get("facts") or {}
            code = {Cause.USER_STOP: STOPPED_BY_PERSON, Cause.POLICY_STOP: STOPPED_BY_ORDER}.get(
                cause, _code(status, cause)
            )
            waits = entry.detail["waits_s"] > 0
            return Verdict(cause=cause, evidence=entry.detail["evidence"], exit_code=code, waits=waits, facts=facts)
    return None


def check_resumed(run: Run) -> None:
    """Tell once when the newest generation trains without having gone on from its state. It is left alone."""
    generation = run.generation()
    if generation.number == 1 or generation.resume_step is None or run.steps_made() == 0:
        return
    resumed = run.control().resumed()
    if resumed is not None and resumed.step >= generation.resume_step:
        return
    progress = run.control().progress()
    said = f"it said that it resumed from step {resumed.step}" if resumed else "it wrote no resumed.json"
    body = {
        "generation": generation.number,
        "kind": "not_resumed",
        "cause": "not_resumed",
        "exit_status": None,
        "step": progress.step if progress else None,
        "last_state_step": generation.resume_step,
        "waits_s": 0.0,
        "evidence": f"generation {generation.number} trains, but not from step {generation.resume_step}: {said}",
        "facts": {},
    }
    run.post(f"{run.spec.job_id}-g{generation.number}-not_resumed", body)
