"""`tunewarden explain -- CMD…`: what is known of a training command. Starts nothing, writes nothing."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from tunewarden.commandline.output import Output
from tunewarden.domain import tuning
from tunewarden.errors import Refused, SettingsError, TunewardenError
from tunewarden.trainers.command import find_commands
from tunewarden.trainers.interpreter import why_unhooked
from tunewarden.trainers.recipe import ConfigPlan, Explanation, Knob, KnobChange, Recipe, Tier
from tunewarden.trainers.table import recognise

_TIERS = {
    Tier.PROVEN: "proven by running",
    Tier.KNOWN: "from its source: recognised, adjusted, resumed",
    Tier.NAMED: "recognised: what is possible is said",
}
_TRY = {tuning.BATCH: "/2"}


def explain(argv: Sequence[str], cwd: Path, output: Output) -> None:
    """Print trainer, ruling files, knobs with their places, how it would be saved, adjusted and resumed, warnings.

    Raises SettingsError without a command, TunewardenError where no trainer is recognised.
    """
    if not argv:
        raise SettingsError("no command: say `tunewarden explain -- python train.py --config my_lora.yaml`")
    recipe = recognise(argv, cwd)
    if recipe is None:
        raise TunewardenError(_why_unknown(argv, cwd))
    explanation = recipe.explain()
    output.table(("what", "answer"), _facts(recipe, explanation, argv), "")
    output.line("")
    knobs, fault = _knobs(recipe)
    output.table(("knob", "value", "where"), _rows(knobs, explanation, cwd), "no knob is set")
    warnings = [*explanation.warnings, *([fault] if fault and fault not in explanation.warnings else [])]
    unhooked = why_unhooked(argv, cwd)
    if unhooked:
        warnings.append(unhooked)
    if warnings:
        output.line("")
    for warning in warnings:
        output.line(f"warning: {warning}", "yellow")


def _facts(recipe: Recipe, explanation: Explanation, argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "trainer", f"{recipe.trainer} ({_TIERS[recipe.tier]})"
    for index, file in enumerate(explanation.files):
        yield "rules" if index == 0 else "then", str(file)
    if not explanation.files:
        yield "rules", "the command line"
    yield "saves", explanation.saves
    yield "adjusts", explanation.adjusts
    yield "batch_size=/2", _attempt(recipe)
    yield "resumes", explanation.resumes
    yield "newest state", _newest(recipe, argv)


def _attempt(recipe: Recipe) -> str:
    """What a halved batch would change, as a trial; a refusal is an answer too."""
    try:
        plan = recipe.plan(_TRY, allow_effective_batch_change=False)
    except Refused as refused:
        return f"refused ({refused.reason}): {refused}"
    return "; ".join(_change(change) for change in plan.changes) + _effect(plan)


def _change(change: KnobChange) -> str:
    old = change.old or "(not set)"
    return f"{change.knob} {old} → {change.new} at {_place(change.file, change.line)}"


def _effect(plan: ConfigPlan) -> str:
    if plan.effective_batch is None:
        return ""
    return f"; effective batch {plan.effective_batch[0]} → {plan.effective_batch[1]}"


def _newest(recipe: Recipe, argv: Sequence[str]) -> str:
    """The state that it would go on from now, with the command; or that there is none."""
    states = recipe.states()
    if not states:
        return "none on disk"
    state = states[-1]
    try:
        resumption = recipe.resume(argv, state, generation=2)
    except Refused as refused:
        return f"{state.path} (step {state.step}), refused ({refused.reason}): {refused}"
    return f"{state.path} (step {state.step}): {shlex.join(resumption.argv)}"


def _knobs(recipe: Recipe) -> tuple[dict[str, Knob], str | None]:
    try:
        return recipe.read_knobs(), None
    except Refused as refused:
        return {}, str(refused)


def _rows(knobs: dict[str, Knob], explanation: Explanation, cwd: Path) -> list[tuple[str, str, str]]:
    rows = []
    for name in tuning.KNOBS:
        if name in knobs:
            rows.append((name, knobs[name].value, _place(knobs[name].file, knobs[name].line, cwd)))
        elif name in explanation.defaults:
            rows.append((name, explanation.defaults[name], "not set: the trainer's default"))
    return rows


def _place(file: Path | None, line: int, cwd: Path | None = None) -> str:
    if file is None:
        return f"word {line} of the command" if line else "the environment"
    shown = file.relative_to(cwd) if cwd is not None and file.is_relative_to(cwd) else file
    return f"{shown}:{line}"


def _why_unknown(argv: Sequence[str], cwd: Path) -> str:
    """Why no recipe fits, with what is possible all the same."""
    found = find_commands(argv, cwd)
    line = shlex.join(argv)
    if not found:
        return f"{line}: no Python program is found in this command; name the trainer itself"
    if len(found) > 1 or found[0].in_loop:
        names = ", ".join(dict.fromkeys(each.name for each in found))
        return f"{line}: more than one training may run here ({names}); start each with `tunewarden run` of its own"
    return (
        f"{line}: {found[0].name} is no trainer that is known, by its name or its text; it can be watched, and saved "
        "and resumed if it speaks the control directory (docs/howto/any-trainer.md)"
    )
