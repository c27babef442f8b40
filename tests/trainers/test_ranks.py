"""Several ranks save and stop as one, through the store of their process group."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.hooked import BOUND, HERE, Hooked
from tunewarden.shipped import hook_dir

LOOP = "accelerate_loop.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STEPS = 12  # planned; the script itself would make twice as many
Start = Callable[..., Hooked]
SCENARIOS = (
    "each_at_its_own_pace",
    "one_says_no",
    "one_dies_before_the_barrier",
    "the_first_dies_before_its_word",
    "one_has_stepped_aside",
    "one_never_comes",
)


class Trial:
    """What the three ranks of a scenario said."""

    def __init__(self, folder: Path) -> None:
        self.ranks: dict[int, dict[str, Any]] = {
            rank: json.loads(path.read_text(encoding="utf-8"))
            for rank in range(3)
            if (path := folder / f"rank{rank}.json").exists()
        }
        self.results = {rank: content["result"] for rank, content in self.ranks.items()}
        self.slowest = max(content["seconds"] for content in self.ranks.values())
        receipt = folder / "receipt.json"
        self.receipt = json.loads(receipt.read_text(encoding="utf-8")) if receipt.exists() else None


@pytest.fixture(scope="module")
def trials(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """Every scenario of ranks_trial.py, run once."""
    folder = tmp_path_factory.mktemp("trials")
    subprocess.run(
        [str(trainer_python), str(HERE / "ranks_trial.py"), str(folder), *SCENARIOS],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(hook_dir())},
        check=True,
        timeout=BOUND,
    )
    return {name: Trial(folder / name) for name in SCENARIOS}


def test_ranks_of_any_speed_take_a_request_at_the_same_boundary(trials: dict[str, Trial]) -> None:
    """One is three times slower than the first, and nothing else keeps them together: one boundary for all."""
    trial = trials["each_at_its_own_pace"]

    assert trial.results[0] == trial.results[1] == trial.results[2]
    assert [(request, agreed) for _, request, agreed in trial.results[0]] == [("r-1", True)]


def test_a_step_is_saved_only_when_every_rank_has_saved_it(trials: dict[str, Trial]) -> None:
    """One rank's no is everybody's, and the next barrier is a new one."""
    assert trials["one_says_no"].results == {0: [False, True], 1: [False, True], 2: [False, True]}


def test_a_dead_rank_holds_nobody_up(trials: dict[str, Trial]) -> None:
    """At the barrier of a save, and where rank 0 would say its word: seen within seconds, by its pid."""
    barrier, word = trials["one_dies_before_the_barrier"], trials["the_first_dies_before_its_word"]

    assert barrier.results == {0: False, 2: False}
    assert word.results == {1: [None, None], 2: [None, None]}
    assert max(barrier.slowest, word.slowest) < 15


def test_a_request_that_not_all_ranks_would_hear_is_answered_with_no(trials: dict[str, Trial]) -> None:
    """The hook of one rank has stepped aside: the others train on."""
    trial = trials["one_has_stepped_aside"]

    assert trial.results == {0: [], 1: [], 2: None}
    assert trial.receipt == {
        "request_id": "r-1",
        "ok": False,
        "error": "the ranks can't agree: a rank has left",
    }


def test_a_wait_without_end_ends_with_one_verdict_for_all(trials: dict[str, Trial]) -> None:
    """Who comes too late hears the no of those who gave up."""
    results = trials["one_never_comes"].results

    assert [results[rank][0] for rank in range(3)] == [False, False, False]


def pids(job: Hooked) -> list[int]:
    return [int((job.read(f"pid.{rank}.json") or {})["pid"]) for rank in (0, 1)]


def alive(pid: int) -> bool:
    """A zombie is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(job: Hooked) -> None:
    """As the agent does: each rank by its pid."""
    for pid in pids(job):
        os.kill(pid, signal.SIGKILL)
    job.ends()


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_two_ranks_save_stop_and_go_on_from_it(hooked: Start) -> None:
    """Rank 1 lags; both save the same step and park; two ranks go on from it, and end with the planned updates."""
    first = hooked(LOOP, "--lag", "0.1", "--steps", str(2 * STEPS), launcher=TORCHRUN)
    first.wait_for("hello.json", lambda hello: "save" in hello["can"])
    first.ask("save_and_stop")
    receipt = first.wait_for("receipt.json")
    state = Path(receipt["path"])
    place = first.read("pid.1.json") or {}
    both = pids(first)
    parked = [alive(pid) for pid in both]
    end(first)
    resume = {"step": receipt["step"], "path": receipt["path"]}
    hook = {"resume_by": "hook", "base_step": receipt["step"], "total_steps": STEPS, "stop_at_total": True}
    second = hooked(LOOP, "--steps", str(2 * STEPS), launcher=TORCHRUN, generation=2, hook=hook, resume=resume)
    status = second.ends()
    last = second.read("progress.json") or {}

    assert (receipt["ok"], receipt["cause"], receipt["consistent"]) == (True, "request", True), receipt
    assert {"random_states_0.pkl", "random_states_1.pkl", "optimizer.bin"} <= {x.name for x in state.iterdir()}
    assert (place["rank"], place["world_size"], place["local_world_size"]) == (1, 2, 2)
    assert parked == [True, True]
    assert all(gone(pid) for pid in both)
    assert first.read("stop.taken") == {"request_id": "r-1", "mode": "save_and_stop"}
    assert status == 0, second.output
    assert second.read("resumed.json") == resume
    assert (last["step"], last["phase"]) == (STEPS, "finished")
    assert (first.log, second.log) == ("", "")


def test_a_killed_rank_leaves_no_state_that_looks_whole(hooked: Start) -> None:
    """Rank 1 is killed in the middle of a save: the launcher ends, rank 0 too, and nothing is promised."""
    job = hooked(LOOP, "--steps", "500", "--slow-save", "100", launcher=TORCHRUN, request="save")
    deadline = time.monotonic() + BOUND
    while not list(job.out.glob("*.partial/half.txt")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    both = pids(job)
    os.kill(both[1], signal.SIGKILL)
    status = job.ends()

    assert status == 1
    assert all(gone(pid) for pid in both)
    assert [path.suffix for path in job.out.iterdir()] == [".partial"]
    assert not (job.read("receipt.json") or {"ok": False})["ok"]
