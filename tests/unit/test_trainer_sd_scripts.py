"""sd-scripts: which file rules, what is written, and the flags with which it goes on."""

import json
from pathlib import Path

import pytest

from tests.unit.trainer_case import Case, case, changed_lines, changes
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.recipe import SavedState

SCRIPT = "from library import train_util\nargs = train_util.read_config_from_file(args, parser)\n"
CONFIG = """\
# 训练设置：一只猫
[model]
pretrained_model_name_or_path = 'C:\\models\\base.safetensors'

[ training ]   # 节名只是标签
train_batch_size = 4        # 批大小
learning_rate = 2e-4
network_dim=8
max_train_steps = 100
mixed_precision = "fp16"
output_dir = "out"
output_name = "cat"
save_state = true
save_every_n_steps = 20
train_data_dir = "data"
"""
DATASET = """\
[general]
resolution = 512
batch_size = 4

[[datasets]]
batch_size = 2

  [[datasets.subsets]]
  image_dir = 'D:\\cats'
  num_repeats = 10

[[datasets]]
  [[datasets.subsets]]
  image_dir = "b"
"""
LAUNCH = "accelerate launch --mixed_precision bf16 --gradient_accumulation_steps 9 train_network.py"


@pytest.fixture
def config(tmp_path: Path) -> Case:
    """A run by the config TOML alone, named without its suffix."""
    (tmp_path / "data" / "10_cat").mkdir(parents=True)
    return case(tmp_path, f"{LAUNCH} --config_file c", {"train_network.py": SCRIPT, "c.toml": CONFIG})


@pytest.fixture
def dataset(tmp_path: Path) -> Case:
    """A run whose batch sizes stand in a dataset TOML that the config TOML names."""
    files = {"train_network.py": SCRIPT, "d.toml": DATASET, "c.toml": CONFIG + 'dataset_config = "d.toml"\n'}
    return case(tmp_path, f"{LAUNCH} --config_file c.toml", files)


def state(folder: Path, name: str, step: int | None) -> Path:
    """A complete state, as accelerate and sd-scripts leave it."""
    path = folder / "out" / name
    path.mkdir(parents=True)
    for file in ("model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"):
        (path / file).write_bytes(b"x")
    if step is not None:
        (path / "train_state.json").write_text(json.dumps({"current_epoch": 1, "current_step": step}))
    return path


def resumed(case: Case, step: int = 31, generation: int = 2, argv: tuple[str, ...] | None = None) -> list[str]:
    """The words behind the script of the next generation."""
    saved = SavedState(step=step, path=case.folder / "out")
    saved.path.mkdir(exist_ok=True)
    found = case.recipe.resume(argv or case.argv, saved, generation=generation).argv
    return list(found[found.index("train_network.py") + 1 :])


def refusal(case: Case, knobs: dict[str, str]) -> Refused:
    with pytest.raises(Refused) as caught:
        case.recipe.plan(knobs, allow_effective_batch_change=False)
    return caught.value


def test_the_sections_of_the_config_are_only_labels(config: Case) -> None:
    """Keys are found in any section; the launcher's own options are not the trainer's."""
    assert config.knobs() == {
        "batch_size": ("4", "c.toml", 6),
        "network_dim": ("8", "c.toml", 8),
        "mixed_precision": ("fp16", "c.toml", 10),
    }
    assert config.recipe.config_path == config.folder / "c.toml"


def test_a_flag_rules_over_the_config(config: Case) -> None:
    """The command line beats the config TOML."""
    with_flag = Case(folder=config.folder, argv=(*config.argv, "--train_batch_size", "8"))

    assert with_flag.knobs()["batch_size"] == ("8", "argv", len(with_flag.argv))
    assert {each[:4] for each in changes(with_flag.half())} == {
        ("batch_size", "8", "4", "argv"),
        ("gradient_accumulation", "1", "2", "argv"),
    }


def test_two_places_that_disagree(config: Case) -> None:
    """What the config says and a flag overrules is told, with both places."""
    with_flag = Case(folder=config.folder, argv=(*config.argv, "--train_batch_size=8"))

    (told,) = with_flag.recipe.explain().warnings

    assert "c.toml:6: training.train_batch_size 4 does nothing" in told.replace(" training .", " training.")
    assert "sets --train_batch_size 8, and that counts" in told


def test_the_dataset_config_rules_over_all(dataset: Case) -> None:
    """Each [[datasets]] is scaled, and [general] for the one that says nothing; a flag does nothing."""
    with_flag = Case(folder=dataset.folder, argv=(*dataset.argv, "--train_batch_size=16"))

    plan = with_flag.half()

    assert changed_lines(plan, "d.toml") == ["batch_size = 2", "batch_size = 1"]
    assert [word for word in plan.argv if "batch" in word] == ["--train_batch_size=16"]
    assert any("train_batch_size 16 does nothing" in each for each in with_flag.recipe.explain().warnings)


def test_a_missing_accumulation_is_put_into_the_command(config: Case) -> None:
    """sd-scripts takes 1 where nothing is said, so doubling it needs a flag."""
    plan = config.half()

    assert changed_lines(plan, "c.toml") == ["train_batch_size = 2        # 批大小"]
    assert plan.argv[-1] == "--gradient_accumulation_steps=2" or plan.argv[-2:] == (
        "--gradient_accumulation_steps",
        "2",
    )
    assert plan.effective_batch == (4, 4)


def test_the_change_and_its_inverse(config: Case) -> None:
    """Half the batch, then the old one, gives the original bytes."""
    back = config.changed({"batch_size": "/2"}).recipe.plan({"batch_size": "4"}, allow_effective_batch_change=False)

    assert [copy.new_bytes for copy in back.copies] == [CONFIG.encode()]


def test_the_dataset_config_and_its_inverse(dataset: Case) -> None:
    """Unequal batch sizes are halved and doubled together; the copies name each other."""
    halved = dataset.changed({"batch_size": "/2"})

    back = halved.recipe.plan({"batch_size": "*2"}, allow_effective_batch_change=False)

    assert {copy.config_path.name: copy.new_bytes for copy in back.copies}["d.tunewarden-g2.toml"] == DATASET.encode()
    assert halved.argv[halved.argv.index("--config_file") + 1] == "c.tunewarden-g2.toml"
    assert b'"d.tunewarden-g2.toml"' in (dataset.folder / "c.tunewarden-g2.toml").read_bytes()


def test_going_on_at_accumulation_one(config: Case) -> None:
    """A folder, the cumulative step, the exact place in the data, and a name that overwrites nothing."""
    folder = config.folder / "out"

    assert resumed(config) == [
        "--config_file", "c", f"--resume={folder}", "--initial_step=31", "--output_name=cat-r2",
        "--skip_until_initial_step",
    ]  # fmt: skip


def test_no_skipping_at_an_accumulation_above_one(config: Case) -> None:
    """--skip_until_initial_step with accumulation 2 trained nothing at all, and ended with 0."""
    halved = config.changed({"batch_size": "/2"})

    words = resumed(config, argv=halved.argv)

    assert not [word for word in words if word.startswith("--skip")]
    assert [word for word in words if word.startswith("--max_train")] == []


def test_the_second_resumption_counts_on(config: Case) -> None:
    """Step 38 after 31 + 7, although the trainer's own files say 7; the planned name stays cat."""
    first = (*config.argv[:-2], *resumed(config))
    second = Case(folder=config.folder, argv=first)

    words = resumed(second, step=38, generation=3)

    assert [word for word in words if "step" in word or "name" in word] == [
        "--initial_step=38", "--output_name=cat-r3", "--skip_until_initial_step",
    ]  # fmt: skip


def test_the_last_result_gets_the_planned_name(config: Case) -> None:
    """What generation 2 writes at its end, and what the user planned; the first generation needs nothing."""
    second = Case(folder=config.folder, argv=(*config.argv, *resumed(config)[2:]))

    assert config.recipe.final() is None
    assert second.recipe.final() == (config.folder / "out/cat-r2.safetensors", config.folder / "out/cat.safetensors")


def test_the_hook_is_told_where_states_go(config: Case) -> None:
    """States lie beside the trainer's own, under a name whose number is cumulative."""
    settings = config.recipe.hook_settings()

    assert settings.to_wire() == {
        "protocol": 1,
        "states": str(config.folder / "out"),
        "state_name": "cat-tunewarden-step{step:08d}",
        "resume_by": "trainer",
        "total_steps": 100,
        "stop_at_total": False,
        "base_step": 0,
    }


def test_epochs_overrule_steps(config: Case) -> None:
    """With max_train_epochs the planned total is the data's, so it isn't guessed; the useless key is told."""
    epochs = Case(folder=config.folder, argv=(*config.argv, "--max_train_epochs=5"))

    assert epochs.recipe.hook_settings().total_steps is None
    assert any("max_train_steps does nothing" in each for each in epochs.recipe.explain().warnings)


def test_a_file_is_no_state(config: Case) -> None:
    """`resume` wants the folder, never model.safetensors."""
    file = config.folder / "model.safetensors"
    file.touch()

    with pytest.raises(Refused) as caught:
        config.recipe.resume(config.argv, SavedState(step=31, path=file), generation=2)

    assert caught.value.reason is Reason.CANNOT_RESUME


def test_another_effective_batch_is_not_gone_on_with(config: Case) -> None:
    """Steps would be read in a smaller unit: twice the training."""
    other = (*config.argv, "--train_batch_size=2")

    with pytest.raises(Refused) as caught:
        config.recipe.resume(other, SavedState(step=31, path=config.folder), generation=2)

    assert (caught.value.reason, "4 → 2" in str(caught.value)) == (Reason.CANNOT_RESUME, True)


def test_a_finished_training_is_not_gone_on_with(config: Case) -> None:
    """A state at the planned end has nothing left to train."""
    with pytest.raises(Refused) as caught:
        config.recipe.resume(config.argv, SavedState(step=100, path=config.folder), generation=2)

    assert caught.value.reason is Reason.CANNOT_RESUME


def test_states_on_disk_by_cumulative_step(config: Case) -> None:
    """Own and hook's states are ordered by the steps of the whole training; half ones are left out."""
    state(config.folder, "cat-step00000020-state", 20)
    state(config.folder, "cat-tunewarden-step00000031", 31)
    state(config.folder, "cat-r2-step00000007-state", 7)
    state(config.folder, "cat-step00000040-state", None)
    state(config.folder, "dog-step00000099-state", 99)
    second = Case(folder=config.folder, argv=(*config.argv, "--initial_step=31", "--output_name=cat-r2"))

    assert [(each.step, each.path.name) for each in second.recipe.states()] == [
        (20, "cat-step00000020-state"),
        (31, "cat-tunewarden-step00000031"),
        (38, "cat-r2-step00000007-state"),
    ]


@pytest.mark.parametrize("knob", ["color_aug", "random_crop"])
def test_caching_latents_beside_augmentation_is_refused(config: Case, knob: str) -> None:
    """The trainer would stop with an assertion; the message says which to give up."""
    (config.folder / "c.toml").write_text(CONFIG + f"{knob} = true\n")

    refused = refusal(config, {"cache_latents": "true"})

    assert refused.reason is Reason.KNOB_NOT_CHANGEABLE
    assert f"c.toml:16: cache_latents can't be on while {knob} is true" in str(refused)
    assert f"give up {knob}" in str(refused)


def test_a_subsets_augmentation_counts(dataset: Case) -> None:
    """random_crop of one subset is enough."""
    (dataset.folder / "d.toml").write_text(DATASET + "  random_crop = true\n")

    assert "d.toml:15" in str(refusal(dataset, {"cache_latents": "true"}))


@pytest.mark.parametrize(
    "line", ["shuffle_caption = true", "caption_dropout_rate = 0.1", "caption_tag_dropout_rate = 0.1"]
)
def test_cached_captions_that_change_are_told(config: Case, line: str) -> None:
    """cache_text_encoder_outputs beside shuffled or dropped captions ends the trainer at its start."""
    (config.folder / "c.toml").write_text(CONFIG + f"cache_text_encoder_outputs = true\n{line}\n")
    name = line.split()[0]

    assert any(f"give up {name} or cache_text_encoder" in each for each in config.recipe.explain().warnings)


WARNINGS = [
    ("save_every_n_steps = 20\n", "", "c.toml:13: save_state saves with each checkpoint"),
    ("save_state = true\n", "", "no save_state is set"),
    ('train_data_dir = "data"', 'train_data_dir = "out"', "c.toml:15: train_data_dir"),
    ('train_data_dir = "data"', 'train_data_dir = "data/10_cat"', "has no folder named REPEATS_NAME"),
    ("save_state = true", 'save_state = true\nresume = "c.toml"', "resume names a file"),
    ("save_state = true", 'save_state = true\nresume = "gone"', "which is not there"),
]


@pytest.mark.parametrize(("old", "new", "told"), WARNINGS)
def test_what_will_go_wrong_is_told(config: Case, old: str, new: str, told: str) -> None:
    """Each fault is one line with its place; the good config has none."""
    assert config.recipe.explain().warnings == ()

    (config.folder / "c.toml").write_text(CONFIG.replace(old, new))

    assert [told in each for each in config.recipe.explain().warnings] == [True]


@pytest.mark.parametrize(
    "text", ["train_batch_size = [4]", "train_batch_size = ", "train_batch_size = 4\ntrain_batch_size = 2"]
)
def test_bad_values_are_refused_with_a_reason(config: Case, text: str) -> None:
    """A list, no TOML at all, and a key that is there twice."""
    (config.folder / "c.toml").write_text(CONFIG.replace("train_batch_size = 4", text, 1))

    assert refusal(config, {"batch_size": "/2"}).reason in (Reason.KNOB_NOT_CHANGEABLE, Reason.CONFIG_MALFORMED)


def test_a_config_that_was_edited_meanwhile(config: Case) -> None:
    """The job read another file than the one that lies there now."""
    recipe = config.recipe
    (config.folder / "c.toml").write_text(CONFIG + "seed = 1\n")

    with pytest.raises(Refused) as caught:
        recipe.plan({"batch_size": "/2"}, allow_effective_batch_change=False)

    assert caught.value.reason is Reason.CONFIG_CHANGED


@pytest.mark.parametrize("knobs", [{"network_dim": "4"}, {"network_alpha": "2"}])
def test_what_a_state_depends_on_is_refused(config: Case, knobs: dict[str, str]) -> None:
    """A LoRA of rank 8 doesn't fit one of rank 4."""
    (config.folder / "c.toml").write_text(CONFIG + "network_alpha = 8\n")

    assert refusal(config, knobs).reason is Reason.KNOB_NOT_CHANGEABLE


def test_a_switch_is_put_in_and_taken_out(config: Case) -> None:
    """gradient_checkpointing is a flag without a value."""
    on = config.changed({"gradient_checkpointing": "true"})

    assert on.argv[-1] == "--gradient_checkpointing"
    assert on.changed({"gradient_checkpointing": "false"}).argv == config.argv
