"""The watch: jobs that fell silent are lost, and a wait for an order that never came is over."""

import asyncio

import structlog
from sqlalchemy import Connection

from tunewarden.adapters.store import audit, jobs, remediations
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.job_now import end_wait, waits_that_are_over
from tunewarden.domain.advance import loses_with_its_job
from tunewarden.domain.job import Job
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event
from tunewarden.errors import StoreUnavailable
from tunewarden.pipeline.moves import Acting, Moves, write_moves
from tunewarden.pipeline.opening import job_ended
from tunewarden.pipeline.outcome import lost_notice
from tunewarden.ports import Clock

log = structlog.get_logger(__name__)

POLL_S = 1.0
MISSED_HEARTBEATS = 3
SHORTEST_SILENCE_S = 15.0
_WAIT_SLACK_S = 30.0  # an order that was begun in time may launch a little later than the wait's end


class Watch:
    """One a service. `silence_s`: how long a job may say nothing, three heartbeats and at least 15 s."""

    def __init__(
        self,
        store: Store,
        acting: Acting,
        clock: Clock,
        *,
        silence_s: float = SHORTEST_SILENCE_S,
        poll_s: float = POLL_S,
    ) -> None:
        self._store, self._acting, self._clock = store, acting, clock
        self._silence_s, self._poll_s = silence_s, poll_s
        self._listening_since = clock.monotonic()
        self._offset = self._wall_minus_monotonic()

    async def run(self, stopping: asyncio.Event) -> None:
        """Look until `stopping` is set."""
        while not stopping.is_set():
            try:
                await self.look()
            except StoreUnavailable as error:
                log.warning("the store is away", action="watch_waits", error=str(error))
            except Exception:
                log.exception("one look failed", action="watch_failed")
            try:
                async with asyncio.timeout(self._poll_s):
                    await stopping.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Find what fell silent. Not before we have listened that long: after a restart everybody was silent."""
        if abs(self._wall_minus_monotonic() - self._offset) > self._silence_s / 3:  # our clock stepped, or we slept
            self._offset, self._listening_since = self._wall_minus_monotonic(), self._clock.monotonic()
        now = self._clock.now().timestamp()
        listened = self._clock.monotonic() - self._listening_since >= self._silence_s
        if not await self._store.read(lambda conn: _anything(conn, now, self._silence_s)):
            return
        await write_moves(self._store, self._acting, lambda conn, moves: end_waits(conn, moves, now))
        if listened:
            await write_moves(self._store, self._acting, lambda conn, moves: self._lose(conn, moves, now))

    def _lose(self, conn: Connection, moves: Moves, now: float) -> None:
        for job in jobs.mark_lost(conn, silent_since=now - self._silence_s):
            log.warning("job lost", action="job_lost", job_id=job.job_id, node=job.node)
            lose(conn, moves, job, now)

    def _wall_minus_monotonic(self) -> float:
        return self._clock.now().timestamp() - self._clock.monotonic()


def lose(conn: Connection, moves: Moves, job: Job, now: float, *, reason: Reason = Reason.JOB_LOST) -> None:
    """What follows when a job's agent is gone: an open remediation is uncertain, and a person is told once."""
    audit.append(conn, at=now, action="job.lost", actor="service", job_id=job.job_id, reason=reason)
    remediation = remediations.open_of_job(conn, job.job_id)
    if remediation is not None and loses_with_its_job(remediation):
        moves.move(conn, remediation, Event.LOST, now, reason=reason)
        return
    moves.acting.tell(
        conn, lost_notice(job, reason), remediation_id=job.job_id[:32], moment=f"lost-{int(now)}", now=now
    )


def end_waits(conn: Connection, moves: Moves, now: float) -> None:
    """Jobs whose `run` waited for an order in vain have ended. One whose order was begun gets a little longer."""
    for job in waits_that_are_over(conn, now):
        remediation = remediations.open_of_job(conn, job.job_id)
        begun = remediation is not None and bool(remediation.facts.get("begun"))
        if begun and now < (job.waits_until or 0.0) + _WAIT_SLACK_S:
            continue
        end_wait(conn, job.job_id)
        job_ended(conn, moves, job.job_id, cause=job.ended_cause or "unknown", generation=job.generation, now=now)


def _anything(conn: Connection, now: float, silence_s: float) -> bool:
    silent = [job for job in jobs.living(conn) if job.seen_at.timestamp() < now - silence_s]
    return bool(silent or waits_that_are_over(conn, now))
