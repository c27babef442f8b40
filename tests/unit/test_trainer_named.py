"""Trainers of which only is said what is possible: nothing of theirs is written, stopped or started."""

from pathlib import Path

import pytest

from tests.unit.trainer_case import Case, case
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.named import ABOUT
from tunewarden.trainers.recipe import SavedState, Tier

TOOLKIT = """\
job: extension
config:
  name: cat
  process:
    - type: sd_trainer
      train:
        batch_size: 2
        steps: 100
      network: {linear: 16}
"""
COMMANDS = [
    ("onetrainer", "python scripts/train.py --config-path c.json", "c.json", '{"batch_size": 4, "lora_rank": 16}'),
    (
        "diffusion-pipe",
        "deepspeed --num_gpus=1 train.py --deepspeed --config c.toml",
        "c.toml",
        "micro_batch_size_per_gpu = 4\n[adapter]\nrank = 32\n",
    ),
    ("ai-toolkit", "python run.py c.yaml", "c.yaml", TOOLKIT),
    ("torchtune", "tune run lora_finetune_single_device --config c.yaml", "c.yaml", "batch_size: 4\n"),
    ("lightning", "fabric run --accelerator cuda train.py", "c.yaml", ""),
    ("unsloth", "unsloth train c.yaml", "c.yaml", ""),
]


@pytest.mark.parametrize(("trainer", "line", "name", "text"), COMMANDS, ids=[each[0] for each in COMMANDS])
def test_it_is_left_alone(tmp_path: Path, trainer: str, line: str, name: str, text: str) -> None:
    """Knobs and states are refused with the way that a person can go."""
    found = case(tmp_path, line, {name: text})
    recipe = found.recipe

    with pytest.raises(Refused) as planned:
        recipe.plan({"batch_size": "/2"}, allow_effective_batch_change=True)
    with pytest.raises(Refused) as resumed:
        recipe.resume(found.argv, SavedState(step=1, path=tmp_path), generation=2)

    assert (recipe.trainer, recipe.tier, recipe.states()) == (trainer, Tier.NAMED, ())
    assert (planned.value.reason, resumed.value.reason) == (Reason.KNOB_NOT_CHANGEABLE, Reason.CANNOT_RESUME)
    assert recipe.explain().adjusts in str(planned.value)


@pytest.mark.parametrize(
    ("index", "batch"),
    [(0, ("4", "c.json", 1)), (1, ("4", "c.toml", 1)), (2, ("2", "c.yaml", 7)), (3, ("4", "c.yaml", 1))],
)
def test_its_knobs_are_shown(tmp_path: Path, index: int, batch: tuple[str, str, int]) -> None:
    """What its config says can be told, deep in lists too."""
    _, line, name, text = COMMANDS[index]

    assert case(tmp_path, line, {name: text}).knobs()["batch_size"] == batch


def toolkit(folder: Path, line: str) -> Case:
    text = TOOLKIT.replace("        steps: 100\n", f"        steps: 100\n{line}")
    return case(folder, "python run.py c.yaml", {"c.yaml": text})


def test_ai_toolkits_two_accumulations(tmp_path: Path) -> None:
    """One counts batches, the other updates, and both together end the training."""
    steps, plain = "        gradient_accumulation_steps: 2\n", "        gradient_accumulation: 2\n"

    assert toolkit(tmp_path, plain).recipe.explain().warnings == ()
    assert "c.yaml:9: gradient_accumulation_steps makes" in toolkit(tmp_path, steps).recipe.explain().warnings[0]
    assert "exclude each other" in toolkit(tmp_path, steps + plain).recipe.explain().warnings[0]


def test_onetrainers_backups_are_checked(tmp_path: Path) -> None:
    """A backup that failed is only printed there, so it is said whether one exists and whether one would be made."""
    config = '{\n"workspace_dir": "w",\n"backup_before_save": false\n}\n'
    found = case(tmp_path, "python scripts/train.py --config-path c.json", {"c.json": config})
    before = found.recipe.explain().warnings
    for name in ("2026-12-01_10-00-00-backup-90-1-0", "2026-12-01_11-00-00-backup-120-2-0"):
        (tmp_path / "w" / "backup" / name).mkdir(parents=True)

    assert before == (
        f"{tmp_path}/c.json:3: backup_before_save is false: Ctrl-C saves nothing; set it to true",
        f"{tmp_path}/c.json:2: no backup is in {tmp_path}/w/backup yet",
    )
    assert found.recipe.explain().warnings[1].endswith("11-00-00-backup-120-2-0")


@pytest.mark.parametrize("about", ABOUT, ids=lambda about: about.trainer)
def test_the_sentences_are_whole(about: object) -> None:
    """Each says how it is saved, adjusted and resumed."""
    sentences = [getattr(about, name) for name in ("saves", "adjusts", "resumes")]

    assert [text for text in sentences if len(text) < 20 or text.endswith(".")] == []
