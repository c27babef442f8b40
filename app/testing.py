"""Fakes of the ports, shipped so that others can test against them. They are tested themselves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from tunewarden.domain.message import Message, Notice
from tunewarden.domain.outbox import OutboxRow, Outcome, RobotState, RowState, SendResult
from tunewarden.ports import Clock


class FakeClock:
    """A clock that a test moves."""

    def __init__(self, start: datetime = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)) -> None:
        self._start = start
        self._now = start

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class KeptRow:
    """A row of the in-memory outbox with what the store knows beside it."""

    row: OutboxRow
    state: RowState = RowState.PENDING
    epoch: int = 0
    error: str = ""
    sent_at: datetime | None = None


class InMemoryOutbox:
    """An OutboxStore in memory. `rows` is there to be looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._epoch = 0
        self.rows: dict[int, KeptRow] = {}
        self._robots: dict[str, RobotState] = {}

    async def begin(self) -> int:
        self._epoch += 1
        now = self._clock.now()
        for kept in self._in_state(RowState.SENDING):
            row = replace(kept.row, possibly_repeated=True)
            self._keep(replace(kept, row=row, state=RowState.PENDING))
        for kept in self._in_state(RowState.PENDING):
            self._keep(replace(kept, row=replace(kept.row, next_attempt_at=now), epoch=self._epoch))
        return self._epoch

    async def bury_unknown(self, targets: Sequence[str], error: str) -> int:
        unknown = [
            kept
            for state in (RowState.PENDING, RowState.SENDING)
            for kept in self._in_state(state)
            if kept.row.target not in targets
        ]
        for kept in unknown:
            self._keep(replace(kept, state=RowState.DEAD, error=error))
        return len(unknown)

    async def enqueue(self, target: str, notice: Notice) -> None:
        now = self._clock.now()
        number = len(self.rows) + 1
        row = OutboxRow(outbox_id=number, target=target, notice=notice, created_at=now, next_attempt_at=now)
        self._keep(KeptRow(row=row))

    async def claim_due(self, target: str, now: datetime, limit: int, epoch: int) -> list[OutboxRow]:
        due = [
            kept
            for kept in self._in_state(RowState.PENDING)
            if kept.row.target == target and kept.row.next_attempt_at <= now
        ][:limit]
        for kept in due:
            self._keep(replace(kept, epoch=epoch))
        return [kept.row for kept in due]

    async def next_due(self, target: str) -> datetime | None:
        pending = [kept.row for kept in self._in_state(RowState.PENDING) if kept.row.target == target]
        return min((row.next_attempt_at for row in pending), default=None)

    async def mark_sending(self, ids: Sequence[int], epoch: int) -> None:
        for kept in self._mine(ids, epoch):
            row = replace(kept.row, attempts=kept.row.attempts + 1)
            self._keep(replace(kept, row=row, state=RowState.SENDING))

    async def mark_sent(self, ids: Sequence[int], epoch: int, now: datetime) -> None:
        for kept in self._mine(ids, epoch):
            self._keep(replace(kept, state=RowState.SENT, sent_at=now, error=""))

    async def mark_retry(
        self, ids: Sequence[int], epoch: int, at: datetime, error: str, possibly_repeated: bool
    ) -> None:
        for kept in self._mine(ids, epoch):
            repeated = kept.row.possibly_repeated or possibly_repeated
            row = replace(kept.row, next_attempt_at=at, possibly_repeated=repeated)
            self._keep(replace(kept, row=row, state=RowState.PENDING, error=error))

    async def mark_dead(self, ids: Sequence[int], epoch: int, error: str) -> None:
        for kept in self._mine(ids, epoch):
            self._keep(replace(kept, state=RowState.DEAD, error=error))

    async def robot_state(self, target: str) -> RobotState:
        return self._robots.get(target, RobotState(target=target))

    async def save_robot_state(self, state: RobotState) -> None:
        self._robots[state.target] = state

    def states(self) -> list[RowState]:
        """The state of every row, oldest first."""
        return [self.rows[number].state for number in sorted(self.rows)]

    def _in_state(self, state: RowState) -> list[KeptRow]:
        return [kept for _, kept in sorted(self.rows.items()) if kept.state is state]

    def _mine(self, ids: Sequence[int], epoch: int) -> list[KeptRow]:
        return [self.rows[number] for number in ids if self.rows[number].epoch == epoch]

    def _keep(self, kept: KeptRow) -> None:
        self.rows[kept.row.outbox_id] = kept


class ScriptedRobot:
    """A Robot that keeps what it is sent and answers by a script; when that is used up, everything is delivered."""

    limit_bytes = 20_000

    def __init__(self, *results: SendResult, size: Callable[[Message], int] | None = None) -> None:
        self._results = list(results)
        self._size = size or _bytes_of
        self.messages: list[Message] = []

    def size(self, message: Message) -> int:
        return self._size(message)

    async def send(self, message: Message) -> SendResult:
        self.messages.append(message)
        return self._results.pop(0) if self._results else SendResult(outcome=Outcome.SENT)

    async def aclose(self) -> None:
        return None


def _bytes_of(message: Message) -> int:
    return len((message.title + message.text).encode())
