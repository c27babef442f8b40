"""The outbox: messages to be sent, and what each robot may still do. Implements the port OutboxStore.

Rows are fenced by the epoch of the reporter that claimed them: each start of a reporter has a higher one.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, insert, select, update

from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.tables import outbox, robots
from tunewarden.adapters.store.wakes import wake
from tunewarden.domain.message import Notice, notice_from_json
from tunewarden.domain.outbox import OutboxRow, RobotState, RowState
from tunewarden.ports import Clock

TOPIC = "outbox"


def add(
    conn: Connection,
    target: str,
    notice: Notice,
    *,
    now: float,
    remediation_id: str | None = None,
    dedup_key: str | None = None,
) -> bool:
    """Add a pending row in the caller's transaction. False when a row with this `dedup_key` is there: said once."""
    if dedup_key is not None and conn.scalar(select(outbox.c.outbox_id).where(outbox.c.dedup_key == dedup_key)):
        return False
    conn.execute(
        insert(outbox),
        {
            "target": target,
            "kind": notice.kind.value,
            "remediation_id": remediation_id,
            "dedup_key": dedup_key,
            "payload": notice.to_json(),
            "created_at": now,
            "next_attempt_at": now,
        },
    )
    wake(conn, TOPIC)
    return True


def state_of(conn: Connection, dedup_key: str) -> dict[str, str] | None:
    """`state` and, where something went wrong, `text` of one row."""
    row = conn.execute(select(outbox.c.state, outbox.c.last_error).where(outbox.c.dedup_key == dedup_key)).one_or_none()
    if row is None:
        return None
    return {"state": row.state, **({"text": row.last_error} if row.last_error else {})}


def counts(conn: Connection) -> dict[str, int]:
    """How many rows are in each state, and `oldest_pending_at` (epoch seconds, 0 when none is)."""
    found = {row.state: row.n for row in conn.execute(_COUNTS)}
    oldest = conn.scalar(select(func.min(outbox.c.created_at)).where(outbox.c.state == RowState.PENDING.value))
    return {**{state.value: found.get(state.value, 0) for state in RowState}, "oldest_pending_at": int(oldest or 0)}


_COUNTS = select(outbox.c.state, func.count().label("n")).group_by(outbox.c.state)


class OutboxRows:
    """The reporter's view of the outbox."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def begin(self) -> int:
        return await self._store.write(lambda conn: _begin(conn, self._clock.now().timestamp()))

    async def bury_unknown(self, targets: Sequence[str], error: str) -> int:
        where = (outbox.c.state == RowState.PENDING.value, outbox.c.target.not_in(targets))
        values = {"state": RowState.DEAD.value, "last_error": error}
        return await self._store.write(
            lambda conn: conn.execute(update(outbox).where(*where).values(**values)).rowcount
        )

    async def enqueue(self, target: str, notice: Notice) -> None:
        now = self._clock.now().timestamp()
        await self._store.write(lambda conn: add(conn, target, notice, now=now))

    async def claim_due(self, target: str, now: datetime, limit: int, epoch: int) -> list[OutboxRow]:
        return await self._store.write(lambda conn: _claim(conn, target, now.timestamp(), limit, epoch))

    async def next_due(self, target: str) -> datetime | None:
        where = (outbox.c.target == target, outbox.c.state == RowState.PENDING.value)
        query = select(func.min(outbox.c.next_attempt_at)).where(*where)
        due = await self._store.read(lambda conn: conn.scalar(query))
        return None if due is None else _moment(due)

    async def mark_sending(self, ids: Sequence[int], epoch: int) -> None:
        await self._mark(ids, epoch, {"state": RowState.SENDING.value, "attempts": outbox.c.attempts + 1})

    async def mark_sent(self, ids: Sequence[int], epoch: int, now: datetime) -> None:
        await self._mark(ids, epoch, {"state": RowState.SENT.value, "sent_at": now.timestamp(), "last_error": None})

    async def mark_retry(
        self, ids: Sequence[int], epoch: int, at: datetime, error: str, possibly_repeated: bool
    ) -> None:
        values = {"state": RowState.PENDING.value, "next_attempt_at": at.timestamp(), "last_error": error}
        await self._mark(ids, epoch, values | ({"possibly_repeated": True} if possibly_repeated else {}))

    async def mark_dead(self, ids: Sequence[int], epoch: int, error: str) -> None:
        await self._mark(ids, epoch, {"state": RowState.DEAD.value, "last_error": error})

    async def robot_state(self, target: str) -> RobotState:
        return await self._store.read(lambda conn: _robot(conn, target))

    async def save_robot_state(self, state: RobotState) -> None:
        await self._store.write(lambda conn: _save_robot(conn, state))

    async def _mark(self, ids: Sequence[int], epoch: int, values: Mapping[str, Any]) -> None:
        where = (outbox.c.outbox_id.in_(ids), outbox.c.epoch == epoch)
        await self._store.write(lambda conn: conn.execute(update(outbox).where(*where).values(**values)))


def _begin(conn: Connection, now: float) -> int:
    epoch = int(conn.scalar(select(func.max(outbox.c.epoch))) or 0) + 1
    # A row left in `sending` may have been delivered: it is sent again, and says so.
    conn.execute(
        update(outbox)
        .where(outbox.c.state == RowState.SENDING.value)
        .values(state=RowState.PENDING.value, possibly_repeated=True)
    )
    # A restart is when a person has repaired something: all that waits is due.
    pending = update(outbox).where(outbox.c.state == RowState.PENDING.value)
    conn.execute(pending.values(epoch=epoch, next_attempt_at=now))
    return epoch


def _claim(conn: Connection, target: str, now: float, limit: int, epoch: int) -> list[OutboxRow]:
    due: tuple[ColumnElement[bool], ...] = (
        outbox.c.target == target,
        outbox.c.state == RowState.PENDING.value,
        outbox.c.next_attempt_at <= now,
        outbox.c.epoch <= epoch,
    )
    chosen = select(outbox.c.outbox_id).where(*due).order_by(outbox.c.outbox_id).limit(limit)
    taken = conn.execute(
        update(outbox).where(outbox.c.outbox_id.in_(chosen.scalar_subquery())).values(epoch=epoch).returning(*outbox.c)
    ).mappings()
    return sorted((_row(row) for row in taken), key=lambda row: row.outbox_id)


def _row(row: RowMapping) -> OutboxRow:
    return OutboxRow(
        outbox_id=row["outbox_id"],
        target=row["target"],
        notice=notice_from_json(row["payload"]),
        created_at=_moment(row["created_at"]),
        next_attempt_at=_moment(row["next_attempt_at"]),
        attempts=row["attempts"],
        possibly_repeated=row["possibly_repeated"],
    )


def _robot(conn: Connection, target: str) -> RobotState:
    found = conn.execute(select(robots).where(robots.c.target == target)).one_or_none()
    if found is None:
        return RobotState(target=target)
    return RobotState(
        target=target,
        sends=tuple(_moment(at) for at in found.sends),
        blocked_until=None if found.blocked_until is None else _moment(found.blocked_until),
        broken=found.broken or "",
    )


def _save_robot(conn: Connection, state: RobotState) -> None:
    values = {
        "sends": [at.timestamp() for at in state.sends],
        "blocked_until": None if state.blocked_until is None else state.blocked_until.timestamp(),
        "broken": state.broken or None,
    }
    if conn.execute(update(robots).where(robots.c.target == state.target).values(**values)).rowcount == 0:
        conn.execute(insert(robots), {"target": state.target, **values})


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
