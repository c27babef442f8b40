"""The worker: applies reports, begins what waits, ends what nobody took. It reads rows and writes rows."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection

from tunewarden.adapters.store import orders, remediations
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.job_now import job_now
from tunewarden.adapters.store.remediations import StaleClaim
from tunewarden.domain.advance import Begin, begin_of, needs_asking
from tunewarden.domain.job import JobState
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, InvalidTransition, Remediation, State
from tunewarden.errors import Permanent, Retryable, StoreUnavailable
from tunewarden.pipeline.commands import Commands
from tunewarden.pipeline.moves import REMEDIATIONS_TOPIC, REPORTS_TOPIC, Acting, Moves, write_moves
from tunewarden.pipeline.opening import begin
from tunewarden.pipeline.reports import apply_reports
from tunewarden.pipeline.verifier import Asks
from tunewarden.ports import Clock

T = TypeVar("T")

log = structlog.get_logger(__name__)

POLL_S = 1.0  # between looks when nothing wakes us: expiries have no wake of their own
STUCK_S = 45 * 60.0  # an order that was begun and of which nothing more is heard; a save may take 30 minutes
ENDED_S = 60.0  # ... and its job has ended: its agent had that long to say what became of the order

_BEGUN = frozenset({State.PLANNED, State.SAVED, State.HALTED})


@dataclass(frozen=True, kw_only=True)
class Due:
    """What there is to do at one look."""

    reported: tuple[str, ...]  # order_ids
    decided: tuple[Remediation, ...]
    expired: tuple[orders.OrderRow, ...]
    orphaned: tuple[Remediation, ...]  # commands whose lease ended: their worker is gone
    stuck: tuple[Remediation, ...]


class Worker:
    """One a service. `commands` runs what isn't an order, beside the loop, so that a slow command holds up nothing.

    `max_age_s`: how old an answer of Prometheus may be.
    """

    def __init__(
        self,
        store: Store,
        acting: Acting,
        clock: Clock,
        commands: Commands,
        prometheus: Asks,
        *,
        max_age_s: float = 30.0,
        poll_s: float = POLL_S,
    ) -> None:
        self._store, self._acting, self._clock, self._commands = store, acting, clock, commands
        self._prometheus, self._max_age_s, self._poll_s = prometheus, max_age_s, poll_s
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        """Look until `stopping` is set; commands that still run then are ended and are uncertain."""
        with self._store.subscribe(REPORTS_TOPIC, REMEDIATIONS_TOPIC) as woken:
            while not stopping.is_set():
                try:
                    await self.look()
                except StoreUnavailable as error:
                    log.warning("the store is away", action="worker_waits", error=str(error))
                except Exception:
                    log.exception("one look failed", action="worker_failed")
                await woken.wait(self._poll_s)
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def look(self) -> None:
        """Do everything that is due now."""
        now = self._now()
        due = await self._store.read(lambda conn: _due(conn, now))
        await self._each(due.reported, apply_reports)
        await self._each(due.expired, _expire)
        await self._each(due.orphaned, _uncertain_command)
        await self._each(due.stuck, _give_up)
        for remediation in due.decided:
            await self._begin(remediation)

    async def _begin(self, remediation: Remediation) -> None:
        remediation_id = remediation.remediation_id
        if begin_of(remediation.plan.steps[remediation.step]) is not Begin.COMMAND:
            confirmed = not needs_asking(remediation) or await self._confirmed(remediation)
            act = _begin_confirmed if confirmed else _unconfirmed
            await self._write(partial(self._act_on, remediation, act))
        elif remediation_id not in self._running:
            task = asyncio.create_task(self._guarded(self._commands.carry_out(remediation_id)))
            self._running[remediation_id] = task
            task.add_done_callback(lambda _done: self._running.pop(remediation_id, None))

    async def _confirmed(self, remediation: Remediation) -> bool:
        """Whether each expression still has a fresh answer that holds. No data is no confirmation."""
        for expr in remediation.plan.confirm_exprs:
            try:
                answer = await self._prometheus.ask(expr)
            except (Retryable, Permanent) as error:
                log.info("Prometheus can't be asked", action="confirm_unmeasured", error=str(error))
                return False
            if not answer.holds or answer.age_s is None or answer.age_s > self._max_age_s:
                return False
        return True

    async def _each(self, items: Sequence[T], act: Callable[[Connection, Moves, T, float], None]) -> None:
        for item in items:
            await self._write(partial(self._act_on, item, act))

    def _act_on(
        self, item: T, act: Callable[[Connection, Moves, T, float], None], conn: Connection, moves: Moves
    ) -> None:
        act(conn, moves, item, self._now())

    async def _write(self, act: Callable[[Connection, Moves], None]) -> None:
        """One thing in a commit of its own: what fails holds up nothing else."""
        await self._guarded(write_moves(self._store, self._acting, act))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (StaleClaim, InvalidTransition) as error:
            log.info("moved meanwhile", action="move_lost", error=str(error))
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("not moved", action="move_failed")

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _due(conn: Connection, now: float) -> Due:
    commanding = remediations.due(conn, frozenset({State.COMMANDING}), now)
    return Due(
        reported=tuple(orders.orders_with_unapplied(conn)),
        decided=tuple(remediations.due(conn, frozenset({State.DECIDED}), now)),
        expired=tuple(orders.expired(conn, now)),
        orphaned=tuple(each for each in commanding if (each.lease_until or 0.0) <= now),
        stuck=tuple(each for each in remediations.due(conn, _BEGUN, now) if _is_stuck(conn, each, now)),
    )


def _is_stuck(conn: Connection, remediation: Remediation, now: float) -> bool:
    since = now - remediation.state_since
    if since >= STUCK_S:
        return True
    job = job_now(conn, remediation.job_id)
    ended_at = job.ended_at if job is not None and job.state is JobState.ENDED else None
    return ended_at is not None and min(since, now - ended_at) >= ENDED_S


def _expire(conn: Connection, moves: Moves, seen: orders.OrderRow, now: float) -> None:
    order = orders.load(conn, seen.order_id)
    if order is None or order.state != orders.OPEN or order.begun:
        return
    remediation = remediations.load(conn, order.remediation_id) if order.remediation_id else None
    if remediation is None or not remediation.open:
        orders.withdraw(conn, order.order_id, now=now)
        return
    moves.move(conn, remediation, Event.EXPIRED, now, reason=Reason.EXPIRED)


def _begin_confirmed(conn: Connection, moves: Moves, seen: Remediation, now: float) -> None:
    begin(conn, seen.remediation_id, now, moves, confirmed=True)


def _unconfirmed(conn: Connection, moves: Moves, seen: Remediation, now: float) -> None:
    moves.move(conn, seen, Event.REFUSED, now, reason=Reason.UNCONFIRMED)


def _uncertain_command(conn: Connection, moves: Moves, seen: Remediation, now: float) -> None:
    """An intent without an outcome, and no probe can tell what a command did: a person must look."""
    moves.move(conn, seen, Event.COMMAND_UNCERTAIN, now, reason=Reason.UNCERTAIN, lease_owner=None, lease_until=None)


def _give_up(conn: Connection, moves: Moves, seen: Remediation, now: float) -> None:
    moves.move(conn, seen, Event.LOST, now, reason=Reason.UNCERTAIN)
