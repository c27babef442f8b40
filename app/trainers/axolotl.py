"""axolotl: `axolotl train X.yml` and `-m axolotl.cli.train X.yml`. Facts are from its source (067b021).

Options of the command override the YAML; the command starts `accelerate launch` itself.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import hf_ways, marks
from tunewarden.trainers.command import Command, Kind
from tunewarden.trainers.known import Known, Ways, sha_of
from tunewarden.trainers.layers import KeyPath, Layer, Syntax
from tunewarden.trainers.paths import is_file
from tunewarden.trainers.recipe import Explanation, Resumption, SavedState, Tier
from tunewarden.trainers.sd_scripts_warnings import place
from tunewarden.trainers.words import with_words, without

TRAINER = "axolotl"

KEYS: Mapping[str, str] = {
    tuning.BATCH: "micro_batch_size",
    tuning.ACCUMULATION: "gradient_accumulation_steps",
    "data_workers": "dataloader_num_workers",
    "pin_memory": "dataloader_pin_memory",
    "gradient_checkpointing": "gradient_checkpointing",
    "network_dim": "lora_r",
    "network_alpha": "lora_alpha",
}
DEFAULTS: Mapping[str, str] = {tuning.BATCH: "1", tuning.ACCUMULATION: "1"}
_FACTS = (
    "output_dir", "max_steps", "num_epochs", "save_strategy", "save_only_model", "batch_size",
    "resume_from_checkpoint", "auto_resume_from_checkpoints",
)  # fmt: skip
_SWITCHES = ("pin_memory", "gradient_checkpointing")  # --x / --no-x on the command line: left to the YAML


def runs(command: Command) -> bool:
    """Whether the command trains one model with axolotl; a sweep trains many."""
    trains = marks.is_program(command, {"axolotl"}, "train") or marks.is_module(
        command, "axolotl.cli.train", "axolotl.train"
    )
    trains = trains or (command.kind is Kind.SCRIPT and marks.imports(command, "axolotl.cli.train"))
    return trains and not any(word.partition("=")[0] == "--sweep" for word in command.args)


def recognise(command: Command, cwd: Path) -> Known | None:
    """The recipe when the command runs axolotl."""
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


def _file(command: Command) -> Path | None:
    for word in command.args:
        if word.endswith((".yml", ".yaml")) and not word.startswith("-"):
            path = command.resolve(word)
            return path if is_file(path) else None
    return None


def _layers(
    command: Command, file: Path | None, names: Mapping[str, str], defaults: Mapping[str, str]
) -> tuple[Layer, ...]:
    flags: dict[str, tuple[KeyPath, ...]] = {
        name: ((f"--{key.replace('_', '-')}",), (f"--{key}",))
        for name, key in names.items()
        if name not in _SWITCHES or file is None
    }
    words = Layer(syntax=Syntax.FLAGS, file=None, keys=flags, defaults=defaults, first=command.program + 1)
    if file is None:
        return (words,)
    return words, Layer(syntax=Syntax.YAML, file=file, keys={name: ((key,),) for name, key in names.items()})


def _check(known: Known, knobs: Mapping[str, str]) -> None:
    whole = known.fact("batch_size")
    if whole is not None and knobs.keys() & {tuning.BATCH, tuning.ACCUMULATION}:
        raise Refused(
            Reason.KNOB_NOT_CHANGEABLE,
            f"{place(whole)}: batch_size and gradient_accumulation_steps exclude each other; replace batch_size by "
            "gradient_accumulation_steps",
        )


def _resume(known: Known, argv: Sequence[str], state: SavedState, generation: int) -> Resumption:  # noqa: ARG001
    def words(command: Command) -> Sequence[str]:
        first = command.program + 1
        kept = without(command.words, first, "--resume-from-checkpoint", "--resume_from_checkpoint")
        return with_words(kept, first, f"--resume-from-checkpoint={state.path}")

    return hf_ways.resume_with(known, argv, state, lambda command: recognise(command, known.cwd), words)


def _explain(known: Known) -> Explanation:
    return Explanation(
        saves="the training hook, at the next optimizer step, as checkpoint-N in output_dir",
        adjusts="a copy of the YAML beside it, or options of the command; batch × accumulation stays",
        resumes="--resume-from-checkpoint=STATE",
        warnings=hf_ways.warnings(known),
        files=known.files(),
        defaults=known.defaults(),
    )


WAYS = Ways(
    hook_settings=hf_ways.hook_settings, resume=_resume, states=hf_ways.saved_states, explain=_explain, check=_check
)
