"""What goes wrong in a hooked accelerate loop: memory, disks, kills, half-written states, faults of the hook's own."""

import json
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.hooked import BOUND, Hooked
from tunewarden.shipped import hook_dir

LOOP = "accelerate_loop.py"
STEPS = 12
Start = Callable[..., Hooked]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_out_of_memory_saves_the_last_whole_step(hooked: Start) -> None:
    """In the 6th update's forward pass: five updates are saved, crash.json says so; half the batch goes on there."""
    first = hooked(LOOP, "--oom-at", "5")
    status = first.ends()
    crash = first.read("crash.json") or {}
    state = crash["state"]
    halved = ("--batch", "1", "--accumulation", "2")
    second = hooked(LOOP, *halved, generation=2, hook={"resume_by": "hook", "base_step": 5}, resume=state)

    assert (status, first.read("receipt.json")) == (1, None)
    assert crash["error"].startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert (crash["step"], crash["phase"], crash["at_load"], crash["consistent"]) == (5, "train", False, True)
    assert state == {"step": 5, "path": str(first.out / "step-00000005")}
    assert (first.read("progress.json") or {})["last_state"] == state
    assert "fill_card" in crash["traceback_tail"]
    assert second.result() == {"updates": 5 + STEPS, "last_epoch": 5 + STEPS}
    assert second.read("resumed.json") == state
    assert (second.read("progress.json") or {})["micro_steps"] == 2 * STEPS


@pytest.mark.parametrize(("style", "where"), [("accumulate", "step"), ("accumulate", "scheduler"), ("plain", "step")])
def test_out_of_memory_in_the_middle_of_an_update_is_marked(hooked: Start, style: str, where: str) -> None:
    """Parameters half updated, or the schedule one step behind: the state is saved, and said to be inconsistent."""
    job = hooked(LOOP, "--oom-at", "5", "--oom-in", where, "--style", style)
    status = job.ends()
    crash = job.read("crash.json") or {}
    facts = json.loads((Path(crash["state"]["path"]) / "tunewarden.json").read_text(encoding="utf-8"))

    assert status == 1
    assert (crash["consistent"], facts["consistent"], facts["cause"]) == (False, False, "oom")


def test_out_of_memory_before_the_first_step_saves_nothing(hooked: Start) -> None:
    """There is nothing to lose: crash.json says at_load, and no state is named."""
    job = hooked(LOOP, "--oom-at", "0")
    status = job.ends()
    crash = job.read("crash.json") or {}

    assert status == 1
    assert (crash["at_load"], crash["step"], "state" in crash) == (True, 0, False)
    assert not list(job.out.glob("step-*"))


def test_an_exception_that_ends_training_is_written_down(hooked: Start) -> None:
    """Also where the script shows errors in its own way: nothing is saved, and crash.json says what and where."""
    job = hooked(LOOP, "--oom-at", "5", "--oom-in", "bug", "--style", "plain", "--own-excepthook")
    status = job.ends()
    crash = job.read("crash.json") or {}

    assert status == 1
    assert (crash["error"], crash["step"]) == ("ValueError: a fault of the script's own", 5)
    assert (crash["at_load"], crash["consistent"], "state" in crash) == (False, True, False)
    assert "in loss" in crash["traceback_tail"]
    assert job.output == "nicely: ValueError: a fault of the script's own\n"


def test_an_exception_that_the_loop_survives_is_no_crash(hooked: Start) -> None:
    """A loop that catches everything and goes on ends well: no crash.json is left."""
    job = hooked(LOOP, "--swallow", "--oom-at", "5", "--steps", "6", "--oom-in", "once")

    assert job.result()["updates"] == 6
    assert job.read("crash.json") is None


def limit_files() -> None:
    """No file may grow over 8 KiB: what a full disk does to the optimizer's file, from the kernel itself."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("flags", "preexec", "why"),
    [
        ((), limit_files, "([Errno 27] File too large)"),
        (("--save-fails",), None, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_a_save_that_fails_is_told_and_training_goes_on(
    hooked: Start, flags: tuple[str, ...], preexec: Callable[[], None] | None, why: str
) -> None:
    """No room on the disk or on the card: no partial folder is left, the receipt says why, every update is made."""
    job = hooked(LOOP, "--no-final", *flags, request="save_and_stop", preexec=preexec)
    result = job.result()
    receipt = job.read("receipt.json") or {}

    assert (receipt["request_id"], receipt["ok"]) == ("r-1", False)
    assert why in receipt["error"]
    assert not list(job.out.glob("step-*"))
    assert result["updates"] == STEPS


def test_a_kill_in_the_middle_of_a_save_leaves_only_a_partial_name(hooked: Start) -> None:
    """Nothing that looks like a state, and no receipt."""
    job = hooked(LOOP, "--slow-save", "100", request="save")
    wait_until(lambda: bool(list(job.out.glob("*.partial/half.txt"))))
    job.running.kill()
    job.ends()

    assert [path.name for path in job.out.iterdir()] == ["step-00000001.partial"]
    assert (job.read("receipt.json"), (job.read("progress.json") or {}).get("phase")) == (None, "checkpoint")


def test_a_withdrawn_request_is_not_taken(hooked: Start) -> None:
    """While the trainer saves for one request the agent withdraws the next: it trains on to the end."""
    job = hooked(LOOP, "--slow-save", "0.5", "--no-final", request="save")
    wait_until(lambda: (job.control / "stop.taken").exists())
    job.ask("save_and_stop", "r-2")
    (job.control / "stop").rename(job.control / "stop.withdrawn")
    result = job.result()

    assert result["updates"] == STEPS
    assert (job.read("receipt.json") or {})["request_id"] == "r-1"
    assert (job.read("stop.taken") or {})["request_id"] == "r-1"


def test_a_parked_trainer_ends_by_itself(hooked: Start, tmp_path: Path) -> None:
    """Nobody comes for it: exit status 0, although the script catches even SystemExit, and no further step."""
    site = copy_of_hook(tmp_path, "boundary.py", "PARK_SECONDS = 60.0", "PARK_SECONDS = 0.5")
    job = hooked(LOOP, "--swallow", request="save_and_stop", site=site)
    status = job.ends()

    assert status == 0
    assert "stops now, as was asked" in job.output
    assert (job.read("progress.json") or {})["step"] == (job.read("receipt.json") or {})["step"] == 1
    assert "trained" not in job.output


def test_a_script_that_is_ended_at_the_total_may_tidy_up(hooked: Start) -> None:
    """Its `finally` runs whole, with `end_training` and a save of its own, and what it printed is seen."""
    job = hooked(LOOP, "--tidies", "--style", "zero_first", hook={"total_steps": 5, "stop_at_total": True})
    result = job.result()

    assert (result["updates"], job.output) == (5, "trained\n")
    assert (job.out / "final" / "optimizer.bin").exists()


def test_a_save_of_the_scripts_own_that_fails_is_over(hooked: Start) -> None:
    """Training goes on after it, and is told as training: what it dies of later is not told as a save's."""
    job = hooked(LOOP, "--bad-save-at", "2", "--oom-at", "5", "--oom-in", "bug")
    job.ends()
    crash = job.read("crash.json") or {}

    assert (crash["error"], crash["phase"]) == ("ValueError: a fault of the script's own", "train")


def test_two_accelerators_that_train_in_turn_are_left_alone(hooked: Start) -> None:
    """A state of one would be half of the training: nothing is saved, and hook.log says why."""
    job = hooked("two_accelerators.py", request="save")
    status = job.ends()

    assert (status, job.output) == (0, "3 updates each\n")
    assert (job.read("receipt.json"), (job.read("hello.json") or {})["can"]) == (None, [])
    assert "two Accelerators train in turn" in job.log


def copy_of_hook(tmp_path: Path, name: str, old: str, new: str) -> Path:
    """The hook with one line changed."""
    site = tmp_path / "site"
    shutil.copytree(hook_dir(), site)
    file = site / "tunewarden_trainhook" / name
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")
    return site


def test_a_fault_of_the_hook_ends_the_hook_and_not_the_training(hooked: Start, tmp_path: Path) -> None:
    """It is logged once, hello.json takes its promise back, and the run ends as if there were no hook."""
    old = "        request = session.agreement.poll(session.counters.step)\n"
    site = copy_of_hook(tmp_path, "boundary.py", old, "        request = session.no_such_thing\n")
    job = hooked(LOOP, request="save_and_stop", site=site)
    result = job.result()

    assert result == {"updates": STEPS, "last_epoch": STEPS}
    assert job.output == "trained\n"
    assert job.log.count("steps aside") == job.log.count("no_such_thing'") == 1
    assert (job.read("hello.json") or {})["can"] == []
    assert job.read("stop") is not None


def test_a_hook_that_is_broken_altogether_is_not_noticed(hooked: Start, tmp_path: Path) -> None:
    """A part of it can't even be imported: the trainer trains, and says nothing of it."""
    site = copy_of_hook(tmp_path, "control.py", "import json\n", "import json, no_such_module\n")
    job = hooked(LOOP, site=site)

    assert job.result()["updates"] == STEPS
    assert job.output == "trained\n"
    assert job.log.count("no_such_module") >= 1


@pytest.mark.parametrize("flag", ["-E", "-I"])
def test_an_interpreter_that_ignores_pythonpath_trains_without_the_hook(hooked: Start, flag: str) -> None:
    """Nobody promises anything for it: there is no hello.json."""
    job = hooked(LOOP, flags=(flag,), request="save_and_stop")

    assert job.result()["updates"] == STEPS
    assert job.read("hello.json") is None


def test_a_pythonpath_and_a_sitecustomize_of_the_users_own_still_work(hooked: Start, tmp_path: Path) -> None:
    """His sitecustomize runs, under its own name and from its own file; the hook works beside it."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import sys\nsys.stderr.write('mine: ' + __file__ + '\\n')\n", encoding="utf-8"
    )
    job = hooked(LOOP, request="save", env={"PYTHONPATH": str(own)})
    job.result()

    assert job.output.splitlines() == [f"mine: {own / 'sitecustomize.py'}", "trained"]
    assert (job.read("receipt.json") or {})["ok"]


def test_a_trainer_that_speaks_by_itself_is_not_disturbed(hooked: Start, tmp_path: Path) -> None:
    """Its hello.json is there before its Accelerator: the request is for it, not for the hook."""
    own = tmp_path / "own"
    own.mkdir()
    hello = '{"protocol": 1, "can": ["save"], "pid": 1}'
    code = f"import os\nopen(os.environ['TUNEWARDEN_CONTROL_DIR'] + '/hello.json', 'w').write('{hello}')\n"
    (own / "sitecustomize.py").write_text(code, encoding="utf-8")
    job = hooked(LOOP, request="save_and_stop", env={"PYTHONPATH": str(own)})
    job.result()

    assert job.read("hello.json") == json.loads(hello)
    assert job.read("stop") is not None
    assert not (job.control / "pid.0.json").exists()


@pytest.fixture(scope="module")
def state(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """{"step", "path"} of a state that the hook saved."""
    job = Hooked(trainer_python, tmp_path_factory.mktemp("saved"), 1).start(LOOP, request="save_and_stop")
    receipt = job.wait_for("receipt.json")
    job.end()
    return {"step": receipt["step"], "path": receipt["path"]}


def of_two_ranks(state: Path) -> None:
    facts = json.loads((state / "tunewarden.json").read_text(encoding="utf-8"))
    (state / "tunewarden.json").write_text(json.dumps({**facts, "world_size": 2}), encoding="utf-8")


def without_weights(state: Path) -> None:
    (state / "model.safetensors").unlink()


def of_another_step(state: Path) -> None:
    facts = json.loads((state / "tunewarden.json").read_text(encoding="utf-8"))
    (state / "tunewarden.json").write_text(json.dumps({**facts, "scheduler_epochs": [7]}), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (of_two_ranks, "the state was saved by 2 ranks, and this run has 1"),
        (without_weights, "FileNotFoundError: "),
        (of_another_step, "scheduler_epochs is [1] after loading, and was [7]"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(
    hooked: Start, state: dict[str, Any], tmp_path: Path, damage: Callable[[Path], None], why: str
) -> None:
    """The run ends before its first step, says why in its output and in crash.json, and never says that it resumed."""
    copy = tmp_path / "copy"
    shutil.copytree(state["path"], copy)
    damage(copy)
    resume = {"step": state["step"], "path": str(copy)}
    job = hooked(LOOP, generation=2, hook={"resume_by": "hook", "base_step": state["step"]}, resume=resume)
    status = job.ends()
    crash = job.read("crash.json") or {}

    assert (status, job.read("resumed.json")) == (1, None)
    assert crash["error"].startswith(f"cannot_resume: {copy}: {why}")
    assert crash["error"] in job.output
    assert not (job.out / "result.json").exists()


def test_a_trainer_that_loads_by_itself_is_believed(hooked: Start, state: dict[str, Any]) -> None:
    """resumed.json is written behind its own load_state; the count goes on; the first update is a whole one."""
    hook = {"base_step": state["step"]}
    halved = ("--batch", "1", "--accumulation", "2", "--resume", state["path"])
    job = hooked(LOOP, *halved, generation=2, hook=hook, resume=state, request="save")

    assert job.result()["updates"] == state["step"] + STEPS
    assert job.read("resumed.json") == state
    assert (job.read("receipt.json") or {})["step"] == state["step"] + 1
    assert (job.read("progress.json") or {})["micro_steps"] == 2 * STEPS


def test_a_trainer_that_should_have_loaded_and_did_not_is_not_believed(hooked: Start, state: dict[str, Any]) -> None:
    """It begins anew without a word: resumed.json is what is missing then."""
    job = hooked(LOOP, generation=2, hook={"base_step": state["step"]}, resume=state)

    assert job.result()["updates"] == STEPS
    assert job.read("resumed.json") is None
