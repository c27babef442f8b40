"""The one writer thread: it commits what has gathered, and answers after the commit."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection, Insert
from sqlalchemy.exc import DBAPIError

from tunewarden.adapters.store.reserve import Reserve
from tunewarden.adapters.store.wakes import Board, Subscription, pending
from tunewarden.errors import StoreUnavailable

log = structlog.get_logger(__name__)

MAX_BATCH = 512
RESTORE_EVERY_S = 5.0

# Primary SQLite codes that say "not now": the write may succeed later. All others are the caller's own error.
_AWAY = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    }
)

_HELD = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})  # another program holds the database's lock

Work = Callable[[Connection], Any]


@dataclass(slots=True)
class Item:
    """One write: either `work`, or a `row` of `insert` that is committed together with others of its kind."""

    future: "asyncio.Future[Any] | Future[Any]"
    loop: asyncio.AbstractEventLoop | None  # None: `future` belongs to a thread
    work: Work | None = None
    insert: Insert | None = None
    row: Mapping[str, Any] | None = None
    topic: str = ""


@dataclass(slots=True)
class Failed:
    """The outcome of an item that was rolled back."""

    error: Exception


class Writer:
    """Owns the only connection that writes. `conn` is in autocommit: BEGIN and COMMIT are said here."""

    def __init__(self, conn: Connection, board: Board, reserve: Reserve, *, limit: int) -> None:
        self._conn = conn
        self._board = board
        self._reserve = reserve
        self._limit = limit
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._closed = False
        self._next_restore = 0.0
        self.low_on_space = not reserve.restore()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Queue one write.

        Raises StoreUnavailable when too many wait, or the disk is full and it is a mere row.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if item.insert is not None and self.low_on_space:
            raise StoreUnavailable("the disk is full")
        if self._queue.qsize() >= self._limit:
            raise StoreUnavailable("too many writes wait")
        self._queue.put(item)

    def close(self) -> None:
        """Commit what is queued, then end."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._take()
            if batch:
                self._settle(batch, self._commit(batch))
            if self.low_on_space:
                self._restore()

    def _take(self) -> tuple[list[Item], bool]:
        batch: list[Item] = []
        try:
            item = self._queue.get(timeout=RESTORE_EVERY_S if self.low_on_space else None)
            while item is not None:
                batch.append(item)
                if len(batch) == MAX_BATCH:
                    return batch, False
                item = self._queue.get_nowait()
        except queue.Empty:
            return batch, False
        return batch, True

    def _restore(self) -> None:
        if time.monotonic() >= self._next_restore:
            self._next_restore = time.monotonic() + RESTORE_EVERY_S
            self.low_on_space = not self._reserve.restore()

    def _commit(self, batch: list[Item]) -> list[Any]:
        try:
            return self._together(batch)
        except (DBAPIError, sqlite3.Error) as error:
            self._roll_back(error)
            if _code(error) in _HELD:  # no item's fault, and each try costs the whole busy_timeout
                return [Failed(_translated(error))] * len(batch)
        outcomes = []
        for item in batch:
            try:
                outcomes += self._together([item])
            except (DBAPIError, sqlite3.Error) as error:
                self._roll_back(error)
                outcomes.append(Failed(_translated(error)))
        return outcomes

    def _together(self, batch: list[Item]) -> list[Any]:
        conn = self._conn
        rows: dict[Insert, list[Mapping[str, Any]]] = defaultdict(list)
        outcomes: list[Any] = [None] * len(batch)
        pending(conn).clear()
        conn.exec_driver_sql("BEGIN IMMEDIATE")
        for place, item in enumerate(batch):
            if item.work is not None:
                outcomes[place] = self._in_savepoint(item.work)
            elif self.low_on_space:
                outcomes[place] = Failed(StoreUnavailable("the disk is full"))
            elif item.insert is not None and item.row is not None:
                rows[item.insert].append(item.row)
                if item.topic:
                    pending(conn).append(item.topic)
        for insert, values in rows.items():
            conn.execute(insert, values)
        conn.exec_driver_sql("COMMIT")
        return outcomes

    def _in_savepoint(self, work: Work) -> Any:
        """Run one write so that its failure undoes only itself. An error of the disk ends the whole batch."""
        conn = self._conn
        topics = pending(conn)
        mark = len(topics)
        conn.exec_driver_sql("SAVEPOINT item")
        try:
            result = work(conn)
        except Exception as error:
            if isinstance(error, DBAPIError) and _is_away(error):
                raise
            conn.exec_driver_sql("ROLLBACK TO item")
            conn.exec_driver_sql("RELEASE item")
            del topics[mark:]
            return Failed(error)
        conn.exec_driver_sql("RELEASE item")
        return result

    def _roll_back(self, error: Exception) -> None:
        """Undo the batch; SQLite may have done so already. A full disk gives the reserve up."""
        pending(self._conn).clear()
        with contextlib.suppress(DBAPIError):
            driver: Any = self._conn.connection.driver_connection
            if driver.in_transaction:
                self._conn.exec_driver_sql("ROLLBACK")
        if not self.low_on_space and (_code(error) == sqlite3.SQLITE_FULL or self._reserve.is_full()):
            self._reserve.free()
            self.low_on_space = True
            self._next_restore = time.monotonic() + RESTORE_EVERY_S
            log.error("the disk is full: deliveries are refused", action="store_low_on_space")

    def _settle(self, batch: list[Item], outcomes: list[Any]) -> None:
        """Answer every item and wake the subscriptions: one call into each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = defaultdict(list)
        for item, outcome in zip(batch, outcomes, strict=True):
            if item.loop is not None and isinstance(item.future, asyncio.Future):
                by_loop[item.loop].append((item.future, outcome))
            elif isinstance(item.future, Future):
                _answer(item.future, outcome)
        woken: dict[asyncio.AbstractEventLoop, list[Subscription]] = defaultdict(list)
        for subscription in self._board.waiting_for(pending(self._conn)):
            woken[subscription.loop].append(subscription)
        for loop in by_loop.keys() | woken.keys():
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(_answer_all, by_loop[loop], woken[loop])


def _answer_all(answers: list[tuple["asyncio.Future[Any]", Any]], woken: list[Subscription]) -> None:
    for subscription in woken:  # first: an agent waits at its long poll for what the answer only tells a stage
        subscription.event.set()
    for future, outcome in answers:
        _answer(future, outcome)


def _answer(future: "asyncio.Future[Any] | Future[Any]", outcome: Any) -> None:
    if future.done():  # cancelled: its client went away. The row is committed all the same.
        return
    if isinstance(outcome, Failed):
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome)


def _code(error: Exception) -> int:
    """The primary SQLite code of `error`, 0 when there is none."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF


def _is_away(error: Exception) -> bool:
    return _code(error) in _AWAY


def _translated(error: Exception) -> Exception:
    """Our own exception for an error of the disk; the text of SQLite is kept, the statement and its values are not."""
    if not _is_away(error):
        return error
    cause = error.orig if isinstance(error, DBAPIError) else error
    return StoreUnavailable(f"the store can't be written: {cause}")
