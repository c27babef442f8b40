"""Knobs of a script of the user's own: the options that its text declares, and what stands in its Python."""

from collections.abc import Mapping
from dataclasses import dataclass

from tunewarden.domain import effective_batch, tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import python_code
from tunewarden.trainers.command import Command
from tunewarden.trainers.python_code import CodeSetting
from tunewarden.trainers.recipe import Knob

# Canonical knob → the names that scripts give it, the usual one first: options, keywords and constants alike.
NAMES: Mapping[str, tuple[str, ...]] = {
    tuning.BATCH: ("per_device_train_batch_size", "train_batch_size", "micro_batch_size", "batch_size"),
    tuning.ACCUMULATION: (
        "gradient_accumulation_steps", "gradient_accumulation", "accumulate_grad_batches", "accumulation_steps",
        "grad_accum_steps", "grad_accum",
    ),
    "resolution": ("resolution", "image_size"),
    "cache_latents": ("cache_latents",),
    "data_workers": ("dataloader_num_workers", "num_workers"),
    "persistent_workers": ("dataloader_persistent_workers", "persistent_workers"),
    "pin_memory": ("dataloader_pin_memory", "pin_memory"),
    "gradient_checkpointing": ("gradient_checkpointing", "use_gradient_checkpointing"),
    "mixed_precision": ("mixed_precision",),
    "network_dim": ("lora_rank", "lora_r", "rank", "network_dim"),
    "network_alpha": ("lora_alpha", "network_alpha"),
}  # fmt: skip
CANONICAL: Mapping[str, str] = {name: knob for knob, names in NAMES.items() for name in names}


@dataclass(frozen=True, kw_only=True)
class CodeKnobs:
    """`flags`: canonical knob → options that the script declares; `defaults`: their plain defaults, as values.

    `fixed`: knobs that stand in the code itself, with every place, the first one first.
    """

    flags: Mapping[str, tuple[tuple[str, ...], ...]]
    defaults: Mapping[str, str]
    fixed: Mapping[str, tuple[CodeSetting, ...]]


def knobs_in_code(source: str) -> CodeKnobs:
    """What the source declares and sets, by canonical name."""
    declared = python_code.options(source)
    flags = {
        knob: tuple((option,) for name in names for option in sorted(declared) if _bare(option) == name)
        for knob, names in NAMES.items()
    }
    found = python_code.settings_in(source, CANONICAL)
    defaults = {
        knob: next(each.value for each in settings if each.flag)
        for knob, settings in found.items()
        if any(each.flag for each in settings)
    }
    fixed = {
        knob: plain
        for knob, settings in found.items()
        if not flags.get(knob) and (plain := tuple(each for each in settings if not each.flag))
    }
    return CodeKnobs(flags={knob: paths for knob, paths in flags.items() if paths}, defaults=defaults, fixed=fixed)


def usual_flags() -> dict[str, tuple[tuple[str, ...], ...]]:
    """The options that a script whose text can't be read may have."""
    return {knob: tuple((f"--{name}",) for name in names) for knob, names in NAMES.items()}


def fixed_knobs(command: Command, fixed: Mapping[str, tuple[CodeSetting, ...]]) -> dict[str, Knob]:
    """The knobs that stand in the script, by canonical name."""
    return {
        knob: Knob(value=settings[0].value, file=command.script, line=settings[0].line)
        for knob, settings in fixed.items()
    }


def refuse_fixed(command: Command, knobs: Mapping[str, str]) -> None:
    """Raises Refused(knob_not_changeable), with the lines to write, where a knob stands in the script's code."""
    fixed = knobs_in_code(command.text).fixed
    touched = [knob for knob in knobs if knob in fixed]
    if not touched:
        return
    wanted = _new_values(fixed, knobs)
    lines = [
        f"{command.script}:{setting.line}: `{python_code.new_line(command.text, setting, value).strip()}`"
        for knob, value in wanted.items()
        for setting in fixed.get(knob, ())[:1]
    ]
    first = fixed[touched[0]][0]
    advice = f"write {' and '.join(lines)}" if lines else "change it there"
    raise Refused(
        Reason.KNOB_NOT_CHANGEABLE,
        f"{command.script}:{first.line}: {touched[0]} is {first.value} in the script's code, which is never changed "
        f"for you; {advice}",
    )


def _new_values(fixed: Mapping[str, tuple[CodeSetting, ...]], knobs: Mapping[str, str]) -> dict[str, str]:
    """The values that would answer what is asked, with the accumulation that keeps the effective batch."""
    values: dict[str, str] = {}
    for knob, asked in knobs.items():
        if knob in fixed and knob not in (tuning.BATCH, tuning.ACCUMULATION) and not tuning.fault_of(knob, asked):
            answer = tuning.new_value(knob, fixed[knob][0].value, asked)
            values |= {} if isinstance(answer, tuning.Refusal) else {knob: answer}
    batch = tuning.as_count(fixed[tuning.BATCH][0].value) if tuning.BATCH in fixed else None
    if batch and tuning.BATCH in knobs and not tuning.fault_of(tuning.BATCH, knobs[tuning.BATCH]):
        steps = tuning.as_count(fixed[tuning.ACCUMULATION][0].value) if tuning.ACCUMULATION in fixed else None
        sizes = effective_batch.resize(
            effective_batch.Sizes(batch=batch, accumulation=steps),
            knobs[tuning.BATCH],
            knobs.get(tuning.ACCUMULATION),
            allow_effective_batch_change=True,
        )
        if not isinstance(sizes, tuning.Refusal):
            values |= {tuning.BATCH: str(sizes.batch), tuning.ACCUMULATION: str(sizes.accumulation or 1)}
    return values


def _bare(option: str) -> str:
    return option.lstrip("-").replace("-", "_").lower()
