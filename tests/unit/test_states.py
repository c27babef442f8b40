"""Which state a job goes on from."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tunewarden.supervisor.control import ControlDirectory, State
from tunewarden.supervisor.states import is_whole, mark_of, newest_state, ranks_of
from tunewarden.trainers.recipe import SavedState


def write(folder: Path, **files: Any) -> ControlDirectory:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return ControlDirectory(folder)


def accelerate_state(path: Path, *, without: str = "", ranks: int = 1) -> Path:
    names = ["model.safetensors", "optimizer.bin", "scheduler.bin"]
    names += [f"random_states_{rank}.pkl" for rank in range(ranks)]
    path.mkdir(parents=True)
    for name in names:
        if name != without:
            (path / name).write_bytes(b"x")
    return path


def trainer_state(path: Path, step: int, *, without: str = "", also: str = "") -> Path:
    path.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "training_args.bin", also):
        if name and name != without:
            (path / name).write_bytes(b"x")
    if without != "trainer_state.json":
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}), encoding="utf-8")
    return path


def named(step: int, path: Path) -> dict[str, Any]:
    return {"step": step, "path": str(path)}


def newest(*controls: ControlDirectory, on_disk: Any = (), before: Any = None) -> State | None:
    return newest_state(controls, on_disk, before or {}, lambda _path: True)


def test_a_layout_that_nobody_knows_is_believed(tmp_path: Path) -> None:
    """A trainer that speaks the protocol itself may keep its state in any file."""
    (tmp_path / "state").write_bytes(b"x")

    assert is_whole(State(step=1, path=tmp_path / "state"))


@pytest.mark.parametrize("without", ["optimizer.bin", "random_states_0.pkl", "model.safetensors"])
def test_an_accelerate_state_without_a_part_is_not_whole(tmp_path: Path, without: str) -> None:
    """accelerate writes the random numbers last: without them the save was cut off."""
    whole = accelerate_state(tmp_path / "a")
    half = accelerate_state(tmp_path / "b", without=without)

    assert (is_whole(State(step=1, path=whole)), is_whole(State(step=1, path=half))) == (True, False)


@pytest.mark.parametrize("without", ["optimizer.pt", "trainer_state.json", "model.safetensors"])
def test_a_checkpoint_of_the_trainer_without_a_part_is_not_whole(tmp_path: Path, without: str) -> None:
    """save_only_model leaves no optimizer: nothing can go on from that."""
    whole = trainer_state(tmp_path / "checkpoint-7", 7)
    half = trainer_state(tmp_path / "checkpoint-8", 8, without=without)

    assert (is_whole(State(step=7, path=whole)), is_whole(State(step=8, path=half))) == (True, False)


def test_a_marked_or_partial_state_is_not_whole(tmp_path: Path) -> None:
    """transformers marks a checkpoint that is being written; ours has another name until it is whole."""
    marked = trainer_state(tmp_path / "checkpoint-9", 9, also="checkpoint-is-incomplete.txt")
    partial = accelerate_state(tmp_path / "step-9.partial")

    assert [is_whole(State(step=9, path=path)) for path in (marked, partial)] == [False, False]


@pytest.mark.parametrize(("ranks", "expected"), [(1, 1), (2, 2)])
def test_the_ranks_of_a_state_are_counted(tmp_path: Path, ranks: int, expected: int) -> None:
    """Each rank leaves its random numbers."""
    assert ranks_of(accelerate_state(tmp_path / "s", ranks=ranks)) == expected
    assert ranks_of(tmp_path) is None


def test_the_step_decides_and_never_the_time(tmp_path: Path) -> None:
    """A state that was copied later is not newer."""
    high, low = accelerate_state(tmp_path / "step-80"), accelerate_state(tmp_path / "step-20")
    os.utime(high, (1, 1))
    control = write(tmp_path / "g1", progress={"step": 90, "last_state": named(20, low)})

    assert newest(control, on_disk=[SavedState(step=80, path=high)]) == State(step=80, path=high)


def test_a_half_written_newest_state_gives_way(tmp_path: Path) -> None:
    """The one before it is resumed from."""
    old, half = accelerate_state(tmp_path / "step-20"), accelerate_state(tmp_path / "step-40", without="optimizer.bin")
    control = write(tmp_path / "g1", progress={"step": 41, "last_state": named(40, half)}, resume=named(20, old))

    assert newest(control) == State(step=20, path=old)


def test_states_of_earlier_generations_count(tmp_path: Path) -> None:
    """A generation that died while loading leaves the state of the one before it."""
    old = accelerate_state(tmp_path / "step-20")
    first = write(tmp_path / "g1", progress={"step": 20, "last_state": named(20, old)})

    assert newest(first, write(tmp_path / "g2")) == State(step=20, path=old)


@pytest.mark.parametrize(
    ("said", "expected"), [({}, 30), ({"consistent": True}, 30), ({"consistent": False}, 20), ({"consistent": 0}, 20)]
)
def test_a_state_saved_after_an_oom_counts_when_it_is_consistent(
    tmp_path: Path, said: dict[str, Any], expected: int
) -> None:
    """Saved inside optimizer.step half of the weights are updated: the one before it is resumed from."""
    old, crashed = accelerate_state(tmp_path / "step-20"), accelerate_state(tmp_path / "step-30")
    crash = {"error": "torch.OutOfMemoryError: CUDA out of memory.", "step": 30, "state": named(30, crashed), **said}
    progress = {"step": 30, "last_state": named(30 if expected == 30 else 20, old if expected == 20 else crashed)}
    control = write(tmp_path / "g1", progress=progress, crash=crash, resume=named(20, old))
    found = newest(control)

    assert found is not None and found.step == expected


def test_what_lay_there_before_the_run_is_another_trainings(tmp_path: Path) -> None:
    """The same output folder used twice: the old checkpoint counts again only once it is written anew."""
    old = accelerate_state(tmp_path / "step-10")
    before = {str(old): mark_of(old)}
    control = write(tmp_path / "g1", progress={"step": 12})
    on_disk = [SavedState(step=10, path=old)]

    assert newest(control, on_disk=on_disk, before=before) is None

    (old / "optimizer.bin").write_bytes(b"another")

    assert newest(control, on_disk=on_disk, before=before) == State(step=10, path=old)


def test_a_step_that_was_not_reached_is_another_trainings(tmp_path: Path) -> None:
    """A checkpoint-500 in the folder of a training that is at step 31."""
    high = accelerate_state(tmp_path / "step-500")
    control = write(tmp_path / "g1", progress={"step": 31})

    assert newest(control, on_disk=[SavedState(step=500, path=high)]) is None
