"""How a commit wakes the stages that wait for it.

A write says what it made: `wake(conn, "outbox")`. After its commit every subscription of that topic is set; a write
that is rolled back wakes nobody. Topics in use: deliveries, reports, outbox, remediations, orders:<job_id>.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

_KEY = "tunewarden.wakes"


def wake(conn: Connection, topic: str) -> None:
    """Set every subscription of `topic` once the running write is committed."""
    pending(conn).append(topic)


def pending(conn: Connection) -> list[str]:
    """The topics of the running batch; the writer alone clears it."""
    topics: list[str] = conn.info.setdefault(_KEY, [])
    return topics


class Subscription:
    """One stage's interest in some topics. Made by `Store.subscribe`, used in the event loop that made it.

        with store.subscribe("outbox") as woken:
            while not stopping.is_set():
                if not await send_what_is_due():
                    await woken.wait(timeout_s)

    Subscribe before the first look at the rows: a wake that comes while you look is kept for the next wait.
    """

    def __init__(self, board: "Board", topics: tuple[str, ...]) -> None:
        self._board = board
        self.topics = topics
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a wake, at most `timeout_s` seconds. False when none came."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.event.wait()
        except TimeoutError:
            return False
        self.event.clear()
        return True

    def __enter__(self) -> Self:
        self._board.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._board.remove(self)


class Board:
    """Who waits for what. Read by the writer thread, changed by the event loop: hence the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_topic: dict[str, set[Subscription]] = defaultdict(set)

    def add(self, subscription: Subscription) -> None:
        with self._lock:
            for topic in subscription.topics:
                self._by_topic[topic].add(subscription)

    def remove(self, subscription: Subscription) -> None:
        with self._lock:
            for topic in subscription.topics:
                self._by_topic[topic].discard(subscription)
                if not self._by_topic[topic]:
                    del self._by_topic[topic]

    def waiting_for(self, topics: Iterable[str]) -> set[Subscription]:
        """The subscriptions of any of `topics`."""
        with self._lock:
            return {one for topic in set(topics) for one in self._by_topic.get(topic, ())}
