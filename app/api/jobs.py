"""The agents' side of the jobs API: register, heartbeat, the long poll, reports, events."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import from_json
from sqlalchemy import Connection

from tunewarden.adapters.store import jobs, orders
from tunewarden.adapters.store.job_now import job_now
from tunewarden.api.deps import ApiDeps
from tunewarden.api.jobs_wire import PROTOCOL, EventBody, Id, Registration, ReportBody
from tunewarden.api.wire import body_of
from tunewarden.domain.job import Job, JobState
from tunewarden.domain.job_event import alert_of
from tunewarden.domain.order import Phase
from tunewarden.domain.sample import Heartbeat

LONGEST_WAIT_S = 60.0
HEARTBEAT_LIMIT = 512 * 1024  # bytes; 64 cards with 512 processes each stay below
_SLICE_S = 0.5  # of a long poll: how soon it notices a shutdown, or that its client is gone

JobId = Annotated[Id, Path()]
_UNKNOWN_JOB = "this job is not registered"
_UNKNOWN_ORDER = "this job has no such order"


def jobs_router(deps: ApiDeps) -> APIRouter:
    """All calls need the agent token."""
    router = APIRouter(prefix="/api/v1/jobs", dependencies=[Depends(deps.guard)], tags=["agents"])

    @router.put("/{job_id}")
    async def register(job_id: JobId, body: Registration) -> Response:
        job = body.job(job_id, deps.clock.now())
        if not await deps.acts.register(job, boot_id=body.boot_id):
            return error(409, "this job_id belongs to another host")
        return JSONResponse({"job_id": job_id, "protocol": PROTOCOL})

    @router.post("/{job_id}/heartbeat")
    async def heartbeat(job_id: JobId, request: Request) -> Response:
        return await _heartbeat(deps, job_id, await request.body())

    @router.get("/{job_id}/order")
    async def order(
        job_id: JobId,
        request: Request,
        generation: Annotated[int, Query(ge=1)] = 1,  # noqa: ARG001 - the agent checks it itself; kept for our log
        wait: Annotated[float, Query(ge=0, le=3600)] = 30.0,
    ) -> Response:
        return await _order(deps, job_id, request, min(wait, LONGEST_WAIT_S))

    @router.put("/{job_id}/orders/{order_id}/reports/{phase}")
    async def report(job_id: JobId, order_id: Annotated[Id, Path()], phase: Phase, body: ReportBody) -> Response:
        go = await deps.acts.report(job_id, body.report(order_id, phase))
        return error(404, _UNKNOWN_ORDER) if go is None else JSONResponse({"go": go})

    @router.post("/{job_id}/events")
    async def events(job_id: JobId, body: EventBody) -> Response:
        job = await deps.store.read(lambda conn: jobs.get(conn, job_id))
        if job is None:
            return error(404, _UNKNOWN_JOB)
        event = body.event()
        wait = await deps.acts.event(job_id, event, body_of([alert_of(event, job, deps.clock.now())]))
        return JSONResponse({"wait": bool(wait)}, status_code=202)

    return router


def error(status: int, text: str, reason: str | None = None) -> JSONResponse:
    """The one form of every error."""
    content = {"error": text} if reason is None else {"error": text, "reason": reason}
    return JSONResponse(content, status_code=status)


async def _heartbeat(deps: ApiDeps, job_id: str, raw: bytes) -> Response:
    """One row is updated, whatever is in it; the samples go to memory."""
    if len(raw) > HEARTBEAT_LIMIT:
        return error(413, "the heartbeat is too large")
    try:
        body = from_json(raw)
        beat = Heartbeat.from_wire(body if isinstance(body, dict) else {})
    except ValueError:
        return error(422, "not a heartbeat")
    now = deps.clock.now().timestamp()
    job = await deps.store.write(lambda conn: _beat(conn, job_id, beat, body, now))
    if job is None:
        return error(404, _UNKNOWN_JOB)
    deps.board.put(job, beat, deps.clock.monotonic())
    waiting = await deps.store.read(lambda conn: orders.takeable(conn, job_id, now))
    return JSONResponse({"order": waiting is not None, "held": job.held})


def _beat(conn: Connection, job_id: str, beat: Heartbeat, body: Mapping[str, Any], now: float) -> Job | None:
    """A heartbeat can bring a job back from `lost` and tell of a new generation; that it ended only an event says."""
    known = job_now(conn, job_id)
    if known is None:
        return None
    if beat.generation < known.generation:  # one that was under way while the next generation was launched
        jobs.seen(conn, job_id, seen_at=now)
        return jobs.get(conn, job_id)
    values: dict[str, Any] = {"sample": dict(body)}
    if beat.wall is not None:
        values["clock_skew_s"] = beat.wall - now
    if beat.can is not None:
        values["can"] = sorted(beat.can)
    if beat.gpus_of_job is not None:
        values["gpus"] = jobs.gpus_json(beat.gpus_of_job)
    if beat.generation > known.generation:
        values |= {"generation": beat.generation, "state": JobState.RUNNING.value}
        values |= {"ended_cause": None, "ended_at": None, "waits_until": None}
    elif known.state is JobState.LOST:
        values["state"] = JobState.RUNNING.value
    jobs.seen(conn, job_id, seen_at=now, **values)
    return jobs.get(conn, job_id)


async def _order(deps: ApiDeps, job_id: str, request: Request, wait_s: float) -> Response:
    """Wait for an order. The same open order is handed out again, with the rest of its life, until it is begun."""
    if await deps.store.read(lambda conn: jobs.get(conn, job_id)) is None:
        return error(404, _UNKNOWN_JOB)
    ends = deps.clock.monotonic() + wait_s
    with deps.store.subscribe(f"orders:{job_id}") as woken:
        while True:
            now = deps.clock.now().timestamp()
            found = await deps.store.read(partial(orders.takeable, job_id=job_id, now=now))
            if found is not None:
                return JSONResponse(found)
            while not await woken.wait(max(0.0, min(_SLICE_S, ends - deps.clock.monotonic()))):
                if deps.stopping.is_set() or deps.clock.monotonic() >= ends or await request.is_disconnected():
                    return Response(status_code=204)
