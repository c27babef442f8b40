"""What is found out about a command before its first launch."""

import json
from pathlib import Path

import pytest

from tunewarden.supervisor.first_launch import FirstLaunch, look_at
from tunewarden.supervisor.states import mark_of

TRAINER = """
import transformers
from transformers import Trainer
Trainer(args=transformers.TrainingArguments(output_dir="out"))
"""


def test_what_lies_in_the_output_folder_is_remembered(tmp_path: Path) -> None:
    """A checkpoint of an earlier training, with the mark that tells whether it is written again."""
    (tmp_path / "train.py").write_text(TRAINER, encoding="utf-8")
    old = tmp_path / "out" / "checkpoint-500"
    old.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "training_args.bin"):
        (old / name).write_bytes(b"x")
    (old / "trainer_state.json").write_text(json.dumps({"global_step": 500}), encoding="utf-8")
    found = look_at(["python", "train.py"], tmp_path)

    assert found.states_before == {str(old): mark_of(old)}
    assert found.hook is not None and (found.hook["base_step"], found.hook["protocol"]) == (0, 1)


@pytest.mark.parametrize("argv", [["sleep", "5"], ["python", "absent.py"], ["python", "broken.py"]])
def test_a_command_that_is_not_understood_gets_the_defaults(tmp_path: Path, argv: list[str]) -> None:
    """It must start all the same."""
    (tmp_path / "broken.py").write_bytes(b"\xff\xfe not python (")

    assert look_at(argv, tmp_path) == FirstLaunch()
