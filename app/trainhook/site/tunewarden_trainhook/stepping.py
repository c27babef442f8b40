"""Counters of the training thread. Only the training thread sets them; the metrics thread only reads."""

import time


class Counters:
    """`step`: optimizer steps over all generations; `steps_here`: in this process; `micro_steps`: in this process.

    `phase`: load, cache, train, eval, sample, checkpoint, finished. `last_state`: {"step", "path"} or None.
    """

    def __init__(self, base_step, total_steps):
        self.step = base_step
        self.steps_here = 0
        self.micro_steps = 0
        self.total_steps = total_steps
        self.phase = "load"
        self.loss = None
        self.last_state = None
        self.step_seconds_sum = 0.0
        self.step_began = None

    def micro_step(self, loss=None):
        """A forward and backward pass is done. `loss` may be a tensor: it is not read here."""
        self.micro_steps += 1
        if loss is not None:
            self.loss = loss

    def optimizer_step(self):
        """An optimizer step is done, the scheduler's too."""
        now = time.monotonic()
        if self.step_began is not None:
            self.step_seconds_sum += now - self.step_began
        self.step_began = now
        self.step += 1
        self.steps_here += 1

    def enter(self, phase):
        """Give the phase before."""
        before, self.phase = self.phase, phase
        return before
