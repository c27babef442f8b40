"""The outbox in memory and the one in SQLite keep the same promises."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.outbox import OutboxRows
from tunewarden.domain.message import Change, Notice, NoticeKind
from tunewarden.domain.outbox import RobotState
from tunewarden.domain.reason import Reason
from tunewarden.ports import OutboxStore
from tunewarden.testing import FakeClock, InMemoryOutbox

NOTICE = Notice(
    kind=NoticeKind.OUTCOME,
    reason=Reason.RECOVERED,
    short_id="R-1",
    changes=(Change(knob="batch_size", before="4", after="2"),),
    facts={"step": 1},
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def outbox(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[OutboxStore]:
    if request.param == "memory":
        yield InMemoryOutbox(clock)
        return
    with Store(tmp_path / "tunewarden.db") as store:
        yield OutboxRows(store, clock)


def test_a_row_comes_back_as_it_was_put_in(outbox: OutboxStore, clock: FakeClock):
    """Notice, times and counters."""

    async def story() -> None:
        epoch = await outbox.begin()
        await outbox.enqueue("ops", NOTICE)
        (row,) = await outbox.claim_due("ops", clock.now(), 10, epoch)

        assert (row.notice, row.created_at, row.next_attempt_at) == (NOTICE, clock.now(), clock.now())
        assert (row.target, row.attempts, row.possibly_repeated) == ("ops", 0, False)

    asyncio.run(story())


def test_only_due_rows_of_the_target_are_claimed_oldest_first(outbox: OutboxStore, clock: FakeClock):
    """Other targets' rows, later rows and rows beyond the limit stay."""

    async def story() -> None:
        epoch = await outbox.begin()
        for target in ("ops", "other", "ops", "ops", "ops"):
            await outbox.enqueue(target, NOTICE)
        first = (await outbox.claim_due("ops", clock.now(), 1, epoch))[0].outbox_id
        await outbox.mark_retry([first], epoch, clock.now() + timedelta(seconds=5), "busy", False)
        ids = [row.outbox_id for row in await outbox.claim_due("ops", clock.now(), 2, epoch)]

        assert ids == [first + 2, first + 3]

    asyncio.run(story())


def test_a_row_goes_its_way(outbox: OutboxStore, clock: FakeClock):
    """Claimed, sending, retry with one attempt more and the mark, then sent and never again."""

    async def story() -> None:
        epoch = await outbox.begin()
        await outbox.enqueue("ops", NOTICE)
        ids = [row.outbox_id for row in await outbox.claim_due("ops", clock.now(), 10, epoch)]
        await outbox.mark_sending(ids, epoch)
        sending = await outbox.claim_due("ops", clock.now(), 10, epoch)
        await outbox.mark_retry(ids, epoch, clock.now(), "lost", True)
        (again,) = await outbox.claim_due("ops", clock.now(), 10, epoch)
        await outbox.mark_sending(ids, epoch)
        await outbox.mark_retry(ids, epoch, clock.now(), "busy", False)
        (third,) = await outbox.claim_due("ops", clock.now(), 10, epoch)
        await outbox.mark_sent(ids, epoch, clock.now())

        assert (sending, again.attempts, again.possibly_repeated) == ([], 1, True)
        assert (third.attempts, third.possibly_repeated) == (2, True)
        assert (await outbox.claim_due("ops", clock.now(), 10, epoch), await outbox.next_due("ops")) == ([], None)

    asyncio.run(story())


def test_a_new_beginning_takes_over_what_was_being_sent(outbox: OutboxStore, clock: FakeClock):
    """After a restart: in `sending` means possibly repeated; all that waits is due; the old epoch writes nothing."""

    async def story() -> None:
        old = await outbox.begin()
        for _ in range(2):
            await outbox.enqueue("ops", NOTICE)
        first, second = [row.outbox_id for row in await outbox.claim_due("ops", clock.now(), 10, old)]
        await outbox.mark_sending([first], old)
        await outbox.mark_retry([second], old, clock.now() + timedelta(minutes=5), "busy", False)
        new = await outbox.begin()
        await outbox.mark_dead([first, second], old, "too late")
        rows = await outbox.claim_due("ops", clock.now(), 10, new)
        await outbox.mark_dead([first, second], old, "too late")

        assert new > old
        assert [row.possibly_repeated for row in rows] == [True, False]
        assert await outbox.next_due("ops") == clock.now()

    asyncio.run(story())


def test_rows_of_a_target_that_is_gone_are_given_up(outbox: OutboxStore, clock: FakeClock):
    """The settings no longer name it: its rows don't wait for ever."""

    async def story() -> None:
        epoch = await outbox.begin()
        for target in ("ops", "gone", "gone"):
            await outbox.enqueue(target, NOTICE)
        buried = await outbox.bury_unknown(["ops"], "no such target")

        assert (buried, await outbox.next_due("gone")) == (2, None)
        assert len(await outbox.claim_due("ops", clock.now(), 10, epoch)) == 1

    asyncio.run(story())


def test_the_robots_state_is_kept(outbox: OutboxStore, clock: FakeClock):
    """Empty at first, then what was saved last."""
    state = RobotState(target="ops", sends=(clock.now(),), blocked_until=clock.now(), broken="no token")

    async def story() -> None:
        before = await outbox.robot_state("ops")
        await outbox.save_robot_state(RobotState(target="ops", sends=(clock.now(),) * 3))
        await outbox.save_robot_state(state)

        assert (before, await outbox.robot_state("ops")) == (RobotState(target="ops"), state)

    asyncio.run(story())
