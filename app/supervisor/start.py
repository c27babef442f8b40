"""Begins a run: takes the job's name, writes the run folder, and becomes the keeper.

Everything that can be refused is refused here, before anything is launched.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tunewarden.errors import SettingsError
from tunewarden.processes.identity import alive
from tunewarden.supervisor.first_launch import look_at
from tunewarden.supervisor.keeper_launch import environment_at_start
from tunewarden.supervisor.keeper_streams import stay_open
from tunewarden.supervisor.run_folder import (
    NAME_CHARACTERS,
    RunFolder,
    lock_file,
    name_fits,
    read_identity,
    unlock,
    write_json,
)

COMMAND_NOT_FOUND = 127
_MACHINE_ID = Path("/etc/machine-id")


class CommandNotFound(SettingsError):
    """The command is not there; `run` ends with 127, as a shell does."""

    exit_code = COMMAND_NOT_FOUND


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that may start: its folder, and the descriptor that holds the lock on its name."""

    folder: RunFolder
    lock_fd: int
    job_id: str
    name: str


def prepare(
    argv: Sequence[str],
    *,
    name: str | None,
    labels: Mapping[str, str],
    enforce: bool,
    grace_s: float,
    url: str,
    token_file: Path | None,
    simulate_gpu: str | None,
    heartbeat_s: float,
    state_dir: Path,
    node: str | None,
    hook: Path | None = None,
    pushgateway: str | None = None,
) -> Prepared:
    """Take the name and write the run folder of a job that runs `argv` in the current directory. Launches nothing.

    `hook` is the folder that goes first on the job's PYTHONPATH; None leaves PYTHONPATH alone.
    Raises SettingsError when the name can't be used or is taken by a living run, or the state folder can't be written;
    CommandNotFound without the command.
    """
    stay_open()
    cwd = _current_directory()
    _check_command(argv)
    first = look_at(argv, cwd)
    job_id = secrets.token_hex(6)
    name = _checked_name(name) if name is not None else _default_name(cwd, job_id)
    spec = {
        "job_id": job_id,
        "name": name,
        "argv": list(argv),
        "cwd": str(cwd),
        "labels": dict(labels),
        "enforce": enforce,
        "grace_s": grace_s,
        "url": url,
        "token_file": None if token_file is None else str(token_file.absolute()),
        "simulate_gpu": simulate_gpu,
        "heartbeat_s": heartbeat_s,
        "node": node or socket.gethostname(),
        "host_id": host_id(),
        "hook": None if hook is None else str(hook),
        "pushgateway": pushgateway,
        "states_before": first.states_before,
    }
    try:
        return _write_run(state_dir, job_id, name, spec, first.hook if hook else None)
    except OSError as error:
        raise SettingsError(
            f"the state folder {state_dir} can't be written: {error.strerror or error}; "
            "make room or give the right to write there, or set TUNEWARDEN_STATE_DIR to another folder"
        ) from error


def _write_run(
    state_dir: Path, job_id: str, name: str, spec: Mapping[str, Any], hook: Mapping[str, Any] | None
) -> Prepared:
    """Take the name and write the run folder. Raises OSError, and SettingsError where the name is taken."""
    for directory in (state_dir, state_dir / "jobs", state_dir / "runs"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock_fd = _take_name(state_dir, name, job_id)
    folder = RunFolder(state_dir.absolute() / "runs" / job_id)
    try:
        folder.path.mkdir(mode=0o700)
        folder.control_dir(1).mkdir(mode=0o700)
        if hook is not None:
            write_json(folder.control_dir(1) / "hook.json", hook)
        write_json(folder.spec_file, spec)
    except OSError:
        unlock(lock_file(state_dir, name), lock_fd)
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return Prepared(folder=folder, lock_fd=lock_fd, job_id=job_id, name=name)


def exec_keeper(prepared: Prepared, *, agent_argv: Sequence[str] = ()) -> NoReturn:
    """Become the keeper of this run. The environment is the one that we were started with, to the byte.

    `agent_argv` is the agent's command; without it our own agent.
    """
    os.set_inheritable(prepared.lock_fd, True)
    words = [str(prepared.folder.path), str(prepared.lock_fd), *agent_argv]
    # -E and -P: the user's PYTHONPATH and working directory may hold modules of the same names as the keeper's.
    keeper = [sys.executable, "-E", "-P", "-m", "tunewarden.supervisor.keeper"]
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the person may have closed it
            stream.flush()
    os.execve(sys.executable, [*keeper, *words], environment_at_start())  # noqa: S606 - the point is to have no shell


def host_id() -> str:
    """16 hex digits that stay with this machine and don't tell its machine id (machine-id(5) asks for that)."""
    try:
        seed = _MACHINE_ID.read_text(encoding="utf-8").strip()
    except OSError:
        seed = ""
    return hashlib.sha256((seed or socket.gethostname()).encode()).hexdigest()[:16]


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise SettingsError("the current directory was deleted; change to one that exists") from error


def _check_command(argv: Sequence[str]) -> None:
    if not argv:
        raise SettingsError("no command given: tunewarden run [OPTIONS] -- COMMAND …")
    if shutil.which(argv[0]) is None:
        where = "here" if os.sep in argv[0] else "on PATH"
        raise CommandNotFound(f"command not found: {argv[0]} is not {where}, or may not be executed")


def _checked_name(name: str) -> str:
    if name_fits(name):
        return name
    raise SettingsError(
        f"the name {name!r} can't be used: a name has 1 to {NAME_CHARACTERS} letters, digits, '.', '_' or '-'; "
        "choose another --name"
    )


def _default_name(cwd: Path, job_id: str) -> str:
    folder = re.sub(r"[^\w.-]+", "-", cwd.name).strip("-.")[:40] or "job"
    return _checked_name(f"{folder}-{job_id[:6]}")


def _take_name(state_dir: Path, name: str, job_id: str) -> int:
    """Lock the name; the descriptor holds the lock. Raises SettingsError where a living run holds it."""
    path = lock_file(state_dir, name)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise SettingsError(_taken(state_dir, name)) from None
        # The keeper deletes the file when its run is over: what we have locked may be deleted already.
        if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
            break
        os.close(fd)
    os.ftruncate(fd, 0)
    with contextlib.suppress(OSError):  # it only names us to the next one; a full disk is told by what comes after
        os.write(fd, json.dumps({"job_id": job_id, "pid": os.getpid()}).encode())
    return fd


def _taken(state_dir: Path, name: str) -> str:
    pid: int | str = "unknown"
    try:
        holder = json.loads(lock_file(state_dir, name).read_text(encoding="utf-8"))
        folder = RunFolder(state_dir / "runs" / str(holder["job_id"]))
        # The keeper may have been killed: then its agent holds the lock for as long as the job lives.
        known = (read_identity(folder.keeper_file), read_identity(folder.agent_file))
        pid = next((process.pid for process in known if process and alive(process)), holder["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return f"a job named {name!r} is running here (pid {pid}); choose another --name, or wait until it has ended"
