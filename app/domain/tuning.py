"""Knobs and the arithmetic of changing them: names, `/2`, `*2`, and the rule that keeps the effective batch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tunewarden.domain.reason import Reason


class Kind(StrEnum):
    """What a knob's value may be."""

    COUNT = "count"  # a whole number, `minimum` or more
    SWITCH = "switch"  # true or false
    WORD = "word"  # one of `words`


@dataclass(frozen=True, kw_only=True)
class KnobKind:
    """The values that a knob takes. `step`: `/n` and `*n` land on a multiple of it."""

    kind: Kind
    minimum: int = 1
    step: int = 1
    words: tuple[str, ...] = ()


BATCH = "batch_size"
ACCUMULATION = "gradient_accumulation"

KNOBS: Mapping[str, KnobKind] = {
    BATCH: KnobKind(kind=Kind.COUNT),
    ACCUMULATION: KnobKind(kind=Kind.COUNT),
    # Image trainers want multiples of 64: Stable Diffusion's U-Net halves a latent of 1/8 size three times.
    "resolution": KnobKind(kind=Kind.COUNT, minimum=64, step=64),
    "cache_latents": KnobKind(kind=Kind.SWITCH),
    "data_workers": KnobKind(kind=Kind.COUNT, minimum=0),
    "persistent_workers": KnobKind(kind=Kind.SWITCH),
    "pin_memory": KnobKind(kind=Kind.SWITCH),
    "gradient_checkpointing": KnobKind(kind=Kind.SWITCH),
    # Not "no": written without quotes, a YAML 1.1 reader takes it for false.
    "mixed_precision": KnobKind(kind=Kind.WORD, words=("fp16", "bf16")),
    "network_dim": KnobKind(kind=Kind.COUNT),
    "network_alpha": KnobKind(kind=Kind.COUNT),
}

_CHANGE = re.compile(r"(?P<op>[/*])(?P<factor>\d{1,6})")
# Plain decimal: 010 is eight to a YAML 1.1 reader, 1_000 a word to a YAML 1.2 one. Six digits keep `_divisors` quick.
_COUNT = re.compile(r"0|[1-9]\d{0,5}")
_SWITCHES: Mapping[str, bool] = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}


class Op(StrEnum):
    """How a value is asked to change."""

    SET = ""
    DIVIDE = "/"
    MULTIPLY = "*"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is asked of one knob: a plain `value`, or a `factor` (2 or more) to divide or multiply by."""

    op: Op
    value: str = ""
    factor: int = 1


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a change can't be made: the reason, and the sentence without file and line."""

    reason: Reason
    why: str


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Batch size and accumulation. `accumulation` is None where the config has no key for it (it counts as 1)."""

    batch: int
    accumulation: int | None

    @property
    def effective(self) -> int:
        """Samples of one optimizer step."""
        return self.batch * (self.accumulation or 1)


def parse_change(text: str) -> Change:
    """`/2`, `*2` or a plain value. Raises ValueError with a sentence that says what is wrong."""
    text = text.strip()
    if not text:
        raise ValueError("an empty value; write /2, *2 or a value")
    if text[0] not in "/*":
        return Change(op=Op.SET, value=text)
    match = _CHANGE.fullmatch(text)
    if match is None or int(match["factor"]) < 2:
        raise ValueError(f"`{text}` is no change; write /2, *2 (a whole number from 2) or a value")
    return Change(op=Op(match["op"]), factor=int(match["factor"]))


def fault_of(knob: str, text: str) -> str | None:
    """What is wrong with asking `knob` for `text`, whatever its present value; None when nothing is."""
    if knob not in KNOBS:
        return f"no knob is called `{knob}`; knobs are {', '.join(KNOBS)}"
    try:
        change = parse_change(text)
    except ValueError as error:
        return f"{knob}: {error}"
    kind = KNOBS[knob]
    if change.op is not Op.SET:
        return None if kind.kind is Kind.COUNT else f"{knob} is no number: `{text}` means nothing for it"
    return _value_fault(knob, kind, change.value)


def _value_fault(knob: str, kind: KnobKind, value: str) -> str | None:
    if kind.kind is Kind.COUNT and (as_count(value) is None or int(value) < kind.minimum):
        return f"{knob} must be a whole number from {kind.minimum}, not `{value}`"
    if kind.kind is Kind.SWITCH and value.lower() not in _SWITCHES:
        return f"{knob} must be true or false, not `{value}`"
    if kind.kind is Kind.WORD and value not in kind.words:
        return f"{knob} must be one of {', '.join(kind.words)}, not `{value}`"
    return None


def as_count(text: str) -> int | None:
    """A whole number written plainly in decimal, else None."""
    return int(text) if _COUNT.fullmatch(text) else None


def new_value(knob: str, old: str, asked: str) -> str | Refusal:
    """The value that `knob`, now `old`, gets. Batch size and accumulation go through `resize` instead.

    `asked` must have no fault (`fault_of`).
    """
    change, kind = parse_change(asked), KNOBS[knob]
    if kind.kind is Kind.SWITCH:
        return _new_switch(knob, old, change.value)
    if kind.kind is Kind.WORD:
        return change.value
    count = as_count(old)
    if count is None:
        return _not_plain(knob, old)
    if change.op is Op.SET:
        return change.value
    scaled = count * change.factor if change.op is Op.MULTIPLY else count // change.factor
    scaled -= scaled % kind.step
    if scaled < kind.minimum:
        return Refusal(reason=Reason.AT_MINIMUM, why=f"{knob} is {count} and can't go below {kind.minimum}")
    return str(scaled)


def breaks_resume(knob: str, old: str, new: str) -> bool:
    """Whether a checkpoint made with `old` can't be loaded with `new`.

    A network of rank 8 doesn't fit one of rank 4; accelerate's load_state wants the scaler that only an fp16 run saves.
    """
    if knob in ("network_dim", "network_alpha"):
        return old != new
    return knob == "mixed_precision" and new == "fp16" != old


def _new_switch(knob: str, old: str, asked: str) -> str | Refusal:
    present, wanted = _SWITCHES.get(old.lower()), _SWITCHES[asked.lower()]
    if present is None:
        return _not_plain(knob, old)
    if present == wanted:
        return old
    return "true" if wanted else "false"


def _not_plain(knob: str, old: str) -> Refusal:
    return Refusal(reason=Reason.KNOB_NOT_CHANGEABLE, why=f"{knob} is `{old}`, which is no plain value of it")


def resize(
    now: Sizes, batch: str | None, accumulation: str | None, *, allow_effective_batch_change: bool
) -> Sizes | Refusal:
    """The batch size and accumulation that answer what is asked of either (None: nothing is).

    The effective batch, batch × accumulation, stays equal: `/n` gives the largest divisor of it that is ≤ batch / n,
    `*n` the smallest that is ≥ batch × n, and accumulation follows. Where that can't be (no accumulation key, or a
    plain value that is no divisor), the effective batch would change: refused unless allowed.
    """
    wanted = _wanted(now, batch, accumulation)
    if isinstance(wanted, Refusal) or wanted.effective == now.effective or allow_effective_batch_change:
        return wanted
    return Refusal(
        reason=Reason.EFFECTIVE_BATCH_WOULD_CHANGE, why=f"effective batch {now.effective} → {wanted.effective}"
    )


def _wanted(now: Sizes, batch: str | None, accumulation: str | None) -> Sizes | Refusal:
    if batch is None and accumulation is None:
        return now
    if batch is None:
        steps = _scaled(now.accumulation or 1, parse_change(accumulation or ""))
        if steps < 1:
            return Refusal(reason=Reason.AT_MINIMUM, why=f"{ACCUMULATION} is {now.accumulation} and can't go below 1")
        return Sizes(batch=now.batch, accumulation=steps)
    change = parse_change(batch)
    if change.op is Op.DIVIDE and now.batch == 1:
        return Refusal(reason=Reason.AT_MINIMUM, why=f"{BATCH} is 1 and can't go lower")
    if accumulation is not None:
        steps = _scaled(now.accumulation or 1, parse_change(accumulation))
        return Sizes(batch=max(1, _scaled(now.batch, change)), accumulation=max(1, steps))
    if now.accumulation is None:
        return Sizes(batch=max(1, _scaled(now.batch, change)), accumulation=None)
    return _with_accumulation(now.batch, now.effective, change)


def _with_accumulation(batch: int, total: int, change: Change) -> Sizes:
    """The batch that `change` asks for, with the accumulation that keeps `total`, or comes nearest to it."""
    divisors = _divisors(total)
    target = _scaled(batch, change)
    if change.op is Op.DIVIDE:
        target = max((each for each in divisors if each * change.factor <= batch), default=1)
    elif change.op is Op.MULTIPLY:
        target = min((each for each in divisors if each >= target), default=target)
    return Sizes(batch=target, accumulation=max(1, (total + target // 2) // target))


def _scaled(value: int, change: Change) -> int:
    if change.op is Op.SET:
        return int(change.value)
    return value * change.factor if change.op is Op.MULTIPLY else value // change.factor


def _divisors(total: int) -> list[int]:
    small = [each for each in range(1, int(total**0.5) + 1) if total % each == 0]
    return sorted({*small, *(total // each for each in small)})
