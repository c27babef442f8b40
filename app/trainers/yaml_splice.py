"""Find values in a YAML file: ruamel.yaml's events say where they stand, with their anchors, tags and styles.

A value that other values share (an alias, an anchor in use) is never offered for change.
"""

from dataclasses import dataclass, replace
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

from tunewarden.trainers.document import MERGE, Document, Entry, Form, Keys, decoded, line_of, malformed

_PLAIN_TAGS = (None, "None", "!", "tag:yaml.org,2002:int", "tag:yaml.org,2002:str", "tag:yaml.org,2002:bool")
_QUOTES = {None: "", "": "", "'": "'", '"': '"'}


@lru_cache(maxsize=8)  # a plan asks for the same bytes several times; what is given out is frozen
def parse(data: bytes, where: str) -> Document:
    """Parse a YAML file of one mapping. Raises Refused(config_malformed) with `where`:line."""
    bom, text = decoded(data, where)
    try:
        events = tuple(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise malformed(where, line, f"is no YAML: {error.problem or error.context}; correct it") from error
    except (YAMLError, RecursionError, ValueError) as error:
        raise malformed(where, 1, f"is no YAML: {str(error).splitlines()[0][:120]}; correct it") from error
    _check(events, text, where)
    reader = _Reader(text=text, events=events, shared=_shared(events), merged=set())
    try:
        entries = tuple(reader.mapping(_root(events), (), "", inline=False)[0])
    except RecursionError as error:
        raise malformed(where, 1, "is nested too deeply; give the right file") from error
    return Document(where=where, text=text, entries=entries, bom=bom, merged=frozenset(reader.merged))


def _root(events: tuple[Event, ...]) -> int:
    return next(index for index, event in enumerate(events) if isinstance(event, DocumentStartEvent)) + 1


def _check(events: tuple[Event, ...], text: str, where: str) -> None:
    """What the event stream alone doesn't tell: one document, a mapping at its top, no alias of nothing."""
    starts = [index for index, event in enumerate(events) if isinstance(event, DocumentStartEvent)]
    if len(starts) > 1:
        line = line_of(text, events[starts[1]].start_mark.index)
        raise malformed(where, line, "begins a second document; keep one document in the file")
    if not starts or not isinstance(events[starts[0] + 1], MappingStartEvent):
        raise malformed(where, 1, "is no mapping of keys to values; write `key: value` lines")
    anchors: set[str] = set()
    for event in events:
        if isinstance(event, AliasEvent) and event.anchor not in anchors:
            line = line_of(text, event.start_mark.index)
            raise malformed(where, line, f"is no YAML: nothing has the anchor &{event.anchor}; correct it")
        anchors.add(getattr(event, "anchor", None) or "")


def _shared(events: tuple[Event, ...]) -> frozenset[str]:
    return frozenset(str(event.anchor) for event in events if isinstance(event, AliasEvent))


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Goes through the events once. `shared` are the anchors in use; `merged` gathers mappings with a merge key."""

    text: str
    events: tuple[Event, ...]
    shared: frozenset[str]
    merged: set[Keys]

    def mapping(self, index: int, path: Keys, fault: str, *, inline: bool) -> tuple[list[Entry], int]:
        """The entries of the mapping that begins at event `index`, and the index after it."""
        entries: list[Entry] = []
        inline = inline or _flows(self.events[index])
        index += 1
        while not isinstance(self.events[index], MappingEndEvent):
            key = self.events[index]
            if not isinstance(key, ScalarEvent):  # a key that is a list has no name
                index = self._after(self._after(index))
                continue
            if key.value == MERGE and not key.style:
                self.merged.add(path)
            found, index = self._node(index + 1, (*path, str(key.value)), key, fault, inline=inline)
            entries += found
        return entries, index + 1

    def _node(self, index: int, path: Keys, key: Event | None, fault: str, *, inline: bool) -> tuple[list[Entry], int]:
        event = self.events[index]
        if isinstance(event, ScalarEvent):
            return [self._scalar(event, path, key, fault, inline=inline)], index + 1
        whole = self._container(event, path, key, fault, inline=inline)
        if isinstance(event, AliasEvent):
            return [whole], index + 1
        inner_fault = fault or self._shared_fault(event)
        if isinstance(event, MappingStartEvent):
            entries, end = self.mapping(index, path, inner_fault, inline=inline)
        else:
            entries, end = self._sequence(index, path, inner_fault, inline=inline)
        if _flows(event):
            whole = replace(whole, end=self._end_of(end), tail=self._end_of(end))
        return [whole, *entries], end

    def _sequence(self, index: int, path: Keys, fault: str, *, inline: bool) -> tuple[list[Entry], int]:
        entries: list[Entry] = []
        inline = inline or _flows(self.events[index])
        index, count = index + 1, 0
        while not isinstance(self.events[index], SequenceEndEvent):
            found, index = self._node(index, (*path, str(count)), None, fault, inline=inline)
            entries += found
            count += 1
        return entries, index + 1

    def _container(self, event: Event, path: Keys, key: Event | None, fault: str, *, inline: bool) -> Entry:
        head = key.start_mark.index if key is not None else event.start_mark.index
        start, end = event.start_mark.index, event.end_mark.index
        form = Form.MAPPING if isinstance(event, MappingStartEvent) else Form.LIST
        if isinstance(event, AliasEvent):
            form, fault = Form.ALIAS, f"is the alias *{event.anchor}"
        return Entry(
            path=path, form=form, line=self._line(key or event), head=head, start=start, end=end, tail=end, text="",
            inline=inline, fault=fault or self._shared_fault(event), details=_details(event),
        )  # fmt: skip

    def _scalar(self, event: ScalarEvent, path: Keys, key: Event | None, fault: str, *, inline: bool) -> Entry:
        quote = _QUOTES.get(event.style) or ""
        end = event.end_mark.index - len(quote)
        start = max(0, end - len(event.value))
        written = self.text[start - len(quote) : end + len(quote)]
        plain = written == f"{quote}{event.value}{quote}" and "\n" not in event.value
        entry = Entry(
            path=path, form=Form.QUOTED if quote else Form.BARE, line=self._line(key or event),
            head=key.start_mark.index if key is not None else start - len(quote),
            start=start, end=end, tail=end + len(quote), text=event.value, inline=inline, details=_details(event),
        )  # fmt: skip
        return replace(entry, fault=fault or self._shared_fault(event) or _fault(event, plain=plain))

    def _shared_fault(self, event: Event) -> str:
        anchor = getattr(event, "anchor", None)
        shared = anchor in self.shared and not isinstance(event, AliasEvent)
        return f"has the anchor &{anchor}, which other values use" if shared else ""

    def _end_of(self, after: int) -> int:
        return int(self.events[after - 1].end_mark.index)

    def _line(self, event: Event) -> int:
        return line_of(self.text, event.end_mark.index if isinstance(event, ScalarEvent) else event.start_mark.index)

    def _after(self, index: int) -> int:
        """The index of the event after the node that begins at `index`."""
        depth = 0
        while True:
            event = self.events[index]
            depth += isinstance(event, MappingStartEvent | SequenceStartEvent)
            depth -= isinstance(event, MappingEndEvent | SequenceEndEvent)
            index += 1
            if depth == 0:
                return index


def _flows(event: Event) -> bool:
    return bool(getattr(event, "flow_style", False))


def _details(event: Event) -> tuple[object, ...]:
    return (getattr(event, "anchor", None), str(getattr(event, "tag", None)), getattr(event, "style", None))


def _fault(event: ScalarEvent, *, plain: bool) -> str:
    if str(event.tag) not in map(str, _PLAIN_TAGS):
        return f"has the tag {event.tag}"
    if not event.value:
        return "is empty"
    if event.style not in _QUOTES:
        return "is a block of text"
    return "" if plain else "is written over several lines or with escapes"


def keys(document: Document) -> frozenset[str]:
    """The keys of the top-level mapping."""
    return frozenset(entry.path[0] for entry in document.entries if len(entry.path) == 1)
