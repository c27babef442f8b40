"""hiyouga/LLaMA-Factory: `llamafactory-cli train X.yaml key=value…`. Facts are from its source (ff6d4d1).

Words `key=value` behind the file override it; without a file the words are flags. It goes on by itself from the last
checkpoint in output_dir unless overwrite_output_dir is set; we name the checkpoint.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import hf_ways, marks
from tunewarden.trainers.command import Command, Kind
from tunewarden.trainers.known import Known, Ways, sha_of
from tunewarden.trainers.layers import Layer, Syntax
from tunewarden.trainers.paths import is_file
from tunewarden.trainers.recipe import Explanation, Resumption, SavedState, Tier
from tunewarden.trainers.words import with_option, with_words

TRAINER = "llama-factory"

KEYS: Mapping[str, str] = {
    tuning.BATCH: "per_device_train_batch_size",
    tuning.ACCUMULATION: "gradient_accumulation_steps",
    "data_workers": "dataloader_num_workers",
    "persistent_workers": "dataloader_persistent_workers",
    "pin_memory": "dataloader_pin_memory",
    "network_dim": "lora_rank",
    "network_alpha": "lora_alpha",
}
DEFAULTS: Mapping[str, str] = {
    tuning.BATCH: "8",
    tuning.ACCUMULATION: "1",
    "data_workers": "0",
    "persistent_workers": "false",
    "pin_memory": "true",
    "network_dim": "8",
}
_FACTS = (
    "output_dir", "max_steps", "num_train_epochs", "save_steps", "save_strategy", "save_only_model", "stage",
    "finetuning_type", "resume_from_checkpoint", "overwrite_output_dir",
)  # fmt: skip
_PROGRAMS = {"llamafactory-cli", "lmf", "llamafactory.cli"}


def runs(command: Command) -> bool:
    """Whether the command trains with LLaMA-Factory."""
    if command.kind is not Kind.SCRIPT:
        return marks.is_program(command, _PROGRAMS, "train")
    return marks.imports_like(command, r"llamafactory\.train(\.tuner)?|llamafactory\.train\.tuner\.run_exp")


def recognise(command: Command, cwd: Path) -> Known | None:
    """The recipe when the command runs LLaMA-Factory."""
    if not runs(command):
        return None
    file = _file(command)
    layers = _layers(command, file, KEYS, DEFAULTS)
    return Known(
        trainer=TRAINER,
        tier=Tier.KNOWN,
        command=command,
        cwd=cwd,
        layers=layers,
        facts=_layers(command, file, {name: name for name in _FACTS}, {}),
        ways=WAYS,
        config_sha256=sha_of(layers),
    )


def _first(command: Command) -> int:
    """The index of the first word behind `train`."""
    return command.program + (2 if command.kind is not Kind.SCRIPT else 1)


def _file(command: Command) -> Path | None:
    words = command.words[_first(command) :][:1]
    path = command.resolve(words[0]) if words and words[0].endswith((".yaml", ".yml", ".json")) else None
    return path if is_file(path) else None


def _layers(
    command: Command, file: Path | None, names: Mapping[str, str], defaults: Mapping[str, str]
) -> tuple[Layer, ...]:
    first = _first(command)
    if file is None:
        flags = {knob: ((f"--{key}",),) for knob, key in names.items()}
        return (Layer(syntax=Syntax.FLAGS, file=None, keys=flags, defaults=defaults, first=first),)
    keys = {knob: ((key,),) for knob, key in names.items()}
    syntax = Syntax.JSON if file.suffix == ".json" else Syntax.YAML
    return (
        Layer(syntax=Syntax.ASSIGNMENTS, file=None, keys=keys, defaults=defaults, first=first + 1),
        Layer(syntax=syntax, file=file, keys=keys),
    )


def _resume(known: Known, argv: Sequence[str], state: SavedState, generation: int) -> Resumption:  # noqa: ARG001
    stage, kind = known.text_of("stage"), known.text_of("finetuning_type")
    if stage in ("rm", "ppo"):
        raise Refused(
            Reason.CANNOT_RESUME,
            f"stage {stage} with finetuning_type {kind or 'lora'}: the trainer does not go on from a checkpoint there",
        )
    has_file = _file(known.command) is not None

    def words(command: Command) -> Sequence[str]:
        first = _first(command)
        if not has_file:
            return with_option(command.words, first, "--resume_from_checkpoint", str(state.path))
        kept = [word for i, word in enumerate(command.words) if i < first or not word.startswith(_RESUME)]
        return with_words(kept, first, f"{_RESUME}{state.path}")

    return hf_ways.resume_with(known, argv, state, lambda command: recognise(command, known.cwd), words)


_RESUME = "resume_from_checkpoint="


def _explain(known: Known) -> Explanation:
    return Explanation(
        saves="the training hook, at the next optimizer step, as checkpoint-N in output_dir",
        adjusts="a copy of the YAML beside it, or the words key=value of the command; batch × accumulation stays",
        resumes="resume_from_checkpoint=STATE; not in stage rm and ppo",
        warnings=hf_ways.warnings(known),
        files=known.files(),
        defaults=known.defaults(),
    )


WAYS = Ways(hook_settings=hf_ways.hook_settings, resume=_resume, states=hf_ways.saved_states, explain=_explain)
