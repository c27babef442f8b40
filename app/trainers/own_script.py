"""Scripts of the user's own: on transformers' Trainer (also with unsloth), an accelerate loop, or any other Python.

Knobs are options that the script's text declares, flat keys of a file that it is given, and settings in its code,
which are told with the line to write and never changed. The training hook saves and resumes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import hf_ways, marks, places, python_code, states
from tunewarden.trainers.code_knobs import NAMES, fixed_knobs, knobs_in_code, refuse_fixed, usual_flags
from tunewarden.trainers.command import Command, Kind, option_values
from tunewarden.trainers.known import Known, Ways, sha_of
from tunewarden.trainers.layers import KeyPath, Layer, Syntax
from tunewarden.trainers.paths import is_file
from tunewarden.trainers.recipe import Explanation, HookSettings, Resumption, SavedState, Tier

_TRAINERS = ("Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer", "GRPOTrainer", "KTOTrainer", "ORPOTrainer",
             "RewardTrainer")  # fmt: skip
_TRL = ("sft", "dpo", "grpo", "kto", "orpo", "reward", "rloo")  # what `trl` is told to do
_PARSERS = ("HfArgumentParser", "TrlParser")
_HF_DEFAULTS: Mapping[str, str] = {
    "batch_size": "8", "gradient_accumulation": "1", "data_workers": "0", "persistent_workers": "false",
    "pin_memory": "true", "gradient_checkpointing": "false",
}  # fmt: skip
# TrainingArguments' own names come first in NAMES; a parser of its dataclass takes only these.
_HF_NAMES: Mapping[str, str] = {knob: names[0] for knob, names in NAMES.items() if knob in _HF_DEFAULTS}
_SYNTAXES = {".yaml": Syntax.YAML, ".yml": Syntax.YAML, ".json": Syntax.JSON, ".toml": Syntax.TOML}
_CONFIG_OPTIONS = ("--config", "--config_file", "--config-file", "--cfg")
_FACTS = (
    "output_dir", "max_steps", "num_train_epochs", "save_only_model", "save_strategy", "resume_from_checkpoint",
    "max_train_steps",
)  # fmt: skip
_LEARNS = (
    "torch", "tensorflow", "jax", "keras", "paddle", "accelerate", "transformers", "peft", "trl", "diffusers",
    "mindspore", "deepspeed",
)  # fmt: skip


_PREPARES = r"(.*_)?cache_(latents|text_encoder_outputs|pixel)\.py"  # a step before a training, that trains nothing


def recognise_transformers(command: Command, cwd: Path) -> Known | None:
    """A script that builds transformers' Trainer, or one of trl's; `trl sft` and its like."""
    if command.kind is Kind.PROGRAM and command.name == "trl" and command.args[:1] and command.args[0] in _TRL:
        return _recipe(command, cwd, "transformers", Tier.PROVEN, TRAINER_WAYS)
    if marks.imports_like(command, r"(transformers|trl)(\..*)?") and marks.calls(command, *_TRAINERS):
        return _recipe(command, cwd, "transformers", Tier.PROVEN, TRAINER_WAYS)
    return None


def recognise_unsloth(command: Command, cwd: Path) -> Known | None:
    """A script that imports unsloth: transformers' Trainer with other kernels."""
    if marks.imports(command, "unsloth"):
        return _recipe(command, cwd, "unsloth", Tier.NAMED, TRAINER_WAYS)
    return None


def recognise_accelerate(command: Command, cwd: Path) -> Known | None:
    """A loop of the user's own around accelerate's Accelerator."""
    if marks.imports(command, "accelerate") and marks.calls(command, "Accelerator") and not _prepares(command):
        return _recipe(command, cwd, "accelerate", Tier.PROVEN, LOOP_WAYS)
    return None


def recognise_python(command: Command, cwd: Path) -> Known | None:
    """Any other Python script that imports a library for training."""
    if marks.imports(command, *_LEARNS) and not _prepares(command):
        return _recipe(command, cwd, "python", Tier.KNOWN, LOOP_WAYS)
    return None


def _prepares(command: Command) -> bool:
    return re.fullmatch(_PREPARES, marks.script_name(command)) is not None


def _recipe(command: Command, cwd: Path, trainer: str, tier: Tier, ways: Ways) -> Known:
    code = knobs_in_code(command.text)
    parsed = command.kind is Kind.PROGRAM or marks.calls(command, *_PARSERS)
    flags = _hf_flags() if parsed else dict(code.flags) if command.text else usual_flags()
    defaults = _HF_DEFAULTS if parsed else {knob: code.defaults[knob] for knob in code.defaults if knob in flags}
    file = _file(command, positional=parsed)
    layers = (
        Layer(syntax=Syntax.FLAGS, file=None, keys=flags, defaults=defaults, first=command.program + 1),
        *_file_layers(file, NAMES),
    )
    facts = (
        places.flags_layer(command, {name: name for name in _FACTS}),
        *_file_layers(file, {name: (name,) for name in _FACTS}),
    )
    known = Known(
        trainer=trainer,
        tier=tier,
        command=command,
        cwd=cwd,
        layers=layers,
        facts=facts,
        ways=ways,
        config_sha256=sha_of(layers),
    )
    return known if parsed else replace(known, extra=fixed_knobs(command, code.fixed))


def _hf_flags() -> dict[str, tuple[KeyPath, ...]]:
    return {knob: ((f"--{name}",), (f"--{name.replace('_', '-')}",)) for knob, name in _HF_NAMES.items()}


def _file(command: Command, *, positional: bool) -> Path | None:
    """The file of settings that the script is given, by option or, to transformers' parser, as the only word."""
    first = command.program + 1
    words = [value for option in _CONFIG_OPTIONS for _, value in option_values(command.words, first, option)]
    if positional and len(command.args) == 1:
        words += command.args
    paths = [command.resolve(word) for word in words if Path(word).suffix.lower() in _SYNTAXES]
    found = [path for path in paths if path is not None and is_file(path)]
    return found[0] if len(found) == 1 and len(words) == 1 else None


def _file_layers(file: Path | None, names: Mapping[str, tuple[str, ...]]) -> tuple[Layer, ...]:
    if file is None:
        return ()
    keys: dict[str, tuple[KeyPath, ...]] = {
        knob: (*((name,) for name in each), *((group, name) for group in ("training", "train") for name in each))
        for knob, each in names.items()
    }
    return (Layer(syntax=_SYNTAXES[file.suffix.lower()], file=file, keys=keys),)


def _check(known: Known, knobs: Mapping[str, str]) -> None:
    """A knob that only the code sets can't be changed; what options and files set can."""
    layered = {knob for layer in known.layers for knob in layer.keys}
    fixed = {knob: asked for knob, asked in knobs.items() if knob not in layered or _only_code(known, knob)}
    refuse_fixed(known.command, fixed)


def _only_code(known: Known, knob: str) -> bool:
    return known.read_knobs().get(knob) == known.extra.get(knob)


def _output_dir(known: Known) -> Path | None:
    """output_dir as the command, a file or the code says it plainly."""
    path = known.folder_of("output_dir")
    if path is not None:
        return path
    for call in ("TrainingArguments", "SFTConfig", "Seq2SeqTrainingArguments", "Accelerator"):
        keyword = "project_dir" if call == "Accelerator" else "output_dir"
        setting = python_code.keyword_value(known.command.text, call, keyword)
        if setting is not None:
            return known.command.resolve(setting.value)
    return None


def _resume_trainer(known: Known, argv: Sequence[str], state: SavedState, generation: int) -> Resumption:  # noqa: ARG001
    return hf_ways.resume_with(known, argv, state, lambda command: _same(known, command), None)


def _same(known: Known, command: Command) -> Known | None:
    return _recipe(command, known.cwd, known.trainer, known.tier, known.ways)


def _trainer_states(known: Known) -> tuple[SavedState, ...]:
    folder = _output_dir(known)
    return states.checkpoints(folder, states.complete_transformers) if folder else ()


def _loop_settings(known: Known, base_step: int = 0) -> HookSettings:
    """The hook counts and resumes; it stops a loop that would make all planned steps again."""
    return HookSettings(resume_by="hook", total_steps=_total(known), stop_at_total=base_step > 0, base_step=base_step)


def _total(known: Known) -> int | None:
    """The planned optimizer steps, where an option or a file says them."""
    settings = [known.fact(name) for name in ("max_train_steps", "max_steps")]
    counts = [tuning.as_count(setting.value) for setting in settings if setting is not None]
    return next((count for count in counts if count), None)


def _resume_loop(known: Known, argv: Sequence[str], state: SavedState, generation: int) -> Resumption:  # noqa: ARG001
    """The hook counts optimizer steps itself, so another effective batch, where it is allowed, confuses nothing."""
    if is_file(state.path) and known.trainer == "accelerate":
        raise Refused(Reason.CANNOT_RESUME, f"{state.path}: is a file; the hook loads a folder that it has saved")
    return Resumption(argv=tuple(argv), hook=_loop_settings(known, state.step))


def _no_states(known: Known) -> tuple[SavedState, ...]:  # noqa: ARG001
    """What a loop of the user's own leaves on disk only it knows; the hook's states the agent knows."""
    return ()


def _in_code(known: Known) -> tuple[str, ...]:
    """Settings that stand in the code, for a person who wants to change them."""
    lines = []
    for knob, each in sorted(known.extra.items()):
        places = knobs_in_code(known.command.text).fixed.get(knob, ())
        others = f" (also {', '.join(str(place.line) for place in places[1:])})" if len(places) > 1 else ""
        lines.append(f"{each.file}:{each.line}: {knob} {each.value} stands in the code{others}: change it there")
    return tuple(lines)


def _explain_trainer(known: Known) -> Explanation:
    return Explanation(
        saves="the training hook, at the next optimizer step, as checkpoint-N in output_dir",
        adjusts=_adjusts(known),
        resumes="restarted by tunewarden: the same command; the hook hands the checkpoint to Trainer.train",
        warnings=(*hf_ways.warnings(known), *_in_code(known)),
        files=known.files(),
        defaults=known.defaults(),
    )


def _explain_loop(known: Known) -> Explanation:
    return Explanation(
        saves="the training hook, at the next optimizer step of an accelerate loop; else what the script promises in "
        "hello.json (docs/howto/any-trainer.md)",
        adjusts=_adjusts(known),
        resumes="restarted by tunewarden: the same command; the hook loads the state, or the script reads resume.json",
        warnings=_in_code(known),
        files=known.files(),
        defaults=known.defaults(),
    )


def _adjusts(known: Known) -> str:
    file = next(iter(known.files()), None)
    flags = any(layer.syntax is Syntax.FLAGS and layer.keys for layer in known.layers)
    ways = [f"a copy of {file.name} beside it"] if file else []
    ways += ["options that the script declares"] if flags else []
    return " and ".join(ways) if ways else "nothing: the settings stand in the script's code"


TRAINER_WAYS = Ways(
    hook_settings=hf_ways.hook_settings,
    resume=_resume_trainer,
    states=_trainer_states,
    explain=_explain_trainer,
    check=_check,
)
LOOP_WAYS = Ways(
    hook_settings=_loop_settings, resume=_resume_loop, states=_no_states, explain=_explain_loop, check=_check
)
