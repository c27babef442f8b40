"""Going on from the state that resume.json names: loaded by the trainer or by us, and proven before resumed.json."""

import os
import re

from .control import Control
from .saving import FACTS


class Resume:
    """`step` is resume.json's, 0 without one. `by_hook`: we must still load the state ourselves."""

    def __init__(self, session, request):
        self._session = session
        path = (request or {}).get("path")
        self.path = path if isinstance(path, str) else None
        step = (request or {}).get("step")
        self.step = step if isinstance(step, int) and self.path else 0
        self.by_hook = self.path is not None and session.settings.resume_by == "hook"

    def load(self, adapter):
        """Load it now, on every rank; ends the run with a named reason where that can't be."""
        self.by_hook = False
        facts = read_facts(self.path)
        why = self.unfit(facts)
        if why is None:
            try:
                adapter.load(self.path)
            except Exception as error:
                why = "{}: {}".format(type(error).__name__, " ".join(str(error).split())[:1000])
        why = why or self.unproven(facts, adapter)
        if why is not None:
            self.refuse(why)
        self._write(self.step)

    def loaded(self, adapter, path):
        """The trainer has loaded a state by itself."""
        if self.path is None or path is None:
            return
        facts = read_facts(path)
        same = os.path.realpath(path) == os.path.realpath(self.path)
        step = self.step if same else facts.get("step")
        why = self.unfit(facts, path) or self.unproven(facts, adapter)
        if step is None:
            why = why or "it is not the state of resume.json, and its step is unknown"
        if why is not None:
            self._session.log.say(f"cannot_resume: {path} is not proven: {why}")
            return
        self._write(step, path)

    def unfit(self, facts, path=None):
        """Why a state can't be that of this run, or None."""
        path, world = path or self.path, self._session.world_size
        if not os.path.isdir(path):
            return f"there is no folder {path}"
        saved_by = facts.get("world_size") or _ranks_in(path) or world
        if saved_by != world:
            return f"the state was saved by {saved_by} ranks, and this run has {world}"
        return None

    def unproven(self, facts, adapter):
        """What shows, after loading, that something was not restored, or None."""
        now = adapter.facts()
        for name in ("scheduler_epochs", "optimizer_steps"):
            if facts.get(name) is not None and facts[name] != now.get(name):
                return f"{name} is {now.get(name)} after loading, and was {facts[name]}"
        return None

    def refuse(self, why):
        """Training on from the beginning would not be what was asked, and could overwrite what was saved."""
        text = f"cannot_resume: {self.path}: {why}"
        session = self._session
        session.log.say(text)
        content = {"error": text, "step": session.counters.step, "phase": "load", "at_load": True}
        if session.rank == 0:
            session.control.write("crash.json", content)
        session.leaving, session.status = True, 1
        raise SystemExit("tunewarden: " + text)

    def _write(self, step, path=None):
        session = self._session
        session.counters.step = max(session.counters.step, step)
        session.counters.last_state = {"step": step, "path": os.path.abspath(path or self.path)}
        if session.rank == 0:
            session.control.write("resumed.json", session.counters.last_state)


def read_facts(path):
    """What we wrote into a state of ours; {} for a trainer's own."""
    return Control(path).read(FACTS) or {}


def _ranks_in(path):
    """How many ranks wrote their random states: accelerate's random_states_<rank>.pkl, Trainer's rng_state_<rank>."""
    names = os.listdir(path)
    return sum(1 for name in names if re.match(r"(random_states_\d+\.pkl|rng_state_\d+\.pth)$", name))
