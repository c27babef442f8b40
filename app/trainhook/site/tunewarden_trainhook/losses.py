"""The loss as a number, without making the training thread wait for the device.

A tensor in host memory is read at once (a microsecond). One on a CUDA device is copied, in its stream's order, into a
pinned number, and that is read when the device says it got there, at the next look. Twice a second at most; on other
devices not at all, since reading there waits for all that was queued.
"""

import sys
import time

EVERY_S = 0.5


class LossProbe:
    """`value`: a float, perhaps not finite, or None. `shown` is what the trainer itself has logged last, or None."""

    def __init__(self):
        self.value = None
        self.shown = None
        self._due = 0.0
        self._pinned = None
        self._event = None  # of a copy that is under way

    def offer(self, loss, scale=1.0):
        """`loss`: a number, or a tensor of one element."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY_S
        if not hasattr(loss, "detach"):
            self.value = float(loss) * scale
            return
        if loss.numel() != 1:
            return
        device = loss.device.type
        if device == "cpu":
            self.value = float(loss.detach()) * scale
        elif device == "cuda":
            self._look(scale)
            self._copy(loss)

    def _look(self, scale):
        if self._event is not None and self._event.query():
            self._event = None
            self.value = float(self._pinned) * scale

    def _copy(self, loss):
        cuda = sys.modules["torch"].cuda
        if self._event is not None or cuda.is_current_stream_capturing():
            return
        loss = loss.detach().reshape(())
        if self._pinned is None or self._pinned.dtype != loss.dtype:
            self._pinned = sys.modules["torch"].empty((), dtype=loss.dtype, pin_memory=True)
        self._pinned.copy_(loss, non_blocking=True)
        self._event = cuda.Event()
        self._event.record()
