"""crash.json: what a run died of, and the state that was saved after an out-of-memory error."""

import atexit
import contextlib
import os
import sys
import traceback

from . import metrics
from .oom import is_oom
from .ranks import Alone
from .saving import release_cache, save

MOST_SAVES = 3  # a loop that catches each OOM and goes on is not slowed down for ever
_TAIL_LINES = 20
_SEEN = "_tunewarden_seen"
_WHERE = {"sample": "sampling", "eval": "evaluation", "cache": "caching", "checkpoint": "saving"}


class Crash:
    """`passing(error)` is called where a patched call sees an exception; `forget` when training goes on after it."""

    def __init__(self, session):
        self._session = session
        self._written = False  # crash.json tells of an exception that nobody has caught, as far as we know
        self._saves = 0
        self._previous = None

    def install(self):
        self._previous = sys.excepthook
        sys.excepthook = self._hook
        atexit.register(self._at_exit)

    def _hook(self, kind, error, trace):
        self._ended_by(error)
        self._previous(kind, error, trace)

    def _at_exit(self):
        """For a script that has put a hook of its own in ours' place (rich's tracebacks): Python keeps the error."""
        error = getattr(sys, "last_value", None)
        if error is not None and "ipykernel" not in sys.modules:  # a kernel keeps the errors of old cells too
            self._ended_by(error)

    def _ended_by(self, error):
        session = self._session
        if session.alive and session.pid == os.getpid():
            session.guarded(self.passing, error)

    def forget(self):
        if self._written:
            self._written = False
            self._session.control.remove("crash.json")

    def passing(self, error):
        """Write crash.json, and save when memory ran out. What a person does (Ctrl-C) and sys.exit is no crash.

        The exception is marked and never kept: its frames hold the tensors of the step, which a loop that skips the
        batch needs the memory of.
        """
        if getattr(error, _SEEN, False) or not isinstance(error, Exception):
            return
        with contextlib.suppress(Exception):  # a class may refuse attributes: then it is written again
            setattr(error, _SEEN, True)
        self._written = True
        session = self._session
        counters = session.counters
        content = {"error": one_line(error), "step": counters.step, "phase": counters.phase}
        content.update(at_load=counters.steps_here == 0, consistent=not self._mid_update(error))
        content["traceback_tail"] = tail(error)
        if counters.phase in _WHERE:
            content["where"] = _WHERE[counters.phase]
        memory = metrics.memory(session)
        if memory is not None:
            content["memory"] = memory
        if is_oom(error):
            self._save(error, content)
        if session.rank == 0 or not os.path.exists(session.control.path("crash.json")):
            session.control.write("crash.json", content)

    def _mid_update(self, error):
        """Whether parameters may be half updated."""
        adapter = self._session.adapter
        return (adapter is not None and adapter.mid_update()) or _inside_optimizer(error.__traceback__)

    def _save(self, error, content):
        session = self._session
        step = session.counters.step
        last = session.counters.last_state
        if last is not None and last.get("step") == step and os.path.exists(last["path"]):
            content["state"] = last  # nothing has changed since
            return
        able = session.boundary is not None and session.rank == 0 and session.adapter.can_save_alone()
        if not able or session.counters.steps_here == 0 or self._saves >= MOST_SAVES:
            return
        self._saves += 1
        saved = save(session, "oom", content["consistent"], Alone(session.control))
        if saved.path is None and saved.out_of_memory:
            traceback.clear_frames(error.__traceback__)  # what the failed step still holds
            release_cache()
            saved = save(session, "oom", content["consistent"], Alone(session.control))
        if saved.path is not None:
            content["state"] = {"step": saved.step, "path": saved.path}
        else:
            content["state_error"] = saved.error


def one_line(error):
    return " ".join("".join(traceback.format_exception_only(type(error), error)).split())[:8000]


def tail(error):
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


def _inside_optimizer(trace):
    """Whether a frame is the `step` of some optimizer."""
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "step":
            # Only here: before Python 3.13 a look at f_locals leaves a copy in the frame, and with it the exception.
            own = trace.tb_frame.f_locals.get("self")
            if hasattr(own, "param_groups") and hasattr(own, "zero_grad"):
                return True
        trace = trace.tb_next
    return False
