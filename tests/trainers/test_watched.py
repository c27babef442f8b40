"""Real trainers under `tunewarden watch`: a GUI's by accelerate launch, and a notebook's in a real kernel."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agent_world import eventually
from tests.acceptance.watched_world import WatchedWorld, children, watched
from tunewarden.processes.identity import alive, identify

HERE = Path(__file__).resolve().parent
LOOP = str(HERE / "accelerate_loop.py")
BOUND = 240.0  # seconds, for a machine that does much else


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedWorld]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with watched(tmp_path) as made:
        yield made
        assert made.service.seen.faults == []


def launched(python: Path, *words: str) -> list[str]:
    """As the GUIs do it."""
    launch = [str(python), "-m", "accelerate.commands.launch", "--num_processes", "1", "--num_machines", "1", "--cpu"]
    return [*launch, "--mixed_precision", "no", "--dynamo_backend", "no", LOOP, *words]


def trainer_of(world: WatchedWorld, job_id: str) -> Any:
    found = identify(world.read(job_id, "hello.json")["pid"])
    assert found is not None
    return found


def test_a_training_behind_a_guis_launcher_is_saved_and_stopped(world: WatchedWorld, trainer_python: Path) -> None:
    """The launcher ends with 0, its trainer and the loader's workers are gone, and the GUI has not noticed anything."""
    world.start_gui()
    words = ["out", "--steps", "5000", "--pace", "0.05", "--workers", "1"]
    job_id = world.launch(launched(trainer_python, *words))
    trainer = trainer_of(world, job_id)
    launcher, workers = world.process_of(world.gui()["trainer"]), children(trainer.pid)
    registration = world.registration(job_id)

    world.service.issue("o-1", "stop", job_id=job_id)
    saved = world.service.until_report("o-1", "saved", BOUND)["detail"]
    stopped = world.service.until_report("o-1", "stopped", BOUND)["detail"]

    eventually(lambda: world.gui()["status"] is not None, BOUND)
    assert world.gui()["status"] == 0
    assert not any(alive(each) for each in (launcher, trainer, *workers))
    assert len(workers) == 1
    assert saved["step"] >= 1 and (Path(saved["path"]) / "random_states_0.pkl").exists()
    assert stopped["unsaved_steps"] == 0
    assert world.read(job_id, "ended.json") == {"exit_status": 0}
    assert registration is not None and world.registration(job_id) is registration
    assert world.event(job_id)["cause"] == "policy_stop"


def test_the_stop_button_of_a_gui_leaves_a_job_that_was_killed(world: WatchedWorld, trainer_python: Path) -> None:
    """SIGKILL of launcher and trainer, as GUIs do it: no word from inside, and nothing is started again."""
    world.start_gui()
    job_id = world.launch([str(trainer_python), LOOP, "out", "--steps", "5000", "--pace", "0.05"])

    world.command("kill")

    event = world.event(job_id)
    assert (event["cause"], event["waits_s"]) == ("killed", 0.0)
    assert len(world.runs()) == 1


def test_the_ranks_of_one_launch_are_one_job(world: WatchedWorld, trainer_python: Path) -> None:
    """Two ranks under torchrun in a GUI: one job, one state, and after the stop none of them lives."""
    world.start_gui()
    torchrun = [str(trainer_python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job_id = world.launch([*torchrun, LOOP, "out", "--steps", "5000", "--pace", "0.05"])
    ranks = [world.process_of(world.read(job_id, f"pid.{rank}.json")["pid"]) for rank in (0, 1)]

    world.service.issue("o-1", "stop", job_id=job_id)
    saved = world.service.until_report("o-1", "saved", BOUND)["detail"]
    world.service.until_report("o-1", "stopped", BOUND)

    eventually(lambda: world.gui()["status"] is not None, BOUND)
    assert not any(alive(each) for each in ranks)
    assert [path.name for path in world.runs()] == [job_id]
    assert {path.name for path in Path(saved["path"]).glob("random_states_*")} == {
        "random_states_0.pkl",
        "random_states_1.pkl",
    }
    assert world.gui()["status"] == 0


class Notebook:
    """A notebook server under `tunewarden watch`."""

    def __init__(self, world: WatchedWorld, python: Path) -> None:
        self.world = world
        world.start("watch", "--name", "book", "--", str(python), str(HERE / "notebook_server.py"))

    def run(self, cell: str) -> None:
        with (self.world.folder / "cells").open("a", encoding="utf-8") as file:
            file.write(json.dumps(cell) + "\n")

    def replies(self, count: int) -> list[dict[str, Any]]:
        """The first `count` answers."""
        file = self.world.folder / "replies"

        def answered() -> list[dict[str, Any]]:
            lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
            return [json.loads(line) for line in lines] if len(lines) >= count else []

        return eventually(answered, BOUND, f"{count} answers: {self.world.said()}")


def test_a_stop_ends_the_cell_and_never_the_kernel(world: WatchedWorld, trainer_python: Path) -> None:
    """The cell ends as by the kernel's own interrupt, after the state is saved; what trains on later is a new job."""
    book = Notebook(world, trainer_python)
    words = ["out", "--steps", "5000", "--pace", "0.02"]
    book.run(f"import sys; sys.path.insert(0, {str(HERE)!r}); sys.argv = ['x', *{words!r}]")
    book.run("import accelerate_loop; run = accelerate_loop.Run(accelerate_loop.options())")
    book.run("run.train()")
    job_id = world.new_job(set(), timeout=BOUND)
    kernel = trainer_of(world, job_id)

    world.service.issue("o-1", "stop", job_id=job_id)
    saved = world.service.until_report("o-1", "saved", BOUND)["detail"]
    stopped = world.service.until_report("o-1", "stopped", BOUND)["detail"]
    ended = book.replies(3)[2]
    before = set(world.runs())
    book.run("kept = run.updates")
    book.run("run.train()")
    second = world.new_job(before, timeout=BOUND)
    book.run("interrupt")

    assert (ended["status"], ended["error"]) == ("error", "CellEnded")
    assert f"saved at step {saved['step']}" in ended["value"]
    assert (Path(saved["path"]) / "random_states_0.pkl").exists()
    assert stopped["pids"] == []
    assert world.event(job_id)["cause"] == "policy_stop"
    assert [each["status"] for each in book.replies(5)] == ["ok", "ok", "error", "ok", "error"]
    assert book.replies(5)[4]["error"] == "KeyboardInterrupt"
    assert world.event(second)["cause"] == "user_stop"
    assert alive(kernel)
    assert trainer_of(world, second) == kernel
