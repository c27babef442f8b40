"""The SQL of deliveries, jobs and pruning, on a real database."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, func, insert, select, update

from tunewarden.adapters.store import deliveries, jobs
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.prune import BITE, PruneAges, prune
from tunewarden.adapters.store.tables import (
    audit,
    decisions,
    episodes,
    orders,
    outbox,
    remediations,
    reservations,
)
from tunewarden.adapters.store.tables import deliveries as deliveries_table
from tunewarden.adapters.store.tables import jobs as jobs_table
from tunewarden.domain.job import Gpu, Job, JobState

NOW = datetime(2026, 12, 1, tzinfo=UTC)
JOB = Job(
    job_id="j-1",
    name="cat-lora",
    host_id="h-1",
    node="gpu-1",
    generation=1,
    state=JobState.RUNNING,
    enforce=True,
    trainer="lora-yaml",
    config_name="lora.yaml",
    knobs={"batch_size": "4"},
    changeable=frozenset({"batch_size"}),
    cpus=16,
    labels={"owner": "李"},
    gpus=(Gpu(uuid="GPU-1", index=0),),
    host_gpus=(Gpu(uuid="GPU-1", index=0), Gpu(uuid="GPU-2", index=1)),
    can=frozenset({"save", "stop"}),
    registered_at=NOW,
    seen_at=NOW,
    clock_skew_s=-0.25,
)
AGES = PruneAges(
    deliveries=timedelta(days=14),
    decisions=timedelta(days=90),
    remediations=timedelta(days=365),
    audit=timedelta(days=365),
    outbox=timedelta(days=30),
    deliveries_bytes=1_000_000,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "t.db") as opened:
        yield opened


def _deliver(store: Store, body: bytes = b"{}", at: float = 1.0) -> int:
    return store.write_now(lambda conn: deliveries.add(conn, source="alertmanager", received_at=at, body=body))


def _count(store: Store, table: Table) -> int:
    return store.read_now(lambda conn: conn.scalar(select(func.count()).select_from(table)) or 0)


def test_deliveries_are_taken_oldest_first_and_finished_once(store: Store) -> None:
    """The second who finishes the same part changes nothing."""
    first, second = _deliver(store, b"1"), _deliver(store, b"2")

    taken = store.read_now(deliveries.next_open)
    done = [store.write_now(lambda conn: deliveries.finish(conn, first, expected=0, next_alert=1)) for _ in range(2)]
    following = store.read_now(deliveries.next_open)

    assert taken is not None
    assert following is not None
    assert (taken.delivery_id, taken.body, done, following.delivery_id) == (first, b"1", [True, False], second)


def test_a_delivery_taken_apart_in_parts_goes_on_where_it_was(store: Store) -> None:
    """10,000 alerts are decided a few hundred at a time; a part is decided once."""
    number = _deliver(store)

    steps = [
        store.write_now(lambda conn: deliveries.advance(conn, number, expected=0, next_alert=500)),
        store.write_now(lambda conn: deliveries.advance(conn, number, expected=0, next_alert=500)),
        store.write_now(lambda conn: deliveries.advance(conn, number, expected=500, next_alert=1000)),
    ]
    taken = store.read_now(deliveries.next_open)

    assert steps == [True, False, True]
    assert taken is not None
    assert taken.next_alert == 1000


def test_a_bad_delivery_is_set_aside(store: Store) -> None:
    """It blocks none behind it, and says why."""
    bad, good = _deliver(store), _deliver(store)

    store.write_now(lambda conn: deliveries.mark_bad(conn, bad, "why"))
    taken = store.read_now(deliveries.next_open)

    assert taken is not None
    assert taken.delivery_id == good
    assert store.read_now(deliveries.count_open) == 1


def test_the_same_body_twice_is_two_rows(store: Store) -> None:
    """A firing, resolved, firing sequence keeps its third."""
    _deliver(store, b"same")
    _deliver(store, b"same")

    assert store.read_now(deliveries.count_open) == 2


def test_an_agents_event_is_stored_once(store: Store) -> None:
    """By its event_id, however often the agent sends it."""

    def add(conn: Connection) -> bool:
        return deliveries.add_event(conn, event_id="j-1-g1-ended", received_at=1.0, body=b"{}")

    assert [store.write_now(add), store.write_now(add)] == [True, False]


def test_a_job_reads_back_as_it_was_registered(store: Store) -> None:
    """Every field, also cards that are unknown."""
    unknown = replace(JOB, job_id="j-2", gpus=None, labels={})

    for job in (JOB, unknown):
        store.write_now(lambda conn, job=job: jobs.upsert(conn, job, boot_id="b"))  # type: ignore[misc]

    assert store.read_now(lambda conn: [jobs.get(conn, "j-1"), jobs.get(conn, "j-2"), jobs.get(conn, "j-3")]) == [
        JOB,
        unknown,
        None,
    ]


def test_registering_again_keeps_the_hold_and_the_first_time(store: Store) -> None:
    """A new generation does not release what a person holds."""
    store.write_now(lambda conn: jobs.upsert(conn, JOB))
    store.write_now(lambda conn: jobs.hold(conn, "j-1", held=True))
    later = NOW + timedelta(hours=1)
    store.write_now(lambda conn: jobs.upsert(conn, replace(JOB, generation=2, registered_at=later, seen_at=later)))

    job = store.read_now(lambda conn: jobs.get(conn, "j-1"))

    assert job is not None
    assert (job.generation, job.held, job.registered_at, job.seen_at) == (2, True, NOW, later)


def test_a_job_is_found_by_id_or_by_the_name_of_one_living(store: Store) -> None:
    """A name that two living jobs have is refused, with both ids."""
    ended = replace(JOB, job_id="j-0", state=JobState.ENDED, registered_at=NOW - timedelta(days=1))
    for job in (ended, JOB):
        store.write_now(lambda conn, job=job: jobs.upsert(conn, job))  # type: ignore[misc]
    found = store.read_now(lambda conn: [jobs.find(conn, ref) for ref in ("j-0", "cat-lora", "dog-lora")])
    store.write_now(lambda conn: jobs.upsert(conn, replace(JOB, job_id="j-2", host_id="h-2")))

    assert found == [ended, JOB, None]
    with pytest.raises(jobs.AmbiguousJob, match="j-1, j-2"):
        store.read_now(lambda conn: jobs.find(conn, "cat-lora"))


def test_silent_jobs_become_lost_once(store: Store) -> None:
    """Only living ones, and only those that were not heard of."""
    quiet = replace(JOB, job_id="j-2", seen_at=NOW - timedelta(seconds=20))
    over = replace(quiet, job_id="j-3", state=JobState.ENDED)
    for job in (JOB, quiet, over):
        store.write_now(lambda conn, job=job: jobs.upsert(conn, job))  # type: ignore[misc]
    silent_since = (NOW - timedelta(seconds=15)).timestamp()

    lost = [store.write_now(lambda conn: jobs.mark_lost(conn, silent_since=silent_since)) for _ in range(2)]

    assert lost == [[replace(quiet, state=JobState.LOST)], []]


def test_an_end_of_an_older_generation_changes_nothing(store: Store) -> None:
    """The event came late: generation 2 runs already."""
    store.write_now(lambda conn: jobs.upsert(conn, replace(JOB, generation=2)))

    def end(conn: Connection, generation: int) -> bool:
        return jobs.end(conn, "j-1", generation=generation, cause="cuda_oom", at=1.0, waits_until=61.0)

    late = store.write_now(lambda conn: end(conn, 1))
    now = store.write_now(lambda conn: end(conn, 2))
    job = store.read_now(lambda conn: jobs.get(conn, "j-1"))

    assert (late, now) == (False, True)
    assert job is not None
    assert job.state is JobState.WAITING


def _old(days: int) -> float:
    return (NOW - timedelta(days=days)).timestamp()


def _fill(conn: Connection, days: int) -> None:
    """One closed and one open thing in every table, `days` old."""
    at = _old(days)
    for name, state in (("over", "ended"), ("living", "running")):
        jobs.upsert(conn, replace(JOB, job_id=name, state=JobState(state), registered_at=NOW - timedelta(days=days)))
    conn.execute(update(jobs_table).values(seen_at=at))
    for state in ("done", "new"):
        row = {"source": "alertmanager", "received_at": at, "body": b"x", "state": state}
        conn.execute(insert(deliveries_table), row)
    for number, closed in ((1, at), (2, None)):
        times = {"opened_at": at, "last_seen_at": at, "closed_at": closed}
        text: dict[str, Any] = {"fingerprint": str(number), "alertname": "a", "labels": {}, "annotations": {}}
        conn.execute(insert(episodes), {"episode_id": number, **times, **text})
        words = {"verdict": "notify", "reason": "notify_only", "facts": {}}
        conn.execute(insert(decisions), {"episode_id": number, "decided_at": at, **words})
    for name, is_open in (("R-1", False), ("R-2", True)):
        words = {"policy": "p", "plan": {}, "state": "done", "reason": "x", "facts": {}}
        times = {"opened_at": at, "state_since": at, "ended_at": None if is_open else at}
        values = {"remediation_id": name, "job_id": "living", "open": is_open, "generation": 1, **words, **times}
        conn.execute(insert(remediations), values)
        order = {"order_id": name, "job_id": "living", "generation": 1, "kind": "save", "body": {}, "issued_at": at}
        state = {"state": "open" if is_open else "ended", "expires_at": at, "ended_at": None if is_open else at}
        conn.execute(insert(orders), {**order, **state})
    for state in ("sent", "dead", "pending"):
        row = {"target": "ops", "kind": "notice", "payload": {}, "state": state}
        conn.execute(insert(outbox), {**row, "next_attempt_at": at, "created_at": at})
    conn.execute(insert(audit), {"at": at, "action": "a", "actor": "service", "detail": {}})
    group = {"job_id": "living", "remediation_id": "R-1", "equivalence_group": "memory", "kind": "replace"}
    conn.execute(insert(reservations), {**group, "reserved_at": at})


def test_old_closed_things_go_and_open_ones_stay(store: Store) -> None:
    """After two years only what is open is left, and the job that it needs."""
    store.write_now(lambda conn: _fill(conn, 730))

    store.write_now(lambda conn: prune(conn, NOW.timestamp(), AGES))

    tables = (deliveries_table, episodes, decisions, remediations, orders, outbox, audit, reservations, jobs_table)
    assert [_count(store, table) for table in tables] == [1, 1, 1, 1, 1, 1, 0, 0, 1]


def test_young_things_stay(store: Store) -> None:
    """After five days nothing is pruned."""
    store.write_now(lambda conn: _fill(conn, 5))

    assert store.write_now(lambda conn: prune(conn, NOW.timestamp(), AGES)) == {}


def test_a_table_that_grew_too_large_loses_its_oldest_handled_bodies(store: Store) -> None:
    """Bytes count as well as days; what waits is kept."""
    numbers = [_deliver(store, b"x" * 300_000, at=NOW.timestamp()) for _ in range(6)]
    for number in numbers[:4]:
        store.write_now(lambda conn, number=number: deliveries.finish(conn, number, expected=0, next_alert=1))  # type: ignore[misc]

    store.write_now(lambda conn: prune(conn, NOW.timestamp(), AGES))

    left = store.read_now(lambda conn: list(conn.scalars(select(deliveries_table.c.delivery_id))))
    assert left == numbers[3:]


def test_pruning_takes_small_bites(store: Store) -> None:
    """A commit is not held up by a hundred thousand rows."""
    rows = [{"at": _old(730), "action": "a", "actor": "service", "detail": {}}] * (BITE + 5)
    store.write_now(lambda conn: conn.execute(insert(audit), rows))

    bites = [store.write_now(lambda conn: prune(conn, NOW.timestamp(), AGES)) for _ in range(3)]

    assert bites == [{"audit": BITE}, {"audit": 5}, {}]
