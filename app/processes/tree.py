"""Which processes belong to a job: what descends from it, and what carries its marker.

Descent finds a child that emptied its environment; the marker finds one that left the tree (setsid, double fork, its
launcher killed). What did both is found only while the keeper, the subreaper of the job, lives.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tunewarden.processes.identity import ProcessId, Stat, own_namespace, pid_namespace, read_proc, read_stat

MARKER = "TUNEWARDEN_JOB"


class Beyond(StrEnum):
    """Why a process of the job is not ours to signal, even where the kernel would let us."""

    USER = "runs as another user"
    NAMESPACE = "runs in another pid namespace"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A living process of a job. `cpu_ticks`: user and system time in clock ticks; `state`: a letter of proc(5).

    `beyond`: why it is never signalled; None: it is ours.
    """

    id: ProcessId
    ppid: int
    uid: int
    cmdline: tuple[str, ...]
    rss_bytes: int
    cpu_ticks: int
    state: str
    beyond: Beyond | None = None


def members(
    roots: Iterable[ProcessId], marker: str, *, subreaper: int | None = None, spare: Collection[int] = ()
) -> tuple[Member, ...]:
    """The living processes of a job, parents before their children.

    They are the roots, all that descends from them or from the `subreaper` (the keeper's pid; itself excluded), and
    every process whose environment holds TUNEWARDEN_JOB=`marker`. Never among them: pid 1, ourselves, the `spare` pids
    and what descends from these (the agent, where the keeper asks), processes of another user or pid namespace: these
    are `strangers`.
    """
    found = everyone(roots, marker, subreaper=subreaper, spare=spare)
    return tuple(member for member in found if member.beyond is None)


def strangers(
    roots: Iterable[ProcessId], marker: str, *, subreaper: int | None = None, spare: Collection[int] = ()
) -> tuple[Member, ...]:
    """What belongs to the job as in `members`, but runs as another user or in another pid namespace (a container).

    It is never signalled. While one lives the job has not stopped. Where /proc hides the processes of others (its mount
    option hidepid) they can't be seen.
    """
    found = everyone(roots, marker, subreaper=subreaper, spare=spare)
    return tuple(member for member in found if member.beyond is not None)


def everyone(
    roots: Iterable[ProcessId], marker: str, *, subreaper: int | None = None, spare: Collection[int] = ()
) -> tuple[Member, ...]:
    """`members` and `strangers` in one look, parents before their children."""
    table = _process_table()
    own = os.getpid()
    starts = {root.pid for root in roots if root.pid in table and table[root.pid].id == root}
    found = _below(starts, table)
    spared = set(spare)
    if subreaper is not None:
        found |= _below({subreaper}, table)
        # An agent is a child of the subreaper too; the subreaper itself is above the whole job.
        spared |= {own} - {subreaper}
    never = _below(spared, table) | {own, subreaper}
    found |= _below({pid for pid in table if pid not in found | never and _carries(pid, marker)}, table)
    living = (_member(table[pid]) for pid in found - never if pid > 1 and table[pid].running)
    return in_order([member for member in living if member is not None])


def named(found: Sequence[Member]) -> str:
    """Strangers by pid, and why they are left alone. No command lines: they may hold the secret of somebody else."""
    return "; ".join(
        f"pid {each.id.pid} {each.beyond}" + (f" (uid {each.uid})" if each.beyond is Beyond.USER else "")
        for each in found
    )


def in_order(found: Sequence[Member]) -> tuple[Member, ...]:
    """The same members, each after its parent."""
    parents = {member.id.pid: member.ppid for member in found}
    return tuple(
        sorted(found, key=lambda member: (_depth(member.id.pid, parents), member.id.start_ticks, member.id.pid))
    )


def _depth(pid: int, parents: Mapping[int, int]) -> int:
    depth = 0
    while pid in parents and depth <= len(parents):
        pid = parents[pid]
        depth += 1
    return depth


def _process_table() -> dict[int, Stat]:
    stats = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - the keeper stays small
    return {stat.id.pid: stat for stat in stats if stat is not None}


def _below(pids: Collection[int], table: Mapping[int, Stat]) -> set[int]:
    """These pids and all that descends from them."""
    children: dict[int, list[int]] = {}
    for stat in table.values():
        children.setdefault(stat.ppid, []).append(stat.id.pid)
    found: set[int] = set()
    todo = [pid for pid in pids if pid in table]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children.get(pid, ()))
    return found


def _carries(pid: int, marker: str) -> bool:
    return f"\0{MARKER}={marker}\0".encode() in b"\0" + read_proc(pid, "environ") + b"\0"


def _member(stat: Stat) -> Member | None:
    """The member, or None where it has just gone."""
    pid = stat.id.pid
    status = _status(pid)
    if "Uid" not in status:
        return None
    # The real uid: the effective one is root's while a setuid program runs, and a process that can't be dumped
    # makes root the owner of /proc/PID.
    uid = int(status["Uid"].split()[0])
    words = read_proc(pid, "cmdline").decode("utf-8", "replace").rstrip("\0").split("\0")
    return Member(
        id=stat.id,
        ppid=stat.ppid,
        uid=uid,
        cmdline=tuple(words),
        rss_bytes=stat.rss_bytes,
        cpu_ticks=stat.cpu_ticks,
        state=stat.state,
        beyond=_beyond(pid, uid, status),
    )


def _beyond(pid: int, uid: int, status: Mapping[str, str]) -> Beyond | None:
    if uid != os.getuid():
        return Beyond.USER
    return None if _in_our_namespace(pid, status) else Beyond.NAMESPACE


def _status(pid: int) -> dict[str, str]:
    lines = read_proc(pid, "status").decode("utf-8", "replace").splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _in_our_namespace(pid: int, status: Mapping[str, str]) -> bool:
    namespace = pid_namespace(pid)
    if namespace is not None:
        return namespace == own_namespace()
    # Where the link may not be read: one number in NSpid means the namespace of our own /proc.
    return len(status.get("NSpid", "").split()) == 1
