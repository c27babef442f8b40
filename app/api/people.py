"""The people's side of the jobs API: what the command line and the console ask. What acts is audited with its actor."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection

from tunewarden.adapters.store import budgets, jobs, outbox, remediations, steps
from tunewarden.adapters.store.job_now import JobNow, job_now
from tunewarden.adapters.store.jobs import AmbiguousJob
from tunewarden.api.deps import ApiDeps
from tunewarden.api.jobs import error
from tunewarden.api.jobs_wire import StopBody, TestBody, actor_of
from tunewarden.domain.job import Job, JobState
from tunewarden.domain.message import Notice, NoticeKind, Severity
from tunewarden.domain.policy import StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Remediation
from tunewarden.errors import Refused

_TEST_WITHIN_S = 8.0
_TEST_LOOK_S = 0.1
_SHOWN = 20  # names of jobs in an error
_LIVING = frozenset({JobState.RUNNING, JobState.WAITING})

Actor = Annotated[str | None, Header(alias="X-Tunewarden-Actor")]


def people_router(deps: ApiDeps) -> APIRouter:
    """All calls need the agent token."""
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(deps.guard)], tags=["people"])
    _add_jobs(router, deps)
    _add_acts(router, deps)
    _add_remediations(router, deps)
    _add_service(router, deps)
    return router


def _add_jobs(router: APIRouter, deps: ApiDeps) -> None:
    @router.get("/jobs")
    async def list_jobs() -> Response:
        now = _now(deps)
        rows = await deps.store.read(lambda conn: [_job(conn, job, now) for job in jobs.listed(conn)])
        return JSONResponse({"jobs": rows})

    @router.get("/jobs/{ref}")
    async def get_job(ref: str) -> Response:
        job = await _find(deps, ref)
        if isinstance(job, Response):
            return job
        now = _now(deps)
        return JSONResponse(await deps.store.read(lambda conn: _job(conn, job, now)))


def _add_acts(router: APIRouter, deps: ApiDeps) -> None:
    @router.post("/jobs/{ref}/save")
    async def save(ref: str, actor: Actor = None) -> Response:
        return await _manual(deps, ref, StepKind.SAVE, stop_now=False, actor=actor)

    @router.post("/jobs/{ref}/stop")
    async def stop(ref: str, body: Annotated[StopBody | None, Body()] = None, actor: Actor = None) -> Response:
        stop_now = body is not None and body.now
        return await _manual(deps, ref, StepKind.STOP, stop_now=stop_now, actor=actor)

    @router.post("/jobs/{ref}/hold")
    async def hold(ref: str, actor: Actor = None) -> Response:
        return await _hold(deps, ref, held=True, actor=actor)

    @router.post("/jobs/{ref}/release")
    async def release(ref: str, actor: Actor = None) -> Response:
        return await _hold(deps, ref, held=False, actor=actor)


def _add_remediations(router: APIRouter, deps: ApiDeps) -> None:
    @router.get("/remediations")
    async def list_remediations(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        now = _now(deps)
        rows = await deps.store.read(
            lambda conn: [_remediation(conn, each, now) for each in remediations.newest(conn, limit=limit)]
        )
        return JSONResponse({"remediations": rows})

    @router.get("/remediations/{remediation_id}")
    async def get_remediation(remediation_id: str) -> Response:
        now = _now(deps)
        found = await deps.store.read(lambda conn: _whole(conn, remediation_id, now))
        return error(404, "no such remediation") if found is None else JSONResponse(found)

    @router.post("/remediations/{remediation_id}/cancel")
    async def cancel(remediation_id: str, actor: Actor = None) -> Response:
        try:
            done = await deps.acts.cancel(remediation_id, actor=actor_of(actor))
        except Refused as refused:
            return error(409, str(refused), refused.reason.value)
        return error(404, "no such remediation") if done is None else JSONResponse(dict(done), status_code=202)


def _add_service(router: APIRouter, deps: ApiDeps) -> None:
    @router.get("/breaker")
    async def breaker() -> Response:
        state = await deps.store.read(budgets.breaker_state)
        opened_ago_s = None if state.opened_at is None else _now(deps) - state.opened_at
        return JSONResponse(
            {
                "open": state.is_open,
                "reason": state.reason,
                "opened_ago_s": opened_ago_s,
                "broken_in_a_row": state.broken_in_a_row,
                "closed_by": state.closed_by,
            }
        )

    @router.post("/breaker/close")
    async def close(actor: Actor = None) -> Response:
        return JSONResponse({"was_open": await deps.acts.close_breaker(actor=actor_of(actor))}, status_code=202)

    @router.post("/messages/test")
    async def test(body: Annotated[TestBody | None, Body()] = None) -> Response:
        return await _test_message(deps, body.target if body else None)


async def _find(deps: ApiDeps, ref: str) -> Job | Response:
    try:
        job = await deps.store.read(lambda conn: jobs.find(conn, ref))
    except AmbiguousJob as many:
        return error(409, f"more than one living job has this name: {many}", Reason.AMBIGUOUS_TARGET.value)
    if job is not None:
        return job
    living = await deps.store.read(lambda conn: [each.name for each in jobs.listed(conn) if each.state in _LIVING])
    known = ", ".join(sorted(set(living))[:_SHOWN]) or "none"
    return error(404, f"no such job; living jobs: {known}", Reason.NO_TARGET.value)


async def _manual(deps: ApiDeps, ref: str, kind: StepKind, *, stop_now: bool, actor: str | None) -> Response:
    job = await _find(deps, ref)
    if isinstance(job, Response):
        return job
    try:
        opened = await deps.acts.manual(job.job_id, kind, stop_now=stop_now, actor=actor_of(actor))
    except Refused as refused:
        return error(409, str(refused), refused.reason.value)
    return JSONResponse(dict(opened), status_code=202)


async def _hold(deps: ApiDeps, ref: str, *, held: bool, actor: str | None) -> Response:
    job = await _find(deps, ref)
    if isinstance(job, Response):
        return job
    await deps.acts.hold(job.job_id, held=held, actor=actor_of(actor))
    return JSONResponse({"job_id": job.job_id, "held": held}, status_code=202)


async def _test_message(deps: ApiDeps, target: str | None) -> Response:
    """Through the outbox like every message; the answer says what came of it, as far as that is known in 8 s."""
    chosen = target or (deps.targets[0] if deps.targets else None)
    if chosen is None or chosen not in deps.targets:
        known = ", ".join(deps.targets) or "none is set"
        return error(404, f"no such target; targets: {known}; after a change of the settings start the service again")
    notice = Notice(kind=NoticeKind.TEST, reason=Reason.MANUAL, severity=Severity.INFO, facts={"target": chosen})
    key = f"test:{deps.clock.now().timestamp():.6f}:{chosen}"
    now = _now(deps)
    await deps.store.write(lambda conn: outbox.add(conn, chosen, notice, now=now, dedup_key=key))
    state: Mapping[str, Any] = {"state": "pending"}
    ends = deps.clock.monotonic() + _TEST_WITHIN_S
    while state["state"] in ("pending", "sending") and deps.clock.monotonic() < ends and not deps.stopping.is_set():
        await asyncio.sleep(_TEST_LOOK_S)
        found = await deps.store.read(partial(outbox.state_of, dedup_key=key))
        state = state if found is None else found
    return JSONResponse({"target": chosen, **state}, status_code=202)


def _job(conn: Connection, job: Job, now: float) -> dict[str, Any]:
    known = job_now(conn, job.job_id)
    open_one = remediations.open_of_job(conn, job.job_id)
    sample = (known.sample.get("job") or {}) if known else {}
    return {
        "job_id": job.job_id,
        "name": job.name,
        "node": job.node,
        "state": job.state.value,
        "generation": job.generation,
        "trainer": job.trainer,
        "labels": dict(job.labels),
        "enforce": job.enforce,
        "held": job.held,
        "can": sorted(job.can),
        "no_hook": job.no_hook,
        "ranks": job.ranks,
        "multi_node": job.multi_node,
        "gpus": None if job.gpus is None else jobs.gpus_json(job.gpus),
        "step": sample.get("step"),
        "total_steps": sample.get("total_steps"),
        "loss": sample.get("loss"),
        "last_state_step": sample.get("last_state_step"),
        "seen_ago_s": round(now - job.seen_at.timestamp(), 3),
        "clock_skew_s": round(job.clock_skew_s, 3),
        "waits_s": _rest(known, now),
        "ended_cause": known.ended_cause if known else None,
        "remediation_id": open_one.remediation_id if open_one else None,
    }


def _rest(known: JobNow | None, now: float) -> float | None:
    return None if known is None or known.waits_until is None else round(max(0.0, known.waits_until - now), 3)


def _remediation(conn: Connection, each: Remediation, now: float) -> dict[str, Any]:
    job = jobs.get(conn, each.job_id)
    return {
        "remediation_id": each.remediation_id,
        "job_id": each.job_id,
        "job_name": job.name if job else "",
        "policy": each.policy,
        "state": each.state.value,
        "open": each.open,
        "reason": each.reason.value,
        "steps": [step.kind.value for step in each.plan.steps],
        "step": each.step,
        "generation": each.generation,
        "rolled_back": each.rolled_back,
        "facts": dict(each.facts),
        "opened_ago_s": round(now - each.opened_at, 3),
        "ended_ago_s": None if each.ended_at is None else round(now - each.ended_at, 3),
    }


def _whole(conn: Connection, remediation_id: str, now: float) -> dict[str, Any] | None:
    found = remediations.load(conn, remediation_id)
    if found is None:
        return None
    attempts = [
        {name: row[name] for name in ("step", "attempt", "kind", "outcome", "detail")}
        for row in steps.attempts_of(conn, remediation_id)
    ]
    return {**_remediation(conn, found, now), "attempts": attempts}


def _now(deps: ApiDeps) -> float:
    return deps.clock.now().timestamp()
