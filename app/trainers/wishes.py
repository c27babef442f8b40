"""What is to stand where: the knobs that are asked for, turned into new values of their places."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tunewarden.domain import effective_batch, tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.document import Form, named
from tunewarden.trainers.layer import Syntax
from tunewarden.trainers.sources import Place, Source, ruling

_BATCH_KNOBS = (tuning.BATCH, tuning.ACCUMULATION)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One knob at one place. `place` None: it is absent and put in. `new` None: it is taken out.

    `old` and `new_says` are the values before and after, the trainer's default where nothing is written.
    """

    knob: str
    place: Place | None
    old: str
    new: str | None
    new_says: str


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """All that is to be changed. `effective_batch` as in ConfigPlan."""

    each: tuple[Wish, ...]
    effective_batch: tuple[int, int] | None
    warnings: tuple[str, ...]


def wishes_for(sources: Sequence[Source], knobs: Mapping[str, str], *, allow: bool, resuming: bool) -> Wishes:
    """The new values of all places. `allow`: the effective batch may change. Raises Refused."""
    _refuse_faulty(sources, knobs)
    each = [wish for knob in knobs if knob not in _BATCH_KNOBS for wish in _plain(sources, knob, knobs[knob])]
    effective: tuple[int, int] | None = None
    warnings: tuple[str, ...] = ()
    if knobs.keys() & set(_BATCH_KNOBS):
        sized, effective, warnings = _sized(sources, knobs, allow=allow)
        each += sized
    if resuming:
        _refuse_unloadable(sources, each)
    return Wishes(each=tuple(each), effective_batch=effective, warnings=warnings)


def default_of(sources: Sequence[Source], knob: str) -> str | None:
    """What the trainer takes where nothing sets the knob; None where we don't know that it reads it."""
    return next((source.layer.defaults[knob] for source in sources if knob in source.layer.defaults), None)


def _plain(sources: Sequence[Source], knob: str, asked: str) -> Iterator[Wish]:
    """A knob that is no batch size."""
    places, default = ruling(sources, knob), default_of(sources, knob)
    unset = tuning.parse_change(asked).op is tuning.Op.UNSET
    if not places:
        if default is None:
            raise _absent(sources, knob)
        new = default if unset else _new_value(f"{_where(sources)}:", knob, default, asked)
        if new != default:
            yield Wish(knob=knob, place=None, old=default, new=new, new_says=new)
    for place in places:
        _refuse_fault(place)
        if unset:
            yield Wish(knob=knob, place=place, old=place.text, new=None, new_says=default or "")
            continue
        new = _new_value(f"{place.where}:", knob, place.text, asked)
        _refuse_false(place, new)
        if new != place.text:
            yield Wish(knob=knob, place=place, old=place.text, new=new, new_says=new)


def _sized(
    sources: Sequence[Source], knobs: Mapping[str, str], *, allow: bool
) -> tuple[list[Wish], tuple[int, int], tuple[str, ...]]:
    """Batch size and accumulation, which go together."""
    batches, counts = _counts(sources, tuning.BATCH)
    if not counts:
        raise _absent(sources, tuning.BATCH)
    steps_at, steps = _counts(sources, tuning.ACCUMULATION)
    if len(set(steps)) > 1:
        places = " and ".join(place.where for place in steps_at)
        raise Refused(Reason.KNOB_HAS_TWO_SOURCES, f"{places}: {tuning.ACCUMULATION} differs; keep one")
    asked = {knob: _without_unset(sources, knob, knobs.get(knob)) for knob in _BATCH_KNOBS}
    now = steps[0] if steps else None
    answer = effective_batch.resize_all(
        counts, now, asked[tuning.BATCH], asked[tuning.ACCUMULATION], allow_effective_batch_change=allow
    )
    first = next(iter(batches if tuning.BATCH in knobs else steps_at), None) or next(iter(batches), None)
    where = f"{first.where}:" if first else f"{_where(sources)}:"
    if isinstance(answer, tuning.Refusal):
        raise _refused(sources, where, answer)
    then, after = answer
    old, new = max(counts) * (now or 1), max(then) * (after or 1)
    wishes = [*_counted(tuning.BATCH, batches, counts, then, knobs)]
    if now is not None and after is not None:
        wishes += _counted(tuning.ACCUMULATION, steps_at, steps, (after,) * len(steps), knobs)
    changed = any(a * (now or 1) != b * (after or 1) for a, b in zip(counts, then, strict=True))
    return wishes, (old, new), _warnings(sources, where, (old, new), now) if changed else ()


def _counts(sources: Sequence[Source], knob: str) -> tuple[tuple[Place, ...], tuple[int, ...]]:
    """The ruling places and their numbers; no place and the default where nothing is written."""
    places, default = ruling(sources, knob), default_of(sources, knob)
    for place in places:
        _refuse_fault(place)
        if not tuning.as_count(place.text):
            raise Refused(
                Reason.KNOB_NOT_CHANGEABLE,
                f"{place.where}: `{place.key}` is `{place.text}`, no whole number from 1; write it as a plain number",
            )
    texts = [place.text for place in places] or ([default] if default else [])
    return places, tuple(tuning.as_count(text) or 1 for text in texts)


def _counted(
    knob: str, places: Sequence[Place], old: Sequence[int], new: Sequence[int], knobs: Mapping[str, str]
) -> Iterator[Wish]:
    unset = knob in knobs and tuning.parse_change(knobs[knob]).op is tuning.Op.UNSET
    if not places and old[0] != new[0]:
        yield Wish(knob=knob, place=None, old=str(old[0]), new=str(new[0]), new_says=str(new[0]))
    for place, value in zip(places, new, strict=False):
        if unset:
            yield Wish(knob=knob, place=place, old=place.text, new=None, new_says=str(value))
        elif str(value) != place.text:
            yield Wish(knob=knob, place=place, old=place.text, new=str(value), new_says=str(value))


def _without_unset(sources: Sequence[Source], knob: str, asked: str | None) -> str | None:
    """What is asked as a number: a knob that is taken out counts as the trainer's default, accumulation as 1."""
    if asked is None or tuning.parse_change(asked).op is not tuning.Op.UNSET:
        return asked
    default = default_of(sources, knob) or ("1" if knob == tuning.ACCUMULATION else None)
    if default is None:
        raise Refused(Reason.KNOB_NOT_CHANGEABLE, f"{_where(sources)}: {knob} can't be left out; give it a value")
    return default


def _new_value(where: str, knob: str, old: str, asked: str) -> str:
    answer = tuning.new_value(knob, old, asked)
    if isinstance(answer, tuning.Refusal):
        raise Refused(answer.reason, f"{where} {answer.why}")
    return answer


def _refuse_faulty(sources: Sequence[Source], knobs: Mapping[str, str]) -> None:
    for knob, asked in knobs.items():
        fault = tuning.fault_of(knob, asked)
        if fault is not None:
            reason = Reason.KNOB_NOT_CHANGEABLE if knob in tuning.KNOBS else Reason.KNOB_NOT_FOUND
            raise Refused(reason, f"{_where(sources)}: {fault}")


def _refuse_fault(place: Place) -> None:
    if place.fault:
        raise Refused(
            Reason.KNOB_NOT_CHANGEABLE,
            f"{place.where}: `{place.key}` {place.fault}; write it as a plain number or word",
        )


def _refuse_false(place: Place, new: str) -> None:
    """A bare `no` in YAML is false to a YAML 1.1 reader, where the knob wants the word."""
    bare = place.source.layer.syntax is Syntax.YAML and place.entry.form is Form.BARE
    if bare and new == "no" != place.text and tuning.switch(place.text) is None:
        raise Refused(
            Reason.KNOB_NOT_CHANGEABLE,
            f"{place.where}: `{place.key}: no` would read as false; put quotes around {place.text} first",
        )


def _refuse_unloadable(sources: Sequence[Source], wishes: Sequence[Wish]) -> None:
    for wish in wishes:
        if tuning.breaks_resume(wish.knob, wish.old, wish.new_says):
            where, new = wish.place.where if wish.place else _where(sources), wish.new_says or "the default"
            raise Refused(
                Reason.KNOB_NOT_CHANGEABLE,
                f"{where}: no checkpoint of {wish.knob} {wish.old} can be loaded with {new}; "
                "set it yourself for a new training",
            )


def _absent(sources: Sequence[Source], knob: str) -> Refused:
    for source in sorted(sources, key=lambda each: each.grammar is not None):  # a file before the command
        for path in source.layer.keys.get(knob, ()):
            if source.grammar is not None:
                return Refused(Reason.KNOB_NOT_FOUND, f"the command sets no {path[0]}; add it to the command")
            level = " at its top level" if len(path) == 1 else ""
            text = f"{source.document.at(1)}: the file sets no `{named(path)}`{level}; add the key to the file"
            return Refused(Reason.KNOB_NOT_FOUND, text)
    return Refused(Reason.KNOB_NOT_FOUND, f"{_where(sources)}: the trainer has no setting for {knob} that we know")


def _where(sources: Sequence[Source]) -> str:
    """A place for what has none: the first file, else the command."""
    files = [source.document.at(1) for source in sources if source.grammar is None]
    return files[0] if files else "the command"


def _steps_key(sources: Sequence[Source]) -> str | None:
    """The name of the accumulation where a layer has one."""
    paths = [path for source in sources for path in source.layer.keys.get(tuning.ACCUMULATION, ())]
    return paths[0][-1].lstrip("-") if paths else None


def _warnings(
    sources: Sequence[Source], where: str, effective: tuple[int, int], accumulation: int | None
) -> tuple[str, ...]:
    text = f"{where} effective batch {effective[0]} → {effective[1]}: the learning rate may no longer fit"
    if accumulation is None:
        key = _steps_key(sources)
        text += (
            f"; the file has no {key} to make up for it" if key else "; raise the accumulation in the trainer's command"
        )
    return (text,)


def _refused(sources: Sequence[Source], where: str, refusal: tuning.Refusal) -> Refused:
    advice = ""
    if refusal.reason is Reason.EFFECTIVE_BATCH_WOULD_CHANGE:
        key = _steps_key(sources) or "gradient accumulation"
        advice = f"; give the file a {key} that can make up for it, or the policy allow_effective_batch_change"
    return Refused(refusal.reason, f"{where} {refusal.why}{advice}")
