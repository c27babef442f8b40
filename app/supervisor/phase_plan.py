"""Plan: all that must be there before anything is saved or stopped, so that a failure leaves the job as it was."""

import hashlib
import itertools
import os
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunewarden.domain.order import Order, OrderKind, Phase
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.execution import Done, Execution, Superseded
from tunewarden.supervisor.phase_stop import check_reach
from tunewarden.supervisor.run import SHELLS
from tunewarden.trainers.beside import name_beside, with_references, write_beside
from tunewarden.trainers.recipe import ConfigPlan, FileCopy, Recipe
from tunewarden.trainers.table import recognise

_MOST_ENTRIES = 20_000  # of a state that is measured,
_MEASURE_S = 2.0  # and how long that may take: a person may be waiting meanwhile
_LEAST_ROOM = 64 << 20  # bytes for a state whose size is not known yet


def intend(ex: Execution) -> dict[str, Any]:
    """Which adjusted configs were there before: one that is new and equal to the plan is ours."""
    recipe = _recipe(ex) if ex.order.knobs else None
    config = recipe.config_path if recipe else None
    return {"beside": sorted(str(path) for path in _beside(config)) if config else []}


def act(ex: Execution, intent: Mapping[str, Any]) -> Done:
    """Check everything, write the adjusted config beside the original, report the plan."""
    ex.run.observe()
    check_target(ex)
    check_channel(ex)
    if ex.order.kind is not OrderKind.SAVE:
        check_reach(ex)
    check_room(ex)
    argv = list(ex.run.generation().argv)
    if ex.order.kind is not OrderKind.REPLACE or not ex.order.knobs:
        return Done(facts={"argv": argv}, report=Phase.PLANNED, detail={"changes": [], "diff": ""})
    plan, facts = write_copies(ex, intent)
    return Done(facts=facts, report=Phase.PLANNED, detail=_detail(plan, facts.get("new_config_path")))


def write_copies(ex: Execution, intent: Mapping[str, Any]) -> tuple[ConfigPlan, dict[str, Any]]:
    """Write what the order's knobs change beside the originals; the plan, and the facts that the launch needs."""
    recipe = _recipe(ex)
    plan = recipe.plan(
        ex.order.knobs,
        allow_effective_batch_change=ex.order.allow_effective_batch_change,
        launched_sha256=ex.run.generation().config_sha256,
    )
    facts: dict[str, Any] = {"argv": list(plan.argv)}
    names: dict[Path, Path] = {}
    named_inside = {place.path for copy in plan.copies for place in copy.references}
    for copy in plan.copies:
        ready = with_references(copy, names)
        path = _written_before(ready, intent) or write_beside(ready, ex.order.generation + 1)
        names[copy.config_path] = path
        if copy.config_path not in named_inside:
            facts["argv"] = recipe.argv_with(facts["argv"], copy.config_path, path)
        facts |= {"new_config_path": str(path), "new_config_sha256": hashlib.sha256(ready.new_bytes).hexdigest()}
    return plan, facts


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
        raise Refused(Reason.NO_SAVE_CHANNEL, "the trainer wrote no hello.json that promises to save: it is left alone")
    if order.kind is not OrderKind.REPLACE:
        return
    check_one_trainer(ex)
    check_resumable(ex)


def check_resumable(ex: Execution) -> None:
    """The trainer promises to go on from a state, and where it must save first it was seen at a step boundary.

    What an earlier generation of the same command has shown counts for one that got no further than loading.
    """
    numbers = range(1, ex.order.generation + 1)
    hellos = [hello for number in numbers if (hello := ex.run.control(number).hello()) is not None]
    if not any("resume" in hello.can for hello in hellos):
        raise Refused(Reason.NO_RESUME_RECIPE, "no hello.json of the trainer promises to go on from a state")
    if must_save(ex.order) and not ex.order.after_oom and ex.run.steps_made() == 0:
        raise Refused(Reason.NO_RESUME_RECIPE, "the trainer has made no step yet: nothing shows that it can save")


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


def check_room(ex: Execution) -> None:
    """The disk has room for another state: twice the newest one's size, or 64 MiB."""
    state = ex.run.newest_state()
    folder = state.path.parent if state else ex.run.spec.cwd
    needed = 2 * size_of(state.path) if state else _LEAST_ROOM
    free = shutil.disk_usage(folder).free
    if free < needed:
        text = f"{folder}: {free >> 20} MiB are free, a state needs {needed >> 20} MiB; free some space"
        raise Refused(Reason.NO_DISK_SPACE, text)


def size_of(*paths: Path) -> int:
    """Bytes of files, and of the files in folders; what vanishes meanwhile counts nothing.

    Looks at no more than 20 000 entries, for no more than 2 s, never through a link below and never at another file
    system: the trainer says which paths these are.
    """
    total, seen, deadline = 0, 0, time.monotonic() + _MEASURE_S
    waiting: list[tuple[str, int | None]] = [(str(path), None) for path in paths]
    while waiting and seen < _MOST_ENTRIES and time.monotonic() < deadline:
        path, device = waiting.pop()
        seen += 1
        try:
            found = os.stat(path, follow_symlinks=device is None)  # noqa: PTH116 - 20 000 of them
            if device not in (None, found.st_dev):
                continue
            if stat.S_ISDIR(found.st_mode):
                waiting += _entries(path, found.st_dev, _MOST_ENTRIES - len(waiting))
        except (OSError, ValueError):  # it vanished, or is not ours to look into
            continue
        total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def _entries(folder: str, device: int, most: int) -> list[tuple[str, int | None]]:
    with os.scandir(folder) as found:
        return [(entry.path, device) for entry in itertools.islice(found, max(0, most))]


def _recipe(ex: Execution) -> Recipe:
    argv = ex.run.generation().argv
    recipe = recognise(argv, ex.run.spec.cwd)
    if recipe is None:
        raise Refused(Reason.CONFIG_NOT_FOUND, "no config file that rules the knobs is found in the job's command")
    return recipe


def _beside(config: Path) -> list[Path]:
    """The adjusted configs that lie beside this one."""
    pattern = name_beside(config, 0).name.replace("-g0", "-g[0-9]*")
    return list(config.parent.glob(pattern)) if not set("[]*?") & set(config.stem) else []


def _written_before(copy: FileCopy, intent: Mapping[str, Any]) -> Path | None:
    """The config that we wrote before the agent was killed: new since the intent, and equal to the plan."""
    for path in _beside(copy.config_path):
        if str(path) not in intent["beside"] and path.read_bytes() == copy.new_bytes:
            return path
    return None


def _detail(plan: ConfigPlan, path: str | None) -> dict[str, Any]:
    changes = [
        {"knob": each.knob, "from": each.old, "to": each.new, "file": str(each.file or ""), "line": each.line}
        for each in plan.changes
    ]
    detail: dict[str, Any] = {
        "changes": changes,
        "diff": plan.diff,
        "warnings": list(plan.warnings),
    }
    if plan.copies:
        copy = plan.copies[-1]
        sources = {"config_path": str(copy.config_path), "config_sha256": copy.config_sha256, "new_config_path": path}
        detail |= sources
    if plan.effective_batch is not None:
        detail["effective_batch"] = {"from": plan.effective_batch[0], "to": plan.effective_batch[1]}
    return detail
