"""One lane of the reporter on a clock that the test moves: what each answer does to the rows."""

import asyncio
from dataclasses import dataclass, field

import pytest

from tunewarden.domain.message import Notice, NoticeKind
from tunewarden.domain.outbox import Outcome, RowState, SendLimits, SendResult
from tunewarden.domain.reason import Reason
from tunewarden.domain.target import Language, Secret, Target
from tunewarden.messages.render import Renderer
from tunewarden.pipeline.lane import SEND_TRANSITION, Desk, Lane
from tunewarden.testing import FakeClock, InMemoryOutbox, ScriptedRobot

SENT, PENDING, DEAD = RowState.SENT, RowState.PENDING, RowState.DEAD
TARGET = Target(name="ops", robot_url=Secret("x"), language=Language.EN)


class Stopped(BaseException):
    """The process ends here."""


@dataclass
class Recorder:
    """A boundary that notes what it is reached with, and ends the process at one point."""

    stop_at: str = ""
    reached: list[tuple[str, str]] = field(default_factory=list)

    def reach(self, transition: str, point: str) -> None:
        self.reached.append((transition, point))
        if point == self.stop_at:
            raise Stopped


class Bench:
    """A lane with everything around it."""

    def __init__(self, *results: SendResult, boundary: Recorder | None = None) -> None:
        self.clock = FakeClock()
        self.store = InMemoryOutbox(self.clock)
        self.robot = ScriptedRobot(*results)
        self.counted: list[tuple[str, str]] = []
        self.boundary = boundary or Recorder()
        self.epoch = asyncio.run(self.store.begin())
        self.lane = self.new_lane()

    def new_lane(self) -> Lane:
        desk = Desk(
            store=self.store,
            renderer=Renderer(),
            clock=self.clock,
            limits=SendLimits(),
            boundary=self.boundary,
            jitter=lambda: 0.0,
            counted=lambda target, outcome: self.counted.append((target, outcome)),
        )
        return Lane(TARGET, self.robot, desk)

    def add(self, count: int = 1, **facts: str) -> None:
        for _ in range(count):
            number = len(self.store.rows) + 1
            notice = Notice(kind=NoticeKind.NOTICE, reason=Reason.NO_TARGET, short_id=f"E-{number:03d}", facts=facts)
            asyncio.run(self.store.enqueue("ops", notice))

    def turn(self, after: float = 0.0) -> float | None:
        """One turn; returns the seconds until the next look."""
        self.clock.advance(after)
        wake = asyncio.run(self.lane.turn(self.epoch))
        return None if wake is None else (wake - self.clock.now()).total_seconds()


def result(outcome: Outcome, **more: bool) -> SendResult:
    return SendResult(outcome=outcome, detail="why", **more)


def test_what_is_delivered_is_sent_once():
    """A turn sends what waits; the next one has nothing to do."""
    bench = Bench()
    bench.add(2)

    assert (bench.turn(), bench.turn()) == (None, None)
    assert (bench.store.states(), len(bench.robot.messages)) == ([SENT, SENT], 2)


def test_a_busy_robot_is_asked_again_later_and_nothing_else_is_posted_meanwhile():
    """2 s, then 4 s; what waits behind it waits too, for it would fare no better."""
    bench = Bench(result(Outcome.RETRY), result(Outcome.RETRY))
    bench.add(3)

    assert (bench.turn(), bench.turn(1), bench.turn(1), bench.turn(4)) == (2, 1, 4, None)
    assert bench.store.states() == [SENT] * 3


def test_the_first_success_ends_the_back_off():
    """A later failure starts at 2 s again."""
    bench = Bench(result(Outcome.RETRY), result(Outcome.SENT), result(Outcome.RETRY))
    bench.add()
    bench.turn()
    bench.turn(2)
    bench.add()

    assert bench.turn() == 2


def test_a_lost_answer_is_repeated_with_the_mark():
    """Sent again, and the second message says that it may be a second one."""
    bench = Bench(result(Outcome.RETRY, lost=True))
    bench.add()
    bench.turn()
    bench.turn(2)

    assert ["possibly repeated" in message.text for message in bench.robot.messages] == [False, True]


def test_a_known_failure_is_repeated_without_a_mark():
    """The robot said that it did not take the message."""
    bench = Bench(result(Outcome.RETRY))
    bench.add()
    bench.turn()
    bench.turn(2)

    assert ["possibly repeated" in message.text for message in bench.robot.messages] == [False, False]


def test_a_throttled_robot_is_left_alone_for_the_block():
    """No post for 600 s, then everything that waited as one digest."""
    bench = Bench(result(Outcome.THROTTLED))
    bench.add(3)
    waits = [bench.turn(), bench.turn(599)]
    bench.add()

    assert (waits, bench.turn(1), len(bench.robot.messages)) == ([600, 1], None, 2)
    assert [bench.robot.messages[1].text.count(f"E-00{number}") for number in (1, 2, 3, 4)] == [1, 1, 1, 1]


def test_a_large_message_is_sent_again_smaller():
    """Half the bytes, at once; the rows are delivered."""
    bench = Bench(result(Outcome.SHRINK))
    bench.add(resume_command="", description="")
    bench.add(40, description="描述" * 60)
    bench.turn()
    bench.turn()
    sizes = [bench.robot.size(message) for message in bench.robot.messages]

    assert sizes[1] <= sizes[0] // 2
    while bench.turn() is not None:
        bench.clock.advance(0.1)
    assert set(bench.store.states()) == {SENT}


def test_a_message_that_is_always_too_large_is_given_up():
    """Halving ends at 1,000 bytes."""
    bench = Bench(*[result(Outcome.SHRINK)] * 20)
    bench.add()
    for _ in range(20):
        bench.turn()

    assert bench.store.states() == [DEAD]


def test_unsafe_content_is_sent_plain_once_then_given_up():
    """Links and annotations go; if the rest is called unsafe too, a person sees the dead letter."""
    bench = Bench(result(Outcome.DROP_LINKS), result(Outcome.DROP_LINKS))
    bench.add(url="https://x.example/", description="see https://x.example/")
    bench.turn()
    bench.turn()

    assert ["x.example" in message.text for message in bench.robot.messages] == [True, False]
    assert (bench.store.states(), bench.store.rows[1].error) == ([DEAD], "why")


def test_an_unknown_code_is_tried_twice_more():
    """Three posts in all, then dead, and the others go on."""
    bench = Bench(*[result(Outcome.UNKNOWN_CODE)] * 3)
    bench.add()
    for _ in range(4):
        bench.turn(10)

    assert (len(bench.robot.messages), bench.store.states()) == (3, [DEAD])


def test_a_broken_target_gets_one_post_a_block():
    """60 rows to a token that does not exist: no storm of refusals, and the target is marked."""
    bench = Bench(*[result(Outcome.PERMANENT, whole_target=True)] * 50)
    bench.add(60)
    for _ in range(30):
        bench.turn(60)

    assert len(bench.robot.messages) == 3
    assert asyncio.run(bench.store.robot_state("ops")).broken == "why"
    assert (set(bench.store.states()), bench.store.rows[1].error) == ({PENDING}, "why")


def test_a_repaired_target_gets_what_waited():
    """A restart tries it at once with what is due; one post proves it, then the rest follows."""
    bench = Bench(result(Outcome.PERMANENT, whole_target=True))
    bench.add(4)
    bench.turn()
    bench.epoch = asyncio.run(bench.store.begin())
    bench.lane = bench.new_lane()
    asyncio.run(bench.lane.reopen())
    bench.turn()
    bench.turn()

    assert bench.store.states() == [SENT] * 4
    assert asyncio.run(bench.store.robot_state("ops")).broken == ""


def test_our_own_fault_kills_one_row_only():
    """A message that DingTalk can't read is given up; the next ones are sent."""
    bench = Bench(result(Outcome.PERMANENT))
    bench.add(2)
    bench.turn()

    assert (bench.store.states(), bench.lane.to_tell) == ([DEAD, SENT], "why")


def test_a_row_is_given_up_after_24_hours():
    """It stays as a dead letter that says so."""
    bench = Bench()
    bench.add()
    bench.clock.advance(24 * 3600)
    bench.turn()

    assert (bench.store.states(), len(bench.robot.messages)) == ([DEAD], 0)
    assert bench.store.rows[1].error == "not delivered within 24 h"


def test_what_is_counted():
    """Each post by its outcome, each dead row."""
    bench = Bench(result(Outcome.PERMANENT))
    bench.add(2)
    bench.turn()

    assert bench.counted == [("ops", "permanent"), ("ops", "dead"), ("ops", "sent")]


def test_the_four_boundaries_are_reached_in_order():
    """A kill test finds them by name."""
    bench = Bench()
    bench.add()
    bench.turn()

    assert bench.boundary.reached == [
        (SEND_TRANSITION, point) for point in ("before_intent", "after_intent", "after_effect", "after_outcome")
    ]


@pytest.mark.parametrize(
    ("point", "posts", "marked"),
    [
        ("before_intent", 1, [False]),
        ("after_intent", 1, [True]),
        ("after_effect", 2, [False, True]),
        ("after_outcome", 1, [False]),
    ],
)
def test_an_end_at_any_boundary_loses_nothing(point: str, posts: int, marked: list[bool]):
    """After a restart the row is delivered; where it may have been before, it says so."""
    bench = Bench(boundary=Recorder(stop_at=point))
    bench.add()
    with pytest.raises(Stopped):
        bench.turn()
    bench.boundary.stop_at = ""
    bench.epoch = asyncio.run(bench.store.begin())
    bench.lane = bench.new_lane()
    bench.turn()

    assert (len(bench.robot.messages), bench.store.states()) == (posts, [SENT])
    assert ["possibly repeated" in message.text for message in bench.robot.messages] == marked


def test_a_replaced_reporter_changes_nothing():
    """What an older epoch still wants to write is ignored."""
    bench = Bench()
    bench.add()
    old = bench.epoch
    asyncio.run(bench.store.claim_due("ops", bench.clock.now(), 10, old))
    new = asyncio.run(bench.store.begin())
    asyncio.run(bench.store.claim_due("ops", bench.clock.now(), 10, new))
    asyncio.run(bench.store.mark_dead([1], old, "too late"))

    assert bench.store.states() == [PENDING]


def test_an_outcome_that_could_not_be_stored_is_a_repeat():
    """The store fails between post and outcome: the next turn sends again, with the mark."""
    bench = Bench()
    bench.add()
    whole = bench.store.mark_sent

    async def broken(*_arguments: object) -> None:
        bench.store.mark_sent = whole  # type: ignore[method-assign]
        raise OSError("disk full")

    bench.store.mark_sent = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        bench.turn()
    bench.turn()

    assert ["possibly repeated" in message.text for message in bench.robot.messages] == [False, True]
    assert bench.store.states() == [SENT]
