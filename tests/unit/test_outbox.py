"""The rules of the outbox: slots, blocks, merging, digests, giving up."""

from datetime import UTC, datetime, timedelta

import pytest

from tunewarden.domain.message import Notice, NoticeKind
from tunewarden.domain.outbox import (
    OutboxRow,
    RobotState,
    SendLimits,
    blocked,
    expired,
    free_slots,
    next_wake,
    plan_sends,
    post_ended,
    retry_delay,
    with_post,
)
from tunewarden.domain.reason import Reason

NOW = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
LIMITS = SendLimits()
IDLE = RobotState(target="ops")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def busy(posts: int) -> RobotState:
    return RobotState(target="ops", sends=tuple(ago(10) for _ in range(posts)))


def row(
    number: int,
    *,
    short_id: str = "",
    kind: NoticeKind = NoticeKind.NOTICE,
    mention: bool = False,
    created: float = 1,
    due: float = 1,
) -> OutboxRow:
    notice = Notice(kind=kind, reason=Reason.NO_TARGET, short_id=short_id or f"E-{number}", mention=mention)
    return OutboxRow(outbox_id=number, target="ops", notice=notice, created_at=ago(created), next_attempt_at=ago(due))


def planned(rows: list[OutboxRow], robot: RobotState = IDLE, now: datetime = NOW) -> list[list[list[int]]]:
    """The plan as row ids: posts → threads → rows."""
    return [
        [[row.outbox_id for row in thread] for thread in send.threads] for send in plan_sends(rows, robot, now, LIMITS)
    ]


@pytest.mark.parametrize(
    ("rows", "robot", "plan"),
    [
        ([], IDLE, []),
        ([row(1), row(2)], IDLE, [[[1]], [[2]]]),
        ([row(1, due=-5)], IDLE, []),
        ([row(1)], busy(20), []),
        ([row(1)], RobotState(target="ops", blocked_until=ago(-1)), []),
        ([row(1, created=5)], RobotState(target="ops", blocked_until=ago(1)), [[[1]]]),
        ([row(1, created=5), row(2, created=5)], RobotState(target="ops", blocked_until=ago(1)), [[[1], [2]]]),
        ([row(1), row(2)], busy(14), [[[1], [2]]]),
        ([row(1), row(2)], busy(13), [[[1]], [[2]]]),
        ([row(1), row(2, mention=True), row(3)], busy(15), [[[2]], [[1], [3]]]),
        ([row(1), row(2, mention=True)], busy(19), [[[1], [2]]]),
        ([row(1), row(2)], RobotState(target="ops", broken="no token"), [[[1]]]),
    ],
    ids=[
        "nothing",
        "one post each",
        "not due",
        "no slot",
        "blocked",
        "one after a block",
        "older rows after a block are a digest",
        "more rows than slots are a digest",
        "as many rows as slots",
        "what a person must act on goes singly, first",
        "the last slot takes all",
        "a broken target is tried with one row",
    ],
)
def test_plan(rows, robot, plan):
    """What is posted now, for each state of the queue and the robot."""
    assert planned(rows, robot) == plan


def test_an_outcome_takes_in_its_own_decision():
    """Two rows of one remediation that both wait are one post, the newest last."""
    rows = [
        row(1, short_id="R-1", kind=NoticeKind.DECIDED),
        row(2, short_id="R-2", kind=NoticeKind.DECIDED),
        row(3, short_id="R-1", kind=NoticeKind.OUTCOME),
    ]

    assert planned(rows) == [[[1, 3]], [[2]]]


def test_rows_without_an_id_are_not_merged():
    """A test message and a self-alert have nothing in common."""
    rows = [
        OutboxRow(
            outbox_id=number,
            target="ops",
            notice=Notice(kind=NoticeKind.TEST, reason=Reason.MANUAL),
            created_at=NOW,
            next_attempt_at=NOW,
        )
        for number in (1, 2)
    ]

    assert planned(rows) == [[[1]], [[2]]]


@pytest.mark.parametrize("posts", range(21))
@pytest.mark.parametrize("mentions", [0, 3, 40])
def test_never_more_posts_than_slots(posts: int, mentions: int):
    """Whatever waits, the window is kept, and no row is in two posts."""
    rows = [row(number, mention=number < mentions) for number in range(60)]
    plan = planned(rows, busy(posts))
    ids = [number for send in plan for thread in send for number in thread]

    assert len(plan) <= 20 - posts
    assert sorted(ids) == (list(range(60)) if posts < 20 else [])


@pytest.mark.parametrize(("seconds", "free"), [(59.9, 0), (60, 20)])
def test_a_slot_is_free_again_after_the_window(seconds: float, free: int):
    """20 posts a minute: the window slides."""
    robot = RobotState(target="ops", sends=tuple(ago(seconds) for _ in range(20)))

    assert free_slots(robot, NOW, LIMITS) == free


def test_a_slot_counts_from_the_end_of_its_post():
    """The robot saw the post no later than its answer came, so its own window can't hold a 21st."""
    robot = post_ended(with_post(busy(1), ago(9), LIMITS), ago(4))

    assert robot.sends == (ago(10), ago(4))


def test_a_clock_that_steps_back_blocks_nothing_for_long():
    """Posts and blocks that lie further in the future than they can are not counted."""
    robot = RobotState(target="ops", sends=(ago(-3600),) * 20, blocked_until=ago(-7200))

    assert (free_slots(robot, NOW, LIMITS), blocked(robot, NOW, LIMITS)) == (20, False)


@pytest.mark.parametrize(
    ("robot", "due", "wake"),
    [
        (IDLE, None, None),
        (IDLE, ago(5), ago(5)),
        (IDLE, ago(-30), ago(-30)),
        (busy(20), ago(5), ago(-50)),
        (RobotState(target="ops", blocked_until=ago(-400)), ago(5), ago(-400)),
        (RobotState(target="ops", blocked_until=ago(400)), ago(5), ago(5)),
    ],
    ids=["nothing waits", "due", "due later", "no slot", "blocked", "the block is over"],
)
def test_next_wake(robot, due, wake):
    """The loop sleeps exactly until something can be sent."""
    assert next_wake(robot, due, NOW, LIMITS) == wake


@pytest.mark.parametrize(
    ("failures", "jitter", "seconds"), [(1, 0.0, 2), (2, 0.0, 4), (4, 0.0, 16), (4, 1.0, 8), (50, 0.0, 300)]
)
def test_back_off_doubles_to_a_cap(failures: int, jitter: float, seconds: float):
    """2 s, 4 s, 8 s … at most 5 minutes; jitter takes off up to half."""
    assert retry_delay(failures, jitter, LIMITS) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("hours", "given_up"), [(23.99, False), (24, True)])
def test_a_row_is_given_up_after_a_day(hours: float, given_up: bool):
    """What could not be delivered in 24 h is a dead letter."""
    assert expired(row(1, created=hours * 3600), NOW, LIMITS) is given_up
