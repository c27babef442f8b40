"""huggingface/diffusers, the scripts below examples/: flags only. Facts are from its source (58eb52c).

`--resume_from_checkpoint checkpoint-N` is looked for in output_dir by its last part, and N is the step; a name that is
not there silently begins a new training. So the hook's states must be checkpoint-N in output_dir.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import marks, places, sd_scripts, states
from tunewarden.trainers.code_knobs import knobs_in_code
from tunewarden.trainers.command import Command
from tunewarden.trainers.known import Known, Ways
from tunewarden.trainers.paths import is_folder
from tunewarden.trainers.recipe import Explanation, HookSettings, Resumption, SavedState, Tier
from tunewarden.trainers.words import with_option

TRAINER = "diffusers"

_NAMES = (
    r"train_(text_to_image|dreambooth|controlnet|instruct_pix2pix|unconditional|custom_diffusion|t2i_adapter|lcm|"
    r"amused|cogvideox|control_|cosmos|vqgan)\w*\.py"
)
ARGUMENTS: Mapping[str, str] = {
    tuning.BATCH: "train_batch_size",
    tuning.ACCUMULATION: "gradient_accumulation_steps",
    "resolution": "resolution",
    "data_workers": "dataloader_num_workers",
    "cache_latents": "cache_latents",
    "gradient_checkpointing": "gradient_checkpointing",
    "mixed_precision": "mixed_precision",
    "network_dim": "rank",
    "network_alpha": "lora_alpha",
}
_DEFAULTS: Mapping[str, str] = {tuning.ACCUMULATION: "1", "data_workers": "0", "gradient_checkpointing": "false"}
_FACTS = ("output_dir", "max_train_steps", "num_train_epochs", "resume_from_checkpoint", "checkpointing_steps")


def runs(command: Command) -> bool:
    """Whether the command runs an example script of diffusers, renamed or not."""
    if marks.imports(command, "diffusers") and marks.imports(command, "accelerate"):
        return marks.declares(command, "--checkpointing_steps", "--resume_from_checkpoint", "--train_batch_size")
    return marks.is_named(command, _NAMES)


def recognise(command: Command, cwd: Path) -> Known | None:
    """The recipe when the command runs a diffusers example."""
    if not runs(command):
        return None
    code = knobs_in_code(command.text)
    has = {knob: name for knob, name in ARGUMENTS.items() if not command.text or (f"--{name}",) in _flags(code.flags)}
    defaults = {knob: value for knob, value in {**_DEFAULTS, **code.defaults}.items() if knob in has}
    return Known(
        trainer=TRAINER,
        tier=Tier.KNOWN,
        command=command,
        cwd=cwd,
        layers=(places.flags_layer(command, has, defaults),),
        facts=(places.flags_layer(command, {name: name for name in _FACTS}),),
        ways=WAYS,
        config_sha256=None,
    )


def _flags(flags: Mapping[str, tuple[tuple[str, ...], ...]]) -> set[tuple[str, ...]]:
    return {path for paths in flags.values() for path in paths}


def _hook_settings(known: Known, base_step: int = 0) -> HookSettings:
    return HookSettings(
        states=known.folder_of("output_dir"),
        state_name="checkpoint-{step}",
        resume_by="trainer",
        total_steps=tuning.as_count(known.text_of("max_train_steps")),
        base_step=base_step,
    )


def _resume(known: Known, argv: Sequence[str], state: SavedState, generation: int) -> Resumption:  # noqa: ARG001
    folder = known.folder_of("output_dir")
    if folder is None or state.path.parent != folder or state.path.name != f"checkpoint-{state.step}":
        raise Refused(
            Reason.CANNOT_RESUME,
            f"{state.path}: the trainer only finds checkpoint-{state.step} in --output_dir ({folder or 'none'}), "
            "and would begin anew without a word; move the state there",
        )
    command = known.command_in(argv)
    new = recognise(command, known.cwd)
    sd_scripts.refuse_unresumable(known, new or known, state)
    words = with_option(command.words, command.program + 1, "--resume_from_checkpoint", state.path.name)
    return Resumption(argv=tuple(command.argv_with(words)), hook=_hook_settings(known, state.step))


def _states(known: Known) -> tuple[SavedState, ...]:
    folder = known.folder_of("output_dir")
    return states.checkpoints(folder, states.complete_accelerate) if folder else ()


def _warnings(known: Known) -> tuple[str, ...]:
    lines = []
    if known.folder_of("output_dir") is None:
        lines.append("no --output_dir is given: the script's own default is not known here, so it can't be resumed")
    setting = known.fact("resume_from_checkpoint")
    folder = known.folder_of("output_dir")
    if setting and folder and setting.value != "latest" and not is_folder(folder / Path(setting.value).name):
        lines.append(
            f"word {setting.line} of the command: {folder / Path(setting.value).name} is not there: a new training "
            "would begin without a word; give the name of a checkpoint in --output_dir"
        )
    return tuple(lines)


def _explain(known: Known) -> Explanation:
    return Explanation(
        saves="the training hook, at the next optimizer step, as checkpoint-N in --output_dir; the script itself saves "
        "every --checkpointing_steps and can't be asked from outside",
        adjusts="flags of the command; batch × accumulation stays",
        resumes="--resume_from_checkpoint checkpoint-N",
        warnings=_warnings(known),
        files=known.files(),
        defaults=known.defaults(),
    )


WAYS = Ways(hook_settings=_hook_settings, resume=_resume, states=_states, explain=_explain)
