"""kohya-ss/sd-scripts: train_network.py and its family.

Facts are from its source (48d368fa, 2026-02) and from runs of it; docs/reference/trainers.md says which is which.
Rules of its settings: dataset TOML ([[datasets]], then [general]) over flags over the config TOML, whose sections are
only labels; `--config_file X` means X.toml; --max_train_epochs overrides --max_train_steps.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import marks, places, sd_scripts_warnings, states
from tunewarden.trainers.command import Command
from tunewarden.trainers.known import Known, Ways, sha_of
from tunewarden.trainers.layers import KeyPath, Layer, Syntax
from tunewarden.trainers.paths import is_file
from tunewarden.trainers.recipe import Explanation, HookSettings, Resumption, SavedState, Tier
from tunewarden.trainers.words import with_words, without

TRAINER = "sd-scripts"

_MODELS = "sdxl|sd3|flux|lumina|hunyuan_image|anima"
_NAMES = (
    rf"(({_MODELS})_)?train_network\.py|({_MODELS})_train\.py|train_db\.py|fine_tune\.py"
    r"|(sdxl_)?train_(textual_inversion|control_net)\.py"
)
# Canonical knob → the name that argparse knows, in flags and in the config TOML.
ARGUMENTS: Mapping[str, str] = {
    tuning.BATCH: "train_batch_size",
    tuning.ACCUMULATION: "gradient_accumulation_steps",
    "resolution": "resolution",
    "cache_latents": "cache_latents",
    "data_workers": "max_data_loader_n_workers",
    "persistent_workers": "persistent_data_loader_workers",
    "gradient_checkpointing": "gradient_checkpointing",
    "mixed_precision": "mixed_precision",
    "network_dim": "network_dim",
    "network_alpha": "network_alpha",
}
DEFAULTS: Mapping[str, str] = {
    tuning.BATCH: "1",
    tuning.ACCUMULATION: "1",
    "cache_latents": "false",
    "data_workers": "8",
    "persistent_workers": "false",
    "gradient_checkpointing": "false",
}
DATASET: Mapping[str, str] = {tuning.BATCH: "batch_size", "resolution": "resolution"}
_FACTS = (
    "output_dir", "output_name", "resume", "save_state", "save_state_on_train_end", "save_every_n_steps",
    "save_every_n_epochs", "save_n_epoch_ratio", "max_train_steps", "max_train_epochs", "train_data_dir", "in_json",
    "dataset_config", "cache_text_encoder_outputs", "initial_step", "skip_until_initial_step", "save_model_as",
)  # fmt: skip
# Settings of a subset: subset over dataset over [general] over the arguments.
_SUBSET_FACTS = (
    "color_aug", "random_crop", "shuffle_caption", "caption_dropout_rate", "caption_tag_dropout_rate",
    "token_warmup_step",
)  # fmt: skip
_LAST = "last"  # the name of a result without --output_name
_MAX_TRAIN_STEPS = 1600  # where nothing is said


def runs(command: Command) -> bool:
    """Whether the command runs a training script of sd-scripts, renamed or not."""
    if marks.calls(command, "read_config_from_file") and marks.imports(command, "library"):
        return not marks.imports(command, "musubi_tuner") and "cache_" not in marks.script_name(command)
    return marks.is_named(command, _NAMES)


def recognise(command: Command, cwd: Path) -> Known | None:
    """The recipe when the command runs sd-scripts itself."""
    return recipe(command, cwd) if runs(command) else None


def recipe(command: Command, cwd: Path, *, trainer: str = TRAINER, ways: Ways | None = None) -> Known:
    """The recipe of a command that runs sd-scripts, under the name of the project that it came with."""
    config = places.named_file(command, "--config_file", default_suffix=".toml")
    dataset, named_in = places.dataset_file(command, config)
    layers = (
        *places.dataset_layers(dataset, DATASET, named_in),
        places.flags_layer(command, ARGUMENTS, DEFAULTS),
        *places.config_layers(config, ARGUMENTS),
    )
    facts = (
        *_dataset_facts(dataset),
        places.flags_layer(command, {name: name for name in (*_FACTS, *_SUBSET_FACTS)}),
        *places.config_layers(config, {name: name for name in (*_FACTS, *_SUBSET_FACTS)}),
    )
    return Known(
        trainer=trainer,
        tier=Tier.PROVEN if trainer == TRAINER else Tier.KNOWN,
        command=command,
        cwd=cwd,
        layers=layers,
        facts=facts,
        ways=ways or WAYS,
        config_sha256=sha_of(layers),
        main=config or dataset,
    )


def _dataset_facts(dataset: Path | None) -> tuple[Layer, ...]:
    if dataset is None:
        return ()
    syntax = Syntax.JSON if dataset.suffix.lower() == ".json" else Syntax.TOML
    prefixes: tuple[KeyPath, ...] = (("datasets", "*", "subsets", "*"), ("datasets", "*"), ("general",))
    return tuple(
        Layer(syntax=syntax, file=dataset, keys={name: ((*prefix, name),) for name in _SUBSET_FACTS})
        for prefix in prefixes
    )


def planned_name(known: Known) -> str:
    """The name that the user gave to the result: `cat`, also where a generation of ours writes `cat-r2`."""
    name = known.text_of("output_name") or _LAST
    ours = re.fullmatch(r"(.+)-r\d+", name)
    return ours[1] if ours and _base(known) else name


def _base(known: Known) -> int:
    """The optimizer steps that earlier generations made, as we said them with --initial_step."""
    return tuning.as_count(known.text_of("initial_step")) or 0


def total_steps(known: Known) -> int | None:
    """The planned optimizer steps; None where epochs rule, since their length is the data's."""
    if known.text_of("max_train_epochs"):
        return None
    text = known.text_of("max_train_steps")
    return tuning.as_count(text) if text else _MAX_TRAIN_STEPS


def hook_settings(known: Known, base_step: int = 0) -> HookSettings:
    """States go into output_dir under a name of ours, whose number is the cumulative step: the trainer's own isn't."""
    name = planned_name(known)
    plain = not set("{}") & set(name)
    return HookSettings(
        states=known.folder_of("output_dir"),
        state_name=f"{name}-tunewarden-step{{step:08d}}" if plain else None,
        resume_by="trainer",
        total_steps=total_steps(known),
        base_step=base_step,
    )


def resume(known: Known, argv: Sequence[str], state: SavedState, generation: int) -> Resumption:
    """The flags with which sd-scripts goes on at the right epoch; see docs/reference/trainers.md for why these."""
    command = known.command_in(argv)
    new = recipe(command, known.cwd, trainer=known.trainer, ways=known.ways)
    refuse_unresumable(known, new, state)
    total = total_steps(new)
    if total is not None and state.step >= total:
        raise Refused(Reason.CANNOT_RESUME, f"{state.path}: step {state.step} is the planned end ({total})")
    name = f"{planned_name(known)}-r{generation}"
    flags = [f"--resume={state.path}", f"--initial_step={state.step}", f"--output_name={name}"]
    if _accumulations(known, new) == {"1"}:  # with more it would skip too much, up to the whole training
        flags.append("--skip_until_initial_step")
    elif (skip := new.fact("skip_until_initial_step")) is not None and skip.file is not None:
        raise Refused(
            Reason.CANNOT_RESUME,
            f"{skip.file}:{skip.line}: skip_until_initial_step counts wrongly at an accumulation above 1 and would "
            "train nothing; remove the line",
        )
    dropped = ("--resume", "--initial_step", "--initial_epoch", "--output_name", "--skip_until_initial_step")
    words = with_words(without(command.words, command.program + 1, *dropped), command.program + 1, *flags)
    return Resumption(argv=tuple(command.argv_with(words)), hook=hook_settings(known, state.step))


def refuse_unresumable(old: Known, new: Known, state: SavedState) -> None:
    """The state must be a folder, and one optimizer step must see as many samples as before."""
    if is_file(state.path):
        raise Refused(
            Reason.CANNOT_RESUME, f"{state.path}: is a file; the trainer resumes from a state's folder: give that"
        )
    before, after = effective_batch(old), effective_batch(new)
    if before is None or before != after:
        raise Refused(
            Reason.CANNOT_RESUME,
            f"effective batch {before or '?'} → {after or '?'}: the trainer would read the state's steps in another "
            "unit; keep batch size × accumulation equal",
        )


def effective_batch(known: Known) -> int | None:
    """Batch × accumulation as the settings say; None where one is no plain number."""
    sizes = [tuning.as_count(known.value(knob) or "1") for knob in (tuning.BATCH, tuning.ACCUMULATION)]
    return sizes[0] * sizes[1] if sizes[0] and sizes[1] else None


def _accumulations(old: Known, new: Known) -> set[str]:
    return {known.value(tuning.ACCUMULATION) or "1" for known in (old, new)}


def final(known: Known) -> tuple[Path, Path] | None:
    """`cat-r2.safetensors` and `cat.safetensors`, for a generation that we gave another name."""
    folder, name, planned = known.folder_of("output_dir"), known.text_of("output_name"), planned_name(known)
    suffix = known.text_of("save_model_as") or "safetensors"
    return (
        (folder / f"{name}.{suffix}", folder / f"{planned}.{suffix}") if folder and name and name != planned else None
    )


def saved_states(known: Known) -> tuple[SavedState, ...]:
    """The complete states in output_dir. The trainer's own numbers begin at 0 again in each generation."""
    folder = known.folder_of("output_dir")
    return named_in_folder(known, folder, states.complete_sd_scripts) if folder else ()


def named_in_folder(known: Known, folder: Path, complete: Callable[[Path], bool]) -> tuple[SavedState, ...]:
    """States by the names that the trainer and the hook give them, with cumulative steps."""
    planned, name, base = re.escape(planned_name(known)), known.text_of("output_name") or _LAST, _base(known)
    rules = [(re.compile(rf"{planned}-tunewarden-step(\d+)(?:-tw\d+)?"), _from_name(0))]
    for each, before in ((re.escape(name), base), (planned, 0)):
        rules.append((re.compile(rf"{each}-step(\d+)-state"), _from_name(before)))
        rules.append((re.compile(rf"{each}(?:-\d{{6}})?-state"), _from_train_state(before)))
    return states.named_states(folder, rules, complete)


def _from_name(base: int) -> Callable[[Path, str], int | None]:
    return lambda path, number: base + int(number)  # noqa: ARG005


def _from_train_state(base: int) -> Callable[[Path, str], int | None]:
    def step(path: Path, number: str) -> int | None:  # noqa: ARG001
        own = states.step_of_train_state(path)
        return None if own is None else base + own

    return step


def explain(known: Known) -> Explanation:
    """The recipe in sentences."""
    name = planned_name(known)
    skip = " --skip_until_initial_step" if known.value(tuning.ACCUMULATION) in ("", "1") else ""
    return Explanation(
        saves=f"the training hook, at the next optimizer step, into {known.text_of('output_dir') or 'output_dir'}/"
        f"{name}-tunewarden-stepNNNNNNNN; the trainer itself can't be asked from outside",
        adjusts="copies of the files that rule, beside them, and flags of the command; batch × accumulation stays",
        resumes=f"--resume STATE --initial_step STEP{skip} --output_name {name}-r2; max_train_* stay as they are, and "
        f"the last result gets the name {name}",
        warnings=sd_scripts_warnings.warnings(known),
        files=known.files(),
        defaults=known.defaults(),
    )


def check(known: Known, knobs: Mapping[str, str]) -> None:
    """Caches that the trainer refuses beside augmentation."""
    for knob, conflict in sd_scripts_warnings.CACHES.items():
        if knobs.get(knob, "").lower() in ("true", "yes", "on"):
            sd_scripts_warnings.refuse_conflict(known, knob, conflict)


WAYS = Ways(hook_settings=hook_settings, resume=resume, states=saved_states, explain=explain, check=check, final=final)
