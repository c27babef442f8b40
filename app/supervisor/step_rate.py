"""How fast a generation makes steps: over the last minute, the median of its minutes, and since when it makes none."""

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


class StepClock:
    """Since when the step stands still, how long one takes, and how much of that waits for data. Seconds.

    Fed at each look with what the trainer says. `seconds`, `count` and `waited` are its counters of this generation.
    """

    def __init__(self) -> None:
        self._step: int | None = None
        self._idle_since: float | None = None
        self._now = 0.0
        self._counted: tuple[float, int] | None = None
        self._mean: float | None = None
        self._durations: deque[float] = deque(maxlen=_KEPT)
        self._waits: deque[tuple[float, float, float]] = deque()  # (at, seconds, waited)

    def add(
        self,
        at: float,
        *,
        step: int,
        training: bool,
        seconds: float | None,
        count: int | None,
        waited: float | None,
    ) -> None:
        """One look. Not `training`: it evaluates, saves or the like, and no step is due."""
        self._now = at
        if not training:
            self._idle_since = None
        elif step != self._step or self._idle_since is None:
            self._idle_since = at
        self._step = step
        if seconds is not None and count is not None:
            self._add_duration(seconds, count)
        if seconds is not None and waited is not None:
            self._waits.append((at, seconds, waited))
            while len(self._waits) > 2 and at - self._waits[1][0] >= _MINUTE_S:
                self._waits.popleft()

    def _add_duration(self, seconds: float, count: int) -> None:
        before, self._counted = self._counted, (seconds, count)
        self._mean = seconds / count if count > 0 else None
        if before is not None and count > before[1] and seconds >= before[0]:
            self._durations.append((seconds - before[0]) / (count - before[1]))

    def idle_s(self) -> float | None:
        """Since when there was no new step though one is due; None where none is due."""
        return None if self._idle_since is None else self._now - self._idle_since

    def median_s(self) -> float | None:
        """Of the steps between two looks; the mean of all before there are two; None before the first step.

        Of durations, not of rates: while a job stands still it gets no new ones, so it does not sink.
        """
        return statistics.median(self._durations) if self._durations else self._mean

    def wait_share(self) -> float | None:
        """Of the last minute's step time, 0 to 1; None where no step ended in it."""
        if len(self._waits) < 2:
            return None
        (_, first, waited_first), (_, last, waited_last) = self._waits[0], self._waits[-1]
        return min(max((waited_last - waited_first) / (last - first), 0.0), 1.0) if last > first else None
