"""The layers of a job's configuration, parsed, and the places in them that set a knob."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunewarden.domain.reason import Reason
from tunewarden.domain.tuning import KNOBS, RESOLUTION, Kind
from tunewarden.errors import Refused
from tunewarden.trainers import config_file, flag_splice, json_splice, shell_splice, toml_splice, yaml_splice
from tunewarden.trainers.document import Document, Entry, Form, find, fits, named
from tunewarden.trainers.flag_splice import Grammar
from tunewarden.trainers.layer import Layer, Syntax

PARSERS: Mapping[Syntax, Callable[[bytes, str], Document]] = {
    Syntax.YAML: yaml_splice.parse,
    Syntax.TOML: toml_splice.parse,
    Syntax.JSON: json_splice.parse,
    Syntax.SHELL: shell_splice.parse,
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A layer with what it says. `grammar` is how words of a command are read, None for a file."""

    layer: Layer
    document: Document
    grammar: Grammar | None = None

    def parse(self, data: bytes, where: str) -> Document:
        """Parse other bytes as this source's were."""
        if self.grammar is not None:
            return flag_splice.parse(flag_splice.words_of(data.decode("utf-8", "surrogatepass")), self.grammar)
        return PARSERS[self.layer.syntax](data, where)

    def places(self, knob: str) -> tuple["Place", ...]:
        """All places here that set the knob, in order. Raises Refused for a key set twice or below an alias."""
        entries: list[Entry] = []
        for path in self.layer.keys.get(knob, ()):
            entries += self._last(path) if self.grammar is not None else find(self.document, path)
        if self.grammar is not None:
            self._refuse_short(knob, after=max((entry.head for entry in entries), default=-1))
        found = sorted(entries, key=lambda entry: entry.head)
        return tuple(Place(source=self, entry=entry, items=self._pair(knob, entry)) for entry in found)

    def _last(self, path: tuple[str, ...]) -> tuple[Entry, ...]:
        """Of an option that is given again the last counts."""
        return tuple(entry for entry in self.document.entries if entry.path == path)[-1:]

    def _refuse_short(self, knob: str, *, after: int) -> None:
        """argparse takes the beginning of an option for the whole of it; we don't know which others there are.

        One that stands before the option written in full, which stands at `after`, does not count.
        """
        exact = {path[0] for paths in self.layer.keys.values() for path in paths}
        for entry in (entry for entry in self.document.entries if entry.head > after):
            for path in self.layer.keys.get(knob, ()):
                if entry.path[0] not in exact and len(entry.path[0]) > 3 and path[0].startswith(entry.path[0]):
                    raise Refused(
                        Reason.KNOB_NOT_CHANGEABLE,
                        f"{self.document.at(entry.line)}: {entry.path[0]} may be short for {path[0]}; write it in full",
                    )

    def _pair(self, knob: str, entry: Entry) -> tuple[Entry, ...]:
        items = self.document.items(entry) if entry.form is Form.LIST and knob == RESOLUTION else ()
        plain = len(items) == 2 and all(item.form in (Form.BARE, Form.QUOTED) and not item.fault for item in items)
        return items if plain else ()

    def lacking(self, places: Sequence["Place"]) -> tuple[Entry, ...]:
        """The items of the layer's list that none of `places` stands in."""
        pattern = self.layer.items
        if pattern is None:
            return ()
        return tuple(
            entry
            for entry in self.document.entries
            if fits(entry.path, pattern) and not any(place.entry.path[: len(pattern)] == entry.path for place in places)
        )


@dataclass(frozen=True, kw_only=True)
class Place:
    """One place that sets a knob; `items` are the two parts of a size that is written as a list."""

    source: Source
    entry: Entry
    items: tuple[Entry, ...] = ()

    @property
    def file(self) -> Path | None:
        return self.source.layer.file

    @property
    def where(self) -> str:
        """The place as messages name it."""
        return self.source.document.at(self.entry.line)

    @property
    def key(self) -> str:
        """The key as messages name it."""
        return named(self.entry.path)

    @property
    def text(self) -> str:
        """The value as written, without quotes and `fraction`; both parts of a list of two."""
        whole = self.entry.text.removesuffix(self.fraction)
        return ",".join(item.text for item in self.items) if self.items else whole

    @property
    def fraction(self) -> str:
        """What a whole number has behind it: the sliders of the kohya GUI write 1.0 into its JSON."""
        is_json = self.source.layer.syntax is Syntax.JSON and self.entry.form is Form.BARE
        return ".0" if is_json and re.fullmatch(r"\d+\.0", self.entry.text) else ""

    @property
    def fault(self) -> str:
        """Why the value can't be changed; empty where it can."""
        if self.entry.fault or self.items:
            return self.entry.fault
        names = {Form.LIST: "is a list", Form.MAPPING: "is a mapping or an expression", Form.OTHER: "is no plain value"}
        return names.get(self.entry.form, "")


def load(layers: Sequence[Layer], argv: Sequence[str]) -> tuple[Source, ...]:
    """The layers, read and parsed. Raises Refused(config_not_found | config_malformed)."""
    # Each file once: two layers of one file must not see an edit between them.
    files = {layer.file: load_file(layer.file, layer.syntax) for layer in layers if layer.file is not None}
    return tuple(_load(layer, argv, files) for layer in layers)


def load_file(path: Path, syntax: Syntax) -> Document:
    """One file, read and parsed. Raises Refused(config_not_found | config_malformed)."""
    return PARSERS[syntax](config_file.read(path), str(path))


def _load(layer: Layer, argv: Sequence[str], files: Mapping[Path, Document]) -> Source:
    if layer.file is not None:
        return Source(layer=layer, document=files[layer.file])
    grammar = Grammar(
        first=layer.first,
        switches=_options(layer, lambda knob: knob in KNOBS and KNOBS[knob].kind is Kind.SWITCH),
        pairs=_options(layer, lambda knob: knob == RESOLUTION),
        assignments=layer.syntax is Syntax.ASSIGNMENTS,
    )
    return Source(layer=layer, document=flag_splice.parse(argv, grammar), grammar=grammar)


def _options(layer: Layer, wanted: Callable[[str], bool]) -> frozenset[str]:
    return frozenset(path[0] for knob, paths in layer.keys.items() if wanted(knob) for path in paths)


def ruling(sources: Sequence[Source], knob: str) -> tuple[Place, ...]:
    """The places that rule a knob: those of the first layer that sets it, and of later ones where items lack it.

    Raises Refused: knob_has_two_sources where it can't be told which layer counts, knob_not_found where an item falls
    through all layers, and as `Source.places`.
    """
    ruled, lacking = _ruled(sources, knob)
    if lacking:
        _refuse_lacking(ruled[0], lacking, knob)
    return ruled


def seen(sources: Sequence[Source], knob: str) -> tuple[Place, ...]:
    """The places that rule a knob, for reading only; none where it can't be told. Raises Refused(config_malformed)."""
    try:
        return _ruled(sources, knob)[0]
    except Refused as refused:
        if refused.reason is Reason.CONFIG_MALFORMED:
            raise
        return ()


def _ruled(sources: Sequence[Source], knob: str) -> tuple[tuple[Place, ...], tuple[Entry, ...]]:
    ruled: list[Place] = []
    lacking: tuple[Entry, ...] = ()
    for index, source in enumerate(sources):
        here = source.places(knob)[-1:] if source.layer.last_wins else source.places(knob)
        if not here:
            continue
        if not source.layer.rules:
            _refuse_two(here[0], sources[index + 1 :], knob)
        ruled += here
        lacking = source.lacking(here)
        if not lacking:
            break
    return tuple(ruled), lacking


def shadowed(sources: Sequence[Source], knob: str, ruled: Sequence[Place]) -> Iterator[Place]:
    """The places that set the knob too, and don't count."""
    for source in sources:
        for place in source.places(knob):
            if not any(place.where == other.where and place.key == other.key for other in ruled):
                yield place


def _refuse_two(place: Place, others: Sequence[Source], knob: str) -> None:
    for other in others:
        for each in other.places(knob):
            raise Refused(
                Reason.KNOB_HAS_TWO_SOURCES,
                f"{each.where}: `{each.key}` is set here and by {place.key} in {place.where}, and they may disagree; "
                "keep it in the file only",
            )


def _refuse_lacking(place: Place, lacking: Sequence[Entry], knob: str) -> None:
    document = place.source.document
    raise Refused(
        Reason.KNOB_NOT_FOUND,
        f"{document.at(lacking[0].line)}: `{named(lacking[0].path)}` sets no {place.entry.path[-1]} and others do; "
        f"give each its own, so that {knob} can be changed in all",
    )
