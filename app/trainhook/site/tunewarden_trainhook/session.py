"""The hook in this process: begun when a trainer really constructs an Accelerator (a Trainer constructs one too).

`begin` is called with the rank; `current()` gives the session of this very process, or None; `Session.lead(adapter)`
says whose boundaries count (see boundary.py for what an adapter is): transformers leads over accelerate.
"""

import contextlib
import os
import sys

from . import metrics, ranks
from .boundary import Boundary
from .control import Control
from .crash import Crash
from .log import Log
from .resuming import Resume
from .settings import Settings
from .stepping import Counters
from .watching import watched_folder

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
    folder = os.environ.get("TUNEWARDEN_CONTROL_DIR") or watched_folder(framework, rank, world_size)
    if not folder or not os.path.isdir(folder):
        return None
    log = Log(folder)
    try:
        session = Session(Control(folder), log, rank, world_size, local_world_size)
        if session.taken_by_another():
            log.say(f"rank {rank} belongs to a living process already: the hook stays out of this one")
            return None
        _sessions.clear()
        _sessions[session.pid] = session
        session.announce(framework)
    except Exception as error:
        log.fault(error)
        _sessions.pop(os.getpid(), None)
        return None
    return session


class Session:
    """control, log, settings, counters, agreement, adapter, boundary, resume, crash; rank, world_size, pid.

    `alive`: False once the hook has stepped aside. `leaving`: SystemExit was raised by us. `peak_floor`: bytes.
    """

    def __init__(self, control, log, rank, world_size, local_world_size):
        self.pid = os.getpid()
        self.alive = True
        self.leaving = False
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
        self.framework = None

    def taken_by_another(self):
        """Whether another living process of this job is this rank: a second trainer of one script, say."""
        pid = (self.control.read(f"pid.{self.rank}.json") or {}).get("pid")
        if not isinstance(pid, int) or pid in (self.pid, os.getppid()) or os.name != "posix":
            return False
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            return True
        return False

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
        """What this trainer can do, said by rank 0."""
        if self.rank != 0:
            return
        names = {"accelerate", "transformers", "peft", "torch"}
        found = {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in sorted(names)}
        content = {"protocol": 1, "can": list(can), "pid": self.pid, "by": "hook", "framework": self.framework}
        content["versions"] = {name: version for name, version in found.items() if version}
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
            self.hello(())
