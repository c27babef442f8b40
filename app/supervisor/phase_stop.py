"""Stop: end everything of the generation, and call it stopped only when nothing lives."""

from collections.abc import Mapping
from typing import Any

from tunewarden.domain.order import Phase
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.processes.ending import end_generation
from tunewarden.processes.identity import ProcessId
from tunewarden.supervisor.cards import held_by_others
from tunewarden.supervisor.execution import Done, Execution

_TERM_S = 10.0
_KILL_S = 5.0
_REAPED_S = 5.0  # how long the keeper may take to say how the launcher ended


def intend(ex: Execution) -> dict[str, Any]:
    """Who is to be ended, and what others hold of the job's cards now: what may stay when we look again."""
    members = ex.run.host.members(fresh=True)
    pids = frozenset(member.id.pid for member in members)
    cards = ex.run.host.job_gpus(ex.run.host.gpus(fresh=True), pids) or ()
    launcher = ex.run.situation.launcher
    return {
        "launcher": _listed(launcher) if launcher else None,
        "trainers": [_listed(each) for each in ex.run.trainers()],
        "members": [_listed(member.id) for member in members],
        "others": {gpu.uuid: held_by_others(gpu, pids) for gpu in cards},
        "unsaved_steps": _unsaved(ex),
    }


def act(ex: Execution, intent: Mapping[str, Any]) -> Done:
    """End them. Doing it again after a restart ends what is left: a process that is gone can't be ended twice."""
    may_kill = _saved_step(ex) is not None or ex.order.lose_unsaved
    launcher = ProcessId(*intent["launcher"]) if intent["launcher"] else None
    ended = end_generation(
        launcher,
        [ProcessId(*each) for each in intent["trainers"]],
        ex.run.spec.job_id,
        wait_term_s=_TERM_S,
        wait_kill_s=_KILL_S,
        may_kill=lambda: may_kill,
        subreaper=ex.run.host.subreaper,
    )
    if ended.survivors:
        names = ", ".join(str(each.pid) for each in ended.survivors)
        raise Refused(Reason.STILL_ALIVE, f"still alive after the stop: pid {names}; look at them on the host")
    _wait_for_status(ex)
    pids = sorted({each[0] for each in intent["members"]} | {each.pid for each in ended.pids})
    status = ex.run.situation.endings.get(ex.order.generation)
    detail = {
        "exit_status": status,
        "pids": pids,
        "unsaved_steps": intent["unsaved_steps"],
        "without_pidfd": ended.without_pidfd,
    }
    return Done(facts={"exit_status": status}, report=Phase.STOPPED, detail=detail)


def _wait_for_status(ex: Execution) -> None:
    situation, deadline = ex.run.situation, ex.run.monotonic() + _REAPED_S
    while not situation.ended and not situation.keeper_lost and ex.run.monotonic() < deadline:
        ex.run.pump(0.05)


def _saved_step(ex: Execution) -> int | None:
    step: int | None = ex.record.fact("save", "step")
    return step


def _unsaved(ex: Execution) -> int:
    saved, progress = _saved_step(ex), ex.run.control().progress()
    if saved is None:
        return ex.run.unsaved_steps()
    return max(0, progress.step - saved) if progress else 0


def _listed(process: ProcessId) -> list[int]:
    return [process.pid, process.start_ticks]
