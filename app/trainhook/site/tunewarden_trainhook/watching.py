"""A trainer under a GUI or in a notebook (`tunewarden watch`) has no control directory of its own, so it makes one.

TUNEWARDEN_WATCH_DIR names a folder. The control directory is `<it>/<job>/g1`, the same for all ranks of one launch;
`announce.<pid>.json` in the folder tells of it (docs/reference/control-directory.md). Nothing is waited for.

What ends when a save_and_stop is answered: the process, with 0 and without parking, since nothing behind it is ours to
hold; in a notebook the cell; in a thread of a program (a GUI that trains in its own process) what the thread does.
A notebook's job lasts until the end of the cell that has trained; training on in another cell is another job.
"""

import atexit
import hashlib
import os
import sys
import threading

from .control import Control

_INTERPRETER = os.getpid()  # a fork of a kernel (notebook_launcher) is a process of its own, no kernel
_cells = {"listened": False, "closed": False}


class CellEnded(KeyboardInterrupt):
    """Raised in a notebook's cell after the state was saved, as the kernel's own interrupt would be."""

    def _render_traceback_(self):  # IPython shows these lines in place of a traceback
        return [f"tunewarden: {self}"]


class TrainingEnded(BaseException):
    """Raised in a thread. No SystemExit: an event loop that awaits the thread would end with it."""


def watched_folder(framework, rank, world_size):
    """Make the control directory and announce it. None: nobody watches."""
    watch = os.environ.get("TUNEWARDEN_WATCH_DIR")
    if not watch or not os.path.isdir(watch):
        return None
    job = _job_of(world_size)
    folder = os.path.join(watch, job, "g1")
    try:
        for path in (os.path.dirname(folder), folder):
            os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError:
        return None
    ends_with = "cell" if in_a_cell() or in_a_thread() else "process"
    content = {"protocol": 1, "pid": os.getpid(), "start_ticks": _start_ticks(os.getpid()), "job": job}
    content.update(ends_with=ends_with, framework=framework, rank=rank, world_size=world_size)
    if not Control(watch).write(f"announce.{os.getpid()}.json", content):
        return None
    if ends_with == "process":
        os.environ["TUNEWARDEN_JOB"] = job  # what the trainer starts from now on can be told by it
        atexit.register(_at_exit, folder, os.getpid())
    elif in_a_cell():
        _listen_to_cells()
    return folder


def is_watched(session):
    """Whether this session's control directory was made here."""
    watch = os.environ.get("TUNEWARDEN_WATCH_DIR")
    return bool(watch) and os.path.dirname(os.path.dirname(session.control.folder)) == watch


def in_a_cell():
    """Whether this process is a notebook's kernel."""
    return "ipykernel" in sys.modules and os.getpid() == _INTERPRETER


def in_a_thread():
    return threading.current_thread() is not threading.main_thread()


def end(session, text):
    """After a save_and_stop. Always raises."""
    if in_a_cell():
        raise CellEnded(text)
    if in_a_thread():
        write_end(session.control.folder, 0)
        raise TrainingEnded(text)
    raise SystemExit(0)


def may_begin_again():
    """Whether a cell of this kernel has trained and ended: an Accelerator of then may train on in another one."""
    return _cells["closed"] and in_a_cell()


def write_end(folder, exit_status):
    """ended.json: how it ended, for a watcher that is not our parent. A rank's failure stays."""
    control = Control(folder)
    if exit_status or control.read("ended.json") is None:
        control.write("ended.json", {"exit_status": exit_status})


def _at_exit(folder, pid):
    if os.getpid() == pid:  # not what it has forked
        write_end(folder, _status_of(getattr(sys, "last_type", None)))


def _status_of(kind):
    if kind is None or not isinstance(kind, type) or issubclass(kind, (CellEnded, SystemExit)):
        return 0
    return 130 if issubclass(kind, KeyboardInterrupt) else 1


def _listen_to_cells():
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and not _cells["listened"]:
        _cells["listened"] = True
        shell.events.register("post_run_cell", _cell_ended)


def _cell_ended(result=None):
    """IPython calls this after each cell, whatever it ended with."""
    from . import session as sessions

    session = sessions.current()
    if session is None or session.counters.steps_here == 0:
        return
    error = getattr(result, "error_in_exec", None) or getattr(result, "error_before_exec", None)
    if isinstance(error, Exception):
        session.guarded(session.crash.passing, error)
    write_end(session.control.folder, 0 if error is None else _status_of(type(error)))
    sessions.close(session)
    _cells["closed"] = True


def _job_of(world_size):
    """Twelve hex digits, the same for the ranks that one launcher has started."""
    if world_size <= 1:
        return os.urandom(6).hex()
    parent = os.getppid()
    launch = [parent, _start_ticks(parent), os.environ.get("MASTER_PORT"), os.environ.get("TORCHELASTIC_RESTART_COUNT")]
    return hashlib.sha256(repr(launch).encode()).hexdigest()[:12]


def _start_ticks(pid):
    """When a process started, in clock ticks since boot: field 22 of /proc/PID/stat. 0 where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return 0
    return int(line[line.rindex(b")") + 2 :].split()[19])
