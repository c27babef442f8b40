"""Orders that must not be carried out: a reason is reported and the job is left as it was."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agent_world import World, eventually, world
from tunewarden.processes.identity import alive

TINY = str(Path(__file__).with_name("tiny_trainer.py"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made
        assert made.service.seen.faults == []


def tiny(run: World, mode: str, **more: Any) -> None:
    run.start([sys.executable, TINY, mode], **more)


def refused(run: World, order_id: str = "o-1", timeout: float = 20.0) -> str:
    """The reason of the refusal, once it is reported."""
    report = run.service.until(lambda: run.service.reported(order_id).get("refused"), timeout, "a refusal")
    assert report["detail"]["text"]
    return str(report["reason"])


def assert_trains_on(run: World) -> None:
    """The first trainer is alive and makes steps."""
    assert alive(run.trainer())
    run.until_step(run.step() + 2)


def test_an_order_for_another_generation(run: World) -> None:
    """The fence: a wrong generation is refused."""
    run.start()
    run.until_step(2)

    run.issue("o-1", "stop", generation=7)

    assert refused(run) == "wrong_generation"
    assert_trains_on(run)


def test_a_withdrawn_order_touches_nothing(run: World) -> None:
    """`go: false` for the plan: no request to the trainer, and the config that was written is gone."""
    run.service.go = lambda _report: False
    run.start()
    run.until_step(2)

    run.issue("o-1", "replace", knobs={"batch_size": "/2"})

    assert refused(run) == "withdrawn"
    assert_trains_on(run)
    assert run.read("stop.taken") == {}
    assert list(run.folder.glob("*.tunewarden-*")) == []


def test_without_a_go_ahead_nothing_is_touched(run: World) -> None:
    """The service goes away before it has answered the plan: service_away, by the agent's own clock."""
    run.start()
    run.until_step(2)

    def leave(_report: object) -> bool:
        run.service.down = True
        return True

    # From the plan on the service is away.
    run.issue("o-1", "stop", expires_in_s=2.0)
    run.service.go = leave
    original = run.service.report

    def report(order_id: str, phase: str, body: dict[str, Any]) -> tuple[int, Any]:
        if phase == "planned" and run.service.reported(order_id).get("refused") is None:
            return 503, {"error": "restarting"}
        return original(order_id, phase, body)

    run.service.report = report  # type: ignore[method-assign]

    assert refused(run) == "service_away"
    assert_trains_on(run)
    assert run.read("stop.taken") == {}


def test_no_data_confirms_nothing(run: World) -> None:
    """A confirmation that can't be measured on the host is unconfirmed."""
    run.start()
    run.until_step(2)

    run.issue("o-1", "stop", confirm=[{"metric": "memory_ratio", "op": ">", "value": 0.5}])

    assert refused(run) == "unconfirmed"
    assert_trains_on(run)


@pytest.mark.parametrize(("value", "reason"), [(0.999, "unconfirmed"), (0.01, None)])
def test_a_simulated_card_confirms(run: World, value: float, reason: str | None) -> None:
    """memory_ratio is taken from the job's card at the moment of acting."""
    run.start(simulate_gpu="24GiB/256MiB")
    run.until_step(2)

    run.issue("o-1", "save", confirm=[{"metric": "memory_ratio", "op": ">", "value": value}])

    if reason is None:
        assert run.service.until_report("o-1", "saved")["reason"] is None
    else:
        assert refused(run) == reason


def test_a_save_order_always_saves(run: World) -> None:
    """Whatever else it says: a save order is never done without a save."""
    tiny(run, "good")
    run.until_step(2)

    run.issue("o-1", "save", save_first=False, lose_unsaved=True)

    run.service.until_report("o-1", "saved")


def test_no_step_boundary_withdraws_the_request(run: World) -> None:
    """A trainer that takes no request in time trains on, and the request is withdrawn."""
    tiny(run, "never", grace_s=1.0)
    run.until_step(2)

    run.issue("o-1", "stop")

    assert refused(run) == "no_step_boundary"
    assert run.read("stop.withdrawn")["request_id"] == "r-o-1"
    assert not (run.control() / "stop").exists()
    assert_trains_on(run)


def test_a_trainer_that_takes_nothing_is_stopped_where_steps_may_be_lost(run: World) -> None:
    """lose_unsaved: after the grace the job is ended without a save, and the report counts what was lost."""
    tiny(run, "never", grace_s=0.5)
    run.until_step(2)

    run.issue("o-1", "stop", lose_unsaved=True)
    stopped = run.service.until_report("o-1", "stopped")

    assert stopped["detail"]["unsaved_steps"] > 0
    assert run.exit_code() == 75
    assert run.members() == []


def test_stop_now_saves_nothing(run: World) -> None:
    """save_first false with lose_unsaved: no request is written."""
    tiny(run, "good")
    run.until_step(2)

    run.issue("o-1", "stop", save_first=False, lose_unsaved=True)
    run.service.until_report("o-1", "stopped")

    assert run.exit_code() == 75
    assert not (run.folder / "requests").exists()


def test_not_saving_first_alone_does_not_lose_steps(run: World) -> None:
    """save_first false without lose_unsaved still saves: steps are never lost by omission."""
    tiny(run, "good")
    run.until_step(2)

    run.issue("o-1", "stop", save_first=False)
    run.service.until_report("o-1", "stopped")

    assert "saved" in run.service.reported("o-1")


def test_a_save_that_failed(run: World) -> None:
    """ok false in the receipt: save_failed, and training goes on."""
    tiny(run, "refuses")
    run.until_step(2)

    run.issue("o-1", "stop")

    assert refused(run) == "save_failed"
    assert_trains_on(run)


@pytest.mark.parametrize("mode", ["lies", "above"])
def test_a_receipt_for_what_is_no_state(run: World, mode: str) -> None:
    """A receipt that names a missing state, or the folder that the job lies in, is save_incomplete."""
    tiny(run, mode)
    run.until_step(2)

    run.issue("o-1", "save")

    assert refused(run) == "save_incomplete"
    assert_trains_on(run)


def test_a_growing_partial_is_waited_for(run: World) -> None:
    """A state that is still being written outlives the grace."""
    tiny(run, "slow", grace_s=0.5)
    run.until_step(2)

    run.issue("o-1", "stop")

    assert run.service.until_report("o-1", "saved")["detail"]["step"] >= 2
    assert run.exit_code() == 75


def test_a_trainer_that_says_no_hello_is_left_alone(run: World) -> None:
    """No hello.json: no save channel, never stopped."""
    tiny(run, "silent")
    run.until_step(2)

    run.issue("o-1", "stop")

    assert refused(run) == "no_save_channel"
    run.until_step(run.step() + 2)


def test_loading_may_be_ended_when_stopped(run: World) -> None:
    """Before the first step nothing can be lost: a stop ends the job without a receipt."""
    tiny(run, "load", grace_s=0.5)
    run.trainer()

    run.issue("o-1", "stop")
    run.service.until_report("o-1", "stopped")

    assert run.exit_code() == 75
    assert "saved" not in run.service.reported("o-1")


def test_a_replace_before_the_first_step(run: World) -> None:
    """Nothing shows yet that the trainer can be resumed: no_resume_recipe, and it loads on."""
    tiny(run, "load")
    trainer = run.trainer()

    run.issue("o-1", "replace")

    assert refused(run) == "no_resume_recipe"
    assert alive(trainer)


def test_knobs_without_a_known_config(run: World) -> None:
    """A command that no recipe knows: config_not_found, before any save."""
    tiny(run, "good")
    run.until_step(2)

    run.issue("o-1", "replace", knobs={"batch_size": "/2"})

    assert refused(run) == "config_not_found"
    assert not (run.folder / "requests").exists()


def test_an_edited_config(run: World) -> None:
    """A config that was edited after the launch: config_changed."""
    run.start()
    run.until_step(2)
    run.config.write_bytes(run.config.read_bytes() + b"# edited\n")

    run.issue("o-1", "replace", knobs={"batch_size": "/2"})

    assert refused(run) == "config_changed"
    assert_trains_on(run)


@pytest.mark.parametrize("script", ["{py} {tiny} good; echo done > after", "true; {py} {tiny} good; true"])
def test_a_script_is_not_launched_again(run: World, script: str) -> None:
    """A shell around the trainer: command_is_a_script for a replace, while a save works."""
    run.start(["sh", "-c", script.format(py=sys.executable, tiny=TINY)])
    run.until_step(2)

    run.issue("o-1", "replace")
    reason = refused(run)
    run.issue("o-2", "save")

    assert reason == "command_is_a_script"
    run.service.until_report("o-2", "saved")


def test_an_exec_in_a_shell_is_no_script(run: World) -> None:
    """`sh -c 'exec …'`: the trainer took the shell's place, so it can be launched again."""
    run.start(["sh", "-c", f"exec {sys.executable} {TINY} good"])
    run.until_step(2)

    run.issue("o-1", "replace")

    assert run.service.until_report("o-1", "launched")["detail"]["generation"] == 2


def test_a_script_does_not_go_on_after_a_stop(run: World) -> None:
    """The line after the trainer is not run because we stopped the trainer."""
    run.start(["sh", "-c", f"{sys.executable} {TINY} good; echo gone-on > after"])
    run.until_step(2)

    run.issue("o-1", "stop")
    run.service.until_report("o-1", "stopped")

    assert run.exit_code() == 75
    assert not (run.folder / "after").exists()
    assert run.members() == []


def test_several_nodes_are_only_saved(run: World) -> None:
    """WORLD_SIZE above LOCAL_WORLD_SIZE: stop is refused as multi_node, save works."""
    tiny(run, "good")
    run.until_step(2)
    (run.control() / "pid.1.json").write_text('{"pid": 1, "rank": 1, "world_size": 4, "local_world_size": 2}')

    run.issue("o-1", "stop")
    reason = refused(run)
    run.issue("o-2", "save")

    assert reason == "multi_node"
    run.service.until_report("o-2", "saved")


def test_a_generation_that_did_not_resume_is_told(run: World) -> None:
    """Generation 2 trains from 0 without resumed.json: an event not_resumed, and it is left alone."""
    tiny(run, "forgets")
    run.until_step(2)

    run.issue("o-1", "replace")
    run.service.until_report("o-1", "launched")
    events = run.service.until(
        lambda: [event for event in run.service.seen.events if event["kind"] == "not_resumed"], 20, "not_resumed"
    )

    assert events[0]["generation"] == 2
    assert alive(run.trainer(2))


def test_an_old_receipt_answers_nothing(run: World) -> None:
    """A receipt with another request_id is no answer to this request."""
    tiny(run, "never", grace_s=1.0)
    run.until_step(2)
    state = run.folder / "old-state"
    state.write_text("x")
    (run.control() / "receipt.json").write_text(
        f'{{"request_id": "r-older", "ok": true, "step": 1, "path": "{state}", "seconds": 0.1}}'
    )

    run.issue("o-1", "stop")

    assert refused(run) == "no_step_boundary"


def test_an_order_of_another_protocol_is_not_carried_out(run: World) -> None:
    """What is not understood is not done."""
    run.start()
    run.until_step(2)

    run.issue("o-1", "stop", protocol=2)
    polls = len(run.service.seen.polls)
    eventually(lambda: len(run.service.seen.polls) > polls + 1, what="the agent asks again")

    assert run.service.reported("o-1") == {}
    assert_trains_on(run)


def test_the_same_order_twice_is_done_once(run: World) -> None:
    """An order that comes again after it was done is answered with its last report."""
    tiny(run, "good")
    run.until_step(2)
    run.issue("o-1", "save")
    run.service.until_report("o-1", "saved")

    with run.service.changed:
        reports = [each for each in run.service.seen.reports if each[1] != "saved"]
        run.service.seen.reports[:] = reports
        run.service.changed.notify_all()
    run.issue("o-9", "save")  # wakes the poll; o-1 is open again and comes first
    run.service.until_report("o-1", "saved")
    run.service.until_report("o-9", "saved")

    assert (run.folder / "requests").read_text().splitlines() == ["r-o-1", "r-o-9"]


def test_withdrawing_and_taking_has_one_winner(tmp_path: Path) -> None:
    """Hammered from two sides, each request is either taken or withdrawn."""
    from tunewarden.supervisor.control import ControlDirectory, Mode

    control = ControlDirectory(tmp_path)
    taken = withdrawn = 0
    deadline = time.monotonic() + 2.0
    number = 0
    import threading

    go, stop = threading.Barrier(2), threading.Event()
    results: list[bool] = []

    def trainer() -> None:
        while True:
            go.wait()
            if stop.is_set():
                return
            try:
                (tmp_path / "stop").rename(tmp_path / "stop.taken")
                results.append(True)
            except FileNotFoundError:
                results.append(False)
            go.wait()

    thread = threading.Thread(target=trainer)
    thread.start()
    while time.monotonic() < deadline:
        number += 1
        control.ask(f"r-{number}", Mode.SAVE)
        go.wait()
        won = control.withdraw(f"r-{number}")
        go.wait()
        assert won != results[-1]
        assert won == control.withdrawn(f"r-{number}")
        taken, withdrawn = taken + (not won), withdrawn + won
    stop.set()
    go.wait()
    thread.join()

    assert taken > 0
    assert withdrawn > 0
