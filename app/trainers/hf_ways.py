"""What all trainers on transformers' Trainer share: checkpoint-N in output_dir, and how they are gone on from.

transformers computes max_steps anew from the batch size when it resumes (run, 5.24): at the same effective batch the
numbers fit, at another the training becomes longer or shorter and the learning rate jumps. So that is refused.
"""

from collections.abc import Callable, Sequence

from tunewarden.domain import tuning
from tunewarden.trainers import sd_scripts, states
from tunewarden.trainers.command import Command
from tunewarden.trainers.known import Known
from tunewarden.trainers.paths import is_folder
from tunewarden.trainers.recipe import HookSettings, Resumption, SavedState
from tunewarden.trainers.sd_scripts_warnings import is_on, place


def hook_settings(known: Known, base_step: int = 0) -> HookSettings:
    """The Trainer's own names; where output_dir isn't known here the hook asks the Trainer."""
    total = tuning.as_count(known.text_of("max_steps"))
    return HookSettings(
        states=known.folder_of("output_dir"),
        state_name="checkpoint-{step}",
        resume_by="hook",
        total_steps=total or None,
        base_step=base_step,
    )


def saved_states(known: Known) -> tuple[SavedState, ...]:
    """The complete checkpoint-N in output_dir."""
    folder = known.folder_of("output_dir")
    return states.checkpoints(folder, states.complete_transformers) if folder else ()


def resume_with(
    known: Known,
    argv: Sequence[str],
    state: SavedState,
    again: Callable[[Command], Known | None],
    words_for: Callable[[Command], Sequence[str]] | None,
) -> Resumption:
    """Checked, then started with `words_for` the changed command, or as it is when the hook hands the state over."""
    command = known.command_in(argv)
    sd_scripts.refuse_unresumable(known, again(command) or known, state)
    hook = hook_settings(known, state.step)
    if words_for is None:
        return Resumption(argv=tuple(argv), hook=hook)
    trainer_resumes = HookSettings(
        states=hook.states,
        state_name=hook.state_name,
        resume_by="trainer",
        total_steps=hook.total_steps,
        base_step=hook.base_step,
    )
    return Resumption(argv=tuple(command.argv_with(words_for(command))), hook=trainer_resumes)


def warnings(known: Known) -> tuple[str, ...]:
    """Settings under which no checkpoint can be gone on from."""
    lines = []
    only, strategy = known.fact("save_only_model"), known.fact("save_strategy")
    if only is not None and is_on(only):
        lines.append(
            f"{place(only)}: save_only_model leaves the optimizer out: the trainer's own checkpoints can't be resumed "
            "from; set it to false"
        )
    if strategy is not None and strategy.value == "no":
        lines.append(f"{place(strategy)}: save_strategy is no: only the training hook leaves checkpoints")
    setting, path = known.fact("resume_from_checkpoint"), known.folder_of("resume_from_checkpoint")
    if setting and path and setting.value.lower() not in ("true", "false", "null", "none", "~") and not is_folder(path):
        lines.append(f"{place(setting)}: resume_from_checkpoint {path} is no folder; give the checkpoint-N folder")
    return tuple(lines)
