"""A person stops the job: Ctrl-C once saves and stops, twice stops now, three times kills.

SIGTERM to `run` counts as once.
"""

import signal
import threading
from collections.abc import Callable

from tunewarden.errors import Refused
from tunewarden.processes.ending import end_generation, signal_one
from tunewarden.processes.identity import ProcessId
from tunewarden.processes.tree import Member, named
from tunewarden.supervisor.control import Mode
from tunewarden.supervisor.run import Run

_TERM_S = 10.0
_KILL_S = 5.0
_PATIENT_S = 24 * 3600.0  # a person who pressed twice decides on KILL alone
_REMIND_S = 30.0
_ASK_AGAIN_S = 1.0
_TICK_S = 0.05


def stop_locally(run: Run) -> None:
    """End the generation as the person asked; returns when it has ended."""
    if run.situation.interrupts < 2 and not run.situation.ended:
        _gently(run)
    if run.situation.interrupts >= 2 or run.host.members(fresh=True):
        _firmly(run)
    _see_it_end(run)


def _see_it_end(run: Run) -> None:
    """Wait for the launcher's end. What is not ours to end is told, at each press again: nobody calls that stopped."""
    told = 0
    while True:
        presses = max(1, run.situation.interrupts)
        if presses > told:
            told = presses
            run.lives_on = named(run.host.strangers())
            if run.lives_on:
                run.say(f"not stopped: {run.lives_on}; tunewarden never signals it: stop it by hand")
        if run.situation.ended or run.situation.keeper_lost:
            return
        run.pump(_TICK_S)


def _gently(run: Run) -> None:
    """Save and stop; returns when the generation has ended, or the person has pressed again."""
    hello = run.control().hello()
    if hello is None or "save" not in hello.can:
        _interrupt_trainer(run)
    elif run.steps_made() == 0 and not run.control().taken_request():
        run.say("nothing is trained yet in this run: stopping it without a save")
        _end(run, may_kill=lambda: False, wait_term_s=_TERM_S)
    else:
        _save_and_stop(run)


def _save_and_stop(run: Run) -> None:
    control = run.control()
    taken = control.taken_request()
    # An order may have been at it: a request that is taken is answered, a second one never would be.
    under_way = taken is not None and taken[1] == Mode.SAVE_AND_STOP and _unanswered_or_good(run, taken[0])
    request_id = taken[0] if taken is not None and under_way else f"r-local-g{run.situation.generation}"
    if not _ask(run, request_id):
        return
    run.say("saving, then stopping: waiting for the next optimizer step (Ctrl-C again: stop now, without a save)")
    if not _wait(run, lambda: control.receipt(request_id) is not None, "still waiting for the save"):
        return
    receipt = control.receipt(request_id)
    if receipt is not None and receipt.state is not None:
        run.say(f"saved at step {receipt.state.step}: {receipt.state.path}")
        _end(run, may_kill=lambda: True, wait_term_s=_TERM_S)
        return
    run.say(f"the trainer could not save ({receipt.error[:200] if receipt else ''}); Ctrl-C again: stop without a save")
    _wait(run, lambda: False, "the job trains on; Ctrl-C again stops it without a save")


def _ask(run: Run, request_id: str) -> bool:
    """Put the request, each second again where the host lets no file be written; False: ended, or pressed again."""
    told = False
    while True:
        try:
            run.control().ask(request_id, Mode.SAVE_AND_STOP)
        except Refused as refusal:
            if not told:
                run.say(f"the job can't be asked to save yet: {refusal} (Ctrl-C again: stop now, without a save)")
            told = True
        else:
            return True
        again_at = run.monotonic() + _ASK_AGAIN_S
        while run.monotonic() < again_at:
            if run.situation.ended or run.situation.interrupts >= 2:
                return False
            run.pump(_TICK_S)


def _unanswered_or_good(run: Run, request_id: str) -> bool:
    receipt = run.control().receipt(request_id)
    return receipt is None or receipt.ok


def _interrupt_trainer(run: Run) -> None:
    """SIGINT to the trainer's process alone: its data loaders must not die first."""
    trainer = trainer_of(run.host.members(fresh=True), run.situation.launcher)
    if trainer is None:
        return
    run.say(f"this job can't be told to save: passing Ctrl-C on to it (pid {trainer.pid}); again: stop now")
    signal_one(trainer, signal.SIGINT)
    _wait(run, lambda: False, "the job has not ended yet; Ctrl-C again stops it now")


def trainer_of(members: tuple[Member, ...], launcher: ProcessId | None) -> ProcessId | None:
    """The likeliest trainer where none has said hello.

    The deepest python that is no fork of its parent (a data loader has its trainer's command line) and was not spawned
    by multiprocessing; without any, the end of the chain of only children below the launcher.
    """
    by_pid = {member.id.pid: member for member in members}
    pythons = [member for member in members if _is_python(member) and not _is_worker(member, by_pid.get(member.ppid))]
    if pythons:
        return pythons[-1].id  # members come parents first
    current = by_pid.get(launcher.pid) if launcher else None
    while current is not None:
        children = [member for member in members if member.ppid == current.id.pid]
        if len(children) != 1:
            return current.id
        current = children[0]
    return None


def _is_python(member: Member) -> bool:
    return "python" in member.cmdline[0].rsplit("/", 1)[-1]


def _is_worker(member: Member, parent: Member | None) -> bool:
    spawned = any("multiprocessing" in word for word in member.cmdline[1:4])
    return spawned or (parent is not None and parent.cmdline == member.cmdline)


def _firmly(run: Run) -> None:
    """TERM, and KILL only when the person asks for that too."""
    run.say("stopping now (Ctrl-C again: kill)")
    ending = threading.Thread(
        target=_end,
        args=(run,),
        kwargs={"may_kill": lambda: run.situation.interrupts >= 3, "wait_term_s": _PATIENT_S},
        daemon=True,
    )
    ending.start()
    while ending.is_alive():
        run.pump(_TICK_S)
        if run.situation.interrupts >= 3:
            run.say("killing")
            # The other thread sees them die: signals go to pidfds, so that two can't hit a stranger.
            _end(run, may_kill=lambda: True, wait_term_s=0.0)
            ending.join(_KILL_S)
            return


def _end(run: Run, *, may_kill: Callable[[], bool], wait_term_s: float) -> None:
    end_generation(
        run.situation.launcher,
        run.trainers(),
        run.spec.job_id,
        wait_term_s=wait_term_s,
        wait_kill_s=_KILL_S,
        may_kill=may_kill,
        subreaper=run.host.subreaper,
    )


def _wait(run: Run, done: Callable[[], bool], reminder: str) -> bool:
    """Until `done`; False when the job has ended or the person has pressed again. Says `reminder` every 30 s."""
    remind_at = run.monotonic() + _REMIND_S
    while not done():
        if run.situation.ended or run.situation.interrupts >= 2:
            return False
        if run.monotonic() >= remind_at:
            run.say(reminder)
            remind_at = run.monotonic() + _REMIND_S
        run.pump(_TICK_S)
    return True
