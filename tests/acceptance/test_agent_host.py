"""A host, or a job, that lets no file be written: a person still stops the job, and orders end with a reason."""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.agent_world import World, eventually, world
from tunewarden.processes.identity import ProcessId, alive

TINY = str(Path(__file__).with_name("tiny_trainer.py"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made
        assert made.service.seen.faults == []


def fill(run: World) -> ProcessId:
    """From now on this agent can add nothing to its journal; smaller files can be written still."""
    journal = run.run_dir / "journal.jsonl"
    eventually(lambda: journal.exists() and b'"trainer"' in journal.read_bytes(), what="the agent's first look")
    agent = run.identity("agent")
    _, hard = resource.prlimit(agent.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (journal.stat().st_size, hard))
    return agent


def stderr(run: World) -> str:
    return (run.folder / "stderr").read_text("utf-8", "replace")


def test_a_person_stops_a_job_whose_journal_is_full(run: World) -> None:
    """One Ctrl-C saves and stops, by the same agent, and the terminal says once what is wrong."""
    run.start([sys.executable, TINY, "good"])
    run.until_step(2)
    agent = fill(run)
    run.interrupt()

    assert run.exit_code() == 130
    assert (run.folder / "requests").read_text() == "r-local-g1\n"
    assert run.identity("agent") == agent
    assert stderr(run).count("journal.jsonl can't be written (File too large)") == 1


def test_an_order_with_a_full_journal(run: World) -> None:
    """What can't be announced is not done: no_disk_space, and the job trains on."""
    run.start([sys.executable, TINY, "good"])
    run.until_step(2)
    agent = fill(run)
    run.issue("o-1", "stop")
    report = run.service.until(lambda: run.service.reported("o-1").get("refused"), 20.0, "a refusal")

    assert report["reason"] == "no_disk_space"
    assert alive(agent)
    assert not (run.folder / "requests").exists()
    run.until_step(run.step() + 2)


def test_a_withdrawal_onto_a_folder(run: World) -> None:
    """A folder under the name of what is withdrawn: the order ends with a reason, and the agent lives."""
    run.start([sys.executable, TINY, "never"], grace_s=0.5)
    run.until_step(2)
    agent = run.identity("agent")
    (run.control() / "stop.withdrawn" / "x").mkdir(parents=True)
    run.issue("o-1", "save")
    report = run.service.until(lambda: run.service.reported("o-1").get("refused"), 20.0, "a refusal")

    assert report["reason"] == "save_failed"
    assert "stop.withdrawn" in report["detail"]["text"]
    assert alive(agent)
    assert not (run.control() / "stop").exists()


def test_a_person_is_told_that_the_job_can_not_be_asked(run: World) -> None:
    """Where no request can be put the person hears why, and the save is asked for as soon as it can be."""
    run.start([sys.executable, TINY, "never"])
    run.until_step(2)
    request = run.control() / "stop"
    (request / "x").mkdir(parents=True)
    run.interrupt()
    eventually(lambda: "can't be asked to save yet" in stderr(run), what="why nothing happens")
    request.rename(run.control() / "away")
    eventually(request.is_file, what="the request")
    run.interrupt()

    assert run.exit_code() == 130
