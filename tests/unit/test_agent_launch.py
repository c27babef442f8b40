"""The wait for the card before a launch, on a clock of the test's own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.sampling.reading import GpuProcess, GpuReading
from tunewarden.supervisor import phase_launch
from tunewarden.supervisor.execution import Execution
from tunewarden.supervisor.keeper_link import Situation

GIB = 1 << 30


def card(used: int, *processes: GpuProcess) -> GpuReading:
    return GpuReading(
        uuid="GPU-1",
        index=0,
        name="card",
        memory_used=used * GIB,
        memory_free=(24 - used) * GIB,
        memory_total=24 * GIB,
        processes=processes,
    )


@dataclass
class Host:
    """The cards as they are at a moment; nothing of the job lives."""

    look: Callable[[], tuple[GpuReading, ...]]

    def members(self, *, fresh: bool) -> tuple[()]:
        return ()

    def gpus(self, *, fresh: bool) -> tuple[GpuReading, ...]:
        return self.look()

    def job_gpus(self, gpus: tuple[GpuReading, ...], pids: object) -> tuple[GpuReading, ...] | None:
        return gpus or None


@dataclass
class Record:
    intents: dict[str, Any] = field(default_factory=dict)


@dataclass
class Waiting:
    """What `phase_launch.check` asks of an execution; time passes when it breathes."""

    cards: Callable[[float], tuple[GpuReading, ...]]
    now: float = 0.0
    record: Record = field(default_factory=Record)
    situation: Situation = field(default_factory=Situation)

    @property
    def run(self) -> "Waiting":
        return self

    @property
    def host(self) -> Host:
        return Host(lambda: self.cards(self.now))

    def monotonic(self) -> float:
        return self.now

    def breathe(self, seconds: float) -> None:
        self.now += seconds


def check(waiting: Waiting) -> None:
    phase_launch.check(cast("Execution", waiting))


def test_a_card_that_somebody_took_is_busy() -> None:
    """Who came after the stop is named, after a minute."""
    blender = GpuProcess(pid=99, memory=20 * GIB, name="blender")
    waiting = Waiting(lambda now: (card(20, blender),))

    with pytest.raises(Refused, match=r"blender \(pid 99\)") as refused:
        check(waiting)

    assert refused.value.reason is Reason.GPU_BUSY
    assert 60 <= waiting.now < 61


def test_memory_that_is_given_back_late_is_waited_for() -> None:
    """The driver frees a dead process's memory a little later: the launch goes on then."""
    waiting = Waiting(lambda now: (card(20 if now < 3 else 0),))

    check(waiting)

    assert 3 <= waiting.now < 4


def test_without_data_nothing_is_waited_for() -> None:
    """A host whose cards can't be read: that nothing of the job lives is all there is to know."""
    waiting = Waiting(lambda now: ())

    check(waiting)

    assert waiting.now == 0


def test_without_a_keeper_nothing_is_launched() -> None:
    """The keeper is the one who launches."""
    waiting = Waiting(lambda now: (), situation=Situation(keeper_lost=True))

    with pytest.raises(Refused) as refused:
        check(waiting)

    assert refused.value.reason is Reason.KEEPER_LOST


@dataclass
class LateKeeper:
    """The talk with a keeper that reads the first request too late, and launches the second."""

    situation: Situation = field(default_factory=Situation)
    asked: list[float] = field(default_factory=list)
    on_hold: bool = False

    def launch(self, number: int, *_: object, request_id: str, expires_at: float) -> None:
        self.asked.append(expires_at)
        if len(self.asked) == 1:
            self.situation.take({"type": "launch_failed", "id": request_id, "generation": number, "error": "expired"})
        else:
            self.situation.take({"type": "launched", "generation": number, "pid": 7, "start_ticks": 9})


@dataclass
class Silent:
    """The talk with a keeper that answers nothing, and stands still until `until`."""

    now: Callable[[], float]
    until: float

    def launch(self, *_: object, request_id: str, expires_at: float) -> None:
        """Nothing comes of it."""

    @property
    def on_hold(self) -> bool:
        return self.now() < self.until


@dataclass
class Launching(Waiting):
    """What `phase_launch.act` asks of an execution, with a talk of the test's own."""

    link: Any = None

    @property
    def spec(self) -> "Launching":
        return self

    @property
    def cwd(self) -> Path:
        return Path("/")

    @property
    def boundary(self) -> "Launching":
        return self

    def reach(self, transition: str, point: str) -> None:
        """Nobody is killed here."""

    def pump(self, seconds: float) -> None:
        self.now += seconds


INTENT = {"generation": 2, "argv": ["train"], "resume_step": None, "resume_path": None}


def test_a_launch_that_expired_is_asked_for_again() -> None:
    """The keeper was suspended over the first one: nothing was launched, so that once more does no harm."""
    situation = Situation()
    keeper = LateKeeper(situation)
    launching = Launching(lambda now: (), situation=situation, link=keeper)

    error = phase_launch._launch(cast("Execution", launching), INTENT, {})

    assert (len(keeper.asked), situation.generation, error) == (2, 2, "the keeper did not answer")


@pytest.mark.parametrize(("until", "given_up"), [(0, 35), (90, 90)], ids=["running", "stopped"])
def test_a_launch_without_an_answer_is_given_up_when_it_can_no_longer_happen(until: float, given_up: float) -> None:
    """Its time and a margin; never while the keeper stands still, for it might be amid the launch."""
    launching = Launching(lambda now: ())
    launching.link = Silent(lambda: launching.now, until)

    phase_launch._launch(cast("Execution", launching), INTENT, {})

    assert given_up <= launching.now < given_up + 1
