"""The store: one writer thread with group commit, a few readers, and wakes after the commit.

    result = await store.write(lambda conn: orders.issue(conn, order))     # committed when it returns
    rows = await store.read(jobs.living)
    with store.subscribe("deliveries") as woken: ...                       # see wakes.py

A function given to `write` may be run twice (a batch that fails is retried one by one), so it touches nothing but
its connection. It never commits. What it raises is raised to the caller, and only its own changes are undone.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, Insert, create_engine, event
from sqlalchemy.exc import DBAPIError

from tunewarden.adapters.store.migrate import migrate
from tunewarden.adapters.store.reserve import Reserve, StoreLock
from tunewarden.adapters.store.wakes import Board, Subscription
from tunewarden.adapters.store.writer import Item, Writer
from tunewarden.errors import StoreUnavailable

T = TypeVar("T")

QUEUE_LIMIT = 4096
READERS = 2
BUSY_TIMEOUT_MS = 2000  # only a person's own sqlite3 can hold the lock: the answer is 503, and the alert comes again


class Store:
    """The database of one service. Opening it takes the lock, and migrates.

    Raises StoreLocked when another service has it, StoreUnavailable when it can't be opened or migrated.
    """

    def __init__(self, path: Path, *, queue_limit: int = QUEUE_LIMIT) -> None:
        self.path = path
        _make_private(path)
        self._lock = StoreLock(path)
        try:
            self._engine = _engine(path, read_only=False)
            self._read_engine = _engine(path, read_only=True)
            conn = self._engine.connect()
            migrate(conn)
        except DBAPIError as error:
            self._lock.release()
            raise StoreUnavailable(f"{path} can't be opened: {error.orig}") from None
        except BaseException:
            self._lock.release()
            raise
        self._conn = conn
        self._board = Board()
        self._writer = Writer(conn, self._board, Reserve(path), limit=queue_limit)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")

    @property
    def low_on_space(self) -> bool:
        """True while the disk is full: deliveries are refused, and so must destructive steps be."""
        return self._writer.low_on_space

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in the next commit and return what it returned, after that commit.

        Raises StoreUnavailable when it can't be stored now.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._writer.put(Item(future=future, loop=loop, work=work))
        return await future

    async def append(self, insert: Insert, row: Mapping[str, Any], *, topic: str = "") -> None:
        """Insert one row in the next commit, together with others of the same `insert`: the cheapest write there is.

        Refused (StoreUnavailable) while the disk is full. `insert` is a constant of a module.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._writer.put(Item(future=future, loop=loop, insert=insert, row=row, topic=topic))
        await future

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on one snapshot in a reader's thread. It sees every commit made before this call."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.read_now, work)

    async def check(self) -> str:
        """Write to the disk, as readiness asks: empty, or one line that says why it can't be done."""
        try:
            await self.write(_touch)
        except StoreUnavailable as error:
            return str(error)
        return "the disk is full: deliveries are refused" if self.low_on_space else ""

    def write_now(self, work: Callable[[Connection], T]) -> T:
        """`write` for a caller without an event loop: blocks until the commit."""
        future: Future[T] = Future()
        self._writer.put(Item(future=future, loop=None, work=work))
        return future.result()

    def read_now(self, work: Callable[[Connection], T]) -> T:
        """`read` in the caller's own thread."""
        with _snapshot(self._read_engine) as conn:
            return work(conn)

    def subscribe(self, *topics: str) -> Subscription:
        """A wait on `topics`; use it as a context manager, in the event loop."""
        return Subscription(self._board, topics)

    def close(self) -> None:
        """Commit what is queued, let go of the database and of the lock."""
        self._writer.close()
        self._readers.shutdown()
        self._conn.close()
        self._engine.dispose()
        self._read_engine.dispose()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _snapshot:
    """A connection with one read transaction."""

    def __init__(self, engine: Engine) -> None:
        self._conn = engine.connect()

    def __enter__(self) -> Connection:
        self._conn.exec_driver_sql("BEGIN")
        return self._conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._conn.exec_driver_sql("ROLLBACK")
        self._conn.close()


def read_beside(path: Path, work: Callable[[Connection], T]) -> T:
    """Read a store that a running service may have open, without its lock (`simulate`).

    Raises StoreUnavailable when it can't be read.
    """
    engine = _engine(path, read_only=True)
    try:
        with _snapshot(engine) as conn:
            return work(conn)
    except DBAPIError as error:
        raise StoreUnavailable(f"{path} can't be read: {error.orig}") from None
    finally:
        engine.dispose()


def _touch(conn: Connection) -> None:
    # The database's header is written again with the value it has: a real commit that changes nothing.
    conn.exec_driver_sql("PRAGMA user_version = 0")


def _make_private(path: Path) -> None:
    """Folder 0700 and file 0600 (SQLite gives its -wal and -shm the file's mode)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreUnavailable(f"{path} can't be written: {error.strerror}") from None


def _engine(path: Path, *, read_only: bool) -> Engine:
    # AUTOCOMMIT: neither the driver nor SQLAlchemy says BEGIN; the writer and the snapshots do.
    engine = create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT", hide_parameters=True)

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        if read_only:
            connection.execute("PRAGMA query_only=ON")
            return
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    event.listen(engine, "connect", prepare)
    return engine
