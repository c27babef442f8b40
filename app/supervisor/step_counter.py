"""Steps counted from outside: positions of a bar or of TensorBoard's events made into a count, and its seconds.

A position is what the trainer prints. It may begin at 0 or go on after a resume, and a bar of an epoch begins again
and again: so only differences count.
"""

_ENOUGH_STEPS = 5  # before that, nothing is known of how long a step takes
_PAUSE_TIMES = 5.0
_PAUSE_S = 10.0  # a bar's clock has whole seconds, and a first checkpoint is no hiccup


class StepCounter:
    """`base` is the optimizer step of the whole training at which this generation began."""

    def __init__(self, base: int = 0) -> None:
        self._base = base
        self._first: int | None = None
        self._last = 0
        self._last_s = 0.0
        self._before = 0  # steps of the bars before this one
        self.count = 0
        self.seconds = 0.0

    def at(self, position: int, seconds: float) -> bool:
        """One look: the position, and its own clock. Whether a step was made."""
        if self._first is None:
            self._first, self._last, self._last_s = position, position, seconds
            return False
        begun_again = position < self._last
        if begun_again:
            self._before += self._last
            self._last, self._last_s = 0, 0.0 if seconds < self._last_s else self._last_s
        made, took = position - self._last, max(0.0, seconds - self._last_s)
        if made > 0:
            self.seconds += self._without_pause(made, took)
            self.count += made
            self._last, self._last_s = position, seconds
        return made > 0 or begun_again

    @property
    def step(self) -> int | None:
        """The step of the whole training. A position below `base` was counted from 0 after the resume."""
        if self._first is None:
            return None
        position = self._before + self._last
        return position if self._first >= self._base else self._base + position

    @property
    def one_bar(self) -> bool:
        """Whether the bar never began again: then its end is the end of the training."""
        return self._before == 0

    def _without_pause(self, made: int, took: float) -> float:
        """A save or an evaluation between two steps is no part of a step: it counts as long as the others."""
        usual = made * self.seconds / self.count if self.count >= _ENOUGH_STEPS else None
        if usual is not None and took > max(_PAUSE_TIMES * usual, usual + _PAUSE_S):
            return usual
        return took
