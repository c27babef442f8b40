"""How the next generation goes on from a state: its command, and what its hook is told."""

from collections.abc import Sequence
from dataclasses import replace

from tunewarden.supervisor.run import Run
from tunewarden.trainers.recipe import HookSettings, Resumption, SavedState


def resumption_of(run: Run, argv: Sequence[str], state: SavedState | None, generation: int) -> Resumption:
    """The start of `generation` from `state`, None: from the beginning. Raises Refused(cannot_resume).

    `argv` has the change in; the recipe is the running generation's, so that it sees what is changed. A command that
    no recipe knows is started as it is, and the hook loads the state: such a loop counts from 0 again, so the hook
    stops it at the total, where that is known.
    """
    recipe = run.recipe()
    if state is None:
        return Resumption(argv=tuple(argv), hook=recipe.hook_settings() if recipe else HookSettings())
    if recipe is not None:
        found = recipe.resume(argv, state, generation=generation)
    else:
        found = Resumption(argv=tuple(argv), hook=HookSettings(resume_by="hook", base_step=state.step))
    total = run.total_steps()
    counts_anew = found.hook.resume_by == "hook" or found.hook.stop_at_total
    if not counts_anew or found.hook.total_steps is not None or total is None:
        return found
    return replace(found, hook=replace(found.hook, total_steps=total, stop_at_total=True))
