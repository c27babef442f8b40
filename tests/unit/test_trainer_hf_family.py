"""diffusers' examples, LLaMA-Factory, axolotl and scripts of the user's own: checkpoint-N and the hook."""

import json
from pathlib import Path

import pytest

from tests.unit.trainer_case import Case, case, changed_lines, changes
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.adjusting import adjust_file
from tunewarden.trainers.recipe import SavedState

EXAMPLE = """\
import argparse
import diffusers
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=str, default="sd-model")
parser.add_argument("--train_batch_size", type=int, default=16)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--gradient_checkpointing", action="store_true")
parser.add_argument("--dataloader_num_workers", type=int, default=0)
parser.add_argument("--checkpointing_steps", type=int, default=500)
parser.add_argument("--resume_from_checkpoint", type=str)
parser.add_argument("--rank", type=int, default=4)
"""
LLAMA = """\
### 模型
model_name_or_path: Qwen/x
stage: sft
lora_rank: 8
output_dir: saves/x
per_device_train_batch_size: 4   # 批大小
gradient_accumulation_steps: 2
learning_rate: 1.0e-4
max_steps: 100
"""
AXOLOTL = "base_model: x\nmicro_batch_size: 4 # 批\nlora_r: 16\noutput_dir: ./outputs/x\ngradient_checkpointing: true\n"
SFT = """\
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=4,  # 批大小
    gradient_accumulation_steps=1,
)
SFTTrainer(args=args).train()
"""
PARSED = "from transformers import HfArgumentParser, Trainer\nTrainer(HfArgumentParser(None))\n"
LOOP = """\
import argparse
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
workers = DataLoader(data, num_workers=2)
accelerator = Accelerator()
"""


def checkpoint(folder: Path, step: int, trainer: bool) -> Path:
    """A complete checkpoint-N of the Trainer, or of accelerate."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    files = ("optimizer.pt", "scheduler.pt") if trainer else ("optimizer.bin", "random_states_0.pkl")
    for name in ("adapter_model.safetensors", *files):
        (path / name).write_bytes(b"x")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def refusal(action: object, *args: object, **more: object) -> Refused:
    with pytest.raises(Refused) as caught:
        action(*args, **more)  # type: ignore[operator]
    return caught.value


@pytest.fixture
def diffusers(tmp_path: Path) -> Case:
    """A renamed copy of an example script, with flags."""
    line = (
        "accelerate launch --mixed_precision fp16 mine.py --output_dir=out --train_batch_size 4 --max_train_steps 100"
    )
    return case(tmp_path, line, {"mine.py": EXAMPLE})


@pytest.fixture
def llama(tmp_path: Path) -> Case:
    """LLaMA-Factory with a YAML."""
    return case(tmp_path, "llamafactory-cli train a.yaml", {"a.yaml": LLAMA})


@pytest.fixture
def axolotl(tmp_path: Path) -> Case:
    """axolotl with a YAML and words for its launcher."""
    return case(tmp_path, "axolotl train a.yml --launcher torchrun -- --nproc_per_node 1", {"a.yml": AXOLOTL})


@pytest.fixture
def loop(tmp_path: Path) -> Case:
    """An accelerate loop that declares options and fixes its workers in the code."""
    return case(tmp_path, "python loop.py --batch-size=4", {"loop.py": LOOP})


def test_diffusers_knobs_are_flags(diffusers: Case) -> None:
    """Defaults come from the script's own text; the launcher's options are not the script's."""
    plan = diffusers.half()

    assert diffusers.knobs() == {"batch_size": ("4", "argv", 8)}
    assert diffusers.recipe.explain().defaults["network_dim"] == "4"
    assert {each[:3] for each in changes(plan)} == {("batch_size", "4", "2"), ("gradient_accumulation", "1", "2")}
    assert plan.argv[:8] == (*diffusers.argv[:7], "2")


def test_diffusers_and_its_inverse(diffusers: Case) -> None:
    """The old batch size brings the old words back, with the accumulation said."""
    back = diffusers.changed({"batch_size": "/2"}).changed({"batch_size": "4"})

    assert back.argv[: len(diffusers.argv)] == diffusers.argv
    assert back.knobs()["gradient_accumulation"][0] == "1"


RUN_SH = """\
#!/bin/bash
export OUTPUT="out"   # 输出
exec accelerate launch --mixed_precision=fp16 mine.py \\
  --train_batch_size=4 \\
  --gradient_accumulation_steps "1" \\
  --gradient_checkpointing \\
  --output_dir="$OUTPUT" "$@"
"""


def test_options_in_a_script_and_their_inverse(tmp_path: Path) -> None:
    """What is literal in a script is changed in a copy of it; the old value brings the bytes back."""
    found = case(tmp_path, "bash run.sh --max_train_steps 100", {"mine.py": EXAMPLE, "run.sh": RUN_SH})
    halved = found.changed({"batch_size": "/2"})

    back = halved.recipe.plan({"batch_size": "4"}, allow_effective_batch_change=False)

    assert found.knobs()["batch_size"] == ("4", "run.sh", 4)
    assert changed_lines(found.half(), "run.sh") == [
        "  --train_batch_size=2 \\", '  --gradient_accumulation_steps "2" \\',
    ]  # fmt: skip
    assert halved.argv == ("bash", "run.tunewarden-g2.sh", "--max_train_steps", "100")
    assert back.copies[0].new_bytes == RUN_SH.encode()


def test_a_script_that_hands_on_its_words_can_be_gone_on_with(tmp_path: Path) -> None:
    """Behind "$@" the flags for resuming reach the trainer."""
    found = case(tmp_path, "bash run.sh", {"mine.py": EXAMPLE, "run.sh": RUN_SH})
    state = SavedState(step=31, path=tmp_path / "out" / "checkpoint-31")

    assert found.recipe.resume(found.argv, state, generation=2).argv == (
        "bash", "run.sh", "--resume_from_checkpoint=checkpoint-31",
    )  # fmt: skip


def test_a_variable_in_a_script_is_shown_and_left_alone(tmp_path: Path) -> None:
    """`--train_batch_size=$N` has its value where the variable is set: no guess is made."""
    text = RUN_SH.replace("size=4", "size=$N").replace("export", "N=4\nexport")
    found = case(tmp_path, "bash run.sh", {"mine.py": EXAMPLE, "run.sh": text})

    refused = refusal(found.recipe.plan, {"batch_size": "/2"}, allow_effective_batch_change=False)

    assert found.knobs()["batch_size"][0] == "4"
    assert (refused.reason, "run.sh:5" in str(refused)) == (Reason.KNOB_NOT_CHANGEABLE, True)


def test_adjust_takes_a_script(tmp_path: Path) -> None:
    """`tunewarden adjust run.sh`: the only file that an example of diffusers has."""
    found = case(tmp_path, "true", {"run.sh": RUN_SH})

    plan = adjust_file(found.folder / "run.sh", {"batch_size": "/2"})

    assert changed_lines(plan, "run.sh")[0] == "  --train_batch_size=2 \\"


def test_diffusers_goes_on_from_a_checkpoint_in_output_dir(diffusers: Case) -> None:
    """The name of the folder is the step, so the hook's states are named so too."""
    path = checkpoint(diffusers.folder / "out", 31, trainer=False)
    state = diffusers.recipe.states()[-1]

    resumption = diffusers.recipe.resume((*diffusers.argv, "--resume_from_checkpoint", "latest"), state, generation=2)

    assert state == SavedState(step=31, path=path)
    assert resumption.argv == (*diffusers.argv, "--resume_from_checkpoint=checkpoint-31")
    assert (resumption.hook.states, resumption.hook.state_name) == (diffusers.folder / "out", "checkpoint-{step}")


@pytest.mark.parametrize("name", ["elsewhere/checkpoint-31", "out/step-31", "out/checkpoint-30"])
def test_diffusers_would_begin_anew_without_a_word(diffusers: Case, name: str) -> None:
    """It looks for the last part of the path in output_dir, and trains anew when that isn't there."""
    state = SavedState(step=31, path=diffusers.folder / name)

    refused = refusal(diffusers.recipe.resume, diffusers.argv, state, generation=2)

    assert refused.reason is Reason.CANNOT_RESUME


def test_llama_factorys_yaml_and_its_inverse(llama: Case) -> None:
    """The YAML is copied; comments and `1.0e-4` stay; the old batch brings the bytes back."""
    plan = llama.half()

    assert changed_lines(plan, "a.yaml") == [
        "per_device_train_batch_size: 2   # 批大小",
        "gradient_accumulation_steps: 4",
    ]
    halved = llama.changed({"batch_size": "/2"})
    assert halved.argv == ("llamafactory-cli", "train", "a.tunewarden-g2.yaml")
    back = halved.recipe.plan({"batch_size": "4"}, allow_effective_batch_change=False)
    assert back.copies[0].new_bytes == LLAMA.encode()


def test_llama_factorys_words_rule_over_the_yaml(llama: Case) -> None:
    """key=value behind the file wins."""
    with_word = Case(folder=llama.folder, argv=(*llama.argv, "per_device_train_batch_size=8"))

    assert with_word.knobs()["batch_size"] == ("8", "argv", 4)
    assert with_word.half().argv[-1] == "per_device_train_batch_size=4"


def test_llama_factory_is_told_the_checkpoint(llama: Case) -> None:
    """resume_from_checkpoint=… replaces one that is there."""
    path = checkpoint(llama.folder / "saves/x", 31, trainer=True)
    before = (*llama.argv, "resume_from_checkpoint=old", "seed=1")

    resumption = llama.recipe.resume(before, llama.recipe.states()[-1], generation=2)

    assert resumption.argv == (*llama.argv, "seed=1", f"resume_from_checkpoint={path}")
    assert (resumption.hook.total_steps, resumption.hook.resume_by, resumption.hook.base_step) == (100, "trainer", 31)


def test_llama_factory_can_not_go_on_in_some_stages(llama: Case) -> None:
    """Reward models and PPO begin anew there."""
    (llama.folder / "a.yaml").write_text(LLAMA.replace("stage: sft", "stage: ppo"))
    state = SavedState(step=31, path=checkpoint(llama.folder / "saves/x", 31, trainer=True))

    assert refusal(llama.recipe.resume, llama.argv, state, generation=2).reason is Reason.CANNOT_RESUME


def test_another_effective_batch_would_change_max_steps(llama: Case) -> None:
    """transformers computes max_steps anew from the batch: 2x2 → 1x2 made 200 steps 400."""
    state = SavedState(step=31, path=checkpoint(llama.folder / "saves/x", 31, trainer=True))
    other = (*llama.argv, "per_device_train_batch_size=2")

    refused = refusal(llama.recipe.resume, other, state, generation=2)

    assert (refused.reason, "8 → 4" in str(refused)) == (Reason.CANNOT_RESUME, True)


def test_axolotls_yaml_and_its_inverse(axolotl: Case) -> None:
    """The accumulation that the YAML lacks becomes an option, before the words for the launcher."""
    halved = axolotl.changed({"batch_size": "/2"})

    assert changed_lines(axolotl.half(), "a.yml") == ["micro_batch_size: 2 # 批"]
    assert halved.argv[2] == "a.tunewarden-g2.yml"
    assert halved.argv[5:8] == ("--gradient-accumulation-steps", "2", "--")
    back = halved.recipe.plan({"batch_size": "4"}, allow_effective_batch_change=False)
    assert back.copies[0].new_bytes == AXOLOTL.encode()


def test_axolotl_is_told_the_checkpoint(axolotl: Case) -> None:
    """Before the words for the launcher."""
    state = SavedState(step=31, path=checkpoint(axolotl.folder / "outputs/x", 31, trainer=True))

    words = axolotl.recipe.resume(axolotl.argv, state, generation=2).argv

    assert words == (*axolotl.argv[:5], f"--resume-from-checkpoint={state.path}", *axolotl.argv[5:])
    assert axolotl.recipe.states() == (state,)


def test_axolotls_batch_size_excludes_the_accumulation(axolotl: Case) -> None:
    """Its own check ends the training when both are set."""
    (axolotl.folder / "a.yml").write_text(AXOLOTL + "batch_size: 16\n")

    refused = refusal(axolotl.recipe.plan, {"batch_size": "/2"}, allow_effective_batch_change=False)

    assert (refused.reason, "a.yml:6" in str(refused)) == (Reason.KNOB_NOT_CHANGEABLE, True)


def test_settings_in_python_are_told_with_the_line_to_write(tmp_path: Path) -> None:
    """Code is never changed: file, line and the new line, for batch and accumulation together."""
    found = case(tmp_path, "python sft.py", {"sft.py": SFT})

    refused = refusal(found.recipe.plan, {"batch_size": "/2"}, allow_effective_batch_change=False)

    assert found.knobs()["batch_size"] == ("4", "sft.py", 5)
    assert refused.reason is Reason.KNOB_NOT_CHANGEABLE
    for told in (
        f"{tmp_path}/sft.py:5: `per_device_train_batch_size=2,  # 批大小`",
        f"{tmp_path}/sft.py:6: `gradient_accumulation_steps=2,`",
    ):
        assert told in str(refused)
    assert (tmp_path / "sft.py").read_text() == SFT


def test_a_trainer_script_goes_on_by_the_hook(tmp_path: Path) -> None:
    """The command stays; output_dir is read in the code; the checkpoint is handed to Trainer.train."""
    found = case(tmp_path, "python sft.py", {"sft.py": SFT})
    checkpoint(tmp_path / "out", 31, trainer=True)

    resumption = found.recipe.resume(found.argv, found.recipe.states()[-1], generation=2)

    assert (resumption.argv, resumption.hook.resume_by, resumption.hook.base_step) == (found.argv, "hook", 31)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("args.json", '{\n  "per_device_train_batch_size": 4,\n  "gradient_accumulation_steps": 1\n}\n'),
        ("args.yaml", "per_device_train_batch_size: 4\ngradient_accumulation_steps: 1\n"),
    ],
)
def test_a_file_of_arguments_and_its_inverse(tmp_path: Path, name: str, text: str) -> None:
    """transformers' parser takes one file as its only word."""
    found = case(tmp_path, f"python run.py {name}", {"run.py": PARSED, name: text})
    halved = found.changed({"batch_size": "/2"})

    back = halved.recipe.plan({"batch_size": "4"}, allow_effective_batch_change=False)

    assert (found.recipe.trainer, len(changed_lines(found.half(), name))) == ("transformers", 2)
    assert back.copies[0].new_bytes == text.encode()


def test_arguments_of_the_parser_are_flags(tmp_path: Path) -> None:
    """TrainingArguments' own names and defaults."""
    found = case(tmp_path, "python run.py --per_device_train_batch_size 4 --output_dir o", {"run.py": PARSED})

    plan = found.half()

    assert plan.argv[2:4] == ("--per_device_train_batch_size", "2")
    assert plan.argv[-2:] == ("--gradient_accumulation_steps", "2")


def test_an_accelerate_loops_declared_options(loop: Case) -> None:
    """Options that the script declares can be changed, in its own spelling."""
    plan = loop.half()

    assert loop.knobs() == {"batch_size": ("4", "argv", 3), "data_workers": ("2", "loop.py", 6)}
    assert plan.argv == ("python", "loop.py", "--batch-size=2", "--gradient-accumulation-steps", "2")


def test_an_accelerate_loops_inverse(loop: Case) -> None:
    """The old value brings the old word back."""
    back = loop.changed({"batch_size": "/2"}).changed({"batch_size": "4"})

    assert back.argv[:3] == loop.argv


def test_a_loops_number_in_the_code(loop: Case) -> None:
    """num_workers stands in the DataLoader's call."""
    refused = refusal(loop.recipe.plan, {"data_workers": "4"}, allow_effective_batch_change=False)

    assert f"{loop.folder}/loop.py:6: `workers = DataLoader(data, num_workers=4)`" in str(refused)


def test_an_accelerate_loop_goes_on_by_the_hook(loop: Case) -> None:
    """The hook loads the state, counts on and stops it at the planned total."""
    resumption = loop.recipe.resume(loop.argv, SavedState(step=31, path=loop.folder), generation=2)

    assert (resumption.argv, resumption.hook.to_wire()) == (
        loop.argv,
        {
            "protocol": 1, "states": None, "state_name": None, "resume_by": "hook", "total_steps": None,
            "stop_at_total": True, "base_step": 31,
        },
    )  # fmt: skip


def test_a_loops_yaml_and_its_inverse(tmp_path: Path) -> None:
    """A file behind --config, with flat keys or below `training`."""
    text = "data: x\ntraining:\n  batch_size: 4  # 批\n  gradient_accumulation_steps: 1\n"
    found = case(tmp_path, "python loop.py --config c.yaml", {"loop.py": LOOP, "c.yaml": text})
    halved = found.changed({"batch_size": "/2"})

    back = halved.recipe.plan({"batch_size": "4"}, allow_effective_batch_change=False)

    assert found.knobs()["batch_size"] == ("4", "c.yaml", 3)
    assert back.copies[0].new_bytes == text.encode()


def test_unsloth_scripts_are_trainer_scripts(tmp_path: Path) -> None:
    """Recognised under their own name, saved and gone on with like any Trainer."""
    found = case(tmp_path, "python fast.py", {"fast.py": "import unsloth\n" + SFT})

    assert (found.recipe.trainer, found.recipe.hook_settings().state_name) == ("unsloth", "checkpoint-{step}")


def test_a_checkpoint_without_an_optimizer_is_told(llama: Case) -> None:
    """save_only_model leaves nothing to go on from."""
    (llama.folder / "a.yaml").write_text(LLAMA + "save_only_model: true\n")

    assert any("a.yaml:10: save_only_model" in each for each in llama.recipe.explain().warnings)
