"""The reporter on a real store against a strict DingTalk in a process of its own; the limits' times are scaled."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.dingtalk_stand_in import SECRET, TOKEN, DingTalkStandIn
from tunewarden.adapters.dingtalk import DingTalkRobot
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.outbox import OutboxRows, counts
from tunewarden.domain.message import Notice, NoticeKind, Severity
from tunewarden.domain.outbox import SendLimits
from tunewarden.domain.reason import Reason
from tunewarden.domain.target import Target
from tunewarden.messages.render import Renderer
from tunewarden.pipeline.reporter import Reporter

WINDOW, BLOCK = 1.5, 2.5  # seconds, for DingTalk's 60 and 600
LIMITS = SendLimits(
    window=timedelta(seconds=WINDOW),
    block=timedelta(seconds=BLOCK),
    backoff_base=timedelta(seconds=0.1),
    backoff_cap=timedelta(seconds=0.3),
)
STRICT = ("--window", str(WINDOW), "--block", str(BLOCK))


class WallClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class Running:
    """A reporter at work."""

    def __init__(self, store: Store, targets: Sequence[Target], limits: SendLimits = LIMITS) -> None:
        clock = WallClock()
        self.store = store
        self.rows = OutboxRows(store, clock)
        self.robots = {target.name: DingTalkRobot(target, clock, answer_seconds=0.5) for target in targets}
        self.reporter = Reporter(
            store=self.rows,
            targets=targets,
            robots=self.robots,
            clock=clock,
            renderer=Renderer(),
            limits=limits,
        )

    async def say(self, *notices: Notice, to: str = "ops") -> None:
        for notice in notices:
            await self.rows.enqueue(to, notice)
        self.reporter.wake()

    def states(self) -> dict[str, int]:
        return {name: count for name, count in self.store.read_now(counts).items() if count and "at" not in name}

    async def until(self, holds: Callable[[], object], within_s: float = 15.0) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, f"not within {within_s} s; the outbox has {self.states()}"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def reporting(folder: Path, *targets: Target, limits: SendLimits = LIMITS) -> AsyncIterator[Running]:
    """A reporter that runs inside the block; it ends within a second of being told to."""
    with Store(folder / "tunewarden.db") as store:
        running = Running(store, targets, limits)
        stop = asyncio.Event()
        work = asyncio.create_task(running.reporter.run(stop))
        try:
            yield running
        finally:
            stop.set()
            await asyncio.wait_for(work, 1.0)
            for robot in running.robots.values():
                await robot.aclose()


def notice(number: int, **changes: object) -> Notice:
    values: dict[str, object] = {
        "kind": NoticeKind.NOTICE,
        "reason": Reason.NO_TARGET,
        "short_id": f"E-{number:03d}",
        "alert_name": "GpuMemoryNearlyFull",
        "facts": {"description": "显存使用率过高，请检查训练任务"},
    }
    return Notice(**(values | changes))  # type: ignore[arg-type]


def seen(robot: DingTalkStandIn, count: int) -> list[int]:
    """How often a person saw each of the notices."""
    texts = "\n".join(str(post["text"]) for post in robot.taken())
    return [texts.count(f"E-{number:03d}") for number in range(count)]


def test_60_at_once_against_20_a_minute(tmp_path: Path):
    """Never more than 20 in a window, none refused, each of the 60 seen exactly once."""

    async def story(robot: DingTalkStandIn) -> None:
        async with reporting(tmp_path, robot.target()) as running:
            await running.say(*[notice(number) for number in range(60)])
            await running.until(lambda: running.states() == {"sent": 60})

    with DingTalkStandIn(tmp_path / "robot", *STRICT) as robot:
        asyncio.run(story(robot))
        times = [float(post["at"]) for post in robot.posts()]

    assert seen(robot, 60) == [1] * 60
    assert [post["errcode"] for post in robot.posts() if post["errcode"]] == []
    assert max(sum(1 for at in times if start <= at < start + WINDOW) for start in times) <= 20


def test_one_after_another_as_fast_as_they_go(tmp_path: Path):
    """Messages that never wait for each other fill the window; the 21st waits until DingTalk takes it."""
    window = 3.0
    limits = replace(LIMITS, window=timedelta(seconds=window))

    async def story(robot: DingTalkStandIn) -> None:
        async with reporting(tmp_path, robot.target(), limits=limits) as running:
            for number in range(25):
                await running.say(notice(number))
                await running.until(lambda sent=number + 1: running.states() == {"sent": sent})

    with DingTalkStandIn(tmp_path / "robot", "--window", str(window), "--block", "60") as robot:
        asyncio.run(story(robot))
        times = [float(post["at"]) for post in robot.posts()]

    assert seen(robot, 25) == [1] * 25
    assert [post["errmsg"] for post in robot.posts() if post["errcode"]] == []
    assert times[20] - times[0] >= window


def test_a_robot_that_others_use_up_is_left_alone_while_it_blocks(tmp_path: Path):
    """It takes 5 where we count 20: one refusal, no post while blocked, then all 60 in digests."""

    async def story(robot: DingTalkStandIn) -> None:
        async with reporting(tmp_path, robot.target()) as running:
            await running.say(*[notice(number) for number in range(10)])
            await running.until(lambda: any(post["errcode"] for post in robot.posts()))
            await running.say(*[notice(number) for number in range(10, 60)])
            await running.until(lambda: running.states() == {"sent": 60})

    with DingTalkStandIn(tmp_path / "robot", *STRICT, "--limit", "5") as robot:
        asyncio.run(story(robot))

    assert seen(robot, 60) == [1] * 60
    assert [post["errmsg"] for post in robot.posts() if post["errcode"]] == [
        "send too fast, exceed 20 times per minute"
    ]
    assert robot.taken()[-1]["title"].startswith("5")


def test_an_outcome_that_waited_with_its_decision_is_one_message(tmp_path: Path):
    """While the robot was blocked the remediation ended: a person reads one message about it."""
    decided = notice(1, kind=NoticeKind.DECIDED, short_id="R-7F3K2M", facts={"action": "replace"})
    outcome = notice(1, kind=NoticeKind.OUTCOME, reason=Reason.RECOVERED, short_id="R-7F3K2M")

    async def story(robot: DingTalkStandIn) -> None:
        robot.script(["errcode:130101"])
        async with reporting(tmp_path, robot.target()) as running:
            await running.say(decided)
            await running.until(lambda: len(robot.posts()) == 1)
            await running.say(outcome)
            await running.until(lambda: running.states() == {"sent": 2})

    with DingTalkStandIn(tmp_path / "robot", *STRICT) as robot:
        asyncio.run(story(robot))

    (post,) = robot.taken()
    assert post["text"].count("R-7F3K2M") == 1
    assert "Recovered" in post["title"]


def test_500_and_502_and_busy_are_retried_until_it_works(tmp_path: Path):
    """HTTP 500, HTML 502 from a gateway, errcode -1, then delivered; Alertmanager got its 2xx long ago."""

    async def story(robot: DingTalkStandIn) -> None:
        robot.script(["http:500", "html:502", "errcode:-1"])
        async with reporting(tmp_path, robot.target()) as running:
            await running.say(notice(0))
            await running.until(lambda: running.states() == {"sent": 1})

    with DingTalkStandIn(tmp_path / "robot", *STRICT) as robot:
        asyncio.run(story(robot))

    assert [post["script"] for post in robot.posts()] == ["http:500", "html:502", "errcode:-1", "ok"]
    assert seen(robot, 1) == [1]


@pytest.mark.parametrize("answer", ["close", "hang:5"])
def test_a_lost_answer_is_repeated_with_the_mark(tmp_path: Path, answer: str):
    """A person sees it twice, and the second says that it may be a second one."""

    async def story(robot: DingTalkStandIn) -> None:
        robot.script([answer])
        async with reporting(tmp_path, robot.target()) as running:
            await running.say(notice(0))
            await running.until(lambda: running.states() == {"sent": 1})

    with DingTalkStandIn(tmp_path / "robot", *STRICT) as robot:
        asyncio.run(story(robot))

    assert ["(possibly repeated)" in post["text"] for post in robot.taken()] == [False, True]


def test_a_robot_that_was_away_gets_what_waited(tmp_path: Path):
    """The robot is started only after the messages: nothing is lost, nothing is marked."""

    async def story(robot: DingTalkStandIn) -> None:
        async with reporting(tmp_path, robot.target()) as running:
            await running.say(notice(0), notice(1))
            await running.until(lambda: running.states() == {"pending": 2})
            robot.start()
            await running.until(lambda: running.states() == {"sent": 2})

    with DingTalkStandIn(tmp_path / "robot", *STRICT) as robot:
        robot.stop()
        asyncio.run(story(robot))

    assert seen(robot, 2) == [1, 1]
    assert [post for post in robot.taken() if "repeated" in post["text"]] == []


def test_a_token_that_does_not_exist_is_told_to_the_other_target_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """300001: no storm, the target is broken, one alert elsewhere, never with the token."""

    async def story(bad: DingTalkStandIn, good: DingTalkStandIn) -> None:
        bad.script(["errcode:300001"] * 50)
        async with reporting(tmp_path, bad.target("bad"), good.target("good")) as running:
            await running.say(*[notice(number) for number in range(30)], to="bad")
            await running.until(good.taken)
            await running.until(lambda: len(bad.posts()) >= 2)

            assert (await running.rows.robot_state("bad")).broken.startswith("errcode 300001: the access token")

    with DingTalkStandIn(tmp_path / "bad", *STRICT) as bad, DingTalkStandIn(tmp_path / "good", *STRICT) as good:
        asyncio.run(story(bad, good))

    (alert,) = good.taken()
    assert "The target bad refuses messages" in alert["text"]
    assert len(bad.posts()) <= 3
    printed = alert["text"] + "".join(capfd.readouterr())
    assert [secret for secret in (TOKEN, SECRET, "sign=") if secret in printed] == []


def test_a_target_that_hangs_holds_up_no_other(tmp_path: Path):
    """Each has a lane of its own."""

    async def story(slow: DingTalkStandIn, quick: DingTalkStandIn) -> None:
        slow.script(["hang:5"] * 20)
        async with reporting(tmp_path, slow.target("slow"), quick.target("quick")) as running:
            await running.say(notice(0), to="slow")
            await running.until(slow.posts)
            begun = time.monotonic()
            await running.say(notice(1), to="quick")
            await running.until(quick.taken)

            assert time.monotonic() - begun < 0.5

    with DingTalkStandIn(tmp_path / "slow", *STRICT) as slow, DingTalkStandIn(tmp_path / "quick", *STRICT) as quick:
        asyncio.run(story(slow, quick))


def test_a_keyword_robot_takes_our_messages(tmp_path: Path):
    """The templates don't know the keyword; it is added."""

    async def story(robot: DingTalkStandIn) -> None:
        async with reporting(tmp_path, robot.target(keyword="GPU_ALERT")) as running:
            await running.say(*[notice(number) for number in range(30)])
            await running.until(lambda: running.states() == {"sent": 30})

    with DingTalkStandIn(tmp_path / "robot", *STRICT, "--keyword", "GPU_ALERT", signed=False) as robot:
        asyncio.run(story(robot))

    assert seen(robot, 30) == [1] * 30


def test_500_alerts_with_long_descriptions(tmp_path: Path):
    """Every body is at most 20,000 bytes of UTF-8, the most severe come first, and in the end none is missing."""
    storm = [
        notice(
            number,
            short_id=f"E-{number:03d}",
            job_name="训练任务" * 10,
            severity=Severity.CRITICAL if number % 50 == 49 else Severity.INFO,
            facts={"description": "显存使用率过高请检查" * 30},
        )
        for number in range(500)
    ]

    async def story(robot: DingTalkStandIn) -> None:
        with Store(tmp_path / "tunewarden.db") as store:
            rows = OutboxRows(store, WallClock())
            for one in storm:
                await rows.enqueue("ops", one)
        async with reporting(tmp_path, robot.target()) as running:
            await running.until(lambda: running.states() == {"sent": 500}, 30)

    with DingTalkStandIn(tmp_path / "robot", *STRICT) as robot:
        asyncio.run(story(robot))

    first = robot.taken()[0]["text"]
    assert [number for number in range(49, 500, 50) if f"E-{number:03d}" not in first] == []
    assert " more follow" in first
    assert seen(robot, 500) == [1] * 500
    assert max(int(post["bytes"]) for post in robot.posts()) <= 20_000
    assert [post["errcode"] for post in robot.posts() if post["errcode"]] == []


def test_a_restart_in_the_middle_of_a_post(tmp_path: Path):
    """The reporter is cancelled while the robot holds the answer back: the next one repeats it, with the mark."""

    async def story(robot: DingTalkStandIn) -> None:
        robot.script(["hang:5"])
        with Store(tmp_path / "tunewarden.db") as store:
            running = Running(store, [robot.target()])
            work = asyncio.create_task(running.reporter.run(asyncio.Event()))
            await running.say(notice(0))
            await running.until(robot.posts)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            for client in running.robots.values():
                await client.aclose()
            assert running.states() == {"sending": 1}
        async with reporting(tmp_path, robot.target()) as running:
            await running.until(lambda: running.states() == {"sent": 1})

    with DingTalkStandIn(tmp_path / "robot", *STRICT) as robot:
        asyncio.run(story(robot))

    assert ["(possibly repeated)" in post["text"] for post in robot.taken()] == [False, True]
