"""Trainers that announce themselves in a watch folder (docs/reference/control-directory.md). Standard library only.

A job may write anything there, so an announcement only points at a process; whether that process asked to be watched
is read from /proc: it is ours, in our pid namespace, and its environment names this very folder.
"""

import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tunewarden.processes.identity import ProcessId, alive, own_namespace, pid_namespace, read_proc, read_stat
from tunewarden.supervisor.control_file import read_object, text, whole_number
from tunewarden.supervisor.run_folder import RunFolder

WATCH_VARIABLE = "TUNEWARDEN_WATCH_DIR"
_JOB_ID = re.compile(r"[0-9a-f]{12}")
_MOST_AT_ONCE = 64  # announcements that one look takes
_REASON_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class Announced:
    """One trainer process: a rank of the job `job_id`, whose run folder it has made.

    `ends_with_cell`: it trains in a notebook's kernel, or in the thread of a program that goes on: never signalled.
    """

    job_id: str
    process: ProcessId
    folder: RunFolder
    ends_with_cell: bool


def take_announcements(watch_dir: Path) -> tuple[list[Announced], list[str]]:
    """The trainers that have announced themselves since the last look, and in words what was passed over.

    Each announcement is deleted: it is taken once.
    """
    found, refused = [], []
    # A folder of such a name can't be unlinked, and must not keep the others waiting.
    files = (file for file in sorted(watch_dir.glob("announce.*.json")) if file.is_symlink() or not file.is_dir())
    for file in islice(files, _MOST_AT_ONCE):
        raw = read_object(file)
        file.unlink(missing_ok=True)
        announced = _read(watch_dir, raw or {})
        if isinstance(announced, Announced):
            found.append(announced)
        else:
            refused.append(f"{file.name}: {announced}")
    return found, refused


def _read(watch_dir: Path, raw: dict[str, object]) -> Announced | str:
    """The announcement, or why it is passed over."""
    pid, ticks, job_id = whole_number(raw.get("pid")), whole_number(raw.get("start_ticks")), raw.get("job")
    if raw.get("protocol") != 1 or pid is None or ticks is None or not isinstance(job_id, str):
        return "no announcement of protocol 1"
    if not _JOB_ID.fullmatch(job_id):
        return f"{text(job_id, _REASON_CHARS)!r} is no job id"
    process = ProcessId(pid, ticks)
    why = why_not_ours(process)
    if why is not None:
        return f"pid {pid} {why}"
    if f"\0{WATCH_VARIABLE}={watch_dir}\0".encode() not in b"\0" + read_proc(pid, "environ") + b"\0":
        return f"pid {pid} was not started with {WATCH_VARIABLE}={watch_dir}"
    folder = RunFolder(watch_dir / job_id)
    if not all(_own_folder(path) for path in (folder.path, folder.control_dir(1))):
        return f"{folder.control_dir(1)} is no folder of ours"
    return Announced(job_id=job_id, process=process, folder=folder, ends_with_cell=raw.get("ends_with") != "process")


def why_not_ours(process: ProcessId) -> str | None:
    """Why this process is none that we may watch; None: it is ours. The real uid counts, as in processes.tree."""
    if process.pid <= 1 or process.pid == os.getpid() or not alive(process):
        return "has ended"
    if _uid(process.pid) != os.getuid():
        return "runs as another user"
    return None if pid_namespace(process.pid) == own_namespace() else "runs in another pid namespace"


def command_of(process: ProcessId) -> tuple[str, ...]:
    """The words that a process was started with."""
    return tuple(read_proc(process.pid, "cmdline").decode("utf-8", "surrogateescape").rstrip("\0").split("\0"))


def folder_of(process: ProcessId) -> Path | None:
    """The working directory of a process; None where it has gone."""
    try:
        return Path(f"/proc/{process.pid}/cwd").readlink()
    except OSError:
        return None


def parent_of(process: ProcessId) -> ProcessId | None:
    """The parent of a process, as long as both live."""
    stat = read_stat(process.pid)
    parent = read_stat(stat.ppid) if stat is not None and stat.id == process else None
    return parent.id if parent else None


def _uid(pid: int) -> int | None:
    for line in read_proc(pid, "status").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return None


def _own_folder(path: Path) -> bool:
    try:
        return path.is_dir() and not path.is_symlink() and path.lstat().st_uid == os.getuid()
    except OSError:
        return False
