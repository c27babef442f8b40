"""What the boundary needs of an Accelerator: save, load, facts; and where in an update the loop is."""

import contextlib
import weakref

from . import schedules


class Update:
    """One optimizer update, from the first optimizer's step to the boundary.

    `inside`: in an optimizer's step right now, or an exception came out of one. `stepped`: a real step was made.
    """

    def __init__(self):
        self.inside = False
        self.one_by_one = False  # the loop steps one optimizer again before it has stepped the others
        self._optimizers = set()
        self._schedulers = set()
        self._loose = []  # (scheduler that is not prepared, its last_epoch before the optimizer's step)
        self._zeroed = False

    @property
    def stepped(self):
        return bool(self._optimizers)

    def optimizer_stepped(self, optimizer, adapter):
        if not self._optimizers:
            self._loose = [(each, each.last_epoch) for each in adapter.loose_schedulers()]
        self.one_by_one = self.one_by_one or id(optimizer) in self._optimizers
        self._optimizers.add(id(optimizer))

    def scheduler_stepped(self, scheduler):
        if self._optimizers:
            self._schedulers.add(id(scheduler))

    def _scheduled(self, adapter):
        """Whether every scheduler has stepped since the optimizer did."""
        prepared = self._schedulers >= {id(each) for each in adapter.schedulers()}
        return prepared and all(each.last_epoch != before for each, before in self._loose)

    def complete(self, adapter):
        """At the end of a whole block: whether it made an update. Optimizers that we don't see are believed."""
        return self.stepped or not any(hasattr(type(each).step, "_tunewarden") for each in adapter.optimizers())

    def due(self, adapter, moment):
        """Whether this moment of a loop without `accumulate` is the boundary: zero_grad, scheduler or backward."""
        if not self._optimizers or (len(self._optimizers) < len(adapter.optimizers()) and not self.one_by_one):
            return False
        at_rest = moment == "zero_grad" or self._zeroed
        due = moment == "backward" or (at_rest and self._scheduled(adapter))
        self._zeroed = self._zeroed or moment == "zero_grad"
        return due

    def half_done(self, adapter):
        """Inside an optimizer's step, or between the optimizer's and the scheduler's."""
        return self.inside or (self.stepped and not self._scheduled(adapter))

    def begin_next(self):
        self.inside = self._zeroed = False
        self._optimizers.clear()
        self._schedulers.clear()
        self._loose = []


class AccelerateAdapter:
    """See boundary.py for what each method is for."""

    framework = "accelerate"
    state_name = "step-{step:08d}"

    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.update = Update()
        self.depth = 0  # of nested accumulate blocks
        self.backward_seen = False
        self.loading = self.ending = self.finished = False
        self._watched = []
        self._left = weakref.WeakSet()  # Accelerators with an optimizer that another one has followed
        self._loose = (None, [])

    def use(self, accelerator):
        """A script may make several; the one with an optimizer is the one that trains.

        Raises RuntimeError where two train in turn: a state of one is half of what the training is.
        """
        if accelerator is self.accelerator or not (accelerator._optimizers or not self.accelerator._optimizers):
            return
        if accelerator in self._left:
            raise RuntimeError("two Accelerators train in turn, and a state holds what one of them has prepared")
        if self.accelerator._optimizers:
            self._left.add(self.accelerator)
        self.accelerator = accelerator

    @property
    def can(self):
        """A state without an optimizer is none that training could go on from."""
        return ("save", "stop", "resume") if self.ready() else ()

    def optimizers(self):
        return self.accelerator._optimizers

    def schedulers(self):
        return self.accelerator._schedulers

    def loose_schedulers(self):
        """Looked for anew only when something was made or prepared since: this is asked at every step."""
        seen = (schedules.made(), len(self.optimizers()), len(self.schedulers()))
        if self._loose[0] != seen:
            self._loose = (seen, schedules.loose(self.optimizers(), self.schedulers()))
        return self._loose[1]

    def ready(self):
        return bool(self.accelerator._models and self.accelerator._optimizers)

    def before_forward(self, call):
        """Have `call` called before the first forward of a prepared model."""
        for model in self.accelerator._models:
            if not any(each is model for each, _ in self._watched) and hasattr(model, "register_forward_pre_hook"):
                self._watched.append((model, model.register_forward_pre_hook(lambda *_: call())))

    def _unwatch(self):
        for _, handle in self._watched:
            handle.remove()
        self._watched = []

    def states_folder(self):
        return self.accelerator.project_dir

    def save(self, folder):
        """By accelerate itself, without its automatic names, which would ignore the folder."""
        project = self.accelerator.project_configuration
        named, iteration = project.automatic_checkpoint_naming, project.iteration
        project.automatic_checkpoint_naming = False
        try:
            type(self.accelerator).save_state._tunewarden(self.accelerator, folder)
            if self.accelerator.is_main_process:
                schedules.save(self.loose_schedulers(), folder)
        finally:
            project.automatic_checkpoint_naming, project.iteration = named, iteration

    def settle(self, folder):
        """accelerate has written into the folder itself."""

    def can_save_alone(self):
        kind = str(getattr(self.accelerator.distributed_type, "value", self.accelerator.distributed_type))
        return kind in ("NO", "MULTI_GPU", "MULTI_CPU")

    def load(self, path):
        self._unwatch()
        self.loading = True
        try:
            self.accelerator.load_state(path)
            schedules.load(self.loose_schedulers(), path)
        finally:
            self.loading = False
        self.begin_window()

    def begin_window(self):
        """Its count of micro-steps comes with the state, but every state of ours ends a window of accumulation."""
        self.accelerator.step = 0

    def facts(self):
        return {
            "scheduler_epochs": [
                _inner(each, "scheduler").last_epoch for each in [*self.schedulers(), *self.loose_schedulers()]
            ],
            "optimizer_steps": _most_steps(_inner(each, "optimizer") for each in self.optimizers()),
        }

    def finish(self):
        """The next block or backward pass will end it; a loop that counts for itself doesn't come to one."""
        self.finished = True

    def mid_update(self):
        return self.update.half_done(self)

    def end(self):
        """Close the trackers, so that their last lines are written. A tracker's trouble is not ours."""
        self.ending = True
        with contextlib.suppress(Exception):
            self.accelerator.end_training()


def _inner(wrapper, name):
    return getattr(wrapper, name, wrapper)


def _most_steps(optimizers):
    """The largest `step` that an optimizer has counted for a parameter; None where it counts none."""
    most = None
    for optimizer in optimizers:
        for state in optimizer.state.values():
            step = state.get("step") if isinstance(state, dict) else None
            if step is not None:
                most = max(most or 0, int(step))
    return most
