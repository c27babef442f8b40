"""Which states on disk are complete, and which is the newest: by step, never by time."""

import json
import os
import re
from pathlib import Path

import pytest

from tunewarden.trainers.states import (
    checkpoints,
    complete_accelerate,
    complete_sd_scripts,
    complete_transformers,
    in_order,
    named_states,
    step_of_train_state,
)


def accelerate_state(folder: Path, **more: str) -> Path:
    """A folder as accelerate's save_state leaves it for a LoRA on one rank."""
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"):
        (folder / name).write_bytes(b"x")
    for name, text in more.items():
        (folder / name.replace("_json", ".json")).write_text(text)
    return folder


def checkpoint(folder: Path, step: int) -> Path:
    """A folder as the Trainer leaves it for an adapter."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (path / name).write_bytes(b"x")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 100}))
    return path


@pytest.mark.parametrize("missing", ["model.safetensors", "optimizer.bin", "random_states_0.pkl"])
@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_half_written_accelerate_state(tmp_path: Path, missing: str, how: str) -> None:
    """The random numbers are written last; a file that is missing or empty makes the state half."""
    state = accelerate_state(tmp_path / "s")
    assert complete_accelerate(state)

    (state / missing).unlink()
    if how == "empty":
        (state / missing).touch()

    assert not complete_accelerate(state)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"current_step": "7"}', '{"current_step": -1}'])
def test_sd_scripts_needs_its_own_count(tmp_path: Path, text: str | None) -> None:
    """Without a train_state.json that can be read a state is not whole."""
    more = {} if text is None else {"train_state_json": text}

    assert not complete_sd_scripts(accelerate_state(tmp_path / "s", **more))


def test_a_whole_state_of_sd_scripts(tmp_path: Path) -> None:
    """accelerate's files and the count."""
    state = accelerate_state(tmp_path / "s", train_state_json='{"current_epoch": 4, "current_step": 31}')

    assert (complete_sd_scripts(state), step_of_train_state(state)) == (True, 31)


@pytest.mark.parametrize("fault", ["mark", "optimizer", "model", "state", "other step"])
def test_a_half_written_checkpoint(tmp_path: Path, fault: str) -> None:
    """transformers marks what it is writing and doesn't look at the mark: we do."""
    path = checkpoint(tmp_path, 31)
    assert complete_transformers(path)

    match fault:
        case "mark":
            (path / "checkpoint-is-incomplete.txt").touch()
        case "optimizer":
            (path / "optimizer.pt").unlink()
        case "model":
            (path / "adapter_model.safetensors").unlink()
        case "state":
            (path / "trainer_state.json").write_text('{"global_step": 31')
        case _:
            (path / "trainer_state.json").write_text('{"global_step": 30}')

    assert not complete_transformers(path)


def test_the_step_decides_and_not_the_time(tmp_path: Path) -> None:
    """checkpoint-9 that was touched last is older than checkpoint-100; a partial one doesn't count."""
    for step in (100, 9, 20):
        checkpoint(tmp_path, step)
    os.utime(tmp_path / "checkpoint-9", (4e9, 4e9))
    (checkpoint(tmp_path / "other", 500)).rename(tmp_path / "checkpoint-500.partial")
    (tmp_path / "checkpoint-x").mkdir()

    assert [state.step for state in checkpoints(tmp_path, complete_transformers)] == [9, 20, 100]


def test_states_by_their_names(tmp_path: Path) -> None:
    """The first rule that fits a name says the step; what is half is left out."""
    accelerate_state(tmp_path / "cat-step00000020-state", train_state_json='{"current_step": 20}')
    accelerate_state(tmp_path / "cat-state", train_state_json='{"current_step": 50}')
    accelerate_state(tmp_path / "cat-step00000030-state")
    rules = [
        (re.compile(r"cat-step(\d+)-state"), lambda path, number: int(number)),
        (re.compile(r"cat(?:-\d+)?-state"), lambda path, number: step_of_train_state(path)),
    ]

    found = named_states(tmp_path, rules, complete_sd_scripts)

    assert [(state.step, state.path.name) for state in found] == [(20, "cat-step00000020-state"), (50, "cat-state")]


def test_a_folder_that_is_not_there_has_no_states(tmp_path: Path) -> None:
    """Nothing is made and nothing raised."""
    assert (checkpoints(tmp_path / "none", complete_transformers), in_order([])) == ((), ())
