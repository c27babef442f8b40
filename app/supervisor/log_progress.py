"""Step and loss out of what a trainer prints, for trainers that tell us nothing else: the bars of tqdm.

The forms, seen in runs or in the trainers' sources: docs/reference/metrics.md lists them.

    steps:  31%|###   | 31/100 [00:19<00:44,  1.57it/s, avr_loss=1.12]     sd-scripts, musubi-tuner; diffusers: Steps:
     16%|#5        | 31/200 [00:04<00:20,  8.12it/s]                       transformers, with {'loss': '3.892', ...}
    cat:   5%|5    | 100/2000 [01:02<19:30, 1.62it/s, lr: 1.0e-04 loss: 1.234e-01]                       ai-toolkit
    Epoch 0:  12%|#2  | 60/500 [00:31<03:47, 1.93it/s, v_num=0]                                          Lightning
"""

import re
from dataclasses import dataclass
from enum import IntEnum

from tunewarden.supervisor.control import Progress
from tunewarden.supervisor.step_counter import StepCounter

_LINE_BYTES = 2048
_MOST_LINES = 1000  # read at once
_LINE_ENDS = re.compile(rb"[\r\n]+")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # tqdm moves the cursor where there are two bars
_BAR = re.compile(
    r"^(?P<name>[^|]{0,200}?):?\s{0,8}\d{1,3}%\|[^|]{0,400}\|\s*(?P<n>\d{1,12})/(?P<total>\d{1,12})"
    r" \[(?P<elapsed>\d{1,6}(?::\d\d){1,2})<[^,\]]{1,20},\s*[^,\]]{1,40}(?P<rest>[^\]]{0,1000})\]"
)
_NUMBER = r"([-+]?(?:nan|inf(?:inity)?|\d+(?:\.\d*)?(?:e[-+]?\d+)?))"
# `avr_loss=`, `step_loss=`, `loss: `; never `val_avr_loss=` or the second one of `loss=0.1, smooth loss=0.2`.
_LOSS = re.compile(rf"(?:^|[,\s])(?:avr_loss|step_loss|train_loss|loss)\s*[=:]\s*{_NUMBER}", re.IGNORECASE)
_DICT_LOSS = re.compile(rf"^\{{'loss': '?{_NUMBER}'?[,}}]", re.IGNORECASE)
_STEPS = re.compile(r"steps?|train(?:ing)?", re.IGNORECASE)
_EPOCH = re.compile(r"epoch #", re.IGNORECASE)
_OTHER = re.compile(r"eval|valid|test|predict", re.IGNORECASE)


class _Rank(IntEnum):
    """How sure it is that a bar counts optimizer steps."""

    NONE = 0
    NAMELESS = 1  # transformers: believed once a loss was printed beside it, for a cache has such bars too
    EPOCH = 2  # Lightning: one bar an epoch
    STEPS = 3  # it says so, or it shows a loss


@dataclass(frozen=True)
class _Bar:
    rank: _Rank
    name: str
    n: int
    total: int
    elapsed_s: float
    loss: float | None


class LogProgress:
    """Fed with what was printed. `base` is the step at which the generation began."""

    def __init__(self, base: int = 0) -> None:
        self._base = base
        self._chosen: _Bar | None = None
        self._counter = StepCounter(base)
        self._nameless: _Bar | None = None
        self._loss: float | None = None
        self._in_bar = False

    def take(self, text: bytes) -> None:
        """Whole lines, as printed; a carriage return ends one too.

        Of very many only some are read: the counter goes by differences, and an agent that starts anew over a log of
        128 MiB must not be silent for half a minute.
        """
        lines = [line for line in _LINE_ENDS.split(text) if line.strip()]
        stride = 1 + len(lines) // _MOST_LINES
        for line in (each[:_LINE_BYTES] for each in lines[::-stride][::-1]):
            if b"%|" not in line and not line.startswith(b"{'loss'"):
                self._in_bar = False  # it saves, samples, warns: whatever it does, it is not in a step for sure
                continue
            words = _ANSI.sub("", line.decode("utf-8", "replace")).strip()
            self._line(words)

    def take_unfinished(self, text: bytes) -> None:
        """The last line, whose end is not printed yet: tqdm puts the carriage return before a bar."""
        bar = _bar_of(_ANSI.sub("", text[-_LINE_BYTES:].decode("utf-8", "replace")).strip())
        if bar is not None:
            self._take_bar(bar)

    def progress(self) -> Progress | None:
        """What is known; None while no bar of optimizer steps was seen.

        `phase` is train while the newest line is that bar, else unknown. A mean loss, where the trainer shows a mean.
        """
        step = self._counter.step
        if self._chosen is None or step is None:
            return None
        return Progress(
            step=step,
            total_steps=self._chosen.total if self._counter.one_bar else None,
            phase="train" if self._in_bar else None,
            loss=self._loss,
            step_seconds_sum=self._counter.seconds,
            step_seconds_count=self._counter.count,
            source="log",
        )

    def _line(self, words: str) -> None:
        bar = _bar_of(words)
        if bar is not None:
            self._take_bar(bar)
            return
        loss = _DICT_LOSS.match(words)
        if loss is None:
            self._in_bar = False
            return
        self._loss = float(loss.group(1))
        if self._nameless is not None and self._chosen is None:
            self._choose(self._nameless)

    def _take_bar(self, bar: _Bar) -> None:
        if bar.rank is _Rank.NAMELESS and (self._chosen is None or self._chosen.rank is _Rank.NAMELESS):
            self._take_nameless(bar)
            return
        if bar.rank is not _Rank.NONE and (self._chosen is None or bar.rank > self._chosen.rank):
            self._choose(bar)
        if not self._is_chosen(bar):
            self._in_bar = False
            return
        self._count(bar)

    def _take_nameless(self, bar: _Bar) -> None:
        """The bar of the training and those of evaluations differ in their totals only."""
        if self._chosen is None:
            self._nameless = bar
        elif bar.total == self._chosen.total:
            self._count(bar)
        else:
            self._in_bar = False

    def _choose(self, bar: _Bar) -> None:
        self._chosen, self._counter = bar, StepCounter(self._base)
        if bar.rank is _Rank.NAMELESS:
            # It began before anything told that it is the one: its steps are counted from where it can have begun.
            self._counter.at(self._base if bar.n >= self._base else 0, 0.0)
        self._count(bar)

    def _is_chosen(self, bar: _Bar) -> bool:
        chosen = self._chosen
        if chosen is None or bar.rank is not chosen.rank:
            # A bar of steps whose loss isn't shown yet, or no more.
            return chosen is not None and bar.name == chosen.name != ""
        return bar.name == chosen.name

    def _count(self, bar: _Bar) -> None:
        self._counter.at(bar.n, bar.elapsed_s)
        self._in_bar = bar.n < bar.total  # after the last step it saves, and no step is due
        if bar.loss is not None:
            self._loss = bar.loss


def _bar_of(words: str) -> _Bar | None:
    found = _BAR.match(words)
    if found is None:
        return None
    loss = _LOSS.search(found["rest"])
    name = re.sub(r"\d+", "#", found["name"].strip())  # `Epoch 0` and `Epoch 1` are one bar
    return _Bar(
        rank=_rank(name, shows_loss=loss is not None),
        name=name,
        n=int(found["n"]),
        total=int(found["total"]),
        elapsed_s=_seconds(found["elapsed"]),
        loss=float(loss.group(1)) if loss else None,
    )


def _rank(name: str, *, shows_loss: bool) -> _Rank:
    if _OTHER.search(name):
        return _Rank.NONE
    if shows_loss or _STEPS.fullmatch(name):
        return _Rank.STEPS
    if _EPOCH.fullmatch(name):
        return _Rank.EPOCH
    return _Rank.NONE if name else _Rank.NAMELESS


def _seconds(clock: str) -> float:
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part)
    return float(total)
