"""Orders for a job that somebody else has started: what they can't have, and what they get instead."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunewarden.domain.order import OrderKind
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.execution import Execution
from tunewarden.supervisor.phase_plan import write_copies
from tunewarden.supervisor.plan_checks import check_target, must_save
from tunewarden.supervisor.resumption import resumption_of
from tunewarden.supervisor.started_by import StartedBy
from tunewarden.trainers.recipe import SavedState

_ADOPTED = "the job was adopted: it is watched for messages only, nothing of it is saved or stopped"
_IN_A_CELL = "what runs the training goes on without it and is never signalled: interrupt the training where it runs"


def check(ex: Execution, intent: Mapping[str, Any]) -> None:
    """Let a save, and a stop that saves, pass; raise Refused(started_elsewhere) for the rest.

    A replacement is not carried out. Its adjusted config is written nevertheless, and stays: the refusal tells a
    person how to start the training again with it.
    """
    check_target(ex)
    spec = ex.run.spec
    if spec.started_by is StartedBy.ADOPT:
        raise Refused(Reason.STARTED_ELSEWHERE, _ADOPTED)
    if ex.order.kind is OrderKind.REPLACE:
        text = _by_hand(ex, intent)
        ex.run.say(text)
        raise Refused(Reason.STARTED_ELSEWHERE, text)
    if spec.ends_with_cell and not must_save(ex.order):
        raise Refused(Reason.STARTED_ELSEWHERE, _IN_A_CELL)


def tell_how_to_go_on(ex: Execution) -> None:
    """After a stop: the state, and the command that goes on from it, where the trainer has one of its own."""
    step, path = ex.record.fact("save", "step"), ex.record.fact("save", "path")
    if path is None:
        return
    text = f"saved at step {step}: {path}"
    try:
        state = SavedState(step=step, path=Path(path))
        found = resumption_of(ex.run, ex.run.generation().argv, state, ex.order.generation + 1)
    except Refused as refusal:
        text += f"; {refusal}"
    else:
        if found.hook.resume_by == "trainer":
            text += f"; to go on from there: tunewarden run -- {shlex.join(found.argv)}"
    ex.run.say(text)


def _by_hand(ex: Execution, intent: Mapping[str, Any]) -> str:
    """What is written, and what a person does with it."""
    name, written = ex.run.spec.name, "nothing is done"
    facts: dict[str, Any] = {"argv": ex.run.generation().argv}
    before = ""  # what a knob sets in the environment
    if ex.order.knobs:
        plan, facts = write_copies(ex, intent)
        before = "".join(f"{variable}={shlex.quote(value)} " for variable, value in plan.env.items())
        changes = ", ".join(f"{each.knob} {each.old} → {each.new}" for each in plan.changes)
        written = f"{changes} is written to {facts['new_config_path']}" if "new_config_path" in facts else changes
    return (
        f"{written}: it was not started by `tunewarden run`, so only a person can start it again; "
        f"`tunewarden stop {name}` saves and stops it, then start it with that, going on from the saved state "
        f"(in a shell: {before}tunewarden run -- {shlex.join(facts['argv'])})"
    )
