"""Stop: end everything of the generation, and call it stopped only when nothing lives."""

from collections.abc import Mapping
from typing import Any

from tunewarden.domain.order import Phase
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.processes.ending import Ended, end_generation, thaw
from tunewarden.processes.identity import ProcessId, read_stat
from tunewarden.processes.tree import named
from tunewarden.supervisor.cards import held_by_others
from tunewarden.supervisor.execution import Done, Execution
from tunewarden.supervisor.started_by import StartedBy

_TERM_S = 10.0
_KILL_S = 5.0
_CELL_S = 60.0  # how long a saved training in a notebook may take to end its cell
_BY_ITSELF_S = 15.0  # and one that a GUI has started, to end its process
_REAPED_S = 5.0  # how long the keeper may take to say how the launcher ended
_PASSING_S = 2.0  # a script's `sudo nvidia-smi` has ended by then
_LOOK_S = 0.2
_HIDDEN = "the keeper was gone: what left the job's tree and hid its marker could not be seen"


def check_reach(ex: Execution) -> None:
    """A job is stopped whole or not at all. Raises Refused(still_alive) where a part of it is never signalled."""
    deadline = ex.run.monotonic() + _PASSING_S
    while strangers := ex.run.host.strangers():
        if ex.run.monotonic() >= deadline:
            text = f"{named(strangers)}: tunewarden never signals it, so the job is left as it was; stop it by hand"
            raise Refused(Reason.STILL_ALIVE, text)
        ex.breathe(_LOOK_S)


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
    if ex.run.spec.ends_with_cell:
        return _see_cell_end(ex, intent)
    if ex.run.spec.started_by is not StartedBy.RUN:
        _let_it_end(ex)
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
        joined=ex.run.host.roots,
    )
    if ended.survivors:
        thaw(ended.frozen)  # no second try is ours to make: frozen, the job could not even end by itself
        raise Refused(Reason.STILL_ALIVE, f"still alive after the stop: {_survivors(ended)}; look at them on the host")
    _wait_for_status(ex)
    if launcher is not None and _may_live(ex, launcher):
        text = f"nobody saw the launcher (pid {launcher.pid}) end: it may run where /proc hides it; look on the host"
        raise Refused(Reason.STILL_ALIVE, text)
    pids = sorted({each[0] for each in intent["members"]} | {each.pid for each in ended.pids})
    status = ex.run.situation.endings.get(ex.order.generation)
    detail = {
        "exit_status": status,
        "pids": pids,
        "unsaved_steps": intent["unsaved_steps"],
        "without_pidfd": ended.without_pidfd,
    }
    if ex.run.situation.keeper_lost:
        detail |= {"keeper_lost": True, "text": _HIDDEN}
    return Done(facts={"exit_status": status}, report=Phase.STOPPED, detail=detail)


def _see_cell_end(ex: Execution, intent: Mapping[str, Any]) -> Done:
    """The trainer ends its cell, or its thread, itself: the process around it goes on, and is never signalled."""
    deadline = ex.run.monotonic() + _CELL_S
    while not ex.run.situation.ended and ex.run.monotonic() < deadline:
        ex.run.pump(_LOOK_S)
    if not ex.run.situation.ended:
        text = "the training was saved but has not ended; nothing is signalled: end it where it was started"
        raise Refused(Reason.STILL_ALIVE, text)
    detail: dict[str, Any] = {
        "exit_status": ex.run.situation.endings.get(ex.order.generation),
        "pids": [],
        "without_pidfd": False,
    }
    return Done(
        facts={"exit_status": None},
        report=Phase.STOPPED,
        detail={**detail, "unsaved_steps": int(intent["unsaved_steps"])},
    )


def _let_it_end(ex: Execution) -> None:
    """A watched trainer that has saved ends by itself, with 0: its GUI then sees a training that is done."""
    if _saved_step(ex) is None:
        return
    deadline = ex.run.monotonic() + _BY_ITSELF_S
    while not ex.run.situation.ended and ex.run.monotonic() < deadline:
        ex.run.pump(_LOOK_S)


def _survivors(ended: Ended) -> str:
    strangers = {each.id for each in ended.beyond_reach}
    ours = [f"pid {each.pid}" for each in ended.survivors if each not in strangers]
    return "; ".join([*ours, *([named(ended.beyond_reach)] if strangers else [])])


def _may_live(ex: Execution, launcher: ProcessId) -> bool:
    """Whether the launcher lives, or was neither seen dead nor reaped by a keeper that would have told us."""
    stat = read_stat(launcher.pid)
    if stat is not None and stat.id == launcher:
        return stat.running
    return not ex.run.situation.ended and not ex.run.situation.keeper_lost


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
