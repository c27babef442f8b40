"""lora-scripts, kohya_ss and musubi-tuner: sd-scripts' relatives, each with its own places and traps."""

import json
from pathlib import Path

import pytest

from tests.unit.trainer_case import Case, case, changed_lines, changes
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.kohya_gui import is_json
from tunewarden.trainers.recipe import SavedState

SD = "from library import train_util\nargs = train_util.read_config_from_file(args, parser)\n"
AUTOSAVE = 'train_batch_size = 4\ngradient_accumulation_steps = 1\noutput_dir = "./output"\noutput_name = "aki"\n'
TRAIN_SH = """\
#!/bin/bash
# 训练参数
train_data_dir="./train/aki"
network_dim=32   # 网络维度
resolution="512,512"
batch_size=4     # 批大小
output_name="aki"
trainer_file="./scripts/stable/train_network.py"
extArgs=()
python -m accelerate.commands.launch ${launchArgs[@]} $trainer_file \\
  --train_data_dir=$train_data_dir --network_dim=$network_dim --resolution=$resolution \\
  --output_name=$output_name --output_dir="./output" --train_batch_size=$batch_size ${extArgs[@]}
"""
MUSUBI = """\
# 数据集
[general]
resolution = [960, 544]
batch_size = 4

[[datasets]]
image_directory = 'D:\\frames'
"""


@pytest.fixture
def autosave(tmp_path: Path) -> Case:
    """What the GUI of lora-scripts starts."""
    files = {
        "mikazuki/app.py": "",
        "scripts/stable/train_network.py": SD,
        "config/autosave/a.toml": AUTOSAVE,
        "output/.keep": "",
    }
    script = "./scripts/stable/train_network.py"
    line = f"python -m accelerate.commands.launch --quiet {script} --config_file config/autosave/a.toml"
    return case(tmp_path, line, files)


@pytest.fixture
def train_sh(tmp_path: Path) -> Case:
    """train.sh, whose settings are variables."""
    return case(tmp_path, "bash train.sh", {"train.sh": TRAIN_SH, "scripts/stable/train_network.py": SD})


@pytest.fixture
def gui(tmp_path: Path) -> Case:
    """What the kohya_ss GUI starts: the TOML that it wrote."""
    files = {
        "kohya_gui.py": "",
        "sd-scripts/train_network.py": SD,
        "out/config_lora-20261201-101112.toml": AUTOSAVE.replace("./output", "out") + "max_train_steps = 500\n",
    }
    line = "accelerate launch sd-scripts/train_network.py --config_file out/config_lora-20261201-101112.toml"
    return case(tmp_path, line, files)


@pytest.fixture
def musubi(tmp_path: Path) -> Case:
    """musubi-tuner: batch size in the dataset config, the rest as flags."""
    files = {
        "wan_train_network.py": "from musubi_tuner.wan_train_network import main\n",
        "d.toml": MUSUBI,
        "out/.k": "",
    }
    line = (
        "accelerate launch wan_train_network.py --dataset_config d.toml --output_dir out --output_name v "
        "--max_train_steps 200 --save_state --save_every_n_steps 50"
    )
    return case(tmp_path, line, files)


def test_lora_scripts_config_is_copied_and_edited(autosave: Case) -> None:
    """The TOML that the GUI wrote rules; the change and its inverse give its bytes."""
    plan = autosave.half()

    assert (autosave.recipe.trainer, changed_lines(plan, "a.toml")) == (
        "lora-scripts", ["train_batch_size = 2", "gradient_accumulation_steps = 2"],
    )  # fmt: skip
    halved = autosave.changed({"batch_size": "/2"})
    assert halved.argv[-1] == "config/autosave/a.tunewarden-g2.toml"
    back = halved.recipe.plan({"batch_size": "4"}, allow_effective_batch_change=False)
    assert [copy.new_bytes for copy in back.copies] == [AUTOSAVE.encode()]


def test_lora_scripts_goes_on_like_sd_scripts(autosave: Case) -> None:
    """Folder, cumulative step and a new name."""
    saved = SavedState(step=31, path=autosave.folder / "output")

    words = autosave.recipe.resume(autosave.argv, saved, generation=2).argv

    assert words[-4:] == (
        f"--resume={saved.path}", "--initial_step=31", "--output_name=aki-r2", "--skip_until_initial_step",
    )  # fmt: skip


def test_train_sh_holds_the_settings_as_variables(train_sh: Case) -> None:
    """The variable is what is read and what would be changed, in a copy of the script."""
    assert {name: place[:2] for name, place in train_sh.knobs().items()} == {
        "batch_size": ("4", "train.sh"),
        "network_dim": ("32", "train.sh"),
        "resolution": ("512,512", "train.sh"),
    }
    plan = train_sh.recipe.plan({"batch_size": "/2"}, allow_effective_batch_change=True)
    assert changed_lines(plan, "train.sh") == ["batch_size=2     # 批大小"]
    copy = train_sh.folder / "train.tunewarden-g2.sh"
    assert train_sh.recipe.argv_with(list(train_sh.argv), train_sh.folder / "train.sh", copy) == ["bash", copy.name]


def test_train_sh_and_its_inverse(train_sh: Case) -> None:
    """Half the batch, then the old one, gives the script's bytes."""
    plan = train_sh.recipe.plan({"batch_size": "/2"}, allow_effective_batch_change=True)
    (train_sh.folder / "train.sh").write_bytes(plan.copies[0].new_bytes)

    back = train_sh.recipe.plan({"batch_size": "*2"}, allow_effective_batch_change=True)

    assert back.copies[0].new_bytes == TRAIN_SH.encode()


def test_train_sh_has_no_place_for_the_accumulation(train_sh: Case) -> None:
    """Its batch can't be halved at the same effective batch, and it can't be gone on with: both are said."""
    with pytest.raises(Refused) as halved:
        train_sh.half()
    with pytest.raises(Refused) as resumed:
        train_sh.recipe.resume(train_sh.argv, SavedState(step=9, path=train_sh.folder), generation=2)

    assert halved.value.reason in (Reason.EFFECTIVE_BATCH_WOULD_CHANGE, Reason.COMMAND_IS_A_SCRIPT)
    assert (resumed.value.reason, "train.sh:10" in str(resumed.value)) == (Reason.COMMAND_IS_A_SCRIPT, True)


def test_the_guis_toml_rules(gui: Case) -> None:
    """kohya_ss: the TOML beside the results, with the number of steps that the GUI computed."""
    assert (gui.recipe.trainer, gui.recipe.hook_settings().total_steps) == ("kohya-gui", 500)
    assert len(changed_lines(gui.half(), "config_lora-20261201-101112.toml")) == 2
    halved = gui.changed({"batch_size": "/2"})
    assert halved.recipe.trainer == "kohya-gui"
    back = halved.recipe.plan({"batch_size": "4"}, allow_effective_batch_change=False)
    assert back.copies[0].new_bytes == (gui.folder / "out/config_lora-20261201-101112.toml").read_bytes()


def test_the_guis_json_is_known() -> None:
    """By keys that only the GUI writes together; a TOML's keys and other JSON aren't taken for it."""
    keys = frozenset({"LoRA_type", "max_resolution", "train_batch_size", "num_cpu_threads_per_process", "epoch"})

    assert (is_json(keys), is_json(frozenset({"train_batch_size", "max_resolution"}))) == (True, False)


def test_musubi_takes_the_batch_from_the_dataset_only(musubi: Case) -> None:
    """[general] rules where the data set says nothing; the accumulation is a flag."""
    assert musubi.knobs()["batch_size"] == ("4", "d.toml", 4)
    plan = musubi.half()
    assert changed_lines(plan, "d.toml") == ["batch_size = 2"]
    assert ("gradient_accumulation", "2", "argv") in {(each[0], each[2], each[3]) for each in changes(plan)}


def test_musubi_and_its_inverse(musubi: Case) -> None:
    """Half the batch, then the old one, gives the dataset config's bytes."""
    halved = musubi.changed({"batch_size": "/2"})

    back = halved.recipe.plan({"batch_size": "4"}, allow_effective_batch_change=False)

    assert [copy.new_bytes for copy in back.copies] == [MUSUBI.encode()]


def test_the_hook_stops_musubi_at_the_planned_total(musubi: Case) -> None:
    """After a resume it would make all 200 steps once more, so the hook counts on from 31 and ends it."""
    saved = SavedState(step=31, path=musubi.folder / "out")

    resumption = musubi.recipe.resume(musubi.argv, saved, generation=2)

    assert resumption.argv[-2:] == (f"--resume={saved.path}", "--output_name=v-r2")
    assert (resumption.hook.total_steps, resumption.hook.stop_at_total, resumption.hook.base_step) == (200, True, 31)
    assert musubi.recipe.hook_settings().stop_at_total is False


def test_musubis_states_of_later_generations_are_not_counted(musubi: Case) -> None:
    """They begin at 0 again and nothing says where; the hook's have the cumulative number."""
    for name in ("v-step00000050-state", "v-r2-step00000050-state", "v-tunewarden-step00000081"):
        path = musubi.folder / "out" / name
        path.mkdir()
        for file in ("model.safetensors", "optimizer.bin", "random_states_0.pkl"):
            (path / file).write_text(json.dumps(name))

    assert [(each.step, each.path.name) for each in musubi.recipe.states()] == [
        (50, "v-step00000050-state"),
        (81, "v-tunewarden-step00000081"),
    ]
