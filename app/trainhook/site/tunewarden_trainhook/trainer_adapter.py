"""What the boundary needs of a transformers Trainer (boundary.py says what for), and the Trainer's own events."""

import contextlib
import os

from .control import Control

STATE = "trainer_state.json"  # the last file that a Trainer writes into a checkpoint
MARKER = "checkpoint-is-incomplete.txt"  # there while transformers' JIT checkpoint is being written


def unfinished(path):
    """Why a checkpoint folder is not whole, or None. transformers itself does not look."""
    if os.path.exists(os.path.join(path, MARKER)):
        return f"it was never finished: {MARKER} is in it"
    return None if Control(path).read(STATE) is not None else f"{STATE} is not in it, or half"


class TrainerAdapter:
    framework = "transformers"
    state_name = "checkpoint-{step}"
    can = ("save", "stop", "resume")

    def __init__(self, session, trainer):
        self._session = session
        self.trainer = trainer
        self.loads = None  # what train() resumes from
        self._before = 0  # steps of earlier train() calls of this process
        self._updating = self._finished = False

    def use(self, trainer):
        """A script may make several; the one whose train() runs is the one that trains."""
        self.trainer = trainer

    @property
    def accelerator(self):
        return getattr(self.trainer, "accelerator", None)

    def states_folder(self):
        return self.trainer.args.output_dir

    def save(self, folder):
        """By the Trainer itself, with the optimizer, into `folder`/checkpoint-N; `settle` then moves it up."""
        with _redirected(self.trainer, folder):
            self.trainer._save_checkpoint(self.trainer.model, None)

    def settle(self, folder):
        """On rank 0, when every rank has written."""
        inner = os.path.join(folder, f"checkpoint-{self.trainer.state.global_step}")
        for name in os.listdir(inner):
            os.rename(os.path.join(inner, name), os.path.join(folder, name))
        os.rmdir(inner)
        why = unfinished(folder)
        if why is not None:
            raise ValueError(why)

    def can_save_alone(self):
        """Trainer's own saving talks to the other ranks."""
        return self._session.world_size == 1

    def facts(self):
        scheduler = getattr(self.trainer.lr_scheduler, "scheduler", self.trainer.lr_scheduler)
        epoch = getattr(scheduler, "last_epoch", None)
        optimizer = getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)
        states = getattr(optimizer, "state", {}).values()
        steps = [int(each["step"]) for each in states if isinstance(each, dict) and each.get("step") is not None]
        return {"scheduler_epochs": None if epoch is None else [epoch], "optimizer_steps": max(steps, default=None)}

    def mid_update(self):
        return self._updating

    def load(self, path):
        raise RuntimeError("the script has never called Trainer.train")  # which is where it would be given

    def end(self):
        """Trackers are closed by the Trainer's own callbacks at exit."""

    def finish(self):
        self._finished = True

    # What follows is called by the callback: (state, control, logs) of the Trainer.

    def on_train_begin(self, state, control, logs):
        counters, resume = self._session.counters, self._session.resume
        loaded = isinstance(self.loads, (str, os.PathLike, bool)) and self.loads and state.global_step > 0
        if loaded and resume.path is not None:
            self._check_plan(state)
            path = resume.path if self.loads is True else os.fspath(self.loads)
            resume.loaded(self, path)
        self._before = counters.step - state.global_step if counters.steps_here else 0
        counters.step = self._before + state.global_step
        if counters.total_steps is None or loaded:
            counters.total_steps = state.max_steps
        counters.enter("train")
        self._finished = self._session.boundary.at_total()
        control.should_training_stop = control.should_training_stop or self._finished

    def _check_plan(self, state):
        """A changed batch without its accumulation would double or halve the updates, and bend the schedule."""
        planned = (Control(os.fspath(self._session.resume.path)).read(STATE) or {}).get("max_steps")
        planned = planned or self._session.settings.total_steps
        if planned and state.max_steps != planned:
            why = f"{planned} updates were planned, and this run would make {state.max_steps}"
            self._session.resume.refuse(why + ": batch size x accumulation must stay what it was")

    def on_pre_optimizer_step(self, state, control, logs):
        self._updating = True

    def on_substep_end(self, state, control, logs):
        self._session.counters.micro_step()

    def on_step_end(self, state, control, logs):
        session = self._session
        self._updating = False
        session.counters.micro_step()
        session.counters.step = self._before + state.global_step - 1  # the boundary counts this one
        session.boundary.at_step()
        if self._finished:
            control.should_training_stop = True
        if control.should_save and self._is_saved(state):
            # It would write once more into what we have just said is whole. Its listeners are told all the same.
            control.should_save = False
            self.trainer.callback_handler.on_save(self.trainer.args, state, control)

    def _is_saved(self, state):
        last = self._session.counters.last_state or {}
        name = os.path.join(self.states_folder(), f"checkpoint-{state.global_step}")
        return last.get("step") == self._session.counters.step and os.path.abspath(name) == last.get("path")

    def on_log(self, state, control, logs):
        loss = (logs or {}).get("loss")
        with contextlib.suppress(TypeError, ValueError):
            self._session.counters.loss.shown = float(loss)

    def on_save(self, state, control, logs):
        """The Trainer has saved by itself."""
        path = os.path.abspath(os.path.join(self.states_folder(), f"checkpoint-{state.global_step}"))
        if unfinished(path) is None and not self.trainer.args.save_only_model:
            self._session.counters.last_state = {"step": self._session.counters.step, "path": path}

    def on_train_end(self, state, control, logs):
        self._session.counters.enter("finished")


@contextlib.contextmanager
def _redirected(trainer, folder):
    """The next checkpoint goes into `folder`, whole and to this disk only, whatever the arguments say."""
    args, own = trainer.args, vars(trainer)
    changed = {"_get_output_dir": lambda *_, **__: folder, "_push_from_checkpoint": lambda *_, **__: None}
    before = {name: own[name] for name in changed if name in own}
    only_model = args.save_only_model
    own.update(changed)
    args.save_only_model = False
    try:
        yield
    finally:
        args.save_only_model = only_model
        for name in changed:
            own.pop(name, None)
        own.update(before)
