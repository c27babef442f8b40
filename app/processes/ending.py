"""Ends every process of a generation, so that nothing of it goes on: the row on scripts in the table of races.

A script that called the trainer must not run its next line because we ended the trainer. So whatever has children is
frozen first, top-down; then the trainers are ended, then the rest; the frozen ones are killed without ever running
again. Signals go to single processes through pidfds (Linux 5.3), never to a process group: a group holds data loader
workers, whose end makes the trainer lose what it is saving.
"""

import select
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tunewarden.processes.grip import gripping, wait_ended
from tunewarden.processes.identity import ProcessId, alive
from tunewarden.processes.tree import Member, everyone

_ROUNDS = 20  # a job that still makes new processes after so many rounds is reported as surviving
_RESCAN_S = 0.05  # between two looks for what a dying process has left behind
_STOPPED = frozenset("Tt")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What was done.

    `pids` have ended, `survivors` still live. `beyond_reach`, some of the survivors, run as another user or in another
    pid namespace and were not signalled. `frozen`, some of the survivors, are scripts that wait for a trainer that
    we told to end and may not kill: end again later, or `thaw` them. `without_pidfd`: the kernel refused pidfds, start
    ticks were compared before each signal instead.
    """

    pids: tuple[ProcessId, ...]
    survivors: tuple[ProcessId, ...]
    frozen: tuple[ProcessId, ...]
    without_pidfd: bool
    beyond_reach: tuple[Member, ...] = ()

    @property
    def complete(self) -> bool:
        """True where nothing of the generation is alive."""
        return not self.survivors


def signal_one(process: ProcessId, signum: int) -> bool:
    """Send a signal to this very process. False where it is gone, or may not be signalled."""
    with gripping([process]) as grips:
        return grips[0].send(signum)


def freeze(found: Sequence[Member]) -> tuple[ProcessId, ...]:
    """Stop (SIGSTOP) these members, parents first. Returns those that ran before, for `thaw`."""
    return tuple(
        member.id for member in found if member.state not in _STOPPED and signal_one(member.id, signal.SIGSTOP)
    )


def thaw(frozen: Sequence[ProcessId]) -> None:
    """Let what `freeze` stopped go on, children first."""
    for process in reversed(frozen):
        signal_one(process, signal.SIGCONT)


def end_generation(
    launcher: ProcessId | None,
    trainers: Sequence[ProcessId],
    marker: str,
    *,
    wait_term_s: float = 10.0,
    wait_kill_s: float = 5.0,
    may_kill: Callable[[], bool] = lambda: True,
    subreaper: int | None = None,
    spare: Collection[int] = (),
    joined: Collection[ProcessId] = (),
) -> Ended:
    """End all of a job's generation that is ours: TERM, wait, KILL; returns when two looks in a row find nothing.

    A process named in `trainers` is touched only where it is found to belong to the job. Without trainers, what has no
    children is ended first. `may_kill` is asked before a KILL of anything but a frozen script; False ends nothing more
    and returns the survivors, the scripts among them still frozen: thawed, they would go on once the trainer obeys
    the TERM that it has got. Processes of another user or pid namespace are left alone and survive: who does not want
    the rest to be ended without them asks `tree.strangers` first. `subreaper` and `spare` as in `tree.members`;
    `joined` are further processes whose descendants are the job's.
    """
    roots = (*(() if launcher is None else (launcher,)), *joined)
    act = _Act(trainers=frozenset(trainers), wait_term_s=wait_term_s, wait_kill_s=wait_kill_s, may_kill=may_kill)

    def look() -> tuple[Member, ...]:
        return everyone(roots, marker, subreaper=subreaper, spare=spare)

    empty = 0
    for _ in range(_ROUNDS):
        found = [member for member in look() if member.beyond is None]
        empty = 0 if found else empty + 1
        if empty == 2:
            break
        if not found:
            select.select([], [], [], _RESCAN_S)
        elif not act.end(found):
            break
    living = look()
    left = dict.fromkeys(member.id for member in living)
    left.update(dict.fromkeys(known for known in (*roots, *trainers) if alive(known)))
    return Ended(
        pids=tuple(process for process in act.touched if process not in left),
        survivors=tuple(left),
        frozen=tuple(process for process in act.frozen if process in left),
        without_pidfd=act.without_pidfd,
        beyond_reach=tuple(member for member in living if member.beyond is not None),
    )


@dataclass(kw_only=True)
class _Act:
    """One ending: its limits, and what it has touched so far, in order."""

    trainers: frozenset[ProcessId]
    wait_term_s: float
    wait_kill_s: float
    may_kill: Callable[[], bool]
    touched: dict[ProcessId, None] = field(default_factory=dict)
    frozen: tuple[ProcessId, ...] = ()
    without_pidfd: bool = False

    def end(self, found: Sequence[Member]) -> bool:
        """One round over these members. False where something may not be killed, or would not die."""
        trainers, below, scripts, others = self._parts(found)
        freeze(scripts)
        for part in (trainers, below, others):
            left = self._send_and_wait(part, signal.SIGTERM, self.wait_term_s)
            if left and not self.may_kill():
                self.frozen = tuple(member.id for member in scripts)
                return False
            if left and self._send_and_wait(left, signal.SIGKILL, self.wait_kill_s):
                self._send_and_wait(scripts, signal.SIGKILL, self.wait_kill_s)
                return False
        return not self._send_and_wait(scripts, signal.SIGKILL, self.wait_kill_s)

    def _parts(self, found: Sequence[Member]) -> tuple[list[Member], list[Member], list[Member], list[Member]]:
        """Trainers, what descends from them, what else has children, the rest. `found` names parents first."""
        trainers: list[Member] = []
        below: list[Member] = []
        scripts: list[Member] = []
        others: list[Member] = []
        parents = {member.ppid for member in found}
        training: set[int] = set()
        for member in found:
            if member.id in self.trainers:
                part = trainers
            elif member.ppid in training:
                part = below
            else:
                part = scripts if member.id.pid in parents else others
            if part is trainers or part is below:
                training.add(member.id.pid)
            part.append(member)
        return trainers, below, scripts, others

    def _send_and_wait(self, part: Sequence[Member], signum: int, limit_s: float) -> list[Member]:
        """Signal each and wait until they have ended; returns those that have not."""
        self.touched.update(dict.fromkeys(member.id for member in part))
        with gripping([member.id for member in part]) as grips:
            for member, grip in zip(part, grips, strict=True):
                grip.send(signum)
                if member.state in _STOPPED and signum != signal.SIGKILL:
                    grip.send(signal.SIGCONT)  # a stopped process takes no TERM until it goes on
                self.without_pidfd |= grip.refused
            wait_ended(grips, limit_s)
        return [member for member in part if alive(member.id)]
