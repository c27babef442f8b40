"""kohya-ss/musubi-tuner: sd-scripts' sister for video and newer image models. Facts are from its source (30c658c).

Batch size and resolution stand in the dataset config only. It writes no train_state.json: after --resume it counts
from 0 again and would make all planned steps once more, with the LR scheduler further on (musubi-tuner#307). So the
training hook counts, and stops it at the planned total.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import marks, places, sd_scripts, sd_scripts_warnings, states
from tunewarden.trainers.command import Command
from tunewarden.trainers.known import Known, Ways, sha_of
from tunewarden.trainers.paths import is_file
from tunewarden.trainers.recipe import Explanation, HookSettings, Resumption, SavedState, Tier
from tunewarden.trainers.words import with_words, without

TRAINER = "musubi-tuner"

_MODELS = "hv|hv_1_5|wan|fpack|flux_kontext|flux_2|qwen_image|zimage|kandinsky5|krea2|ideogram4|hidream_o1"
_NAMES = rf"({_MODELS})_train(_network)?(_self_flow)?\.py"
_LAST = "last"
_MAX_TRAIN_STEPS = 1600
ARGUMENTS: Mapping[str, str] = {
    knob: name
    for knob, name in sd_scripts.ARGUMENTS.items()
    if knob not in (tuning.BATCH, "resolution", "cache_latents")  # latents are always cached, by another program
}
DEFAULTS: Mapping[str, str] = {knob: sd_scripts.DEFAULTS[knob] for knob in ARGUMENTS if knob in sd_scripts.DEFAULTS}
_FACTS = (
    "output_dir", "output_name", "resume", "save_state", "save_state_on_train_end", "save_every_n_steps",
    "save_every_n_epochs", "max_train_steps", "max_train_epochs", "dataset_config",
)  # fmt: skip


def runs(command: Command) -> bool:
    """Whether the command trains with musubi-tuner, as a script of any name or as a module."""
    if marks.is_module(command, command.name) and re.fullmatch(rf"(musubi_tuner\.)?{_NAMES}", f"{command.name}.py"):
        return True
    if marks.imports_like(command, rf"musubi_tuner\.({_MODELS})_train(_network)?|musubi_tuner\.training\..*"):
        return re.search("cache|generate", marks.script_name(command)) is None
    return marks.is_named(command, _NAMES)


def recognise(command: Command, cwd: Path) -> Known | None:
    """The recipe when the command runs musubi-tuner."""
    if not runs(command):
        return None
    config = places.named_file(command, "--config_file", default_suffix=".toml")
    dataset, named_in = places.dataset_file(command, config)
    layers = (
        *places.dataset_layers(dataset, sd_scripts.DATASET, named_in),
        places.flags_layer(command, ARGUMENTS, DEFAULTS),
        *places.config_layers(config, ARGUMENTS),
    )
    names = {name: name for name in _FACTS}
    return Known(
        trainer=TRAINER,
        tier=Tier.KNOWN,
        command=command,
        cwd=cwd,
        layers=layers,
        facts=(places.flags_layer(command, names), *places.config_layers(config, names)),
        ways=WAYS,
        config_sha256=sha_of(layers),
        main=dataset or config,
    )


def planned_name(known: Known) -> str:
    """The name that the user gave: `cat`, also where a resumed generation of ours writes `cat-r2`."""
    name = known.text_of("output_name") or _LAST
    ours = re.fullmatch(r"(.+)-r\d+", name)
    return ours[1] if ours and known.text_of("resume") else name


def total_steps(known: Known) -> int | None:
    """The planned optimizer steps; None where epochs rule."""
    if known.text_of("max_train_epochs"):
        return None
    text = known.text_of("max_train_steps")
    return tuning.as_count(text) if text else _MAX_TRAIN_STEPS


def _hook_settings(known: Known, base_step: int = 0) -> HookSettings:
    name = planned_name(known)
    return HookSettings(
        states=known.folder_of("output_dir"),
        state_name=None if set("{}") & set(name) else f"{name}-tunewarden-step{{step:08d}}",
        resume_by="trainer",
        total_steps=total_steps(known),
        stop_at_total=base_step > 0,
        base_step=base_step,
    )


def _resume(known: Known, argv: Sequence[str], state: SavedState, generation: int) -> Resumption:
    command = known.command_in(argv)
    new = recognise(command, known.cwd)
    if new is None:
        raise Refused(Reason.CANNOT_RESUME, f"{command.name} is no training script of musubi-tuner any more")
    sd_scripts.refuse_unresumable(known, new, state)
    name = f"{planned_name(known)}-r{generation}"
    words = without(command.words, command.program + 1, "--resume", "--output_name")
    words = with_words(words, command.program + 1, f"--resume={state.path}", f"--output_name={name}")
    return Resumption(argv=tuple(command.argv_with(words)), hook=_hook_settings(known, state.step))


def _final(known: Known) -> tuple[Path, Path] | None:
    """What the trainer wrote, or the network in the last state where the hook ended it at the planned total."""
    folder, name, planned = known.folder_of("output_dir"), known.text_of("output_name"), planned_name(known)
    if folder is None or name in ("", planned):
        return None
    own, saved = folder / f"{name}.safetensors", _states(known)
    written = saved[-1].path / "model.safetensors" if saved and not is_file(own) else own
    return written, folder / f"{planned}.safetensors"


def _states(known: Known) -> tuple[SavedState, ...]:
    """States of the hook, and those of the first generation: later ones begin to count at 0 again."""
    folder = known.folder_of("output_dir")
    if folder is None:
        return ()
    name = re.escape(planned_name(known))
    rules = [
        (re.compile(rf"{name}-tunewarden-step(\d+)(?:-tw\d+)?"), lambda path, number: int(number)),  # noqa: ARG005
        (re.compile(rf"{name}-step(\d+)-state"), lambda path, number: int(number)),  # noqa: ARG005
    ]
    return states.named_states(folder, rules, states.complete_accelerate)


def _explain(known: Known) -> Explanation:
    name = planned_name(known)
    return Explanation(
        saves=f"the training hook, at the next optimizer step, into {known.text_of('output_dir') or 'output_dir'}/"
        f"{name}-tunewarden-stepNNNNNNNN; the trainer itself can't be asked from outside",
        adjusts="a copy of the dataset config beside it, and flags of the command; batch × accumulation stays",
        resumes=f"--resume STATE --output_name {name}-r2; the trainer counts from 0 again, so the training hook stops "
        "it at the planned total, and the result is the model.safetensors of that last state",
        warnings=tuple(sd_scripts_warnings.saving(known)) + tuple(sd_scripts_warnings.resuming(known)),
        files=known.files(),
        defaults=known.defaults(),
    )


WAYS = Ways(hook_settings=_hook_settings, resume=_resume, states=_states, explain=_explain, final=_final)
