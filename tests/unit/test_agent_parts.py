"""The agent's pure parts: orders from the wire, cards, step rates, the control directory, who the trainer is."""

import json
from pathlib import Path
from typing import Any

import pytest

from tunewarden.domain.order import HostCheck, OrderKind
from tunewarden.errors import Retryable
from tunewarden.processes.identity import ProcessId
from tunewarden.processes.tree import Member
from tunewarden.sampling.reading import GpuProcess, GpuReading
from tunewarden.supervisor.cards import confirms, holder_of, job_cards
from tunewarden.supervisor.client import NoToken
from tunewarden.supervisor.control import ControlDirectory, Mode, State
from tunewarden.supervisor.generation_log import GenerationLog, LogStart
from tunewarden.supervisor.generation_watch import GenerationWatch
from tunewarden.supervisor.local_stop import trainer_of
from tunewarden.supervisor.orders import parse_order
from tunewarden.supervisor.service_watch import ServiceWatch
from tunewarden.supervisor.step_rate import StepClock, StepRates

ORDER = {"protocol": 1, "order_id": "o-1", "job_id": "j", "generation": 1, "kind": "replace"}
GIB = 1 << 30


def test_an_order_with_only_what_it_must_have() -> None:
    """What is left out takes the safe default: save first, lose nothing, keep the effective batch."""
    order = parse_order({**ORDER, "a_field_of_next_year": [1]})

    assert order.kind is OrderKind.REPLACE
    assert (order.save_first, order.lose_unsaved, order.allow_effective_batch_change) == (True, False, False)


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 2},
        {"kind": "reboot"},
        {"order_id": ""},
        {"order_id": None},
        {"save_first": "false"},
        {"lose_unsaved": 1},
        {"confirm": [{"metric": "temperature", "op": ">", "value": 1}]},
        {"confirm": [{"metric": "utilization", "op": ">=", "value": 1}]},
        {"confirm": ["memory_ratio"]},
        {"knobs": ["batch_size"]},
        {"generation": "x"},
    ],
)
def test_an_order_that_is_not_understood(change: dict[str, Any]) -> None:
    """What can't be read is not done."""
    with pytest.raises(ValueError, match=r".+"):
        parse_order({**ORDER, **change})


def card(index: int = 0, used: int | None = 20, *processes: GpuProcess, utilization: float | None = 50.0) -> GpuReading:
    free = None if used is None else (24 - used) * GIB
    return GpuReading(
        uuid=f"GPU-{index}{index}aa",
        index=index,
        name="card",
        memory_used=None if used is None else used * GIB,
        memory_free=free,
        memory_total=24 * GIB,
        utilization=utilization,
        processes=processes,
    )


OURS = GpuProcess(pid=10, memory=19 * GIB, name="python")
OTHER = GpuProcess(pid=99, memory=19 * GIB, name="blender")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, None),
        ("1", [1]),
        ("0,1", [0, 1]),
        ("GPU-11aa", [1]),
        ("gpu-11", [1]),
        ("7", None),
        ("", None),
        ("0,7", None),
        ("nonsense", None),
    ],
)
def test_cards_by_what_the_job_may_see(visible: str | None, expected: list[int] | None) -> None:
    """Without a process of the job on a card, CUDA_VISIBLE_DEVICES says which it is; anything doubtful is unknown."""
    found = job_cards([card(0), card(1)], {10}, visible, simulated=False)

    assert (None if found is None else [gpu.index for gpu in found]) == expected


def test_cards_by_their_processes() -> None:
    """A card that holds a process of the job is the job's, whatever the environment says."""
    found = job_cards([card(0, 20, OTHER), card(1, 20, OURS)], {10}, "0", simulated=False)

    assert found is not None
    assert [gpu.index for gpu in found] == [1]


@pytest.mark.parametrize(
    ("check", "cards", "expected"),
    [
        (HostCheck(metric="memory_ratio", op=">", value=0.8), [card(0, 1), card(1, 20)], True),
        (HostCheck(metric="memory_ratio", op=">", value=0.9), [card(0, 20)], False),
        (HostCheck(metric="utilization", op="<", value=0.6), [card(0), card(1)], True),
        (HostCheck(metric="utilization", op="<", value=0.6), [card(0), card(1, utilization=90.0)], False),
        (HostCheck(metric="utilization", op="<", value=0.6), [card(0), card(1, utilization=None)], None),
        (HostCheck(metric="memory_ratio", op=">", value=0.1), [card(0, None)], None),
        (HostCheck(metric="memory_ratio", op=">", value=0.1), [], None),
    ],
)
def test_confirmations(check: HostCheck, cards: list[GpuReading], expected: bool | None) -> None:
    """The fullest (busiest) card decides; a card without data decides nothing."""
    assert confirms(check, cards) is expected


@pytest.mark.parametrize(
    ("gpu", "before", "free"),
    [
        (card(0, 20, OURS), 0, False),
        (card(0, 20, OTHER), 0, False),
        (card(0, 20, OTHER), 19 * GIB, True),
        (card(0, 1), 0, True),
        (card(0, 20), 0, False),
        (card(0, None), 0, True),
    ],
)
def test_a_card_that_is_not_free_names_its_holder(gpu: GpuReading, before: int, free: bool) -> None:
    """Ours, or somebody who was not there before the stop, keeps the launch waiting."""
    assert (holder_of(gpu, {10}, before) is None) is free


def test_step_rates() -> None:
    """The rate is over the last minute; the median needs 50 steps or five minutes."""
    rates = StepRates()
    for second in range(40):
        rates.add(float(second), second)
    early = rates.median()
    for second in range(40, 200):
        rates.add(float(second), second)
    rates.add(260.0, 200)

    assert early is None
    assert rates.median() == pytest.approx(1.0)
    assert rates.rate() == pytest.approx(1 / 61)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b'{"request_id": "r-2", "ok": true, "step": 1, "path": "/x"}', b"\xff", b"null", b"[" * 100000],
)
def test_a_receipt_that_is_none(tmp_path: Path, content: bytes) -> None:
    """Half files, other answers and nonsense are no answer."""
    (tmp_path / "receipt.json").write_bytes(content)

    assert ControlDirectory(tmp_path).receipt("r-1") is None


@pytest.mark.parametrize("path", ["relative", "", 7, "/a\0b"])
def test_a_receipt_without_a_usable_path_is_not_ok(tmp_path: Path, path: object) -> None:
    """ok without a step and an absolute path proves nothing."""
    content = {"request_id": "r-1", "ok": True, "step": 3, "path": path}
    (tmp_path / "receipt.json").write_text(json.dumps(content))
    receipt = ControlDirectory(tmp_path).receipt("r-1")

    assert receipt is not None
    assert not receipt.ok


def test_seconds_that_are_no_number_read_as_none(tmp_path: Path) -> None:
    """Python's json writes NaN, which is no JSON: of all fields only the loss means something by it."""
    (tmp_path / "progress.json").write_text('{"step": 3, "loss": NaN, "step_seconds_sum": Infinity}')
    progress = ControlDirectory(tmp_path).progress()

    assert progress is not None
    assert (progress.step, str(progress.loss), progress.step_seconds_sum) == (3, "nan", None)


def test_a_request_is_put_once(tmp_path: Path) -> None:
    """Asked again after a restart, a request that is taken or withdrawn already is not put again."""
    control = ControlDirectory(tmp_path)
    control.ask("r-1", Mode.SAVE)
    (tmp_path / "stop").rename(tmp_path / "stop.taken")
    control.ask("r-1", Mode.SAVE)
    asked_again = (tmp_path / "stop").exists()
    control.ask("r-2", Mode.SAVE)
    withdrawn = control.withdraw("r-2")
    control.ask("r-2", Mode.SAVE)

    assert not asked_again
    assert withdrawn
    assert not (tmp_path / "stop").exists()


def test_a_partial_state_is_not_whole(tmp_path: Path) -> None:
    """What is there under a partial name is not there."""
    (tmp_path / "s.partial").write_text("x")
    (tmp_path / "s").write_text("x")

    assert [State(step=1, path=tmp_path / name).whole for name in ("s.partial", "s", "t")] == [False, True, False]


def member(pid: int, ppid: int, *cmdline: str) -> Member:
    return Member(id=ProcessId(pid, 1), ppid=ppid, uid=0, cmdline=cmdline, rss_bytes=0, cpu_ticks=0, state="S")


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ([member(10, 1, "python", "t.py")], 10),
        ([member(10, 1, "python", "t.py"), member(11, 10, "python", "t.py")], 10),
        ([member(10, 1, "python", "accelerate", "launch"), member(11, 10, "/usr/bin/python3", "t.py")], 11),
        ([member(10, 1, "python", "t.py"), member(11, 10, "python", "-c", "from multiprocessing.spawn import x")], 10),
        ([member(10, 1, "bash", "x.sh"), member(11, 10, "sleep", "9")], 11),
        ([member(10, 1, "sleep", "9")], 10),
        ([], None),
    ],
)
def test_who_gets_the_interrupt(tree: list[Member], expected: int | None) -> None:
    """The trainer's own process: no launcher, no data loader."""
    found = trainer_of(tuple(tree), ProcessId(10, 1))

    assert (found.pid if found else None) == expected


AWAY = Retryable("connection refused")
REFUSED = NoToken("the service refuses the token in /t (401)")
URL = "http://127.0.0.1:9"
NOBODY = f"no service answers at {URL}"
ANSWERS = f"the service at {URL} answers"


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        ([(0, None), (5, None), (30, AWAY), (80, AWAY), (81, None)], []),
        ([(1, AWAY), (2.5, AWAY)], []),
        ([(1, AWAY), (3.5, AWAY), (9, AWAY), (900, AWAY)], [NOBODY]),
        ([(1, AWAY), (4, AWAY), (9, None), (14, None)], [NOBODY, ANSWERS]),
        ([(1, None), (10, AWAY), (71, AWAY), (80, AWAY), (90, None)], [NOBODY, ANSWERS]),
        ([(1, REFUSED), (4, REFUSED), (9, REFUSED)], ["the service refuses the token in /t (401)"]),
        ([(4, AWAY), (9, REFUSED), (12, None)], [NOBODY, str(REFUSED), ANSWERS]),
    ],
)
def test_a_person_hears_once_that_nobody_watches(
    happens: list[tuple[float, Exception | None]], told: list[str]
) -> None:
    """After 3 s at the start, after 60 s later on, one line a change; nothing when all is well."""
    watch = ServiceWatch(URL, now=0.0)
    lines = []
    for at, error in happens:
        if error is None:
            watch.answered()
        else:
            watch.failed(error, at)
        news = watch.news(at)
        lines += [news[1].split(": this run is ")[0]] if news else []

    assert lines == told


def test_an_agent_that_is_started_again_says_nothing_twice() -> None:
    """What was said last is handed on."""
    first = ServiceWatch(URL, now=0.0)
    first.failed(AWAY, 1.0)
    news = first.news(4.0)
    assert news is not None
    second = ServiceWatch(URL, now=10.0, said=news[0])
    second.failed(AWAY, 11.0)
    silent = second.news(20.0)
    second.answered()
    answers = second.news(21.0)

    assert silent is None
    assert answers == ("", f"{ANSWERS}: this run is watched from now on")


def looked(clock: StepClock, at: float, step: int, *, training: bool = True, seconds: float | None = None) -> None:
    """A look at a trainer whose steps take 2 s, half of it waiting for data, unless `seconds` says otherwise."""
    spent = 2.0 * step if seconds is None else seconds
    clock.add(at, step=step, training=training, seconds=spent, count=step, waited=spent / 2)


def test_a_step_that_does_not_come_is_idle_time_only_where_one_is_due() -> None:
    """An evaluation of an hour is no stall, nor does it count towards one."""
    clock, idle = StepClock(), []
    for at, step, training in (
        (0, 1, True),
        (5, 1, True),
        (8, 2, True),
        (60, 2, False),
        (100, 2, True),
        (104, 2, True),
    ):
        looked(clock, at, step, training=training)
        idle.append(clock.idle_s())

    assert idle == [0, 5, 0, None, 0, 4]


def test_the_median_step_does_not_sink_while_the_job_stands_still() -> None:
    """The window of a stall is made of it."""
    clock = StepClock()
    before = clock.median_s()
    looked(clock, 0, 0)
    for at in range(2000):
        looked(clock, float(at), min(at, 10))

    assert (before, clock.median_s(), clock.wait_share()) == (None, 2.0, None)


def test_one_look_gives_the_mean_and_more_the_median() -> None:
    """An agent that was started again knows at once how long a step takes; one slow step then moves little."""
    clock = StepClock()
    looked(clock, 0, 100, seconds=400.0)
    mean = clock.median_s()
    for at, seconds in ((1, 401.0), (2, 402.0), (3, 502.0)):
        looked(clock, at, 100 + at, seconds=seconds)

    assert (mean, clock.median_s(), clock.wait_share()) == (4.0, 1.0, 0.5)


def watch_of(folder: Path, **progress: object) -> GenerationWatch:
    """A generation whose trainer told this."""
    (folder / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
    log = GenerationLog(folder / "output.log", LogStart.now(folder / "output.log"))
    return GenerationWatch(generation=1, control=ControlDirectory(folder), log=log)


def test_a_heartbeat_is_json_whatever_the_loss(tmp_path: Path) -> None:
    """NaN and infinity go as words; memory and states lie flat."""
    said = {"step": 7, "loss": "nan", "memory": {"peak": 5}, "last_state": {"step": 3, "path": "/s"}, "source": "hook"}
    watch = watch_of(tmp_path, phase="train", **said)
    progress = watch.newest(set(), 0.0)
    body = {**watch.counted(progress, 0.0, alive=True), **watch.besides(progress)}
    read = json.loads(json.dumps(body, allow_nan=False))

    assert (read["step"], read["loss"], read["source"], read["step_idle_s"]) == (7, "nan", "hook", 0)
    assert (read["torch_peak"], read["torch_ooms"], read["last_state_path"]) == (5, None, "/s")


def test_no_step_is_due_of_the_dead(tmp_path: Path) -> None:
    """progress.json says train for ever after a kill."""
    watch = watch_of(tmp_path, step=7, phase="train")
    alive = [watch.counted(watch.newest(set(), at), at, alive=at < 2)["step_idle_s"] for at in (0.0, 1.0, 2.0)]

    assert alive == [0.0, 1.0, None]


def test_what_a_trainer_tells_wins_over_its_bar(tmp_path: Path) -> None:
    """The bar counts where nothing is told; and nothing at all is all None."""
    watch = watch_of(tmp_path)
    nothing = watch.counted(watch.newest(set(), 0.0), 0.0, alive=True)
    (tmp_path / "output.log").write_text("\rsteps:  31%|#| 31/100 [00:19<00:44, 1.57it/s, avr_loss=1.5]")
    watch.log.read()
    shown = watch.newest(set(), 0.0)
    (tmp_path / "progress.json").write_text('{"step": 40}')
    told = watch.newest(set(), 0.0)

    assert shown is not None and told is not None
    assert set(nothing.values()) == {None}
    assert (shown.step, shown.source, told.step, told.source) == (31, "log", 40, "trainer")
