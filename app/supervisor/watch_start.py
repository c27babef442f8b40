"""Begins a `tunewarden watch` or `adopt`: refuses what can be refused, writes the watch folder, becomes the watcher."""

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tunewarden.errors import SettingsError
from tunewarden.processes.identity import ProcessId, identify, read_proc
from tunewarden.processes.tree import MARKER
from tunewarden.supervisor.announcement import WATCH_VARIABLE, why_not_ours
from tunewarden.supervisor.keeper_launch import environment_at_start
from tunewarden.supervisor.keeper_streams import stay_open
from tunewarden.supervisor.run_folder import NAME_CHARACTERS, name_fits, write_json
from tunewarden.supervisor.start import CommandNotFound, host_id

_ID_OF_A_JOB = "-000000"  # each job's name ends with such a part of its id


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a watch needs of the settings and of the person; seconds. `hook` is the training hook's folder."""

    name: str | None
    labels: Mapping[str, str]
    enforce: bool
    grace_s: float
    url: str
    token_file: Path | None
    heartbeat_s: float
    state_dir: Path
    hook: Path

    def check(self) -> None:
        """Raises SettingsError where the name can't be used."""
        if self.name is not None and not name_fits(self.name + _ID_OF_A_JOB):
            most = NAME_CHARACTERS - len(_ID_OF_A_JOB)
            raise SettingsError(
                f"the name {self.name!r} can't be used: a name has 1 to {most} letters, digits, '.', '_' or '-' here; "
                "choose another --name"
            )


def prepare_watch(watch: Watch, *, job_id: str | None = None) -> Path:
    """Make the watch folder, `<state>/watch/<id>`, and write down what each job's agent needs.

    Raises SettingsError where the name can't be used or the folder can't be written.
    """
    stay_open()
    watch.check()
    template: dict[str, Any] = {
        "name": watch.name,
        "labels": dict(watch.labels),
        "enforce": watch.enforce,
        "grace_s": watch.grace_s,
        "url": watch.url,
        "token_file": None if watch.token_file is None else str(watch.token_file.absolute()),
        "simulate_gpu": None,
        "heartbeat_s": watch.heartbeat_s,
        "node": socket.gethostname(),
        "host_id": host_id(),
        "hook": str(watch.hook),
        "job_id": job_id,
    }
    folder = watch.state_dir.absolute() / "watch" / secrets.token_hex(6)
    try:
        for directory in (watch.state_dir, folder.parent, folder):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(folder / "watch.json", template)
    except OSError as error:
        raise SettingsError(
            f"the state folder {watch.state_dir} can't be written: {error.strerror or error}; "
            "make room or give the right to write there, or set TUNEWARDEN_STATE_DIR to another folder"
        ) from error
    return folder


def environment_lines(watch_dir: Path, hook: Path) -> tuple[str, ...]:
    """What to say in a shell before a GUI is started there, so that this watch sees its trainings."""
    return (
        f"export {WATCH_VARIABLE}={_quoted(str(watch_dir))}",
        f"export PYTHONPATH={_quoted(str(hook))}${{PYTHONPATH:+:$PYTHONPATH}}",
    )


def check_command(argv: Sequence[str]) -> None:
    """Raises CommandNotFound where the GUI's command is not there."""
    if shutil.which(argv[0]) is None:
        where = "here" if os.sep in argv[0] else "on PATH"
        raise CommandNotFound(f"command not found: {argv[0]} is not {where}, or may not be executed")


def to_adopt(pid: int) -> ProcessId:
    """The process that may be adopted. Raises SettingsError where it is not ours, has ended, or is a job already."""
    process = identify(pid)
    why = "there is no such process" if process is None else why_not_ours(process)
    if process is None or why is not None:
        raise SettingsError(
            f"pid {pid} can't be adopted: {why or 'it has ended'}; only a process of your own can, in "
            "this pid namespace (not one of a container)"
        )
    if f"\0{MARKER}=".encode() in b"\0" + read_proc(pid, "environ"):
        raise SettingsError(f"pid {pid} belongs to a `tunewarden run` already: see `tunewarden jobs`")
    if read_proc(pid, "cmdline") == b"":
        raise SettingsError(f"pid {pid} has no command line: it is a kernel thread, or has ended")
    return process


def exec_watcher(watch_dir: Path, words: Sequence[str]) -> NoReturn:
    """Become the watcher: `-- COMMAND …`, or a pid and its start ticks. The environment is the one we were given."""
    # -E and -P: the user's PYTHONPATH and working directory may hold modules of the same names as ours.
    watcher = [sys.executable, "-E", "-P", "-m", "tunewarden.supervisor.watcher", str(watch_dir), *words]
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execve(sys.executable, watcher, environment_at_start())  # noqa: S606 - the point is to have no shell


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
