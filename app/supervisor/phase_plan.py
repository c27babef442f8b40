"""Plan: all that must be there before anything is saved or stopped, so that a failure leaves the job as it was."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunewarden.domain import tuning
from tunewarden.domain.order import OrderKind, Phase
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor import allocator
from tunewarden.supervisor.execution import Done, Execution
from tunewarden.supervisor.phase_stop import check_reach
from tunewarden.supervisor.plan_checks import check_channel, check_goes_on, check_room, check_script, check_target
from tunewarden.trainers.beside import name_beside, with_references, write_beside
from tunewarden.trainers.recipe import ConfigPlan, FileCopy, KnobChange, Recipe

_OURS = "*.tunewarden-g[0-9]*"


def intend(ex: Execution) -> dict[str, Any]:
    """Which adjusted configs were there before: one that is new and equal to the plan is ours."""
    recipe = _recipe(ex) if _config_knobs(ex) else None
    config = recipe.config_path if recipe else None
    if config is None:
        return {"folder": None, "beside": []}
    return {"folder": str(config.parent), "beside": sorted(str(path) for path in config.parent.glob(_OURS))}


def act(ex: Execution, intent: Mapping[str, Any]) -> Done:
    """Check everything, write the adjusted configs beside the originals, report the plan."""
    ex.run.observe()
    check_target(ex)
    check_channel(ex)
    if ex.order.kind is not OrderKind.SAVE:
        check_reach(ex)
    check_room(ex)
    if ex.order.kind is not OrderKind.REPLACE:
        return Done(report=Phase.PLANNED, detail={"changes": [], "diff": ""})
    check_script(ex)
    plan, facts = write_copies(ex, intent)
    try:
        check_goes_on(ex, facts["argv"])
    except Refused:
        _unlink([Path(path) for path, _ in facts["new_configs"]])
        raise
    detail = _detail(plan, facts["new_configs"]) if ex.order.knobs else {"changes": [], "diff": ""}
    return Done(facts=facts, report=Phase.PLANNED, detail=detail)


def write_copies(ex: Execution, intent: Mapping[str, Any]) -> tuple[ConfigPlan, dict[str, Any]]:
    """Write what the order's knobs change beside the originals; the plan, and the facts that the launch needs.

    The facts are `argv`, `env` (what the job's environment gets more), `new_configs` (pairs of path and sha256), and
    `new_config_path`, the one that the command names. Raises Refused, and then nothing is left behind.
    """
    plan = _plan(ex)
    written = _Written(ex=ex, intent=intent)
    argv = list(plan.argv)
    named_inside = {place.path for copy in plan.copies for place in copy.references}
    try:
        for copy in plan.copies:
            path = written.add(copy)
            if copy.config_path not in named_inside:
                argv = _recipe(ex).argv_with(argv, copy.config_path, path)
    except Refused:
        _unlink(written.made)
        raise
    facts: dict[str, Any] = {"argv": argv, "env": dict(plan.env), "new_configs": written.configs}
    if written.configs:
        facts["new_config_path"] = written.configs[-1][0]
    return plan, facts


@dataclass(kw_only=True)
class _Written:
    """The copies of one plan as they get their names; `made` are those that were not there after a restart."""

    ex: Execution
    intent: Mapping[str, Any]
    names: dict[Path, Path] = field(default_factory=dict)
    configs: list[list[str]] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)

    def add(self, copy: FileCopy) -> Path:
        ready = with_references(copy, self.names)
        path = _written_before(ready, self.intent)
        if path is None:
            path = write_beside(ready, self.ex.order.generation + 1)
            self.made.append(path)
        self.names[copy.config_path] = path
        self.configs.append([str(path), hashlib.sha256(ready.new_bytes).hexdigest()])
        return path


def _plan(ex: Execution) -> ConfigPlan:
    """The whole change: of files and flags by the trainer's recipe, of the environment by us, who know it."""
    generation, knobs = ex.run.generation(), _config_knobs(ex)
    plan = ConfigPlan(changes=(), copies=(), argv=generation.argv)
    if knobs:
        plan = _recipe(ex).plan(
            knobs,
            allow_effective_batch_change=ex.order.allow_effective_batch_change,
            launched_sha256=generation.config_sha256,
        )
    now = ex.run.environment()
    added = allocator.merged(now, plan.env)
    changes = plan.changes
    if allocator.KNOB in ex.order.knobs:
        wanted = _switch(ex.order.knobs[allocator.KNOB])
        added |= allocator.with_expandable_segments({**now, **added}, wanted)
        used = allocator.uses_expandable_segments(now)
        old, new = (str(each).lower() for each in (used, wanted))
        changes = (*changes, KnobChange(knob=allocator.KNOB, old=old, new=new, file=None, line=0))
    return ConfigPlan(
        changes=changes,
        copies=plan.copies,
        argv=plan.argv,
        env={**generation.env, **added},
        effective_batch=plan.effective_batch,
        warnings=plan.warnings,
        argv_diff=plan.argv_diff,
    )


def _config_knobs(ex: Execution) -> dict[str, str]:
    """The order's knobs that stand in files and flags."""
    return {name: value for name, value in ex.order.knobs.items() if name != allocator.KNOB}


def _switch(text: str) -> bool:
    wanted = tuning.switch(text)
    if wanted is None:
        raise Refused(Reason.KNOB_NOT_CHANGEABLE, f"{allocator.KNOB} must be true or false, not `{text[:40]}`")
    return wanted


def _recipe(ex: Execution) -> Recipe:
    recipe = ex.run.recipe()
    if recipe is None:
        raise Refused(Reason.CONFIG_NOT_FOUND, "no config file that rules the knobs is found in the job's command")
    return recipe


def _written_before(copy: FileCopy, intent: Mapping[str, Any]) -> Path | None:
    """The config that we wrote before the agent was killed: new since the intent, and equal to the plan."""
    pattern = name_beside(copy.config_path, 0).name.replace("-g0", "-g[0-9]*")
    if set("[]*?") & set(copy.config_path.stem) or str(copy.config_path.parent) != intent["folder"]:
        return None
    for path in copy.config_path.parent.glob(pattern):
        if str(path) not in intent["beside"] and path.read_bytes() == copy.new_bytes:
            return path
    return None


def _unlink(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _detail(plan: ConfigPlan, written: list[list[str]]) -> dict[str, Any]:
    changes = [
        {"knob": each.knob, "from": each.old, "to": each.new, "file": str(each.file or ""), "line": each.line}
        for each in plan.changes
    ]
    detail: dict[str, Any] = {"changes": changes, "diff": plan.diff, "warnings": list(plan.warnings)}
    copies = [
        {"config_path": str(copy.config_path), "config_sha256": copy.config_sha256, "new_config_path": path}
        for copy, (path, _) in zip(plan.copies, written, strict=True)
    ]
    if copies:
        detail |= {**copies[-1], "copies": copies}
    if plan.effective_batch is not None:
        detail["effective_batch"] = {"from": plan.effective_batch[0], "to": plan.effective_batch[1]}
    return detail
