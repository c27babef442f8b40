"""Knobs and what can be asked of them: names, `/2`, `*2`, values. Batch sizes have a rule: `effective_batch`."""

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
RESOLUTION = "resolution"
EXPANDABLE = "expandable_segments"

KNOBS: Mapping[str, KnobKind] = {
    BATCH: KnobKind(kind=Kind.COUNT),
    ACCUMULATION: KnobKind(kind=Kind.COUNT),
    # Image trainers want multiples of 64: Stable Diffusion's U-Net halves a latent of 1/8 size three times.
    RESOLUTION: KnobKind(kind=Kind.COUNT, minimum=64, step=64),
    "cache_latents": KnobKind(kind=Kind.SWITCH),
    "data_workers": KnobKind(kind=Kind.COUNT, minimum=0),
    "persistent_workers": KnobKind(kind=Kind.SWITCH),
    "pin_memory": KnobKind(kind=Kind.SWITCH),
    "gradient_checkpointing": KnobKind(kind=Kind.SWITCH),
    "mixed_precision": KnobKind(kind=Kind.WORD, words=("no", "fp16", "bf16")),
    "network_dim": KnobKind(kind=Kind.COUNT),
    "network_alpha": KnobKind(kind=Kind.COUNT),
    EXPANDABLE: KnobKind(kind=Kind.SWITCH),  # of torch's allocator: an environment variable, not a config's
}

_CHANGE = re.compile(r"(?P<op>[/*])(?P<factor>\d{1,6})")
# Plain decimal: 010 is eight to a YAML 1.1 reader, 1_000 a word to a YAML 1.2 one. Six digits keep `_divisors` quick.
_COUNT = re.compile(r"0|[1-9]\d{0,5}")
# Both parts of an image's size: "512,512", 512x768, or the two items of a list.
_PAIR = re.compile(r"(?P<width>[1-9]\d{0,5})(?P<between>\s*[,x]\s*)(?P<height>[1-9]\d{0,5})")
# A new value is spelt as the old one was: a JSON of the kohya GUI has 0 and 1, Python has True.
_SPELLINGS = (("true", "false"), ("True", "False"), ("TRUE", "FALSE"), ("yes", "no"), ("Yes", "No"), ("YES", "NO"),
              ("on", "off"), ("On", "Off"), ("ON", "OFF"), ("1", "0"))  # fmt: skip
_SWITCHES: Mapping[str, bool] = {
    word.lower(): yes for pair in _SPELLINGS for word, yes in zip(pair, (True, False), strict=True)
}
_OPPOSITES: Mapping[str, str] = {a: b for yes, no in _SPELLINGS for a, b in ((yes, no), (no, yes))}


class Op(StrEnum):
    """How a value is asked to change."""

    SET = ""
    DIVIDE = "/"
    MULTIPLY = "*"
    UNSET = "unset"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is asked of one knob: a plain `value`, a `factor` (2 or more) to divide or multiply by, or to be unset.

    A knob that is unset is taken out of the config: the trainer's own default counts.
    """

    op: Op
    value: str = ""
    factor: int = 1


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a change can't be made: the reason, and the sentence without file and line."""

    reason: Reason
    why: str


def parse_change(text: str) -> Change:
    """`/2`, `*2`, `unset` or a plain value. Raises ValueError with a sentence that says what is wrong."""
    text = text.strip()
    if not text:
        raise ValueError("an empty value; write /2, *2 or a value")
    if text in ("unset", "default"):
        return Change(op=Op.UNSET)
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
    if change.op is Op.UNSET:
        return None
    if change.op is not Op.SET:
        return None if kind.kind is Kind.COUNT else f"{knob} is no number: `{text}` means nothing for it"
    return _value_fault(knob, kind, change.value)


def _value_fault(knob: str, kind: KnobKind, value: str) -> str | None:
    pair = _PAIR.fullmatch(value) if knob == RESOLUTION else None
    if pair is not None:
        return _value_fault(knob, kind, pair["width"]) or _value_fault(knob, kind, pair["height"])
    if kind.kind is Kind.COUNT and (as_count(value) is None or int(value) < kind.minimum):
        return f"{knob} must be a whole number from {kind.minimum}, not `{value}`"
    if kind.kind is Kind.SWITCH and value.lower() not in _SWITCHES:
        return f"{knob} must be true or false, not `{value}`"
    if kind.kind is Kind.WORD and value not in kind.words:
        return f"{knob} must be one of {', '.join(kind.words)}, not `{value}`"
    return None


def switch(text: str) -> bool | None:
    """A switch's value: true or false in any of YAML's spellings, else None."""
    return _SWITCHES.get(text.lower())


def as_count(text: str) -> int | None:
    """A whole number written plainly in decimal, else None."""
    return int(text) if _COUNT.fullmatch(text) else None


def new_value(knob: str, old: str, asked: str) -> str | Refusal:
    """The value that `knob`, now `old`, gets, spelt like `old`. For batch sizes see `effective_batch`.

    `asked` must have no fault (`fault_of`), and is not `unset`. Both parts of a resolution change together.
    """
    change, kind = parse_change(asked), KNOBS[knob]
    if kind.kind is Kind.SWITCH:
        return _new_switch(knob, old, change.value)
    if kind.kind is Kind.WORD:
        return change.value
    if knob == RESOLUTION and (pair := _PAIR.fullmatch(old)) is not None:
        return _new_pair(pair, asked)
    count = as_count(old)
    if count is None:
        return _not_plain(knob, old)
    if change.op is Op.SET:
        return change.value if as_count(change.value) is not None else _not_one(knob, old, change.value)
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
    present, wanted = switch(old), switch(asked)
    if present is None:
        return _not_plain(knob, old)
    return old if present == wanted else _OPPOSITES.get(old, "true" if wanted else "false")


def _new_pair(old: re.Match[str], asked: str) -> str | Refusal:
    width, height, change = old["width"], old["height"], parse_change(asked)
    wanted = _PAIR.fullmatch(change.value)
    if wanted is not None:
        return wanted["width"] + old["between"] + wanted["height"]
    if change.op is Op.SET and width != height:
        return _not_one(RESOLUTION, old[0], change.value)
    first, second = new_value(RESOLUTION, width, asked), new_value(RESOLUTION, height, asked)
    if isinstance(first, Refusal):
        return first
    return second if isinstance(second, Refusal) else first + old["between"] + second


def _not_one(knob: str, old: str, asked: str) -> Refusal:
    why = f"{knob} is {old}, which {asked} can't replace; write it in the same form, or /2"
    return Refusal(reason=Reason.KNOB_NOT_CHANGEABLE, why=why)


def _not_plain(knob: str, old: str) -> Refusal:
    return Refusal(reason=Reason.KNOB_NOT_CHANGEABLE, why=f"{knob} is `{old}`, which is no plain value of it")
