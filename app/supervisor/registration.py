"""What the service is told of a job at each launch, by docs/reference/jobs-api.md: no argv, environment or path."""

import logging
import os
import time
from typing import Any

from tunewarden.domain import tuning
from tunewarden.errors import Refused
from tunewarden.processes.identity import boot_id
from tunewarden.supervisor.allocator import KNOB as EXPANDABLE
from tunewarden.supervisor.allocator import uses_expandable_segments
from tunewarden.supervisor.client import PROTOCOL
from tunewarden.supervisor.heartbeat import names_of
from tunewarden.supervisor.run import Run
from tunewarden.trainers.model_type import model_type
from tunewarden.trainers.recipe import Recipe, Tier

log = logging.getLogger(__name__)


def registration(run: Run) -> dict[str, Any]:
    """The body of the registration."""
    pids = frozenset(member.id.pid for member in run.host.members())
    gpus = run.host.gpus()
    control, generation, recipe = run.control(), run.generation(), run.recipe()
    hello, ranks = control.hello(), control.ranks()
    return {
        "protocol": PROTOCOL,
        "host_id": run.spec.host_id,
        "boot_id": boot_id(),
        "node": run.spec.node,
        "name": run.spec.name,
        "generation": generation.number,
        "run_id": f"{run.spec.job_id}-g{generation.number}",
        "state": run.state,
        "enforce": run.spec.enforce,
        "labels": dict(run.spec.labels),
        "trainer": recipe.trainer if recipe else "unknown",
        "config_name": recipe.config_path.name if recipe and recipe.config_path else "",
        "model_type": model_type(generation.argv),
        **_knobs(run, recipe),
        "can": sorted(hello.can) if hello else [],
        "by": hello.by if hello else None,
        "framework": hello.framework if hello else None,
        "no_hook": None if hello else run.why_unhooked(),
        "ranks": max(1, len(ranks.pids)),
        "multi_node": ranks.multi_node,
        "gpus": names_of(run.host.job_gpus(gpus, pids)),
        "host_gpus": names_of(gpus) or [],
        "host": {"cpus": len(os.sched_getaffinity(0))},
        "wall": time.time(),
    }


def _knobs(run: Run, recipe: Recipe | None) -> dict[str, Any]:
    """The canonical knobs with their values (null: unknown), and those that an order may change."""
    try:
        found = {name: knob.value for name, knob in recipe.read_knobs().items()} if recipe else None
    except Refused:
        found = None
    except Exception:  # whatever a recipe stumbles over, the job is registered
        log.exception("the knobs can't be read")
        found = None
    writable = set(found or {}) if recipe is not None and recipe.tier is not Tier.NAMED else set()
    if EXPANDABLE in tuning.KNOBS:
        used = uses_expandable_segments(run.environment())
        found = {**(found or {}), EXPANDABLE: "true" if used else "false"} if found is not None else None
        writable.add(EXPANDABLE)
    return {"knobs": found, "changeable": sorted(writable)}
