"""How fast a generation makes steps: over the last minute, and the median of its minutes."""

import statistics
from collections import deque

_MINUTE_S = 60.0
_KEPT = 720  # rates, for the median: an hour at one every 5 s


class StepRates:
    """Fed with (seconds, step) pairs of one generation; rates are in optimizer steps a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._rates: deque[float] = deque(maxlen=_KEPT)
        self._first: tuple[float, int] | None = None

    def add(self, at: float, step: int) -> None:
        """One look at the step counter. Nothing counts before the first step that was seen."""
        if self._first is None:
            self._first = (at, step)
        self._samples.append((at, step))
        while len(self._samples) > 2 and at - self._samples[1][0] >= _MINUTE_S:
            self._samples.popleft()
        rate = self.rate()
        if rate is not None:
            self._rates.append(rate)

    def rate(self) -> float | None:
        """Over the last minute, or what there is of it; None before two looks."""
        if len(self._samples) < 2:
            return None
        (then, first), (now, last) = self._samples[0], self._samples[-1]
        return max(0.0, (last - first) / (now - then)) if now > then else None

    def median(self) -> float | None:
        """Of all minute rates; None until five minutes or 50 steps have been seen."""
        if self._first is None or not self._rates:
            return None
        seconds = self._samples[-1][0] - self._first[0]
        steps = self._samples[-1][1] - self._first[1]
        if seconds < 5 * _MINUTE_S and steps < 50:
            return None
        return statistics.median(self._rates)
