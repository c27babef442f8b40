"""Save a state: partial name, fsync, rename. A save that fails is said, cleaned up, and training goes on."""

import contextlib
import gc
import json
import os
import shutil
import sys
import time

from . import metrics
from .oom import is_oom

FACTS = "tunewarden.json"  # in every state of ours: what `resuming` compares after loading it


class Saved:
    """`path` is None when it failed; then `error` says why."""

    def __init__(self, step, cause, consistent):
        self.step, self.cause, self.consistent = step, cause, consistent
        self.path = None
        self.error = ""
        self.seconds = 0.0
        self.peak_bytes = None
        self.out_of_memory = False

    def to_receipt(self):
        content = {"ok": self.path is not None, "cause": self.cause, "consistent": self.consistent}
        content.update({"step": self.step, "path": self.path} if self.path else {"error": self.error})
        content["seconds"] = round(self.seconds, 3)
        if self.peak_bytes is not None:
            content["peak_bytes"] = self.peak_bytes
        return content


def save(session, cause, consistent=True, agreement=None):
    """Save at this step, on every rank; gives Saved. `agreement`: another one than the session's, after a crash."""
    agreement = agreement or session.agreement
    counters = session.counters
    saved = Saved(counters.step, cause, consistent)
    before = counters.enter("checkpoint")
    if session.rank == 0:
        metrics.flush(session)
    began = time.monotonic()
    try:
        with _Peak(session, saved):
            _save(session, saved, agreement)
    finally:
        saved.seconds = time.monotonic() - began
        if saved.path is not None:
            counters.last_state = {"step": saved.step, "path": saved.path}
        counters.enter(before)
        if session.rank == 0:
            metrics.flush(session)
    return saved


def _save(session, saved, agreement):
    partial = None
    stages = [
        lambda: session.rank == 0 and _make_room(partial),
        lambda: session.adapter.save(partial),
        lambda: session.rank == 0 and _complete(session, partial, final, saved),
    ]
    error = None
    try:
        final = _free_name(states_folder(session), _name(session, saved.step))
        partial = final + ".partial"
        for stage in stages:
            error = _attempt(stage)
            if not agreement.all_ok(error is None):
                break
        else:
            saved.path = final
    except (OSError, LookupError, ValueError) as bad_name:  # a state_name that is no pattern, a folder that can't be
        error = bad_name
    finally:
        if saved.path is None:
            saved.error, saved.out_of_memory = describe(error, partial), is_oom(error)
            if session.rank == 0 and partial is not None:
                shutil.rmtree(partial, ignore_errors=True)


def _attempt(stage):
    try:
        stage()
    except Exception as error:
        error.__traceback__ = None  # its frames hold the tensors of the save
        return error
    return None


def states_folder(session):
    """Absolute: hook.json's, else the trainer's own, else tunewarden-states/<job> in the working directory."""
    own = session.settings.states or session.adapter.states_folder()
    job = os.environ.get("TUNEWARDEN_JOB") or "job"
    return os.path.abspath(own or os.path.join("tunewarden-states", job))


def _name(session, step):
    return (session.settings.state_name or session.adapter.state_name).format(step=step)


def _free_name(folder, name):
    """Nothing is ever overwritten: a state of this name that is there already keeps it."""
    path, number = os.path.join(folder, name), 1
    while os.path.lexists(path):
        number += 1
        path = os.path.join(folder, f"{name}-tw{number}")
    return path


def _make_room(partial):
    shutil.rmtree(partial, ignore_errors=True)  # left over by a process that was killed in the middle of a save
    os.makedirs(partial)


def _complete(session, partial, final, saved):
    """Rank 0, when every rank has written: all on disk, then under its name."""
    session.adapter.settle(partial)
    facts = dict(session.adapter.facts(), protocol=1, step=saved.step, micro_steps=session.counters.micro_steps)
    facts.update(world_size=session.world_size, consistent=saved.consistent, cause=saved.cause)
    with open(os.path.join(partial, FACTS), "w", encoding="utf-8") as file:
        json.dump(facts, file)
    for folder, _, names in os.walk(partial):
        for name in names:
            _sync(os.path.join(folder, name))
        _sync(folder)
    os.rename(partial, final)
    with contextlib.suppress(OSError):
        _sync(os.path.dirname(final))


def _sync(path):
    if os.path.isdir(path) and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe(error, partial):
    """One line. Libraries hide a full disk behind words of their own: then what the system says is added."""
    if error is None:
        return "another rank could not save"
    text = "{}: {}".format(type(error).__name__, " ".join(str(error).split()))[:1000]
    if not isinstance(error, OSError) and not is_oom(error) and partial is not None:
        trouble = _trouble_with(partial)
        text += f" ({trouble})" if trouble else ""
    return text


def _trouble_with(folder):
    """What the system says to a file of 1 MiB in it (no space, quota, read-only, …); None when it can be written."""
    probe = os.path.join(folder, "tunewarden.probe")
    try:
        with open(probe, "wb") as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"[Errno {error.errno}] {error.strerror}"
    return None


class _Peak:
    """Gives the allocator's cache back before a save, and measures torch's peak during it."""

    def __init__(self, session, saved):
        self._session, self._saved = session, saved
        self._cuda = None

    def __enter__(self):
        self._cuda = release_cache()
        if self._cuda is not None:
            self._session.peak_floor = max(self._session.peak_floor, self._cuda.max_memory_allocated())
            self._cuda.reset_peak_memory_stats()

    def __exit__(self, *_):
        if self._cuda is not None:
            self._saved.peak_bytes = self._cuda.max_memory_allocated()


def release_cache():
    """Give unused cached memory of the card back. Gives torch.cuda, or None where no card is in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda
