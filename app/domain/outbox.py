"""The rules of the outbox: what is sent now, what is merged, what waits, what is given up. Pure: `now` is passed in.

At least once: a row goes pending → sending (the intent) → sent, or back to pending with a later time, or dead. A row
whose answer was lost, or that was found in `sending` after a restart, is sent again with a mark.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from tunewarden.domain.message import Notice


class RowState(StrEnum):
    """Where a row is."""

    PENDING = "pending"
    SENDING = "sending"  # the intent is written; whether it was sent isn't known yet
    SENT = "sent"
    DEAD = "dead"  # given up; shown to a person


@dataclass(frozen=True, kw_only=True)
class OutboxRow:
    """One notice for one target."""

    outbox_id: int
    target: str
    notice: Notice
    created_at: datetime
    next_attempt_at: datetime
    attempts: int = 0
    possibly_repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class RobotState:
    """What one robot may still do. `sends` are the ends of its posts within the window, oldest first."""

    target: str
    sends: tuple[datetime, ...] = ()
    blocked_until: datetime | None = None
    broken: str = ""  # a permanent error of the whole target, in words; empty once a post went through


@dataclass(frozen=True, kw_only=True)
class SendLimits:
    """DingTalk's limits for one robot (20 a minute, then blocked for 10 minutes), and our own patience."""

    per_window: int = 20
    window: timedelta = timedelta(seconds=60)
    block: timedelta = timedelta(seconds=600)
    reserve: int = 5  # posts of a window that single messages leave for digests and for what a person must act on
    give_up_after: timedelta = timedelta(hours=24)
    backoff_base: timedelta = timedelta(seconds=2)
    backoff_cap: timedelta = timedelta(minutes=5)
    unknown_code_attempts: int = 3  # an undocumented error code: the first try and two more


class Outcome(StrEnum):
    """What one post came to."""

    SENT = "sent"
    RETRY = "retry"  # the other side, or the way to it, is down
    THROTTLED = "throttled"  # no post to this robot for `SendLimits.block`
    SHRINK = "shrink"  # the body is too large
    DROP_LINKS = "drop_links"  # the content was called unsafe
    PERMANENT = "permanent"  # it will be refused again until a person changes something
    UNKNOWN_CODE = "unknown_code"  # not documented: twice more, then dead


@dataclass(frozen=True, kw_only=True)
class SendResult:
    """One post's outcome. `detail` is one line for a person and never holds a secret.

    `lost`: the body went out and no answer came, so it may have been delivered. `whole_target`: every other post to
    this robot would end the same way.
    """

    outcome: Outcome
    detail: str = ""
    lost: bool = False
    whole_target: bool = False


@dataclass(frozen=True, kw_only=True)
class Send:
    """One post to be made: rows of one thread (the newest last), or many threads as a digest."""

    threads: tuple[tuple[OutboxRow, ...], ...]

    @property
    def digest(self) -> bool:
        return len(self.threads) > 1


def plan_sends(rows: Sequence[OutboxRow], robot: RobotState, now: datetime, limits: SendLimits) -> list[Send]:
    """The posts to make now for one target, in order; never more than the robot has slots for.

    Rows that aren't due are left. Under pressure what a person must act on goes out singly, the rest as a digest.
    """
    free = free_slots(robot, now, limits)
    threads = _threads([row for row in rows if row.next_attempt_at <= now])
    if not free or not threads or blocked(robot, now, limits):
        return []
    if robot.broken:  # one post finds out whether a person has repaired it; the other rows wait
        return [Send(threads=(threads[0],))]
    behind = robot.blocked_until is not None and any(thread[0].created_at < robot.blocked_until for thread in threads)
    if len(threads) <= max(0, free - limits.reserve) and not behind:
        return [Send(threads=(thread,)) for thread in threads]
    urgent = [thread for thread in threads if thread[-1].notice.mention][: free - 1]
    rest = tuple(thread for thread in threads if thread not in urgent)
    return [Send(threads=(thread,)) for thread in urgent] + ([Send(threads=rest)] if rest else [])


def _threads(rows: Sequence[OutboxRow]) -> list[tuple[OutboxRow, ...]]:
    """Rows with the same short id are one message: an outcome takes in its own decision if that still waits."""
    threads: dict[str, list[OutboxRow]] = {}
    for row in sorted(rows, key=lambda row: row.outbox_id):
        key = row.notice.short_id or f"row {row.outbox_id}"
        threads.setdefault(key, []).append(row)
    return [tuple(thread) for thread in threads.values()]


def free_slots(robot: RobotState, now: datetime, limits: SendLimits) -> int:
    """How many posts the robot may still get in the window that ends now."""
    return max(0, limits.per_window - len(_in_window(robot, now, limits)))


def blocked(robot: RobotState, now: datetime, limits: SendLimits) -> bool:
    """True while the robot must not be posted to.

    One that ends later than a whole block from now was written before the clock stepped back: it doesn't count.
    """
    until = robot.blocked_until
    return until is not None and now < until <= now + limits.block


def next_wake(robot: RobotState, due: datetime | None, now: datetime, limits: SendLimits) -> datetime | None:
    """When to look again: the next row is due, a slot is free and the block is over. None: when something new comes."""
    if due is None:
        return None
    wake = due
    if robot.blocked_until is not None and blocked(robot, now, limits):
        wake = max(wake, robot.blocked_until)
    sends = _in_window(robot, now, limits)
    if len(sends) >= limits.per_window:
        wake = max(wake, sends[len(sends) - limits.per_window] + limits.window)
    return wake


def with_post(robot: RobotState, now: datetime, limits: SendLimits) -> RobotState:
    """The state with one slot taken. Taken before the post, so that a crash can't lose it."""
    return replace(robot, sends=(*_in_window(robot, now, limits), now))


def post_ended(robot: RobotState, now: datetime) -> RobotState:
    """The state with the last slot's time moved to the end of its post: the robot saw it no later than that."""
    return replace(robot, sends=(*robot.sends[:-1], now))


def expired(row: OutboxRow, now: datetime, limits: SendLimits) -> bool:
    """True when the row has waited so long that it is given up."""
    return now - row.created_at >= limits.give_up_after


def retry_delay(failures: int, jitter: float, limits: SendLimits) -> timedelta:
    """How long to wait after the n-th failure in a row: doubling, capped. `jitter` in 0 to 1 takes off up to half."""
    doubled: timedelta = limits.backoff_base * 2 ** min(max(failures, 1) - 1, 20)
    return min(doubled, limits.backoff_cap) * (1 - jitter / 2)


def _in_window(robot: RobotState, now: datetime, limits: SendLimits) -> tuple[datetime, ...]:
    """The posts that still count; those in the future come from a clock that has stepped back."""
    return tuple(at for at in robot.sends if now - limits.window < at <= now)
