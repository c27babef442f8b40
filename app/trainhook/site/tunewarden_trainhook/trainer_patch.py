"""transformers.Trainer and its subclasses: what is patched in transformers.trainer.

The boundary is the callback event on_step_end: optimizer, scheduler, zero_grad and global_step are done by then, and
the trainer's own logging, evaluation and saving come after. Our callback is added behind Trainer.__init__, whatever
callbacks the script passes. The Accelerator that a Trainer builds does not lead: session.py has the order.

Going on from a state: Trainer.train is given resume_from_checkpoint where the script gives none, or leaves the choice
to the trainer (True), which would take a half-written folder. The plan must stay what it was: a run whose max_steps
would differ from the state's ends before its first step (transformers#43708).
"""

import functools
import os

from . import session as sessions
from . import watching
from .boundary import still_here
from .control import Control
from .trainer_adapter import TrainerAdapter, unfinished

_EVENTS = ("on_train_begin", "on_pre_optimizer_step", "on_substep_end", "on_step_end", "on_log", "on_save")


def patch(module):
    """`module` is transformers.trainer, just imported."""
    make_callback = _callback_class(module.TrainerCallback)
    for name, wrap in (
        ("__init__", lambda original: _init(original, make_callback)),
        ("train", _train),
        ("training_step", _training_step),
        ("evaluate", _in_phase("eval")),
        ("predict", _in_phase("eval")),
        ("_save_checkpoint", _in_phase("checkpoint")),
    ):
        original = getattr(module.Trainer, name)
        if not hasattr(original, "_tunewarden"):
            patched = functools.wraps(original)(wrap(original))
            patched._tunewarden = original
            setattr(module.Trainer, name, patched)


def _leading(trainer):
    """(session, adapter) of this Trainer in this process; else (None, None)."""
    session = sessions.current()
    if session is None and watching.may_begin_again():
        session = _begin(trainer)
    if session is None or not isinstance(session.adapter, TrainerAdapter):
        return None, None
    if session.leaving:
        still_here(session)
    return session, session.adapter


def _begin(trainer):
    args = trainer.args
    world = int(args.world_size)
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or world)
    session = sessions.begin("transformers", int(args.process_index), world, local)
    if session is not None:
        session.guarded(_lead, session, trainer)
    return session


def _lead(session, trainer):
    session.counters.prefetches = True
    session.lead(TrainerAdapter(session, trainer))


def _init(original, make_callback):
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        session = _begin(self)
        if session is not None:
            session.guarded(lambda: self.add_callback(make_callback(self)))

    return __init__


def _train(original):
    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        session, adapter = _leading(self)
        if session is not None:
            adapter.use(self)
            chosen = session.guarded(_state_to_load, session, resume_from_checkpoint)
            resume_from_checkpoint = chosen if session.alive else resume_from_checkpoint
            adapter.loads = resume_from_checkpoint
        try:
            return original(self, resume_from_checkpoint, *args, **kwargs)
        except BaseException as error:
            if session is not None and session.alive:
                session.guarded(session.crash.passing, error)
            raise

    return train


def _state_to_load(session, given):
    """What train() is to resume from: the script's own choice, else resume.json's state, once, if it is whole."""
    resume = session.resume
    own = isinstance(given, (str, os.PathLike)) and bool(given)
    if resume.path is None or session.counters.steps_here:
        return given
    resume.by_hook = False
    if own and os.path.realpath(given) != os.path.realpath(resume.path):
        return given
    why = resume.unfit(Control(resume.path).read("tunewarden.json") or {}) or unfinished(resume.path)
    if why is not None:
        resume.refuse(why)
    return given if own else resume.path


def _training_step(original):
    """Called at each micro-step. What it returns is the loss that the trainer's NaN filter has not touched yet."""

    def training_step(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        session = sessions.current()
        if session is not None:
            parts = getattr(self, "current_gradient_accumulation_steps", None) or self.args.gradient_accumulation_steps
            session.guarded(session.counters.loss.offer, loss, parts)
        return loss

    return training_step


def _in_phase(phase):
    """Evaluation, prediction and the Trainer's own saves are no steps."""

    def wrap(original):
        def in_phase(self, *args, **kwargs):
            session, _ = _leading(self)
            if session is None:
                return original(self, *args, **kwargs)
            before = session.counters.enter(phase)
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                if session.alive:  # the phase is still ours to tell
                    session.guarded(session.crash.passing, error)
                raise
            finally:
                session.counters.enter(before)

        return in_phase

    return wrap


def _callback_class(base):
    """Our callback; its base is known only here."""

    class TunewardenCallback(base):
        """Calls the adapter's method of the same name, guarded, while this trainer leads."""

        def __init__(self, trainer):
            self.trainer = trainer

        def __deepcopy__(self, memo):  # some scripts copy a trainer's callbacks
            return self

    for event in (*_EVENTS, "on_train_end"):
        setattr(TunewardenCallback, event, _event(event))
    return TunewardenCallback


def _event(name):
    def event(self, args, state, control, **kwargs):
        session, adapter = _leading(self.trainer)
        if session is not None and adapter.trainer is self.trainer:
            session.guarded(getattr(adapter, name), state, control, kwargs.get("logs"))

    return event
