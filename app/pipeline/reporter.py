"""The last stage: takes rows from the outbox and posts them, each target in a lane of its own."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import structlog

from tunewarden.domain.message import Notice, NoticeKind, Severity
from tunewarden.domain.outbox import SendLimits
from tunewarden.domain.reason import Reason
from tunewarden.domain.target import Target
from tunewarden.messages.render import Renderer
from tunewarden.pipeline.lane import Desk, Lane
from tunewarden.ports import Boundary, Clock, NoBoundary, OutboxStore, Robot

_AFTER_AN_ERROR = 5.0  # seconds until a lane whose turn broke tries again
_SHORTEST_WAIT = 0.01
_LONGEST_WAIT = 5.0  # a wake that was missed delays a message by no more
_DINGTALK = SendLimits()
_NO_BOUNDARY = NoBoundary()

_log = structlog.get_logger()


def _uncounted(_target: str, _outcome: str) -> None:
    return None


class Reporter:
    """Posts what the outbox holds. `wake()` it after a commit that added rows; else it looks when the next row is due.

    `robots` has one robot for each target's name. `counted` hears (target, outcome) of each post and each dead row.
    """

    def __init__(
        self,
        *,
        store: OutboxStore,
        targets: Sequence[Target],
        robots: Mapping[str, Robot],
        clock: Clock,
        renderer: Renderer,
        limits: SendLimits = _DINGTALK,
        boundary: Boundary = _NO_BOUNDARY,
        jitter: Callable[[], float] = random.random,
        counted: Callable[[str, str], None] = _uncounted,
    ) -> None:
        desk = Desk(
            store=store,
            renderer=renderer,
            clock=clock,
            limits=limits,
            boundary=boundary,
            jitter=jitter,
            counted=counted,
        )
        self._store = store
        self._clock = clock
        self._lanes = [Lane(target, robots[target.name], desk) for target in targets]
        self._woken = {target.name: asyncio.Event() for target in targets}

    def wake(self) -> None:
        """There may be something to send. Call it on the event loop."""
        for event in self._woken.values():
            event.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. A post that has begun is finished, or left in `sending` when the caller cancels."""
        epoch = await self._store.begin()
        names = [lane.target.name for lane in self._lanes]
        await self._store.bury_unknown(names, "the settings have no such target any more")
        for lane in self._lanes:
            await lane.reopen()
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes:
                group.create_task(self._run_lane(lane, epoch, stop))
            await stop.wait()
            self.wake()

    async def _run_lane(self, lane: Lane, epoch: int, stop: asyncio.Event) -> None:
        woken = self._woken[lane.target.name]
        while not stop.is_set():
            woken.clear()
            seconds = _AFTER_AN_ERROR
            try:
                seconds = self._seconds_until(await lane.turn(epoch))
                await self._tell_elsewhere(lane)
            except Exception:  # noqa: BLE001 - the loop's boundary: one broken turn must not end the messages
                _log.exception("a turn of the reporter broke", action="reporter_turn", target=lane.target.name)
            if not stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), seconds)

    def _seconds_until(self, wake: datetime | None) -> float:
        left = _LONGEST_WAIT if wake is None else (wake - self._clock.now()).total_seconds()
        return min(max(_SHORTEST_WAIT, left), _LONGEST_WAIT)

    async def _tell_elsewhere(self, lane: Lane) -> None:
        """That a target refuses is told to the first of the others that doesn't."""
        error, lane.to_tell = lane.to_tell, ""
        if not error:
            return
        for other in self._lanes:
            name = other.target.name
            if other is not lane and not (await self._store.robot_state(name)).broken:
                await self._store.enqueue(name, _broken_notice(lane.target.name, error))
                self._woken[name].set()
                return
        _log.error("no message target is left to tell", action="target_broken", target=lane.target.name, detail=error)


def _broken_notice(target: str, error: str) -> Notice:
    return Notice(
        kind=NoticeKind.SELF_ALERT,
        reason=Reason.TARGET_BROKEN,
        severity=Severity.CRITICAL,
        mention=True,
        facts={"target": target, "error": error},
    )
