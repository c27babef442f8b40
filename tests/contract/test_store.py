"""The store's promises: answers after the commit, failures undo only themselves, one service, a full disk."""

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, func, insert, select
from sqlalchemy.exc import IntegrityError, OperationalError

from tunewarden.adapters.store import audit, deliveries
from tunewarden.adapters.store.engine import Store, read_beside
from tunewarden.adapters.store.migrate import HEAD
from tunewarden.adapters.store.reserve import RESERVE_BYTES
from tunewarden.adapters.store.tables import deliveries as table
from tunewarden.adapters.store.tables import jobs, metadata, remediations
from tunewarden.adapters.store.upgrade import SCRIPTS
from tunewarden.adapters.store.wakes import wake
from tunewarden.errors import StoreLocked, StoreUnavailable


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "t.db") as opened:
        yield opened


def _row(number: int = 0, size: int = 10) -> dict[str, object]:
    return dict(deliveries.row(source="alertmanager", received_at=float(number), body=b"x" * size))


def _count(conn: Connection) -> int:
    return conn.scalar(select(func.count()).select_from(table)) or 0


def test_the_migrations_add_up_to_the_tables(tmp_path: Path) -> None:
    """A migrated database has exactly the schema of tables.py, partial indexes included."""
    Store(tmp_path / "t.db").close()
    made = create_engine("sqlite://")
    metadata.create_all(made)

    migrated = create_engine(f"sqlite:///{tmp_path / 't.db'}")
    with migrated.connect() as conn, made.connect() as fresh:
        differences = compare_metadata(MigrationContext.configure(conn), metadata)
        ours, theirs = _schema(conn), _schema(fresh)
    migrated.dispose()
    made.dispose()

    assert differences == []
    assert ours == theirs


def test_the_newest_migration_is_the_one_that_a_start_looks_for() -> None:
    """A forgotten HEAD would leave an old schema in place."""
    assert ScriptDirectory(str(SCRIPTS)).get_current_head() == HEAD


def test_a_start_on_the_newest_schema_does_not_import_alembic(tmp_path: Path) -> None:
    """It would be a fifth of the start's time."""
    Store(tmp_path / "t.db").close()
    code = (
        "import sys; from pathlib import Path; from tunewarden.adapters.store.engine import Store\n"
        "Store(Path(sys.argv[1])).close(); sys.exit('alembic' in sys.modules)\n"
    )

    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.db")], check=False, timeout=60).returncode == 0


def _schema(conn: Connection) -> dict[str, set[str]]:
    """The words of each CREATE statement, without order: constraints may stand in another one."""
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name != 'alembic_version'"
    return {name: set(sql.replace(",", " ").split()) for name, sql in conn.exec_driver_sql(query)}


def test_the_pragmas_are_those_that_survive_a_power_cut(store: Store) -> None:
    """WAL, synchronous FULL and foreign keys on the writer; readers can't write."""
    names = ("journal_mode", "synchronous", "foreign_keys")

    values = store.write_now(lambda conn: [conn.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names])

    assert values == ["wal", 2, 1]
    with pytest.raises(OperationalError, match="readonly"):
        store.read_now(lambda conn: conn.execute(insert(table), _row()))


def test_files_are_private(tmp_path: Path) -> None:
    """Nobody else reads deliveries: folder 0700, database, WAL and lock 0600."""
    with Store(tmp_path / "state" / "t.db") as store:
        store.write_now(lambda conn: conn.execute(insert(table), _row()))
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}

    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}


def test_a_write_is_committed_when_it_returns(store: Store) -> None:
    """Another connection sees it at once."""
    store.write_now(lambda conn: conn.execute(insert(table), _row()))

    assert read_beside(store.path, _count) == 1


def test_a_failing_write_undoes_only_itself(store: Store) -> None:
    """Its neighbours in the batch are committed; the error goes to its own caller."""

    def spoil(conn: Connection) -> None:
        conn.execute(insert(table), _row())
        raise ValueError("mine")

    async def all_at_once() -> list[object]:
        writes = [store.write(lambda conn: conn.execute(insert(table), _row()).rowcount) for _ in range(5)]
        rows = [store.append(deliveries.INSERT, _row()) for _ in range(5)]
        return await asyncio.gather(*writes, store.write(spoil), *rows, return_exceptions=True)

    results = asyncio.run(all_at_once())

    assert [result for result in results if isinstance(result, Exception)] == [results[5]]
    assert isinstance(results[5], ValueError)
    assert store.read_now(_count) == 10


def test_a_row_that_breaks_a_rule_spoils_no_other(store: Store) -> None:
    """Rows of one batch go in together; when one is refused, each is tried alone."""

    async def all_at_once() -> list[object]:
        good = [store.append(deliveries.INSERT, {**_row(), "event_id": None}) for _ in range(20)]
        bad = store.append(deliveries.INSERT, {**_row(), "source": None, "event_id": None})
        return await asyncio.gather(*good, bad, return_exceptions=True)

    results = asyncio.run(all_at_once())

    assert results[:20] == [None] * 20
    assert isinstance(results[20], IntegrityError)
    assert store.read_now(_count) == 20


def test_what_is_read_is_one_snapshot(store: Store) -> None:
    """A commit between two statements of a read is not seen by it."""

    def twice(conn: Connection) -> tuple[int, int]:
        before = _count(conn)
        store.write_now(lambda other: other.execute(insert(table), _row()))
        return before, _count(conn)

    assert store.read_now(twice) == (0, 0)
    assert store.read_now(_count) == 1


def test_a_commit_wakes_its_topic_and_a_rollback_does_not(store: Store) -> None:
    """A wake that comes before the wait is kept."""

    def spoilt(conn: Connection) -> None:
        wake(conn, "outbox")
        raise ValueError

    async def scenario() -> list[bool]:
        with store.subscribe("outbox", "reports") as woken, store.subscribe("deliveries") as others:
            with pytest.raises(ValueError):
                await store.write(spoilt)
            nothing = await woken.wait(0.05)
            await store.write(lambda conn: wake(conn, "reports"))
            return [nothing, await woken.wait(5), await woken.wait(0.05), await others.wait(0.05)]

    assert asyncio.run(scenario()) == [False, True, False, False]


def test_a_wake_from_another_thread_reaches_the_loop(store: Store) -> None:
    """`write_now` wakes stages too."""

    async def scenario() -> bool:
        with store.subscribe("deliveries") as woken:
            await asyncio.to_thread(
                store.write_now, lambda conn: deliveries.add(conn, source="x", received_at=1.0, body=b"")
            )
            return await woken.wait(5)

    assert asyncio.run(scenario())


def test_a_caller_that_gave_up_does_not_stop_the_commit(store: Store) -> None:
    """The client aborts after its body was read: the row is stored once all the same."""

    async def scenario() -> None:
        write = asyncio.ensure_future(store.append(deliveries.INSERT, _row()))
        await asyncio.sleep(0)
        write.cancel()
        await store.write(lambda conn: None)

    asyncio.run(scenario())

    assert store.read_now(_count) == 1


def test_too_many_waiting_writes_are_refused(tmp_path: Path) -> None:
    """The queue is bounded: the rest hears StoreUnavailable, and what was accepted is committed."""
    hold = threading.Event()
    with Store(tmp_path / "t.db", queue_limit=10) as store:

        async def scenario() -> list[object]:
            first = asyncio.ensure_future(store.write(lambda conn: hold.wait(10)))
            await asyncio.sleep(0.1)
            rest = [asyncio.ensure_future(store.append(deliveries.INSERT, _row())) for _ in range(25)]
            await asyncio.sleep(0)
            hold.set()
            return await asyncio.gather(first, *rest, return_exceptions=True)

        results = asyncio.run(scenario())
        refused = [result for result in results if isinstance(result, StoreUnavailable)]

        assert len(refused) == 15
        assert store.read_now(_count) == 10


def test_two_services_never_share_a_store(store: Store) -> None:
    """The second one names the pid of the first."""
    with pytest.raises(StoreLocked, match=rf"pid {os.getpid()}\b"):
        Store(store.path)


def test_a_store_that_was_killed_opens_again(tmp_path: Path) -> None:
    """The lock is the kernel's, not a file that stays; what was committed is there."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tunewarden.adapters.store.engine import Store\nfrom tunewarden.adapters.store import deliveries\n"
        "store = Store(Path(sys.argv[1]))\n"
        "store.write_now(lambda conn: deliveries.add(conn, source='x', received_at=1.0, body=b'y'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.db")], check=False, timeout=60)

    assert done.returncode == -signal.SIGKILL
    with Store(tmp_path / "t.db") as store:
        assert store.read_now(_count) == 1


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    """It says so, and changes nothing."""
    Store(tmp_path / "t.db").close()
    with sqlite3.connect(tmp_path / "t.db") as conn:
        conn.execute("UPDATE alembic_version SET version_num = '9999'")
    conn.close()

    with pytest.raises(StoreUnavailable, match="newer tunewarden"):
        Store(tmp_path / "t.db")


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    """A wrong store_path never destroys what is there."""
    (tmp_path / "t.db").write_text("dear diary\n" * 1000)

    with pytest.raises(StoreUnavailable):
        Store(tmp_path / "t.db")
    assert (tmp_path / "t.db").read_text() == "dear diary\n" * 1000


def test_only_one_open_remediation_a_job(store: Store) -> None:
    """The database itself says so, whatever two stages believe."""
    job = {"job_id": "j", "name": "n", "host_id": "h", "node": "n", "generation": 1, "state": "running", "labels": {}}
    job |= {"host_gpus": [], "can": [], "registered_at": 0.0, "seen_at": 0.0}
    row = {"job_id": "j", "policy": "p", "plan": {}, "state": "decided", "reason": "x", "facts": {}, "generation": 1}
    row |= {"opened_at": 0.0, "state_since": 0.0}

    def add(name: str, *, is_open: bool) -> None:
        store.write_now(
            lambda conn: conn.execute(insert(remediations), {**row, "remediation_id": name, "open": is_open})
        )

    store.write_now(lambda conn: conn.execute(insert(jobs), job))
    add("R-1", is_open=False)
    add("R-2", is_open=True)
    with pytest.raises(IntegrityError):
        add("R-3", is_open=True)


FULL = """
import asyncio, sys
from pathlib import Path
from tunewarden.adapters.store import audit, deliveries
from tunewarden.adapters.store.engine import Store
from tunewarden.errors import StoreUnavailable
from tunewarden.telemetry import set_up_logging

async def main(store):
    stored = 0
    row = deliveries.row(source="x", received_at=1.0, body=b"x" * 200_000)
    try:
        for _ in range(1000):
            await store.append(deliveries.INSERT, row)
            stored += 1
    except StoreUnavailable:
        pass
    print("stored", stored, "low", store.low_on_space)
    for _ in range(50):
        line = {"at": 1.0, "action": "a", "actor": "service", "detail": {"x": "y" * 1000}}
        await store.write(lambda conn: audit.append(conn, **line))
    print("audit written")
    try:
        await store.append(deliveries.INSERT, row)
    except StoreUnavailable as error:
        print("refused:", error)

def count(conn, table):
    return conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()


set_up_logging()
with Store(Path(sys.argv[1])) as store:
    asyncio.run(main(store))
    whole = store.read_now(lambda conn: conn.exec_driver_sql("PRAGMA integrity_check").scalar())
    kept, lines = store.read_now(lambda conn: (count(conn, "deliveries"), count(conn, "audit")))
    print(f"read {kept} deliveries, {lines} lines, {whole}")
"""


def test_a_full_disk_refuses_deliveries_and_lets_remediations_end(tmp_path: Path) -> None:
    """The reserve is given up, deliveries hear StoreUnavailable, small writes go on, and nothing is half-written.

    The disk is a tmpfs in a mount namespace of the child's own.
    """
    own = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    mount_and_run = 'mount -t tmpfs -o size=36m tmpfs "$1" && exec "$2" -c "$3" "$1/t.db"'
    argv = [*own, "sh", "-c", mount_and_run, "sh", str(tmp_path), sys.executable, FULL]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    stored = int(lines[0].split()[1])
    assert lines == [
        f"stored {stored} low True",
        "audit written",
        "refused: the disk is full",
        f"read {stored} deliveries, 50 lines, ok",
    ]
    assert 10 < stored < 200


def _small_files() -> None:
    limit = 2 * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


LIMITED = """
import sys
from pathlib import Path
from tunewarden.adapters.store import deliveries
from tunewarden.adapters.store.engine import Store
from tunewarden.errors import StoreUnavailable

with Store(Path(sys.argv[1])) as store:
    stored = 0
    for _ in range(1000):
        try:
            store.write_now(lambda conn: deliveries.add(conn, source="x", received_at=1.0, body=b"x" * 100_000))
            stored += 1
        except StoreUnavailable as error:
            print(stored, type(error).__name__)
            break
"""


def test_a_disk_that_refuses_is_unavailable_and_not_an_error_of_ours(tmp_path: Path) -> None:
    """A write that the system refuses raises StoreUnavailable; what was committed before is whole."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "t.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=_small_files,
    )
    stored, error = done.stdout.split()

    assert error == "StoreUnavailable"
    assert read_beside(tmp_path / "t.db", _count) == int(stored) > 0


def test_the_reserve_stands_beside_the_database(store: Store) -> None:
    """16 MiB that are really taken, not a hole."""
    reserve = store.path.with_name("t.db.reserve").stat()

    assert reserve.st_size == RESERVE_BYTES
    assert reserve.st_blocks * 512 >= RESERVE_BYTES
    assert not store.low_on_space


def test_the_audit_keeps_what_it_is_told(store: Store) -> None:
    """Newest first."""
    store.write_now(lambda conn: audit.append(conn, at=1.0, action="hold", actor="li", job_id="j", detail={"a": 1}))
    store.write_now(lambda conn: audit.append(conn, at=2.0, action="release", actor="li", job_id="j"))

    lines = store.read_now(lambda conn: audit.newest(conn, job_id="j"))

    assert [(line["action"], line["detail"]) for line in lines] == [("release", {}), ("hold", {"a": 1})]
