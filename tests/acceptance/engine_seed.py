"""Stores with one remediation in a wanted state, made by the product's own functions, and what moves it on."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, update

from tunewarden.adapters.store import jobs, orders, remediations, steps
from tunewarden.adapters.store.tables import orders as orders_table
from tunewarden.adapters.store.tables import remediations as table
from tunewarden.domain.job import Gpu, Job, JobState
from tunewarden.domain.order import HostCheck, Phase, Report
from tunewarden.domain.plan import Plan
from tunewarden.domain.policy import Expectation, Step, StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, State
from tunewarden.pipeline.moves import Moves
from tunewarden.pipeline.opening import begin
from tunewarden.pipeline.reports import apply_reports, take_report

JOB = "job-1"
GPU = {"uuid": "GPU-1", "index": 0}
CHANGES = [{"knob": "batch_size", "from": "4", "to": "2"}]
_FAR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """What the scripted agent, or a person, does to bring the event about; nothing: the service does it by itself."""

    report: str = ""
    cancel: bool = False
    stop: bool = False
    event: str = ""
    beats: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One transition: how to get to its source, what brings it about, and where the remediation must end up."""

    source: State
    event: Event
    plan: tuple[StepKind, ...]
    end: State
    trigger: Trigger = Trigger()
    command: str = "true"
    job: Mapping[str, Any] = field(default_factory=dict)
    expired: bool = False
    silent: bool = False
    held_back: bool = False  # the worker must not begin it by itself
    expect: Expectation = field(default_factory=Expectation)
    facts: Mapping[str, Any] = field(default_factory=dict)
    launched_ago_s: float = 0.0
    times: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[State, Event]:
        return (self.source, self.event)


_SAVE, _STOP, _REPLACE, _COMMAND = StepKind.SAVE, StepKind.STOP, StepKind.REPLACE, StepKind.RUN_COMMAND
_SOON = Expectation(verify_for=timedelta(0), steps=1, deadline=timedelta(seconds=0.2))
_FULL = replace(_SOON, host=HostCheck(metric="memory_ratio", op=">", value=0.95), deadline=timedelta(seconds=60))
_LONG = Expectation(deadline=timedelta(seconds=60))
_FIRST = {"generation": 2, "job": {"step": 10, "resumed_step": 10}}
_LATER = {"generation": 2, "job": {"step": 12, "resumed_step": 10}}
_STILL_FULL = {**_LATER, "gpus_of_job": [GPU], "gpus": [{**GPU, "memory_used": 97, "memory_free": 3}]}
_LONG_STEPS = replace(_LONG, verify_for=timedelta(0), steps=1)
_SILENCE = {"silence_s": 0.2}  # in all other cases the job may say nothing for an hour
_CANCEL = Trigger(cancel=True)


def _cases() -> tuple[Case, ...]:
    s, e = State, Event
    rows = [
        Case(source=s.DECIDED, event=e.ORDER_ISSUED, plan=(_SAVE,), end=s.ORDERED),
        Case(source=s.DECIDED, event=e.COMMAND_BEGUN, plan=(_COMMAND,), end=s.DONE),
        Case(
            source=s.DECIDED,
            event=e.CANCELLED,
            plan=(_SAVE,),
            end=s.CANCELLED,
            held_back=True,
            trigger=_CANCEL,
        ),
        Case(source=s.DECIDED, event=e.SUPERSEDED, plan=(_SAVE,), end=s.SUPERSEDED, job={"state": JobState.ENDED}),
        Case(source=s.DECIDED, event=e.REFUSED, plan=(_SAVE,), end=s.REFUSED, job={"held": True}),
        Case(source=s.COMMANDING, event=e.STEP_DONE, plan=(_COMMAND, _SAVE), end=s.ORDERED),
        Case(source=s.COMMANDING, event=e.PLAN_DONE, plan=(_COMMAND,), end=s.DONE),
        Case(source=s.COMMANDING, event=e.COMMAND_FAILED, plan=(_COMMAND,), end=s.FAILED, command="false"),
        Case(source=s.COMMANDING, event=e.COMMAND_UNCERTAIN, plan=(_COMMAND,), end=s.UNCERTAIN),
        Case(source=s.ORDERED, event=e.ACCEPTED, plan=(_SAVE,), end=s.ACCEPTED, trigger=Trigger(report="accepted")),
        Case(source=s.ORDERED, event=e.EXPIRED, plan=(_SAVE,), end=s.REFUSED, expired=True),
        Case(source=s.ACCEPTED, event=e.EXPIRED, plan=(_SAVE,), end=s.REFUSED, expired=True),
        Case(source=s.ACCEPTED, event=e.PLANNED, plan=(_SAVE,), end=s.PLANNED, trigger=Trigger(report="planned")),
        Case(source=s.PLANNED, event=e.SAVED, plan=(_REPLACE,), end=s.SAVED, trigger=Trigger(report="saved")),
        Case(source=s.PLANNED, event=e.STOPPED, plan=(_REPLACE,), end=s.HALTED, trigger=Trigger(report="stopped")),
        Case(source=s.PLANNED, event=e.LAUNCHED, plan=(_REPLACE,), end=s.VERIFYING, trigger=Trigger(report="launched")),
        Case(source=s.SAVED, event=e.STOPPED, plan=(_REPLACE,), end=s.HALTED, trigger=Trigger(report="stopped")),
        Case(source=s.SAVED, event=e.STEP_DONE, plan=(_SAVE, _STOP), end=s.ORDERED, trigger=Trigger(report="saved")),
        Case(source=s.SAVED, event=e.PLAN_DONE, plan=(_SAVE,), end=s.DONE, trigger=Trigger(report="saved")),
        Case(source=s.HALTED, event=e.LAUNCHED, plan=(_REPLACE,), end=s.VERIFYING, trigger=Trigger(report="launched")),
        Case(source=s.HALTED, event=e.STEP_DONE, plan=(_STOP, _COMMAND), end=s.DONE, trigger=Trigger(report="stopped")),
        Case(source=s.HALTED, event=e.PLAN_DONE, plan=(_STOP,), end=s.DONE, trigger=Trigger(report="stopped")),
        Case(source=s.HALTED, event=e.LAUNCH_FAILED, plan=(_REPLACE,), end=s.BROKEN, trigger=Trigger(report="refused")),
        _verifying(e.RECOVERED, s.RECOVERED, expect=_LONG_STEPS, trigger=Trigger(beats=(_FIRST, _LATER))),
        _verifying(e.STILL_FULL, s.RUNNING_NOT_RECOVERED, expect=_FULL, trigger=Trigger(beats=(_FIRST, _STILL_FULL))),
        _verifying(e.DIED, s.BROKEN, expect=_LONG, trigger=Trigger(event="cuda_oom")),
        _verifying(e.NO_DATA, s.UNKNOWN, expect=_SOON, launched_ago_s=60.0, times={"heartbeat_s": 0.05}),
        _verifying(e.SUPERSEDED, s.SUPERSEDED, expect=_LONG, trigger=Trigger(event="user_stop")),
        _verifying(e.LOST, s.UNCERTAIN, expect=_LONG, silent=True, times=_SILENCE),
        _verifying(
            e.ROLLED_BACK,
            s.ORDERED,
            expect=_SOON,
            launched_ago_s=60.0,
            facts={"changes": CHANGES},
            trigger=Trigger(beats=({"generation": 2},)),
        ),
    ]
    for source in (s.ORDERED, s.ACCEPTED):
        rows.append(Case(source=source, event=e.CANCELLED, plan=(_SAVE,), end=s.CANCELLED, trigger=_CANCEL))
    for source in (s.ORDERED, s.ACCEPTED, s.PLANNED, s.SAVED):
        rows.append(
            Case(source=source, event=e.REFUSED, plan=(_REPLACE,), end=s.REFUSED, trigger=Trigger(report="refused"))
        )
    for source in (s.ORDERED, s.ACCEPTED, s.PLANNED, s.SAVED, s.HALTED):
        superseded = Trigger(report="superseded")
        rows.append(Case(source=source, event=e.SUPERSEDED, plan=(_REPLACE,), end=s.SUPERSEDED, trigger=superseded))
        rows.append(Case(source=source, event=e.LOST, plan=(_REPLACE,), end=s.UNCERTAIN, silent=True, times=_SILENCE))
    return tuple(rows)


def _verifying(event: Event, end: State, **more: Any) -> Case:
    return Case(source=State.VERIFYING, event=event, plan=(_REPLACE,), end=end, **more)


CASES = _cases()

# The reports that lead to each source, for an order of the plan's first step.
_ROAD: Mapping[State, tuple[str, ...]] = {
    State.ORDERED: (),
    State.ACCEPTED: ("accepted",),
    State.PLANNED: ("accepted", "planned"),
    State.SAVED: ("accepted", "planned", "saved"),
    State.HALTED: ("accepted", "planned", "saved", "stopped"),
    State.VERIFYING: ("accepted", "planned", "saved", "stopped", "launched"),
}
DETAILS: Mapping[str, Mapping[str, Any]] = {
    "planned": {},
    "saved": {"step": 10, "path": "/state-10"},
    "stopped": {"exit_status": 0},
    "launched": {"generation": 2, "resume_step": 10},
    "refused": {"text": "no"},
}


def seed(path: Path, case: Case, marker: Path) -> str:
    """Write the case's rows into a migrated database that no service has open; → its remediation_id."""
    engine = create_engine(f"sqlite:///{path}")
    try:
        with engine.begin() as conn:
            return _seed(conn, case, marker)
    finally:
        engine.dispose()


def _seed(conn: Connection, case: Case, marker: Path) -> str:
    now = time.time()
    jobs.upsert(conn, _job(case, now))
    jobs.seen(conn, JOB, seen_at=now, sample={"generation": 1, "state": "running", "job": {"step": 10}})
    remediation_id = remediations.open_remediation(
        conn,
        job_id=JOB,
        generation=1,
        policy="test",
        plan=Plan(steps=tuple(_step(kind, case, marker) for kind in case.plan), expect=case.expect),
        reason=Reason.POLICY_MATCHED,
        facts=case.facts,
        now=now,
    )
    assert remediation_id is not None
    if case.held_back:
        conn.execute(update(table).values(wake_at=now + _FAR))
    if case.source is State.COMMANDING and case.event is Event.COMMAND_UNCERTAIN:
        _leave_a_command(conn, remediation_id, now)
    elif _starts_with_an_order(case):
        begin(conn, remediation_id, now)
        _walk(conn, case, now)
    if case.silent:
        jobs.seen(conn, JOB, seen_at=now - _FAR)
    return remediation_id


def _job(case: Case, now: float) -> Job:
    moment = datetime.fromtimestamp(now, UTC)
    values: dict[str, Any] = {
        "job_id": JOB,
        "name": "cat-lora",
        "host_id": "host-1",
        "node": "gpu-node-1",
        "generation": 1,
        "state": JobState.RUNNING,
        "gpus": (Gpu(uuid="GPU-1", index=0),),
        "can": frozenset({"save", "stop", "resume"}),
        "registered_at": moment,
        "seen_at": moment,
    }
    return Job(**{**values, **case.job})


def _step(kind: StepKind, case: Case, marker: Path) -> Step:
    knobs = {"batch_size": "/2"} if kind is StepKind.REPLACE else {}
    return Step(kind=kind, knobs=knobs, command=("/bin/sh", "-c", f"echo done >> {marker}; {case.command}"))


def _starts_with_an_order(case: Case) -> bool:
    return case.source in _ROAD


def _walk(conn: Connection, case: Case, now: float) -> None:
    moves = Moves()
    order = orders.open_of_job(conn, JOB)
    assert order is not None
    for phase in _road(case):
        report = Report(order_id=order.order_id, phase=Phase(phase), detail=dict(DETAILS.get(phase, {})))
        take_report(conn, moves, JOB, report, now - case.launched_ago_s)
        apply_reports(conn, moves, order.order_id, now - case.launched_ago_s)
    if case.expired:
        conn.execute(update(orders_table).values(expires_at=now - 1))


def _road(case: Case) -> tuple[str, ...]:
    """Where one report brings two moves, its first move is no place to stop: the case starts one state before."""
    ends_a_step = case.event in (Event.STEP_DONE, Event.PLAN_DONE)
    road = _ROAD[case.source]
    return road[:-1] if ends_a_step else road


def _leave_a_command(conn: Connection, remediation_id: str, now: float) -> None:
    """As a service leaves it that was killed between the intent and the outcome."""
    held = remediations.claim(conn, remediation_id, owner="dead", now=now - 60, lease_s=1)
    assert held is not None
    Moves().move(conn, held, Event.COMMAND_BEGUN, now - 60)
    steps.begin_step(conn, remediation_id=remediation_id, step=0, kind="run_command", now=now - 60)
