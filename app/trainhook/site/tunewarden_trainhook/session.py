"""The hook in this process: begun when a trainer really constructs an Accelerator (a Trainer constructs one too).

`begin` is called with the rank; `current()` gives the session of this very process, or None; `Session.lead(adapter)`
says whose boundaries count (see boundary.py for what an adapter is): transformers leads over accelerate.
"""

import os
import sys

from . import metrics, ranks, watching
from .boundary import Boundary
from .control import Control
from .crash import Crash
from .log import Log
from .resuming import Resume
from .saving import states_folder
from .settings import Settings
from .stepping import Counters

_LEADS = {"accelerate": 1, "transformers": 2}
_sessions = {}  # pid: Session, one at most: after a fork the child finds none of its own


def current():
    """The session of this process, or None: none was begun here, or the hook has stepped aside."""
    session = _sessions.get(os.getpid())
    return session if session is not None and session.alive else None


def begin(framework, rank, world_size, local_world_size):
    """Begin the session of this process, or give the one there is. None: this process is no business of ours."""
    if os.getpid() in _sessions:
        return current()
    folder = os.environ.get("TUNEWARDEN_CONTROL_DIR") or watching.watched_folder(framework, rank, world_size)
    if not folder or not os.path.isdir(folder):
        return None
    log = Log(folder)
    try:
        session = Session(Control(folder), log, rank, world_size, local_world_size)
        why = session.not_ours()
        if why is not None:
            log.say("the hook stays out of this process: " + why)
            return None
        _sessions.clear()
        _sessions[session.pid] = session
        session.announce(framework)
    except Exception as error:
        log.fault(error)
        _sessions.pop(os.getpid(), None)
        return None
    return session


def close(session):
    """The training of this session is over, and its process goes on: what trains next here is another session."""
    if session.rank == 0:
        metrics.flush(session)
    session.alive = False
    _sessions.pop(session.pid, None)


class Session:
    """control, log, settings, counters, agreement, adapter, boundary, resume, crash; rank, world_size, pid.

    `alive`: False once the hook has stepped aside. `leaving`: we raised SystemExit, with `status`. `peak_floor`: bytes.
    """

    def __init__(self, control, log, rank, world_size, local_world_size):
        self.pid = os.getpid()
        self.alive = True
        self.leaving = False
        self.status = 0
        self.peak_floor = 0
        self.control, self.log = control, log
        self.rank, self.world_size, self.local_world_size = rank, world_size, local_world_size
        self.settings = Settings(control.read("hook.json"))
        self.resume = Resume(self, control.read("resume.json"))
        self.counters = Counters(self.settings.base_step or self.resume.step, self.settings.total_steps)
        self.agreement = ranks.agreement(self)
        self.crash = Crash(self)
        self.adapter = None
        self.boundary = None
        self.gave = self.trains_on = None  # the loader that gave the last batch, and the one whose batches train
        self.progress = None  # the thread of `metrics`, on rank 0
        self.framework = None

    def not_ours(self):
        """Why the hook has no business here, or None."""
        if self.speaks_by_itself():
            return "the trainer speaks the protocol by itself"
        pid = (self.control.read(f"pid.{self.rank}.json") or {}).get("pid")
        if isinstance(pid, int) and pid != self.pid and _has_folder(pid, self.control.folder):
            return f"rank {self.rank} is process {pid}"  # a second trainer of one script, say
        return None

    def speaks_by_itself(self):
        hello = self.control.read("hello.json")
        return hello is not None and hello.get("by") != "hook"

    def announce(self, framework):
        """The pid of this rank; hello.json says nothing of what it can do before the first boundary."""
        place = {"rank": self.rank, "world_size": self.world_size, "local_world_size": self.local_world_size}
        self.framework = framework
        self.control.write(f"pid.{self.rank}.json", dict(place, pid=self.pid))
        self.hello(())
        self.crash.install()
        if self.rank == 0:
            metrics.start(self)

    def hello(self, can):
        """What this trainer can do, said by rank 0; unless it has something to say by itself, after all."""
        if self.rank != 0:
            return
        if self.speaks_by_itself():
            self.alive = False
            self.log.say("the hook steps aside: the trainer speaks the protocol by itself")
            return
        names = {"accelerate", "transformers", "peft", "torch"}
        found = {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in sorted(names)}
        if watching.is_watched(self):  # nobody but the GUI launches it again
            can = [word for word in can if word != "resume"]
        content = {"protocol": 1, "can": list(can), "pid": self.pid, "by": "hook", "framework": self.framework}
        content["versions"] = {name: version for name, version in found.items() if version}
        if self.adapter is not None:  # before that the trainer's own folder is not known
            content["states"] = states_folder(self)
        self.control.write("hello.json", content)

    def lead(self, adapter):
        """Give whether boundaries of this adapter's framework count from now on."""
        if self.adapter is not None and _LEADS[self.adapter.framework] > _LEADS[adapter.framework]:
            return False
        if self.adapter is None or self.adapter.framework != adapter.framework:
            self.framework = adapter.framework
            self.boundary = Boundary(self)
            self.hello(())
        self.adapter = adapter
        return True

    def guarded(self, function, *args):
        """Call a part of the hook inside a call of the trainer's. SystemExit passes: it is how a run is ended."""
        try:
            return function(*args)
        except Exception as error:
            self.step_aside(error)
            return None

    def step_aside(self, error):
        """For good: the trainer runs on as if there were no hook, and can't be saved from outside any more."""
        if self.alive:
            self.alive = False
            self.log.fault(error)
            self.agreement.close()  # the other ranks need not wait for this one
            self.hello(())


def _has_folder(pid, folder):
    """Whether it is a living process with this control directory. Without a /proc nobody is."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"TUNEWARDEN_CONTROL_DIR=" + os.fsencode(folder) in file.read().split(b"\0")
    except OSError:
        return False
