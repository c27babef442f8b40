"""A configuration as text with the places of its values, and edits that leave every other byte alone.

Each syntax has a parser that says where values stand. The text there is replaced, and the result is parsed again: it
must read as before, but for what was meant.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused

BOM = b"\xef\xbb\xbf"
MAX_BYTES = 256 * 1024  # the parsers are slow, and a config has a few kilobytes
Keys = tuple[str, ...]
MERGE = "<<"  # the key with which YAML takes keys from another mapping


class Form(StrEnum):
    """How a value is written."""

    BARE = "bare"
    QUOTED = "quoted"
    SWITCH = "switch"  # an option without a value: its presence is the value
    LIST = "list"
    MAPPING = "mapping"
    ALIAS = "alias"  # of YAML
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One value. Characters `start` to `end` are its text inside the quotes; `head` to `tail` the key and all of it.

    `path` are the keys down to it, items of a list by their index. `fault` says why it can't be replaced. `inline`: its
    neighbours are parted by commas, not by lines. `details` must read the same afterwards (a YAML anchor, a tag).
    """

    path: Keys
    form: Form
    line: int
    head: int
    start: int
    end: int
    tail: int
    text: str
    inline: bool = False
    fault: str = ""
    details: tuple[object, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed configuration. `where` is how messages name it; `bom` are the bytes before the text.

    `merged` are the mappings that take keys from elsewhere (YAML's `<<`).
    """

    where: str
    text: str
    entries: tuple[Entry, ...]
    bom: bytes = b""
    merged: frozenset[Keys] = frozenset()

    def at(self, line: int) -> str:
        """The place as messages name it."""
        return f"{self.where}:{line}"

    def data(self) -> bytes:
        """The bytes that were parsed."""
        return self.bom + self.text.encode()

    def items(self, entry: Entry) -> tuple[Entry, ...]:
        """The items of a list."""
        return tuple(each for each in self.entries if each.path[:-1] == entry.path and each.path != entry.path)


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Characters `start` to `end` become `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What edits are meant to do. Entries whose text changes or that go are known by their `start`."""

    replaced: Mapping[int, str] = field(default_factory=dict)
    added: Mapping[Keys, str] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()


def fits(path: Keys, pattern: Keys) -> bool:
    """Whether `path` is one of those that `pattern` means; "*" stands for any key or index."""
    return len(path) == len(pattern) and all(want in ("*", key) for key, want in zip(path, pattern, strict=True))


def find(document: Document, pattern: Keys) -> tuple[Entry, ...]:
    """The entries that `pattern` means.

    Raises Refused: config_malformed for a key that is there twice, knob_not_changeable where an alias stands above.
    """
    found = tuple(entry for entry in document.entries if fits(entry.path, pattern))
    for entry in found:
        _refuse_twice(document, entry)
    _refuse_alias_above(document, pattern)
    return found


def named(pattern: Keys) -> str:
    """Keys as messages write them."""
    return ".".join(pattern)


def apply_edits(document: Document, edits: Iterable[Edit]) -> bytes:
    """The bytes after the edits, which must not overlap."""
    text = document.text
    in_order = sorted(edits, key=lambda edit: (edit.start, edit.end))
    for edit in in_order[::-1]:  # not sorted backwards: of two that put in at one place the first stays the first
        text = text[: edit.start] + edit.text + text[edit.end :]
    return document.bom + text.encode("utf-8", "surrogatepass")  # words of a command may be no UTF-8


def edited(
    document: Document, edits: Sequence[Edit], intent: Intent, parse: Callable[[bytes, str], Document]
) -> Document:
    """The document after the edits, parsed again. Raises Refused(knob_not_changeable) when it reads otherwise."""
    new = apply_edits(document, edits)
    try:
        after = parse(new, document.where)
    except Refused as refused:
        raise _reads_otherwise(document, edits) from refused
    if not _reads_as_meant(document, after, intent):
        raise _reads_otherwise(document, edits)
    return after


def line_of(text: str, index: int) -> int:
    """The line (from 1) of a character, as editors count: a line ends with \\n, \\r\\n or \\r."""
    return bisect_right(_line_starts(text), index)


@lru_cache(maxsize=4)  # a parser asks for each value of one text
def _line_starts(text: str) -> tuple[int, ...]:
    return (0, *(match.end() for match in re.finditer(r"\r\n|\n|\r", text)))


def decoded(data: bytes, where: str) -> tuple[bytes, str]:
    """BOM and text of a file. Raises Refused(config_malformed): too large, no UTF-8, or binary."""
    if len(data) > MAX_BYTES:
        raise malformed(where, 1, f"is larger than {MAX_BYTES // 1024} KiB, which no config is; give the right file")
    bom = BOM if data.startswith(BOM) else b""
    try:
        text = data[len(bom) :].decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: len(bom) + error.start].count(b"\n") + 1
        raise malformed(where, line, "is not UTF-8 here; save the file as UTF-8") from error
    if "\0" in text:
        line = line_of(text, text.index("\0"))
        raise malformed(where, line, "has a zero byte, so it is no text; give the right file")
    return bom, text


def malformed(where: str, line: int, why: str) -> Refused:
    """The refusal of a file that can't be read."""
    return Refused(Reason.CONFIG_MALFORMED, f"{where}:{line}: {why}")


def _refuse_twice(document: Document, entry: Entry) -> None:
    for length in range(1, len(entry.path) + 1):
        same = [each for each in document.entries if each.path == entry.path[:length]]
        if len(same) > 1:
            places = " and ".join(document.at(each.line) for each in same)
            raise Refused(
                Reason.CONFIG_MALFORMED, f"{places}: `{named(entry.path[:length])}` is set more than once; keep one"
            )


def _refuse_alias_above(document: Document, pattern: Keys) -> None:
    for entry in document.entries:
        above = pattern[: len(entry.path)]
        if entry.form is not Form.ALIAS or len(above) == len(pattern) or set(above) == {"*"}:
            continue
        if fits(entry.path, above) and entry.path[-1] != MERGE:
            text = f"{document.at(entry.line)}: `{named(entry.path)}` {entry.fault}; write its keys out"
            raise Refused(Reason.KNOB_NOT_CHANGEABLE, text)


def _reads_as_meant(before: Document, after: Document, intent: Intent) -> bool:
    wanted = [
        _signature(entry, intent.replaced.get(entry.start))
        for entry in before.entries
        if entry.start not in intent.removed
    ]
    added = [entry for entry in after.entries if entry.path in intent.added]
    rest = [_signature(entry, None) for entry in after.entries if entry.path not in intent.added]
    return wanted == rest and {entry.path: entry.text for entry in added} == dict(intent.added)


def _signature(entry: Entry, text: str | None) -> tuple[object, ...]:
    """All that an entry says, its place excepted."""
    return (entry.path, entry.form, entry.text if text is None else text, entry.fault, entry.details)


def _reads_otherwise(document: Document, edits: Sequence[Edit]) -> Refused:
    first = min(edit.start for edit in edits)
    return Refused(
        Reason.KNOB_NOT_CHANGEABLE,
        f"{document.at(line_of(document.text, first))}: changing this value would change how the rest of the file "
        "reads; write it as a plain number or word",
    )
