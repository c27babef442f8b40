"""Counters of the training thread. Only the training thread sets them; the metrics thread only reads."""

import time

from .losses import LossProbe

AWAY = ("eval", "sample", "checkpoint", "cache")  # their seconds are no part of a step's


class Counters:
    """`step`: optimizer steps over all generations; `steps_here`: in this process; `micro_steps`: in this process.

    `phase`: load, cache, train, eval, sample, checkpoint, finished. `last_state`: {"step", "path"} or None.
    `step_seconds_sum` over `step_seconds_count` steps: wall time with the wait for data, without AWAY.
    `data_wait_seconds_sum`: None until a loader that we can time is seen.
    """

    def __init__(self, base_step, total_steps):
        self.step = base_step
        self.steps_here = 0
        self.micro_steps = 0
        self.total_steps = total_steps
        self.phase = "load"
        self.loss = LossProbe()
        self.last_state = None
        self.step_seconds_sum = 0.0
        self.step_seconds_count = 0
        self.data_wait_seconds_sum = None
        self.prefetches = False  # the trainer draws the batches of a whole update before it learns from one
        self._began = None  # of the step under way
        self._left = None  # when training was left for a phase of AWAY
        self._unlearned = 0  # batches since the last one that was learned from
        self._waited = 0.0  # for the batches that were not learned from (yet)
        self._evaluates = False  # said by ourselves, from _unlearned

    def micro_step(self, loss=None):
        """A forward and backward pass is done. `loss` may be a tensor: it is read twice a second at most."""
        self.micro_steps += 1
        if loss is not None:
            self.loss.offer(loss)
        if self._evaluates:
            self._evaluates = False
            self._waited = 0.0
            self.enter("train")
        elif self.phase == "load":
            self.enter("train")
        self._unlearned = 0
        if self._waited:
            self.data_wait_seconds_sum = (self.data_wait_seconds_sum or 0.0) + self._waited
            self._waited = 0.0

    def optimizer_step(self):
        """An optimizer step is done, the scheduler's too."""
        now = time.monotonic()
        if self._began is not None:
            self.step_seconds_sum += now - self._began
            self.step_seconds_count += 1
        self._began = now
        self.step += 1
        self.steps_here += 1
        if self.phase == "load":
            self.enter("train")

    def before_batch(self):
        """A loader is asked for a batch. Two that nobody learned from: the loop evaluates."""
        if self._unlearned >= 2 and self.phase == "train" and not self.prefetches:
            self._evaluates = True
            self.enter("eval")
        if self._began is None and self.phase != "eval":
            self._began = time.monotonic()

    def after_batch(self, seconds):
        self._unlearned += 1
        if self.phase not in AWAY:
            self._waited += seconds

    def enter(self, phase):
        """Give the phase before."""
        before, self.phase = self.phase, phase
        if phase == before:
            return before
        now = time.monotonic()
        if phase in AWAY:
            self._left = now if self._left is None else self._left
        elif self._left is not None:
            if self._began is not None:
                self._began += now - self._left
            self._left = None
        if phase == "train" and self._began is None:
            self._began = now
        return before
