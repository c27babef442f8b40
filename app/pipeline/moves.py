"""Moving a remediation: the one place where a transition of the table becomes rows, in the caller's transaction."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from tunewarden.adapters.store import audit, budgets, jobs, orders, remediations, steps
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.wakes import wake
from tunewarden.domain.message import Notice
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import ENDING_STATES, Effect, Event, Remediation, State, name_of, transition
from tunewarden.pipeline.outcome import breaker_notice, outcome_notice, restarted_notice
from tunewarden.ports import Boundary, NoBoundary

T = TypeVar("T")

REMEDIATIONS_TOPIC = "remediations"
REPORTS_TOPIC = "reports"
ORDERS_TOPIC = "orders:"  # + job_id: its long poll

# The states in which the end of a remediation tells that an order is over; elsewhere it is taken back.
_BEGUN = frozenset({State.PLANNED, State.SAVED, State.HALTED, State.VERIFYING})
# What the worker begins and the verifier watches. Other moves wake nobody: a look costs what the next order waits for.
_LOOKED_AT = frozenset({State.DECIDED, State.VERIFYING})


class Tell(Protocol):
    """Writes outbox rows in the same transaction, once for each (remediation, moment, target)."""

    def __call__(self, conn: Connection, notice: Notice, *, remediation_id: str, moment: str, now: float) -> None: ...


def tell_nobody(conn: Connection, notice: Notice, *, remediation_id: str, moment: str, now: float) -> None:
    """No target is set."""


def _room_enough() -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Acting:
    """What acting needs besides rows.

    `order_expires_s`: how long an agent has to begin an order, in seconds. `low_on_space`: the service's disk is full.
    `broken_in_a_row`: how many remediations may end broken, one after another, before the breaker opens.
    """

    boundary: Boundary = NoBoundary()  # noqa: RUF009 - it holds nothing
    tell: Tell = tell_nobody
    order_expires_s: float = 60.0
    low_on_space: Callable[[], bool] = _room_enough
    broken_in_a_row: int = budgets.BROKEN_IN_A_ROW


class Moves:
    """The moves of one transaction. Made anew for each write, for a write may be run twice."""

    def __init__(self, acting: Acting | None = None) -> None:
        self.acting = acting or Acting()
        self._made: list[tuple[str, Effect]] = []

    def move(
        self,
        conn: Connection,
        seen: Remediation,
        event: Event,
        now: float,
        *,
        reason: Reason | None = None,
        facts: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Remediation:
        """Take `seen` along the table's row for `event` and write all that belongs to it.

        Raises InvalidTransition when there is no such row, StaleClaim when somebody moved it meanwhile.
        """
        row = transition(seen.state, event)
        name = name_of(seen.state, event)
        self.acting.boundary.reach(name, "before_intent")
        after = replace(
            seen,
            state=row.target,
            reason=reason or seen.reason,
            facts={**seen.facts, **(facts or {})},
            state_since=now,
            ended_at=now if row.target in ENDING_STATES else None,
            **{"wake_at": None, **changes},
        )
        remediations.write(conn, seen, after)
        audit.append(
            conn,
            at=now,
            action=f"remediation.{event.value}",
            actor="service",
            job_id=after.job_id,
            remediation_id=after.remediation_id,
            reason=after.reason,
            detail={"from": seen.state.value, "to": after.state.value, "step": seen.step},
        )
        self._follow(conn, seen, after, event, now)
        if after.state in _LOOKED_AT:
            wake(conn, REMEDIATIONS_TOPIC)
        self._made.append((name, row.effect))
        return after

    def committed(self) -> None:
        """To be called after the commit: these moves are on disk. Where an effect is to follow, that was its intent."""
        for name, effect in self._made:
            self.acting.boundary.reach(name, "after_outcome" if effect is Effect.NONE else "after_intent")

    def _follow(self, conn: Connection, seen: Remediation, after: Remediation, event: Event, now: float) -> None:
        if event in (Event.STEP_DONE, Event.PLAN_DONE, Event.LAUNCHED) or not after.open:
            outcome = after.reason.value if after.open or event is Event.PLAN_DONE else after.state.value
            steps.end_step(conn, remediation_id=after.remediation_id, step=seen.step, outcome=outcome[:32], now=now)
            state = orders.ENDED if seen.state in _BEGUN else orders.WITHDRAWN
            orders.close_of_remediation(conn, after.remediation_id, state=state, now=now)
        if event is Event.LAUNCHED:
            self._tell(conn, after, restarted_notice, "restarted", now)
        if after.open:
            return
        self._count(conn, after, now)
        self._tell(conn, after, outcome_notice, "outcome", now)

    def _count(self, conn: Connection, after: Remediation, now: float) -> None:
        if after.state is State.RECOVERED and not after.rolled_back:
            budgets.count_recovered(conn)
        if after.state is State.BROKEN and not after.rolled_back:
            self.count_broken(conn, after, now)

    def count_broken(self, conn: Connection, broken: Remediation, now: float) -> None:
        """Once for each broken remediation: when it breaks, whether or not it is rolled back afterwards."""
        if budgets.count_broken(conn, now=now, limit=self.acting.broken_in_a_row):
            audit.append(conn, at=now, action="breaker.opened", actor="service", reason=broken.reason, detail={})
            notice = breaker_notice(broken)
            self.acting.tell(conn, notice, remediation_id=broken.remediation_id, moment="breaker", now=now)

    def _tell(
        self, conn: Connection, after: Remediation, notice: Callable[..., Notice], moment: str, now: float
    ) -> None:
        job = jobs.get(conn, after.job_id)
        self.acting.tell(conn, notice(after, job), remediation_id=after.remediation_id, moment=moment, now=now)


async def write_moves(store: Store, acting: Acting, act: Callable[[Connection, Moves], T]) -> T:
    """Run `act` in one commit, then say that its moves are on disk."""

    def write(conn: Connection) -> tuple[T, Moves]:
        moves = Moves(acting)
        return act(conn, moves), moves

    result, moves = await store.write(write)
    moves.committed()
    return result
