"""accelerate.Accelerator: where its optimizer-step boundary is, and what is patched.

Loops that use `accumulate`: the boundary is its EXIT with sync_gradients true and an optimizer step inside. Optimizer,
scheduler and zero_grad are all inside that block in the trainers we know, and a trainer's own save hook then writes the
right step; at the optimizer's step the scheduler is one behind, at the next block's entry the step is one too high.

Loops that don't (or that step outside the block): the first moment after a real step at which the scheduler has stepped
too, and no gradient is needed any more: a zero_grad with all prepared schedulers stepped; else a scheduler's step after
a zero_grad; else the next backward (a scheduler that steps once an epoch, a loop that calls model.zero_grad). With
several prepared optimizers all of them must have stepped, unless the loop shows that it steps one alone.

A state that the hook must load is loaded at the latest moment before training: the first accumulate, zero_grad or
forward of a prepared model after an optimizer was prepared. By then the script has prepared everything.
"""

import contextlib
import functools
import os

from . import schedules, watching
from . import session as sessions
from .accelerate_adapter import AccelerateAdapter
from .boundary import finish, still_here
from .resuming import read_facts


def patch(module):
    """`module` is accelerate.accelerator, just imported."""
    schedules.remember()
    accelerator, optimizer = module.Accelerator, module.AcceleratedOptimizer
    for owner, name, wrap in (
        (accelerator, "__init__", _init),
        (accelerator, "prepare", _prepare),
        (accelerator, "accumulate", _accumulate),
        (accelerator, "backward", _backward),
        (accelerator, "save_state", _save_state),
        (accelerator, "load_state", _load_state),
        (accelerator, "end_training", _end_training),
        (optimizer, "step", _step),
        (optimizer, "zero_grad", _zero_grad),
        (module.AcceleratedScheduler, "step", _scheduler_step),
    ):
        original = getattr(owner, name)
        if not hasattr(original, "_tunewarden"):  # a reload finds the classes of other modules patched already
            patched = functools.wraps(original)(wrap(original))
            patched._tunewarden = original
            setattr(owner, name, patched)


def _leading(accelerator=None, trains=True):
    """(session, adapter) while boundaries of accelerate's count in this process; else (None, None)."""
    session = sessions.current()
    if session is None and accelerator is not None and watching.may_begin_again():
        session = _begin(accelerator)
    if session is None or not isinstance(session.adapter, AccelerateAdapter):
        return None, None
    if session.leaving:
        if not trains:  # what a script does in its `finally` when we end it may run
            return None, None
        still_here(session)
    if accelerator is not None:
        session.guarded(session.adapter.use, accelerator)
    return (session, session.adapter) if session.alive else (None, None)


def _init(original):
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        _begin(self)

    return __init__


def _begin(accelerator):
    """The session of this process, which this Accelerator leads unless a Trainer does."""
    world = accelerator.num_processes
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or world)
    session = sessions.begin("accelerate", accelerator.process_index, world, local)
    if session is not None:
        session.guarded(_lead, session, accelerator)
    return session


def _lead(session, accelerator):
    if isinstance(session.adapter, AccelerateAdapter):
        session.adapter.use(accelerator)
    else:
        session.lead(AccelerateAdapter(accelerator))


def _prepare(original):
    def prepare(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        session, adapter = _leading(self)
        if session is not None and session.resume.by_hook:
            session.guarded(adapter.before_forward, lambda: _before_training(session, adapter))
        return result

    return prepare


def _before_training(session, adapter, too_late=False):
    """Load the state that resume.json names, if that is ours to do and all is prepared."""
    if not session.resume.by_hook or not adapter.ready():
        return
    if too_late:
        session.resume.refuse("the loop came to its first backward pass before the state could be loaded")
    session.resume.load(adapter)
    if session.boundary.at_total():
        finish(session)


def _accumulate(original):
    @contextlib.contextmanager
    def accumulate(self, *models):
        session, adapter = _leading(self)
        if session is not None:
            session.guarded(_enter, session, adapter)
        try:
            with original(self, *models):
                yield
        except BaseException as error:
            if session is not None and session.alive:
                session.guarded(session.crash.passing, error)
            raise
        finally:
            if adapter is not None:
                adapter.depth -= 1
        if session is not None and session.alive:
            session.guarded(_exit, session, adapter)

    return accumulate


def _enter(session, adapter):
    adapter.depth += 1
    _before_training(session, adapter)
    if session.resume.by_hook:
        session.resume.refuse("no model and optimizer were prepared by the first step")
    if adapter.finished:
        finish(session)
    if adapter.depth == 1 and adapter.update.stepped:
        _at_step(session, adapter)
    if session.counters.phase == "load":
        session.counters.enter("train")
    adapter.backward_seen = False


def _exit(session, adapter):
    if not adapter.backward_seen:
        session.counters.micro_step()
    if adapter.depth == 0 and adapter.accelerator.sync_gradients and adapter.update.complete(adapter):
        _at_step(session, adapter)


def _at_step(session, adapter):
    adapter.update.begin_next()
    session.boundary.at_step()


def _backward(original):
    def backward(self, loss, *args, **kwargs):
        session, adapter = _leading(self)
        if session is not None:
            session.guarded(_before_backward, session, adapter)
        try:
            result = original(self, loss, *args, **kwargs)
        except BaseException as error:
            if session is not None and session.alive and not adapter.depth:
                session.guarded(session.crash.passing, error)
            raise
        if session is not None and session.alive:
            session.guarded(_after_backward, session, adapter, loss)
        return result

    return backward


def _before_backward(session, adapter):
    _before_training(session, adapter, too_late=True)
    if not adapter.depth and adapter.update.due(adapter, "backward"):
        _at_step(session, adapter)
    if adapter.finished:
        finish(session)


def _after_backward(session, adapter, loss):
    adapter.backward_seen = True
    session.trains_on = session.gave
    session.counters.micro_step(loss.detach() if hasattr(loss, "detach") else None)


def _step(original):
    def step(self, *args, **kwargs):
        session, adapter = _leading()
        if session is None:
            return original(self, *args, **kwargs)
        adapter.update.inside = True
        result = original(self, *args, **kwargs)
        adapter.update.inside = False
        if self.gradient_state.sync_gradients:
            session.guarded(adapter.update.optimizer_stepped, self, adapter)
        return result

    return step


def _zero_grad(original):
    def zero_grad(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        session, adapter = _leading()
        if session is not None and not adapter.depth:
            session.guarded(_moment, session, adapter, "zero_grad")
        return result

    return zero_grad


def _scheduler_step(original):
    def step(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        session, adapter = _leading()
        if session is not None:
            session.guarded(_after_scheduler, session, adapter, self)
        return result

    return step


def _after_scheduler(session, adapter, scheduler):
    adapter.update.scheduler_stepped(scheduler)
    if not adapter.depth:
        _moment(session, adapter, "scheduler")


def _moment(session, adapter, moment):
    _before_training(session, adapter)
    if adapter.update.due(adapter, moment):
        _at_step(session, adapter)


def _save_state(original):
    def save_state(self, *args, **kwargs):
        session, adapter = _leading(self, trains=False)
        if session is None:
            return original(self, *args, **kwargs)
        before = session.counters.enter("checkpoint")
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            if session.alive:  # the phase is still ours to tell
                session.guarded(session.crash.passing, error)
            raise
        finally:
            session.counters.enter(before)
        session.guarded(_saved_by_trainer, session, adapter, result)
        return result

    return save_state


def _saved_by_trainer(session, adapter, path):
    """A state of the trainer's own is complete: it counts as the newest."""
    if path is not None and os.path.isdir(str(path)) and not str(path).endswith(".partial"):
        step = session.counters.step + (1 if adapter.update.stepped else 0)
        session.counters.last_state = {"step": step, "path": os.path.abspath(str(path))}


def _load_state(original):
    def load_state(self, input_dir=None, *args, **kwargs):
        result = original(self, input_dir, *args, **kwargs)
        session, adapter = _leading(self)
        if session is not None and not adapter.loading and input_dir is not None:
            session.guarded(_loaded_by_trainer, session, adapter, os.path.expanduser(str(input_dir)))
        return result

    return load_state


def _loaded_by_trainer(session, adapter, path):
    if read_facts(path):
        adapter.begin_window()
    session.resume.loaded(adapter, path)


def _end_training(original):
    def end_training(self, *args, **kwargs):
        session, adapter = _leading(self, trains=False)
        if session is not None and not adapter.ending:
            session.guarded(_last_step, session, adapter)
        return original(self, *args, **kwargs)

    return end_training


def _last_step(session, adapter):
    session.crash.forget()
    if adapter.update.stepped:
        _at_step(session, adapter)
