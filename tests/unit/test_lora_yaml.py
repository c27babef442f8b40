"""The recipe of the articles' flat YAML: recognise a command, read and plan knobs, change the argv."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tunewarden.domain.reason import Reason
from tunewarden.domain.tuning import KNOBS
from tunewarden.errors import Refused
from tunewarden.trainers import known
from tunewarden.trainers.adjusting import adjust_file
from tunewarden.trainers.layers import plan_layers
from tunewarden.trainers.lora_yaml import FILE_KEYS
from tunewarden.trainers.recipe import ConfigPlan, Recipe
from tunewarden.trainers.table import recognise

ARTICLE = """\
# 训练配置
train_data_dir: "./data/style_train"
metadata_path: "./data/style_train/metadata.csv"
base_model: "./models/Stable-diffusion/v1-5-pruned.safetensors"
lora_rank: 8
use_gradient_checkpointing: true
mixed_precision: "fp16"
batch_size: 4  # 批大小
epochs: 10
learning_rate: 2e-4
optimizer: "adamw_8bit"
output_dir: "./output/my_style_lora"
save_steps: 100
logging_dir: "./output/my_style_lora/logs"
"""
WITH_ACCUMULATION = ARTICLE.replace("epochs:", "gradient_accumulation_steps: 1\nepochs:")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The articles' file, with an accumulation key, as `configs/my_lora.yaml`."""
    return written(tmp_path, WITH_ACCUMULATION)


def written(folder: Path, text: str) -> Path:
    path = folder / "configs" / "my_lora.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    return path


def recipe_of(config: Path, *more: str) -> Recipe:
    recipe = recognise(["python", "train.py", "--config", str(config), *more], config.parent)
    assert recipe is not None
    return recipe


def refusal_of(recipe: Recipe, knobs: Mapping[str, str], *, launched: str | None = None) -> Refused:
    with pytest.raises(Refused) as caught:
        recipe.plan(knobs, allow_effective_batch_change=False, launched_sha256=launched)
    assert "\n" not in str(caught.value)
    return caught.value


COMMANDS = [
    "python train.py --config configs/my_lora.yaml",
    "python train.py --config=configs/my_lora.yaml",
    "python3 -u train.py --config ./configs/my_lora.yaml --seed 1",
    "python3.11 -X dev -W error train.py --config configs/my_lora.yaml",
    "/opt/conda/envs/lora/bin/python tools/train.py --config configs/my_lora.yaml",
    "./train.py --config configs/my_lora.yaml",
    "accelerate launch --num_processes 1 --config_file acc.yaml train.py --config configs/my_lora.yaml",
    "python -m accelerate.commands.launch train.py --config configs/my_lora.yaml",
    "torchrun --nproc_per_node 2 train.py --config configs/my_lora.yaml",
    "python -m torch.distributed.run --nproc_per_node 2 train.py --config configs/my_lora.yaml",
    "uv run train.py --config configs/my_lora.yaml",
    "uv run --with x python -u train.py --config configs/my_lora.yaml",
    "conda run --no-capture-output -n lora python train.py --config configs/my_lora.yaml",
    "env A=b CUDA_VISIBLE_DEVICES=0 python train.py --config configs/my_lora.yaml",
    "nice -n 10 taskset -c 0-3 python train.py --config configs/my_lora.yaml",
    "nohup python train.py --config configs/my_lora.yaml",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_python_script_with_a_config_is_recognised(config: Path, command: str) -> None:
    """Launchers before the script and other options after it don't matter; a relative path counts from the folder."""
    cwd = config.parent.parent

    recipe = recognise(command.split(), cwd)

    assert recipe is not None
    assert (recipe.trainer, recipe.config_path.resolve()) == ("lora-yaml", config.resolve())


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "train.py"],
        ["python", "train.py", "--config"],
        ["python", "train.py", "--config", "configs/none.yaml"],
        ["python", "train.py", "--config", "configs"],
        ["python", "train.py", "--config", "configs/my_lora.toml"],
        ["python", "train.py", "--config", "configs/my_lora.yaml", "--config", "configs/my_lora.yaml"],
        ["python", "train.py", "--", "--config", "configs/my_lora.yaml"],
        ["python", "train.py", "configs/my_lora.yaml"],
        ["python", "--config", "configs/my_lora.yaml", "train.py"],
        ["python", "-c", "import train", "train.py", "--config", "configs/my_lora.yaml"],
        ["python", "-cpass", "train.py", "--config", "configs/my_lora.yaml"],
        ["python", "-m", "mypkg", "train.py", "--config", "configs/my_lora.yaml"],
        ["python", "-m", "train", "--config", "configs/my_lora.yaml"],
        ["bash", "train.py", "--config", "configs/my_lora.yaml"],
        ["ssh", "host", "python", "train.py", "--config", "configs/my_lora.yaml"],
        ["docker", "run", "image", "python", "train.py", "--config", "configs/my_lora.yaml"],
        ["env", "-C", "elsewhere", "python", "train.py", "--config", "configs/my_lora.yaml"],
        ["conda", "run", "--cwd=elsewhere", "python", "train.py", "--config", "configs/my_lora.yaml"],
        [],
    ],
)
def test_other_commands_are_not_ours(config: Path, argv: Sequence[str]) -> None:
    """Shells, other hosts, `-c`, a config that is not there or not clearly named: not recognised."""
    (config.parent / "my_lora.toml").write_bytes(config.read_bytes())

    assert recognise(argv, config.parent.parent) is None


@pytest.mark.parametrize(
    "text",
    [
        "model: {base_model: x}\nbatch_size: 4\n",
        "job: extension\nconfig: {name: x}\n",
        "- base_model: x\n",
        "",
        "text\n",
    ],
)
def test_another_programs_yaml_is_not_ours(tmp_path: Path, text: str) -> None:
    """A YAML file without the articles' keys at its top level belongs to some other trainer."""
    config = written(tmp_path, text)

    assert recognise(["python", "train.py", "--config", str(config)], tmp_path) is None


def test_the_knobs_are_read_by_their_canonical_names(config: Path) -> None:
    """Each knob has its value as written, and its line."""
    knobs = recipe_of(config).read_knobs()

    assert {name: (knob.value, knob.line) for name, knob in knobs.items()} == {
        "network_dim": ("8", 5),
        "gradient_checkpointing": ("true", 6),
        "mixed_precision": ("fp16", 7),
        "batch_size": ("4", 8),
        "gradient_accumulation": ("1", 9),
    }
    assert {knob.file for knob in knobs.values()} == {config}


def test_half_the_batch_gets_twice_the_accumulation(config: Path) -> None:
    """The plan changes both keys and nothing else, and shows it."""
    plan = recipe_of(config).plan({"batch_size": "/2"}, allow_effective_batch_change=False)

    assert [(c.knob, c.old, c.new, c.file, c.line) for c in plan.changes] == [
        ("batch_size", "4", "2", config, 8),
        ("gradient_accumulation", "1", "2", config, 9),
    ]
    assert plan.effective_batch == (4, 4)
    assert plan.warnings == ()
    wanted = WITH_ACCUMULATION.replace("batch_size: 4", "batch_size: 2").replace("steps: 1\n", "steps: 2\n")
    assert plan.copies[0].new_bytes == wanted.encode()
    changed = [line for line in plan.diff.splitlines()[2:] if line[:1] in "+-"]
    assert changed == [
        "-batch_size: 4  # 批大小",
        "-gradient_accumulation_steps: 1",
        "+batch_size: 2  # 批大小",
        "+gradient_accumulation_steps: 2",
    ]
    assert config.read_bytes() == WITH_ACCUMULATION.encode()


def test_no_accumulation_key_is_invented(tmp_path: Path) -> None:
    """The article's own file has no accumulation key: refused with both numbers, the place and what to do."""
    config = written(tmp_path, ARTICLE)

    refused = refusal_of(recipe_of(config), {"batch_size": "/2"})

    assert refused.reason is Reason.EFFECTIVE_BATCH_WOULD_CHANGE
    assert str(refused).startswith(f"{config}:8: effective batch 4 → 2; give the file a gradient_accumulation_steps")


def test_a_changed_effective_batch_may_be_allowed(tmp_path: Path) -> None:
    """A policy may allow it: the plan then says so in a warning."""
    recipe = recipe_of(written(tmp_path, ARTICLE))

    plan = recipe.plan({"batch_size": "/2"}, allow_effective_batch_change=True)

    assert plan.copies[0].new_bytes == ARTICLE.replace("batch_size: 4", "batch_size: 2").encode()
    assert plan.effective_batch == (4, 2)
    assert "effective batch 4 → 2" in plan.warnings[0]


def test_the_inverse_change_gives_the_original_bytes(config: Path) -> None:
    """`/2`, then `*2` on the result, is the file as it was."""
    original = config.read_bytes()
    config.write_bytes(
        recipe_of(config).plan({"batch_size": "/2"}, allow_effective_batch_change=False).copies[0].new_bytes
    )

    plan = recipe_of(config).plan({"batch_size": "*2"}, allow_effective_batch_change=False)

    assert plan.copies[0].new_bytes == original


def test_several_knobs_are_changed_at_once(config: Path) -> None:
    """Switches and words are planned beside the batch, in the order of the file."""
    knobs = {"batch_size": "2", "mixed_precision": "bf16", "gradient_checkpointing": "false"}

    plan = recipe_of(config).plan(knobs, allow_effective_batch_change=False)

    assert [(c.knob, c.new) for c in plan.changes] == [
        ("gradient_checkpointing", "false"),
        ("mixed_precision", "bf16"),
        ("batch_size", "2"),
        ("gradient_accumulation", "2"),
    ]
    assert b'mixed_precision: "bf16"\n' in plan.copies[0].new_bytes


@pytest.mark.parametrize("knobs", [{}, {"batch_size": "4"}, {"gradient_checkpointing": "on"}])
def test_what_stands_so_already_is_no_change(config: Path, knobs: Mapping[str, str]) -> None:
    """A plan without changes has no copy and an empty diff."""
    plan = recipe_of(config).plan(knobs, allow_effective_batch_change=False)

    assert (plan.changes, plan.diff, plan.copies) == ((), "", ())


REFUSALS = [
    ({"batch_size": "/2"}, ("batch_size: 4", "batch_size: 1"), Reason.AT_MINIMUM, ":8: batch_size is 1"),
    (
        {"batch_size": "/2"},
        ("batch_size: 4", "batch_size: auto"),
        Reason.KNOB_NOT_CHANGEABLE,
        ":8: `batch_size` is `auto`",
    ),
    ({"batch_size": "/2"}, ("batch_size: 4", "batch_size: 010"), Reason.KNOB_NOT_CHANGEABLE, "`010`"),
    ({"batch_size": "/2"}, ("batch_size: 4", "batch_size: 4.0"), Reason.KNOB_NOT_CHANGEABLE, "`4.0`"),
    (
        {"batch_size": "/2"},
        ("batch_size: 4", "batch_size: [4]"),
        Reason.KNOB_NOT_CHANGEABLE,
        ":8: `batch_size` is a list",
    ),
    ({"batch_size": "/2"}, ("steps: 1\n", "steps: x\n"), Reason.KNOB_NOT_CHANGEABLE, ":9:"),
    ({"batch_size": "/2"}, ("batch_size: 4", "batch_sizes: 4"), Reason.KNOB_NOT_FOUND, "no `batch_size`"),
    ({"batch_size": "/2"}, ("lora_rank: 8", "batch_size: 8"), Reason.CONFIG_MALFORMED, ":8: `batch_size` is set more"),
    ({"batch_size": "/2"}, ("lora_rank: 8", "lora_rank: [8"), Reason.CONFIG_MALFORMED, ":6: is no YAML"),
    ({"cache_latents": "true"}, ("", ""), Reason.KNOB_NOT_FOUND, "no `cache_latents`"),
    ({"learning_rate": "/2"}, ("", ""), Reason.KNOB_NOT_FOUND, "no knob is called `learning_rate`"),
    ({"batch_size": "two"}, ("", ""), Reason.KNOB_NOT_CHANGEABLE, "whole number"),
    ({"network_dim": "/2"}, ("", ""), Reason.KNOB_NOT_CHANGEABLE, ":5: no checkpoint of network_dim 8 can"),
    ({"mixed_precision": "fp16"}, ('"fp16"', "bf16"), Reason.KNOB_NOT_CHANGEABLE, ":7: no checkpoint of mixed_prec"),
    ({"batch_size": "/2"}, ("batch_size: 4", "batch_size: 1000000"), Reason.KNOB_NOT_CHANGEABLE, "`1000000`"),
]


@pytest.mark.parametrize(("knobs", "edit", "reason", "text"), REFUSALS)
def test_a_plan_that_can_not_be_is_refused_by_name(
    tmp_path: Path, knobs: Mapping[str, str], edit: tuple[str, str], reason: Reason, text: str
) -> None:
    """Each refusal has a reason and names file and line."""
    config = written(tmp_path, WITH_ACCUMULATION.replace(*edit) if edit[0] else WITH_ACCUMULATION)

    refused = refusal_of(recipe_of(config), knobs)

    assert refused.reason is reason
    assert str(refused).startswith(f"{config}:")
    assert text in str(refused)


def test_a_damaged_file_of_the_articles_kind_is_recognised_and_its_fault_told(tmp_path: Path) -> None:
    """A file in GBK is not passed over as unknown: the plan says that it is not UTF-8, and where."""
    config = written(tmp_path, "")
    config.write_bytes(WITH_ACCUMULATION.encode("gbk"))

    refused = refusal_of(recipe_of(config), {"batch_size": "/2"})

    assert refused.reason is Reason.CONFIG_MALFORMED
    assert str(refused).startswith(f"{config}:1: is not UTF-8")


def test_a_config_edited_meanwhile_is_not_planned_on(config: Path) -> None:
    """What the job had read is no longer what the file says, even if only a comment changed."""
    recipe = recipe_of(config)
    config.write_bytes(config.read_bytes() + b"# later\n")

    assert refusal_of(recipe, {"batch_size": "/2"}).reason is Reason.CONFIG_CHANGED


def test_a_config_edited_while_it_is_planned_is_not_planned_on(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit between the hash and the reading is found out, too."""
    recipe = recipe_of(config)

    def edit_and_plan(*args: Any, **more: Any) -> ConfigPlan:
        config.write_bytes(config.read_bytes().replace(b"batch_size: 4", b"batch_size: 8"))
        return plan_layers(*args, **more)

    monkeypatch.setattr(known, "plan_layers", edit_and_plan)

    assert refusal_of(recipe, {"batch_size": "/2"}).reason is Reason.CONFIG_CHANGED


def test_the_hash_at_the_launch_counts_over_the_one_at_recognition(config: Path) -> None:
    """An agent that was started again hands in the hash that it had noted at the launch."""
    launched = recipe_of(config).config_sha256
    config.write_bytes(config.read_bytes() + b"# later\n")

    assert refusal_of(recipe_of(config), {"batch_size": "/2"}, launched=launched).reason is Reason.CONFIG_CHANGED


def test_a_config_that_is_gone_is_not_found(config: Path) -> None:
    """A config deleted after the launch is `config_not_found`, for reading and for planning."""
    recipe = recipe_of(config)
    config.unlink()

    assert refusal_of(recipe, {"batch_size": "/2"}).reason is Reason.CONFIG_NOT_FOUND
    with pytest.raises(Refused) as caught:
        recipe.read_knobs()
    assert caught.value.reason is Reason.CONFIG_NOT_FOUND


@pytest.mark.parametrize(
    "flags",
    [["--batch_size", "8"], ["--batch_size=8"], ["--batch-size=8"], ["--gradient_accumulation_steps", "2"]],
)
def test_a_knob_that_the_command_sets_too_is_refused(config: Path, flags: list[str]) -> None:
    """Two sources may disagree: the refusal names both."""
    refused = refusal_of(recipe_of(config, *flags), {"batch_size": "/2"})

    assert refused.reason is Reason.KNOB_HAS_TWO_SOURCES
    assert str(refused).startswith(f"{config}:")
    assert flags[0].partition("=")[0] in str(refused)


def test_a_flag_of_another_knob_does_not_matter(config: Path) -> None:
    """`--lora_rank 8` in the command says nothing about the batch."""
    plan = recipe_of(config, "--lora_rank", "8").plan({"batch_size": "/2"}, allow_effective_batch_change=False)

    assert len(plan.changes) == 2


ARGVS = [
    (
        ["python", "train.py", "--config", "configs/my_lora.yaml", "--tag", "configs/my_lora.yaml"],
        ["python", "train.py", "--config", "configs/my_lora.g2.yaml", "--tag", "configs/my_lora.yaml"],
    ),
    (
        ["python", "-u", "train.py", "--x", "--config=./configs/my_lora.yaml"],
        ["python", "-u", "train.py", "--x", "--config=./configs/my_lora.g2.yaml"],
    ),
    (
        ["python", "train.py", "--config", "{cwd}/configs/my_lora.yaml"],
        ["python", "train.py", "--config", "{cwd}/configs/my_lora.g2.yaml"],
    ),
]


@pytest.mark.parametrize(("argv", "wanted"), ARGVS)
def test_exactly_the_config_argument_is_replaced(config: Path, argv: list[str], wanted: list[str]) -> None:
    """The new name is spelt as the old one was: relative stays relative, `=` stays `=`."""
    cwd = config.parent.parent
    argv, wanted = ([word.replace("{cwd}", str(cwd)) for word in each] for each in (argv, wanted))
    recipe = recognise(argv, cwd)
    assert recipe is not None

    assert recipe.argv_with(argv, recipe.config_path, config.with_name("my_lora.g2.yaml")) == wanted


def test_a_config_named_in_a_shells_text_is_replaced_there(config: Path) -> None:
    """`sh -c "python train.py --config X"` names the copy in the same text."""
    argv = ["sh", "-c", "python train.py --config configs/my_lora.yaml"]
    recipe = recognise(argv, config.parent.parent)
    assert recipe is not None and recipe.config_path is not None

    new = recipe.argv_with(argv, recipe.config_path, config.with_name("my_lora.g2.yaml"))

    assert new == ["sh", "-c", "python train.py --config configs/my_lora.g2.yaml"]


def test_a_new_config_elsewhere_is_named_in_full(config: Path, tmp_path: Path) -> None:
    """When the new file is not beside the old one, its whole path is written."""
    argv = ["python", "train.py", "--config", "my_lora.yaml"]
    recipe = recognise(argv, config.parent)
    assert recipe is not None

    assert recipe.argv_with(argv, recipe.config_path, tmp_path / "n.yaml")[-1] == str(tmp_path / "n.yaml")


def test_an_argv_that_does_not_name_the_config_is_refused(config: Path) -> None:
    """Nothing is guessed when no argument names the old file."""
    recipe = recipe_of(config)

    with pytest.raises(Refused) as caught:
        recipe.argv_with(["python", "train.py", "--config", "other.yaml"], recipe.config_path, config)

    assert caught.value.reason is Reason.CONFIG_NOT_FOUND


def test_a_persons_own_adjusting_warns_instead_of_refusing(tmp_path: Path) -> None:
    """`tunewarden adjust` plans the change and warns of the effective batch."""
    config = written(tmp_path, ARTICLE)

    plan = adjust_file(config, {"batch_size": "/2", "network_dim": "4"})

    assert [(c.knob, c.old, c.new) for c in plan.changes] == [("network_dim", "8", "4"), ("batch_size", "4", "2")]
    assert plan.warnings[0].startswith(f"{config}:8: effective batch 4 → 2")


def test_adjusting_takes_a_relative_path(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's path is absolute wherever the command was started."""
    monkeypatch.chdir(config.parent)

    assert adjust_file(Path("my_lora.yaml"), {"batch_size": "/2"}).copies[0].config_path == config


def test_the_reference_page_lists_every_knob_and_its_key() -> None:
    """docs/reference/knobs.md has one row for each knob, with the key of the file."""
    page = (Path(__file__).parents[2] / "docs/reference/knobs.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" `") for cell in line.split("|")] for line in page.splitlines() if line.startswith("| `")]

    assert {row[1]: row[3] for row in rows if row[1] in FILE_KEYS} == FILE_KEYS
    assert FILE_KEYS.keys() == KNOBS.keys() - {"expandable_segments"}
