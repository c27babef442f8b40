"""Orders carried out by the real agent under the real keeper, on the example trainer."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.agent_world import World, eventually, world
from tunewarden.processes.identity import alive


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made
        assert made.service.seen.faults == []


def test_save_leaves_the_job_training(run: World) -> None:
    """A save order ends in a whole state, and the same trainer goes on."""
    run.start()
    run.until_step(3)
    trainer = run.trainer()

    run.issue("o-1", "save")
    saved = run.service.until_report("o-1", "saved")["detail"]

    assert list(run.service.reported("o-1")) == ["planned", "saved"]
    assert Path(saved["path"]).exists()
    run.until_step(saved["step"] + 3)
    assert alive(trainer)


def test_stop_saves_and_ends_everything(run: World) -> None:
    """A stop order saves first; `run` ends with 75 and nothing of the job is alive."""
    run.start()
    run.until_step(3)

    run.issue("o-1", "stop")
    stopped = run.service.until_report("o-1", "stopped")["detail"]

    assert run.exit_code() == 75
    assert run.members() == []
    assert stopped["unsaved_steps"] == 0
    assert [event["cause"] for event in run.service.seen.events] == ["policy_stop"]


def test_replace_goes_on_from_the_saved_step_with_half_the_batch(run: World) -> None:
    """A replace order ends in generation 2, resumed from the receipt, with a config beside the untouched original."""
    run.start()
    run.until_step(3)
    before = hashlib.sha256(run.config.read_bytes()).hexdigest()
    first = run.trainer()

    run.issue("o-1", "replace", knobs={"batch_size": "/2"})
    launched = run.service.until_report("o-1", "launched")["detail"]

    reports = run.service.reported("o-1")
    assert list(reports) == ["planned", "saved", "stopped", "launched"]
    changes = [(each["knob"], each["from"], each["to"]) for each in reports["planned"]["detail"]["changes"]]
    assert changes == [("batch_size", "4", "2"), ("gradient_accumulation", "1", "2")]
    assert hashlib.sha256(run.config.read_bytes()).hexdigest() == before
    assert launched["generation"] == 2
    assert not alive(first)
    run.until_step(reports["saved"]["detail"]["step"] + 2, generation=2)
    assert run.read("resumed.json", 2)["step"] == reports["saved"]["detail"]["step"]
    eventually(lambda: [each["generation"] for each in run.service.seen.registrations][-1] == 2)
    eventually(lambda: run.service.seen.heartbeats[-1]["job"]["resumed_step"])
