"""`tunewarden watch` and `tunewarden adopt`: take the words, then become the watcher."""

import secrets
from collections.abc import Sequence
from typing import NoReturn

from tunewarden.commandline.output import Output
from tunewarden.commandline.run import read_labels, usable_hook
from tunewarden.config import Settings
from tunewarden.errors import SettingsError
from tunewarden.supervisor.adopting import what_a_stop_loses
from tunewarden.supervisor.spec import DEFAULT_GRACE_S
from tunewarden.supervisor.watch_start import (
    Watch,
    check_command,
    environment_lines,
    exec_watcher,
    prepare_watch,
    to_adopt,
)


def watch(
    settings: Settings,
    output: Output,
    argv: Sequence[str],
    name: str | None,
    labels: Sequence[str],
    grace_s: float,
    *,
    enforce: bool,
) -> NoReturn:
    """Start a GUI or a notebook server, or say how one is started, and watch for its trainings.

    Raises SettingsError, or CommandNotFound when the command is not on PATH.
    """
    if grace_s <= 0:
        raise SettingsError(f"--grace {grace_s}: say how many seconds a stop may wait for the save, more than 0")
    if argv:
        check_command(argv)
    wish = _wish(settings, name, labels, grace_s, enforce=enforce)
    folder = prepare_watch(wish)
    if argv:
        exec_watcher(folder, ["--", *argv])
    output.line("Start the GUI or the notebook server from a shell in which you have said this:")
    for line in environment_lines(folder, wish.hook):
        output.line(f"  {line}")
    output.line("Its trainings become jobs for as long as this runs; Ctrl-C ends it.")
    exec_watcher(folder, [])


def adopt(settings: Settings, output: Output, pid: int, name: str | None, labels: Sequence[str]) -> NoReturn:
    """Watch a training that runs already, for messages only. Raises SettingsError where it can't be."""
    process = to_adopt(pid)
    wish = _wish(settings, name, labels, DEFAULT_GRACE_S, enforce=False)
    folder = prepare_watch(wish, job_id=secrets.token_hex(6))
    output.line(f"If pid {pid} were stopped now, it would lose {what_a_stop_loses(process)}.")
    exec_watcher(folder, [str(process.pid), str(process.start_ticks)])


def _wish(settings: Settings, name: str | None, labels: Sequence[str], grace_s: float, *, enforce: bool) -> Watch:
    return Watch(
        name=name,
        labels=read_labels(labels),
        enforce=enforce,
        grace_s=grace_s,
        url=settings.service_url,
        token_file=settings.agent_token,
        heartbeat_s=settings.heartbeat.total_seconds(),
        state_dir=settings.state,
        hook=usable_hook(),
    )
