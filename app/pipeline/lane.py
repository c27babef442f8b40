"""One target's way out: what waits for it, one post at a time, and what each answer means for the rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from tunewarden.domain.outbox import (
    OutboxRow,
    Outcome,
    RobotState,
    Send,
    SendLimits,
    SendResult,
    expired,
    next_wake,
    plan_sends,
    post_ended,
    retry_delay,
    with_post,
)
from tunewarden.domain.target import Target
from tunewarden.messages.render import Renderer, Shape, Thread
from tunewarden.ports import Boundary, Clock, OutboxStore, Robot

SEND_TRANSITION = "outbox.send"  # the name under which kill tests find the four boundaries of a send
CLAIM_LIMIT = 500  # rows looked at in one turn
_SMALLEST_BODY = 1_000  # bytes; a message that is too large even so is given up

_log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What every lane works with. `jitter` gives 0 to 1; `counted` hears (target, outcome) of posts and dead rows."""

    store: OutboxStore
    renderer: Renderer
    clock: Clock
    limits: SendLimits
    boundary: Boundary
    jitter: Callable[[], float]
    counted: Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class Posted:
    """One post that was made: the rows that it told, its size and its result."""

    rows: tuple[OutboxRow, ...]
    size: int
    result: SendResult
    robot: RobotState

    @property
    def ids(self) -> list[int]:
        return [row.outbox_id for row in self.rows]


class Lane:
    """The rows of one target, sent one after another. A target that hangs holds up no other."""

    def __init__(self, target: Target, robot: Robot, desk: Desk) -> None:
        self.target = target
        self._robot = robot
        self._desk = desk
        self._full = Shape(limit_bytes=robot.limit_bytes)
        self._shape = self._full
        self._failures = 0
        self._paused_until: datetime | None = None
        self._in_flight: list[int] = []
        self._fault_told = False
        self.to_tell = ""  # set by a turn that found what another target must hear of; the reporter takes it

    async def reopen(self) -> None:
        """At start a broken target is tried again at once: a person may have changed the settings."""
        state = await self._desk.store.robot_state(self.target.name)
        if state.broken:
            await self._desk.store.save_robot_state(replace(state, blocked_until=None))

    async def turn(self, epoch: int) -> datetime | None:
        """Sends what may be sent now; returns when to look again, None when there is nothing to wait for."""
        await self._recover(epoch)
        now = self._desk.clock.now()
        if self._paused_until is None or now >= self._paused_until:
            rows = await self._desk.store.claim_due(self.target.name, now, CLAIM_LIMIT, epoch)
            rows = await self._without_expired(rows, now, epoch)
            robot = await self._desk.store.robot_state(self.target.name)
            for send in plan_sends(rows, robot, now, self._desk.limits):
                if not await self._deliver(send, epoch):
                    break
        return await self._next_look()

    async def _next_look(self) -> datetime | None:
        due = await self._desk.store.next_due(self.target.name)
        robot = await self._desk.store.robot_state(self.target.name)
        wake = next_wake(robot, due, self._desk.clock.now(), self._desk.limits)
        return max(wake, self._paused_until) if wake and self._paused_until else wake

    async def _recover(self, epoch: int) -> None:
        """A turn that broke between a post and its outcome left its rows in `sending`."""
        if self._in_flight:
            now = self._desk.clock.now()
            await self._desk.store.mark_retry(self._in_flight, epoch, now, "the outcome could not be stored", True)
            self._in_flight = []

    async def _without_expired(self, rows: Sequence[OutboxRow], now: datetime, epoch: int) -> list[OutboxRow]:
        old = [row for row in rows if expired(row, now, self._desk.limits)]
        if old:
            hours = self._desk.limits.give_up_after / timedelta(hours=1)
            await self._bury([row.outbox_id for row in old], epoch, f"not delivered within {hours:g} h")
        return [row for row in rows if row not in old]

    async def _deliver(self, send: Send, epoch: int) -> bool:
        """One post. The slot and the intent are stored before it, the outcome after it; False ends the turn."""
        threads = [_thread(rows) for rows in send.threads]
        rendered = self._desk.renderer.render(threads, self.target, self._shape, self._robot.size)
        rows = tuple(row for index in rendered.listed for row in send.threads[index])
        ids = [row.outbox_id for row in rows]
        store, boundary = self._desk.store, self._desk.boundary

        boundary.reach(SEND_TRANSITION, "before_intent")
        state = await store.robot_state(self.target.name)
        state = with_post(state, self._desk.clock.now(), self._desk.limits)
        await store.save_robot_state(state)
        self._in_flight = ids
        await store.mark_sending(ids, epoch)
        boundary.reach(SEND_TRANSITION, "after_intent")
        result = await self._robot.send(rendered.message)
        boundary.reach(SEND_TRANSITION, "after_effect")
        size = self._robot.size(rendered.message)
        go_on = await self._settle(Posted(rows=rows, size=size, result=result, robot=state), epoch)
        self._in_flight = []
        boundary.reach(SEND_TRANSITION, "after_outcome")
        return go_on

    async def _settle(self, posted: Posted, epoch: int) -> bool:
        """Stores what a post came to; True when the next post of the turn may follow."""
        outcome = posted.result.outcome
        self._desk.counted(self.target.name, outcome.value)
        _log.info(
            "post to a message target",
            action="message_post",
            target=self.target.name,
            rows=posted.ids,
            outcome=outcome.value,
            detail=posted.result.detail,
        )
        if outcome is Outcome.SENT:
            return await self._sent(posted, epoch)
        await self._desk.store.save_robot_state(self._refused_state(posted))
        if outcome is Outcome.THROTTLED:
            return await self._retry(posted, epoch, self._desk.clock.now())  # due with the others once the block ends
        if outcome in {Outcome.SHRINK, Outcome.DROP_LINKS}:
            return await self._reshape(posted, epoch)
        if outcome is Outcome.PERMANENT or self._tried_enough(posted):
            return await self._refused(posted, epoch)
        return await self._back_off(posted, epoch)

    async def _sent(self, posted: Posted, epoch: int) -> bool:
        now = self._desk.clock.now()
        await self._desk.store.mark_sent(posted.ids, epoch, now)
        await self._desk.store.save_robot_state(replace(post_ended(posted.robot, now), blocked_until=None, broken=""))
        self._failures, self._paused_until, self._shape = 0, None, self._full
        return True

    async def _refused(self, posted: Posted, epoch: int) -> bool:
        """A refusal of the whole target says nothing about the rows: they wait for a repair, at most a day."""
        self._shape = self._full
        if posted.result.whole_target:
            return await self._retry(posted, epoch, self._desk.clock.now())
        await self._bury(posted.ids, epoch, posted.result.detail)
        if not self._fault_told:
            self._fault_told, self.to_tell = True, posted.result.detail  # once: two targets must not tell each other
        return True

    def _refused_state(self, posted: Posted) -> RobotState:
        """The robot after a refused post: blocked when it is throttled, or when it refuses everything."""
        now = self._desk.clock.now()
        state = post_ended(posted.robot, now)
        until = now + self._desk.limits.block
        if posted.result.outcome is Outcome.THROTTLED:
            return replace(state, blocked_until=until)
        if posted.result.outcome is Outcome.PERMANENT and posted.result.whole_target:
            # Asked again once a block, with one post: a storm of rows must not become a storm of refusals.
            self.to_tell = "" if state.broken else posted.result.detail
            return replace(state, blocked_until=until, broken=posted.result.detail)
        return state

    async def _back_off(self, posted: Posted, epoch: int) -> bool:
        """What is down for one row is down for all: the lane pauses."""
        self._failures += 1
        delay = retry_delay(self._failures, self._desk.jitter(), self._desk.limits)
        self._paused_until = self._desk.clock.now() + delay
        return await self._retry(posted, epoch, self._paused_until)

    async def _reshape(self, posted: Posted, epoch: int) -> bool:
        """The same rows at once, in a smaller or a plainer form; given up when there is none left."""
        if posted.result.outcome is Outcome.SHRINK:
            shape = replace(self._shape, limit_bytes=min(posted.size, self._shape.limit_bytes) // 2)
            exhausted = shape.limit_bytes < _SMALLEST_BODY
        else:
            shape = replace(self._shape, plain=True)
            exhausted = self._shape.plain
        if exhausted:
            await self._bury(posted.ids, epoch, posted.result.detail)
            self._shape = self._full
            return True
        self._shape = shape
        return await self._retry(posted, epoch, self._desk.clock.now())

    async def _retry(self, posted: Posted, epoch: int, at: datetime) -> bool:
        await self._desk.store.mark_retry(posted.ids, epoch, at, posted.result.detail, posted.result.lost)
        return False

    def _tried_enough(self, posted: Posted) -> bool:
        attempts = max(row.attempts for row in posted.rows) + 1
        return posted.result.outcome is Outcome.UNKNOWN_CODE and attempts >= self._desk.limits.unknown_code_attempts

    async def _bury(self, ids: Sequence[int], epoch: int, error: str) -> None:
        await self._desk.store.mark_dead(ids, epoch, error)
        for _ in ids:
            self._desk.counted(self.target.name, "dead")
        _log.error("messages given up", action="message_dead", target=self.target.name, rows=list(ids), detail=error)


def _thread(rows: Sequence[OutboxRow]) -> Thread:
    return Thread(notices=tuple(row.notice for row in rows), repeated=any(row.possibly_repeated for row in rows))
