"""What must hold before anything is saved or stopped. Each check raises Refused with what is wrong and what to do."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tunewarden.domain.order import Order, OrderKind
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.control_file import NO_ROOM
from tunewarden.supervisor.execution import Execution, Superseded
from tunewarden.supervisor.hook_file import hook_settings
from tunewarden.supervisor.resumption import resumption_of
from tunewarden.supervisor.run import SHELLS
from tunewarden.supervisor.state_size import size_of
from tunewarden.supervisor.states import ranks_of
from tunewarden.trainers.command import Kind, find_commands
from tunewarden.trainers.recipe import SavedState, Tier

_LEAST_ROOM = 64 << 20  # bytes for a state whose size is not known yet


def check_target(ex: Execution) -> None:
    """The order is for what lives here now."""
    order, situation = ex.order, ex.run.situation
    if order.job_id != ex.run.spec.job_id or order.generation != situation.generation:
        text = f"the order is for generation {order.generation}, the job is at {situation.generation}"
        raise Refused(Reason.WRONG_GENERATION, text)
    if order.after_oom and not ex.run.waiting:
        raise Refused(Reason.WRONG_GENERATION, "the order answers a death, but this generation is alive")
    if situation.ended and not (order.after_oom and order.kind is OrderKind.REPLACE):
        raise Superseded(Reason.JOB_ENDED, "the job had ended")
    if ex.run.monotonic() >= ex.record.deadline:
        raise Refused(Reason.EXPIRED, f"the order was not begun within {order.expires_in_s:.0f} s")
    if order.kind is OrderKind.REPLACE and situation.keeper_lost:
        raise Refused(Reason.KEEPER_LOST, "the keeper died: the job trains on, nothing can be launched")


def check_channel(ex: Execution) -> None:
    """The trainer can do what the order needs of it."""
    order, control = ex.order, ex.run.control()
    hello = control.hello()
    can = hello.can if hello else frozenset()
    if control.ranks().multi_node and order.kind is not OrderKind.SAVE:
        raise Refused(Reason.MULTI_NODE, "the job spans several nodes: it can be saved, not stopped or adjusted")
    if not order.after_oom and must_save(ex.order) and "save" not in can:
        why = ex.run.why_unhooked()
        text = "the trainer wrote no hello.json that promises to save: it is left alone"
        raise Refused(Reason.NO_SAVE_CHANNEL, f"{text} ({why})" if why else text)
    check_format(ex)
    if order.kind is not OrderKind.REPLACE:
        return
    check_one_trainer(ex)
    check_resumable(ex)


def check_format(ex: Execution) -> None:
    """What the training hook saves is of use to the trainer: one with a format of its own could not go on from it."""
    hello, recipe = ex.run.control().hello(), ex.run.recipe()
    if hello is None or hello.by != "hook" or recipe is None or recipe.keeps_hook_states:
        return
    saves = recipe.explain().saves
    raise Refused(Reason.NO_SAVE_CHANNEL, f"{recipe.trainer} can't go on from what the hook saves; it is saved {saves}")


def check_resumable(ex: Execution) -> None:
    """The trainer promises to go on from a state, and where it must save first it was seen at a step boundary.

    What an earlier generation of the same command has shown counts for one that got no further than loading.
    """
    numbers = range(1, ex.order.generation + 1)
    hellos = [hello for number in numbers if (hello := ex.run.control(number).hello()) is not None]
    if not any("resume" in hello.can for hello in hellos) and not _recipe_resumes(ex):
        raise Refused(Reason.NO_RESUME_RECIPE, "no hello.json of the trainer promises to go on from a state")
    if must_save(ex.order) and not ex.order.after_oom and ex.run.steps_made() == 0:
        raise Refused(Reason.NO_RESUME_RECIPE, "the trainer has made no step yet: nothing shows that it can save")


def _recipe_resumes(ex: Execution) -> bool:
    """Whether the trainer itself goes on from a state when its command says so: that needs no promise of its."""
    recipe = ex.run.recipe()
    if recipe is None or recipe.tier is Tier.NAMED:
        return False
    resumption = resumption_of(ex.run, ex.run.generation().argv, expected_state(ex), ex.order.generation + 1)
    return resumption.hook.resume_by == "trainer"


def must_save(order: Order) -> bool:
    """Skipping the save takes both words of the order: not to save first, and that unsaved steps may be lost."""
    return order.kind is OrderKind.SAVE or order.save_first or not order.lose_unsaved


def check_one_trainer(ex: Execution) -> None:
    """A command that runs more than the trainer can't be launched again: what came before it would run twice."""
    argv = ex.run.generation().argv
    seen = ex.run.trainers_seen(ex.order.generation)
    if len(seen) > 1:
        raise Refused(Reason.COMMAND_IS_A_SCRIPT, f"the command ran {len(seen)} trainers: it can't be launched again")
    known = seen[0]["through_shell"] if seen else None
    # Where the trainer was not caught alive, the command's own words decide.
    scripted = known if known is not None else Path(argv[0]).name in SHELLS or _is_shell_script(ex, argv[0])
    if scripted:
        raise Refused(
            Reason.COMMAND_IS_A_SCRIPT,
            f"{argv[0]} is a shell script around the trainer: what it did before would be done again; "
            "start the trainer itself with `tunewarden run`, or `exec` it",
        )


def _is_shell_script(ex: Execution, program: str) -> bool:
    found = shutil.which(program, path=None) if "/" not in program else str(ex.run.spec.cwd / program)
    try:
        with Path(found or program).open("rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return any(Path(word).name in SHELLS for word in words)


def check_script(ex: Execution) -> None:
    """The trainer's script is still where the command names it: after the stop it would be too late to see."""
    for command in find_commands(ex.run.generation().argv, ex.run.spec.cwd):
        path = command.resolve(command.name) if command.kind is Kind.SCRIPT else None
        if path is not None and not path.is_file():
            text = f"{path}: the trainer's script is not there any more, so it can't be started again; put it back"
            raise Refused(Reason.SCRIPT_NOT_FOUND, text)


def check_goes_on(ex: Execution, argv: Sequence[str]) -> None:
    """The new command can go on from the state that will be there, so far as its recipe can tell."""
    number = ex.order.generation + 1
    if must_save(ex.order) and not ex.order.after_oom:
        resumption_of(ex.run, argv, expected_state(ex), number)
        return
    state = ex.run.newest_state()
    if state is None:
        return
    resumption_of(ex.run, argv, SavedState(step=state.step, path=state.path), number)
    wrote, run = ranks_of(state.path), max(1, len(ex.run.control().ranks().pids))
    if wrote is not None and wrote != run:
        text = f"{state.path}: {wrote} ranks wrote this state, the job runs {run}: start it with {wrote}"
        raise Refused(Reason.CANNOT_RESUME, text)


def expected_state(ex: Execution) -> SavedState:
    """Where the state that is still to be saved will be, as far as can be told: the next step's, under its name."""
    control = ex.run.control()
    progress, hook = control.progress(), hook_settings(control)
    step = progress.step if progress else 0
    folder = ex.run.states_folder()
    name = hook.state_name or "checkpoint-{step}"
    try:
        return SavedState(step=step, path=folder / name.format(step=step))
    except (KeyError, IndexError, ValueError):
        return SavedState(step=step, path=folder / f"checkpoint-{step}")


def check_room(ex: Execution) -> None:
    """The disk has room for another state, twice the newest one's size or 64 MiB, where it will be written."""
    state = ex.run.newest_state()
    needed = 2 * size_of(state.path) if state else _LEAST_ROOM
    for folder in dict.fromkeys([*([state.path.parent] if state else []), ex.run.states_folder()]):
        check_folder(folder, needed)


def check_folder(folder: Path, needed: int) -> None:
    """Something can be written there, and `needed` bytes of it; of a folder that is still to be made, above it."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):  # has no name there: nothing is left
            pass
    except OSError as error:
        if error.errno in NO_ROOM:
            raise Refused(Reason.NO_DISK_SPACE, f"{folder}: {error.strerror}; free some space") from error
        text = f"{folder}: a state can't be written there ({error.strerror}); let the job's user write there"
        raise Refused(Reason.OUTPUT_NOT_WRITABLE, text) from error
    free = shutil.disk_usage(there).free
    if free < needed:
        text = f"{folder}: {free >> 20} MiB are free, a state needs {needed >> 20} MiB; free some space"
        raise Refused(Reason.NO_DISK_SPACE, text)
