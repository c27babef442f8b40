"""The whole replacement of a trainer that knows nothing of us: saved, stopped, changed, resumed, ended at its total."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agent_world import World, eventually, world
from tests.acceptance.stand_in_service import TOKEN
from tunewarden.processes.identity import identify

HERE = Path(__file__).resolve().parent
TOTAL = 40
BOUND = 150.0  # seconds, for a machine that does much else
COMMAND = str(Path(sys.executable).with_name("tunewarden"))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        shutil.copy(HERE / "replace_loop.py", tmp_path / "loop.py")
        yield made
        assert made.service.seen.faults == []


def begin(job: World, *argv: str) -> None:
    """`tunewarden run -- ARGV`, as a person types it."""
    token = job.folder / "token"
    token.write_text(TOKEN + "\n", encoding="utf-8")
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(job.folder),
        "OMP_NUM_THREADS": "1",
        "TUNEWARDEN_STATE_DIR": str(job.folder / "state"),
        "TUNEWARDEN_URL": job.service.url,
        "TUNEWARDEN_AGENT_TOKEN_FILE": str(token),
    }
    with (job.folder / "stdout").open("wb") as stdout, (job.folder / "stderr").open("wb") as stderr:
        job.process = subprocess.Popen(
            [COMMAND, "run", "--name", "loop", "--", *argv],
            cwd=job.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    runs = job.folder / "state" / "runs"
    eventually(lambda: runs.is_dir() and list(runs.iterdir()), 30.0, f"the run folder: {job.log()}")
    job.job_id = next(runs.iterdir()).name


def steps(job: World) -> list[dict[str, Any]]:
    path = job.folder / "steps.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def until_step(job: World, step: int, generation: int = 1) -> None:
    eventually(lambda: job.step(generation) >= step, BOUND, f"step {step} of {generation}: {job.log()}")


def replace(job: World) -> dict[str, Any]:
    """Halve the batch of generation 1; returns what was reported. Nothing that trained before may be alive after."""
    before = [pid for pid in map(identify, job.members()) if pid is not None]
    job.issue("o-1", "replace", knobs={"batch_size": "/2"})
    job.service.until_report("o-1", "stopped", BOUND)

    assert before != [] and [each for each in before if identify(each.pid) == each] == []

    job.service.until_report("o-1", "launched", BOUND)
    return job.service.reported("o-1")


def check(job: World, reported: dict[str, Any], ranks: Sequence[int] = (0,)) -> None:
    """Resumed where it was saved, at half the batch and twice the accumulation; each planned update made once."""
    saved = reported["saved"]["detail"]

    assert job.exit_code(BOUND) == 0
    assert list(reported)[-4:] == ["planned", "saved", "stopped", "launched"]
    assert [(each["knob"], each["from"], each["to"]) for each in reported["planned"]["detail"]["changes"]] == [
        ("batch_size", "4", "2"),
        ("gradient_accumulation", "1", "2"),
    ]
    assert reported["launched"]["detail"]["resume_step"] == saved["step"] == job.read("resumed.json", 2)["step"]
    assert Path(saved["path"]).is_dir() and not list(Path(saved["path"]).parent.glob("*.partial"))
    for rank in ranks:
        mine = [each for each in steps(job) if each["rank"] == rank]
        first, second = ([each for each in mine if each["batch"] == batch] for batch in (4, 2))
        made = [each["updates"] for each in [*first, *second]]

        assert {each["accumulation"] for each in second} == {2}
        assert made == sorted(set(made)) and made[-1] in (TOTAL - 1, TOTAL)
    assert job.read("progress.json", 2)["step"] == TOTAL
    assert job.service.seen.events[-1]["cause"] == "finished"


def test_a_loop_is_replaced_at_half_the_batch(job: World, trainer_python: Path) -> None:
    """`tunewarden run -- python loop.py` with flags: an order halves the batch, and training ends as planned."""
    flags = ["--batch_size", "4", "--gradient_accumulation_steps", "1", "--max_train_steps", str(TOTAL)]
    begin(job, str(trainer_python), "loop.py", *flags)
    until_step(job, 6)

    check(job, replace(job))


def test_a_loop_under_accelerate_launch_is_replaced(job: World, trainer_python: Path) -> None:
    """Launcher, trainer and DataLoader workers: all are gone before the next generation, and none is left after it."""
    launch = [str(trainer_python.with_name("accelerate")), "launch", "--num_processes", "1", "--cpu", "loop.py"]
    flags = ["--batch_size=4", "--gradient_accumulation_steps=1", "--max_train_steps", str(TOTAL)]
    begin(job, *launch, *flags, "--dataloader_num_workers", "2")
    until_step(job, 6)
    # The launcher, the trainer and two workers, which come and go with each epoch.
    eventually(lambda: len(job.members()) >= 4, BOUND, "the workers")

    check(job, replace(job))

    assert job.members() == []


def test_two_ranks_under_torchrun_are_replaced(job: World, trainer_python: Path) -> None:
    """Both ranks save at one step, are stopped with their launcher, and go on together from the state of two."""
    launch = [str(trainer_python.with_name("torchrun")), "--nproc_per_node", "2", "--rdzv-backend=c10d"]
    flags = ["--batch_size=4", "--gradient_accumulation_steps=1", "--max_train_steps", str(TOTAL)]
    begin(job, *launch, "--rdzv-endpoint=localhost:0", "loop.py", *flags)
    until_step(job, 6)

    check(job, replace(job), ranks=(0, 1))

    assert job.members() == []
