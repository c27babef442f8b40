"""Change values in a YAML file without touching any other byte.

The parser only says where a value stands; the bytes there are replaced, and the result is parsed again: its event
stream must be the old one but for the values that were meant. Only keys of the top-level mapping count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused

_BOM = b"\xef\xbb\xbf"
MAX_BYTES = 256 * 1024  # the parser is slow, and a flat config has a few kilobytes
_PLAIN_TAGS = (None, "!", "tag:yaml.org,2002:int", "tag:yaml.org,2002:str", "tag:yaml.org,2002:bool")
_STYLES = {None: "plain", "": "plain", "'": "single", '"': "double", "|": "literal", ">": "folded"}


@dataclass(frozen=True, kw_only=True)
class Span:
    """A top-level value: bytes `start` to `end` are its text inside the quotes, on line `line` (from 1).

    `style` is plain, single or double; `event` is the value's place in the event stream.
    """

    key: str
    start: int
    end: int
    line: int
    text: str
    style: str
    event: int


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed file: its text without BOM, its events, and the top-level entries as (key, line, index of the value)."""

    where: str
    text: str
    offset: int  # bytes of the BOM
    events: tuple[Event, ...]
    entries: tuple[tuple[str, int, int], ...]

    def line_of(self, index: int) -> int:
        """The line (from 1) of a character, as editors count: a line ends with \\n, \\r\\n or \\r."""
        before = self.text[:index]
        return before.count("\n") + before.count("\r") - before.count("\r\n") + 1


@lru_cache(maxsize=2)  # a plan asks for the same bytes twice, and each parse takes ms; what is given out is frozen
def parse(data: bytes, *, where: str) -> Document:
    """Parse one flat YAML file. Raises Refused(config_malformed) with `where`:line; `where` is how messages name it."""
    if len(data) > MAX_BYTES:
        raise _malformed(where, 1, f"is larger than {MAX_BYTES // 1024} KiB, which no config is; give the right file")
    offset = len(_BOM) if data.startswith(_BOM) else 0
    try:
        text = data[offset:].decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: offset + error.start].count(b"\n") + 1
        raise _malformed(where, line, "is not UTF-8 here; save the file as UTF-8") from error
    try:
        events = tuple(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise _malformed(where, line, f"is no YAML: {error.problem or error.context}; correct it") from error
    except (YAMLError, RecursionError, ValueError) as error:
        raise _malformed(where, 1, f"is no YAML: {str(error).splitlines()[0][:120]}; correct it") from error
    document = Document(where=where, text=text, offset=offset, events=events, entries=())
    _check_aliases(document)
    return Document(where=where, text=text, offset=offset, events=events, entries=tuple(_entries(document)))


def keys(document: Document) -> frozenset[str]:
    """The keys of the top-level mapping."""
    return frozenset(key for key, _, _ in document.entries)


def find_scalar(data: bytes, key: str, *, where: str = "config") -> Span:
    """Where the value of the top-level `key` stands.

    Raises Refused: config_malformed (also for a key that is there twice), knob_not_found, knob_not_changeable (a list,
    a mapping, an alias, an anchor in use, several lines, escapes, a tag of somebody's own).
    """
    return locate(parse(data, where=where), key)


def locate(document: Document, key: str) -> Span:
    """`find_scalar` in a file that is parsed already."""
    found = [entry for entry in document.entries if entry[0] == key]
    if not found:
        raise Refused(
            Reason.KNOB_NOT_FOUND,
            f"{document.where}:1: the file sets no `{key}` at its top level; add the key to the file",
        )
    if len(found) > 1:
        places = " and ".join(f"{document.where}:{line}" for _, line, _ in found)
        raise Refused(Reason.CONFIG_MALFORMED, f"{places}: `{key}` is set more than once; keep one")
    _, line, index = found[0]
    return _span(document, key, line, index)


def splice(data: bytes, values: Mapping[str, str], *, where: str = "config") -> bytes:
    """`data` with the values of the top-level keys in `values` replaced, in their quotes; all other bytes are equal.

    Raises what `find_scalar` raises, knob_not_changeable when the result would read differently elsewhere, and
    ValueError for an empty value.
    """
    if not all(values.values()):
        raise ValueError("an empty value would read as null")
    before = parse(data, where=where)
    spans = {key: locate(before, key) for key in values}
    result = data
    for key, span in sorted(spans.items(), key=lambda item: item[1].start, reverse=True):
        result = result[: span.start] + values[key].encode() + result[span.end :]
    _check_only(before, parse(result, where=where), {span.event: values[span.key] for span in spans.values()})
    return result


def _check_aliases(document: Document) -> None:
    """The event stream alone doesn't tell that an alias has no anchor."""
    anchors: set[str] = set()
    for event in document.events:
        if isinstance(event, AliasEvent) and event.anchor not in anchors:
            line = document.line_of(event.start_mark.index)
            raise _malformed(document.where, line, f"is no YAML: nothing has the anchor &{event.anchor}; correct it")
        anchors.add(getattr(event, "anchor", None) or "")


def _check_only(before: Document, after: Document, intended: Mapping[int, str]) -> None:
    same_length = len(before.events) == len(after.events)
    for index, (old, new) in enumerate(zip(before.events, after.events, strict=False)):
        wanted = _signature(old)
        if index in intended:
            wanted = (*wanted[:-1], intended[index])
        if not same_length or wanted != _signature(new):
            raise Refused(
                Reason.KNOB_NOT_CHANGEABLE,
                f"{before.where}:{before.line_of(old.start_mark.index)}: changing this value would change how the rest "
                "of the file reads; write it as a plain number or word",
            )


def _signature(event: Event) -> tuple[object, ...]:
    """All that an event says, its place excepted. The value comes last."""
    kind = type(event).__name__
    anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
    return (kind, anchor, tag, getattr(event, "style", None), getattr(event, "value", None))


def _entries(document: Document) -> list[tuple[str, int, int]]:
    """The entries of the root mapping; keys that are no scalar have no name and are passed over."""
    events = document.events
    starts = [i for i, event in enumerate(events) if isinstance(event, DocumentStartEvent)]
    if len(starts) > 1:
        line = document.line_of(events[starts[1]].start_mark.index)
        raise _malformed(document.where, line, "begins a second document; keep one document in the file")
    if not starts or not isinstance(events[starts[0] + 1], MappingStartEvent):
        raise _malformed(document.where, 1, "is no mapping of keys to values; write `key: value` lines")
    entries, index = [], starts[0] + 2
    while not isinstance(events[index], MappingEndEvent):
        key, value = events[index], _after(events, index)
        if isinstance(key, ScalarEvent):
            entries.append((str(key.value), document.line_of(key.end_mark.index), value))
        index = _after(events, value)
    return entries


def _after(events: tuple[Event, ...], index: int) -> int:
    """The index of the event after the node that begins at `index`."""
    depth = 0
    while True:
        event = events[index]
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            depth += 1
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            depth -= 1
        index += 1
        if depth == 0:
            return index


def _span(document: Document, key: str, line: int, index: int) -> Span:
    event = document.events[index]
    at = f"{document.where}:{line}: `{key}`"
    why = _why_not_plain(document, event)
    if why is not None or not isinstance(event, ScalarEvent):
        raise Refused(Reason.KNOB_NOT_CHANGEABLE, f"{at} {why}; write it as a plain number or word")
    style = _STYLES[event.style]
    end = event.end_mark.index - (0 if style == "plain" else 1)
    start = end - len(event.value)
    return Span(
        key=key,
        start=document.offset + len(document.text[:start].encode()),
        end=document.offset + len(document.text[:end].encode()),
        line=document.line_of(start),
        text=event.value,
        style=style,
        event=index,
    )


def _why_not_plain(document: Document, event: Event) -> str | None:
    if isinstance(event, AliasEvent):
        return f"is the alias *{event.anchor}"
    if not isinstance(event, ScalarEvent):
        return "is a list" if isinstance(event, SequenceStartEvent) else "is a mapping or an expression"
    if event.anchor and any(isinstance(e, AliasEvent) and e.anchor == event.anchor for e in document.events):
        return f"has the anchor &{event.anchor}, which other values use"
    if str(event.tag) not in map(str, _PLAIN_TAGS):
        return f"has the tag {event.tag}"
    if not event.value:
        return "is empty"
    if _STYLES[event.style] not in ("plain", "single", "double"):
        return "is a block of text"
    quote = event.style if event.style in ("'", '"') else ""
    end = event.end_mark.index - len(quote)
    start = end - len(event.value)
    written = document.text[start - len(quote) : end + len(quote)]
    if written != f"{quote}{event.value}{quote}" or "\n" in event.value:
        return "is written over several lines or with escapes"
    return None


def _malformed(where: str, line: int, why: str) -> Refused:
    return Refused(Reason.CONFIG_MALFORMED, f"{where}:{line}: {why}")
