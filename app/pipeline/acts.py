"""What the API asks of the stages: each act is one commit, so its answer says what is on disk."""

from collections.abc import Mapping
from typing import Any

import structlog
from sqlalchemy import Connection

from tunewarden.adapters.store import audit, budgets, deliveries, jobs, remediations
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.job_now import end_whatever_runs, job_now, living_twins, of_an_earlier_boot
from tunewarden.domain.job import Job, JobState
from tunewarden.domain.job_event import JobEvent, should_wait
from tunewarden.domain.order import Report
from tunewarden.domain.policy import StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import State
from tunewarden.errors import Refused
from tunewarden.pipeline.moves import Acting, Moves, write_moves
from tunewarden.pipeline.opening import cancel, job_ended, open_manual
from tunewarden.pipeline.reports import take_report
from tunewarden.pipeline.watch import lose
from tunewarden.ports import Clock

log = structlog.get_logger(__name__)

_OVER = frozenset({JobState.ENDED, JobState.WAITING})


class ServiceActs:
    """Implements the port Acts of the jobs API."""

    def __init__(self, store: Store, acting: Acting, clock: Clock) -> None:
        self._store, self._acting, self._clock = store, acting, clock

    async def register(self, job: Job, *, boot_id: str) -> bool:
        return await write_moves(
            self._store, self._acting, lambda conn, moves: _register(conn, moves, job, boot_id, self._now())
        )

    async def report(self, job_id: str, report: Report) -> bool | None:
        return await write_moves(
            self._store, self._acting, lambda conn, moves: take_report(conn, moves, job_id, report, self._now())
        )

    async def event(self, job_id: str, event: JobEvent, body: bytes) -> bool | None:
        return await write_moves(
            self._store, self._acting, lambda conn, moves: _event(conn, moves, job_id, event, body, self._now())
        )

    async def manual(self, job_id: str, kind: StepKind, *, stop_now: bool, actor: str) -> Mapping[str, str]:
        def act(conn: Connection, moves: Moves) -> Mapping[str, str]:
            job = jobs.get(conn, job_id)
            if job is None:
                raise Refused(Reason.NO_TARGET, f"no job {job_id}")
            return open_manual(conn, moves, job, kind, stop_now=stop_now, actor=actor, now=self._now())

        answer = await write_moves(self._store, self._acting, act)
        log.info("a person acted", action="person_act", actor=actor, job_id=job_id, kind=kind.value, **answer)
        return answer

    async def hold(self, job_id: str, *, held: bool, actor: str) -> None:
        await write_moves(
            self._store, self._acting, lambda conn, moves: _hold(conn, moves, job_id, held, actor, self._now())
        )
        log.info("a person acted", action="person_act", actor=actor, job_id=job_id, kind="hold" if held else "release")

    async def cancel(self, remediation_id: str, *, actor: str) -> Mapping[str, Any] | None:
        return await write_moves(
            self._store, self._acting, lambda conn, moves: _cancel(conn, moves, remediation_id, actor, self._now())
        )

    async def close_breaker(self, *, actor: str) -> bool:
        return await self._store.write(lambda conn: _close_breaker(conn, actor, self._now()))

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _register(conn: Connection, moves: Moves, job: Job, boot_id: str, now: float) -> bool:
    known = jobs.get(conn, job.job_id)
    if known is not None and known.host_id != job.host_id:
        return False
    for twin in living_twins(conn, job_id=job.job_id, host_id=job.host_id, name=job.name):
        # The name is locked on its host for as long as a run lives, so the earlier one is over.
        earlier = job_now(conn, twin)
        end_whatever_runs(conn, twin, cause="unknown", at=now)
        generation = earlier.generation if earlier else 1
        job_ended(conn, moves, twin, cause="unknown", generation=generation, now=now)
    _end_earlier_boots(conn, moves, job, boot_id, now)
    if known is not None and known.state in _OVER and known.generation >= job.generation:
        jobs.seen(conn, job.job_id, seen_at=now)  # an agent that was started again, after its job's end was told
        return True
    jobs.upsert(conn, job, boot_id=boot_id)
    if known is None:
        detail = {"name": job.name, "node": job.node, "enforce": job.enforce, "trainer": job.trainer}
        audit.append(conn, at=now, action="job.registered", actor="agent", job_id=job.job_id, detail=detail)
    return True


def _end_earlier_boots(conn: Connection, moves: Moves, job: Job, boot_id: str, now: float) -> None:
    """The host was started again. Nothing is launched by itself; of what still seemed to live a person is told."""
    for job_id in of_an_earlier_boot(conn, host_id=job.host_id, boot_id=boot_id):
        earlier = jobs.get(conn, job_id)
        if earlier is not None and earlier.living:
            lose(conn, moves, earlier, now, reason=Reason.HOST_REBOOTED)
        end_whatever_runs(conn, job_id, cause=Reason.HOST_REBOOTED.value, at=now)


def _event(conn: Connection, moves: Moves, job_id: str, event: JobEvent, body: bytes, now: float) -> bool | None:
    job = jobs.get(conn, job_id)
    if job is None:
        return None
    if not deliveries.add_event(conn, event_id=event.event_id, received_at=now, body=body):
        return job.state is JobState.WAITING
    if not event.ends_the_job or event.generation < job.generation:
        return False
    if event.generation > job.generation:  # it died before it was registered
        jobs.seen(conn, job_id, seen_at=now, generation=event.generation)
    job_ended(conn, moves, job_id, cause=event.cause, generation=event.generation, now=now)
    standing = remediations.open_of_job(conn, job_id)
    verifying = standing is not None and standing.state is State.VERIFYING
    may_go_back = standing is not None and not standing.rolled_back and bool(standing.facts.get("changes"))
    wait = should_wait(event, job, verifying=verifying, may_go_back=may_go_back)
    until = now + (event.waits_s or 0.0) if wait else None
    jobs.end(conn, job_id, generation=event.generation, cause=event.cause, at=now, waits_until=until)
    audit.append(
        conn,
        at=now,
        action="job.ended",
        actor="agent",
        job_id=job_id,
        detail={"cause": event.cause, "generation": event.generation, "step": event.step, "waits": wait},
    )
    return wait


def _hold(conn: Connection, moves: Moves, job_id: str, held: bool, actor: str, now: float) -> None:
    if not jobs.hold(conn, job_id, held=held):
        raise Refused(Reason.NO_TARGET, f"no job {job_id}")
    action = "job.held" if held else "job.released"
    audit.append(conn, at=now, action=action, actor=actor, job_id=job_id, reason=Reason.MANUAL)
    standing = remediations.open_of_job(conn, job_id) if held else None
    if standing is not None and not standing.manual:
        cancel(conn, standing.remediation_id, now, reason=Reason.ON_HOLD, by_person=True, moves=moves)


def _cancel(conn: Connection, moves: Moves, remediation_id: str, actor: str, now: float) -> Mapping[str, Any] | None:
    remediation = remediations.load(conn, remediation_id)
    if remediation is None:
        return None
    if not cancel(conn, remediation_id, now, reason=Reason.MANUAL, by_person=True, moves=moves):
        text = f"{remediation_id} is {remediation.state.value}: it can be cancelled only before it saves or stops"
        raise Refused(remediation.reason, text)
    audit.append(
        conn,
        at=now,
        action="remediation.cancel",
        actor=actor,
        job_id=remediation.job_id,
        remediation_id=remediation_id,
        reason=Reason.MANUAL,
    )
    return {"remediation_id": remediation_id}


def _close_breaker(conn: Connection, actor: str, now: float) -> bool:
    was_open = budgets.close_breaker(conn, by=actor, now=now)
    audit.append(
        conn, at=now, action="breaker.closed", actor=actor, reason=Reason.MANUAL, detail={"was_open": was_open}
    )
    return was_open
