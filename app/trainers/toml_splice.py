"""Find values in a TOML file. tomllib says whether the file is sound and what it means, this says where values stand.

Only what both agree on is used.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tunewarden.errors import Refused
from tunewarden.trainers.document import Document, Entry, Form, Keys, decoded, line_of, malformed, named

_MOST_DOTS = 5000  # tomllib's time grows with the square of a dotted key's parts
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG = (re.compile(r'"""(?:[^\\]|\\.)*?"""(?!")"{0,2}', re.DOTALL), re.compile(r"'''.*?'''(?!')'{0,2}", re.DOTALL))
_BARE = re.compile(r"[^\n,\]}#]+")
_PLACE = re.compile(r"\(at line (\d+), column \d+\)|\(at end of document\)")


@lru_cache(maxsize=8)  # a plan asks for the same bytes several times; what is given out is frozen
def parse(data: bytes, where: str) -> Document:
    """Parse a TOML file. Raises Refused(config_malformed) with `where`:line, both lines for a key set twice."""
    bom, text = decoded(data, where)
    if text.count(".") > _MOST_DOTS:
        raise malformed(where, 1, f"has more than {_MOST_DOTS} dots, which no config has; give the right file")
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refusal(text, where, str(error)) from error
    except (RecursionError, ValueError) as error:
        raise malformed(where, 1, f"is no TOML: {str(error)[:120]}; correct it") from error
    try:
        entries = tuple(_Scanner(text=text).entries())
    except (_LostError, RecursionError) as error:
        raise malformed(where, 1, "is TOML that can't be changed safely; write it more plainly") from error
    if not _agree(tree, entries):
        raise malformed(where, 1, "is TOML that can't be changed safely; write it more plainly")
    return Document(where=where, text=text, entries=entries, bom=bom)


def _refusal(text: str, where: str, why: str) -> Refused:
    match = _PLACE.search(why)
    line = int(match[1]) if match and match[1] else text.count("\n") + 1
    try:
        seen: dict[Keys, int] = {}
        for entry in _Scanner(text=text).entries():
            first = seen.setdefault(entry.path, entry.line)
            if first != entry.line:
                places = f"{where}:{first} and {where}"
                return malformed(places, entry.line, f"`{named(entry.path)}` is set more than once; keep one")
    except (_LostError, RecursionError):
        pass
    return malformed(where, line, f"is no TOML: {_PLACE.sub('', why).strip()}; correct it")


class _LostError(Exception):
    """The scanner met what it doesn't know."""


@dataclass(kw_only=True)
class _Scanner:
    """Goes through sound TOML once. `arrays` counts the tables of each array of tables."""

    text: str
    arrays: dict[Keys, int] = field(default_factory=dict)

    def entries(self) -> Iterator[Entry]:
        table: Keys = ()
        position = self._skip(0)
        while position < len(self.text):
            head = position
            if self.text.startswith("[", position):
                double = self.text.startswith("[[", position)
                keys, position = self._keys(position + 1 + double)
                table = self._table(keys, double)
                position = self._after(position, "]]" if double else "]")
                yield self._entry(table, Form.MAPPING, head, head, position, position)
            else:
                keys, position = self._keys(position)
                position = _blank_end(self.text, self._after(position, "="))
                found = list(self._value((*table, *keys), head, position, inline=False))
                yield from found
                position = max(entry.tail for entry in found)
            position = self._skip(position)

    def _table(self, keys: Keys, double: bool) -> Keys:
        path: Keys = ()
        for key in keys[:-1]:
            path = self._last((*path, key))
        path = (*path, keys[-1])
        if double:
            self.arrays[path] = self.arrays.get(path, -1) + 1
        return self._last(path)

    def _last(self, path: Keys) -> Keys:
        return (*path, str(self.arrays[path])) if path in self.arrays else path

    def _keys(self, position: int) -> tuple[Keys, int]:
        keys: list[str] = []
        while True:
            position = _blank_end(self.text, position)
            key, position = self._key(position)
            keys.append(key)
            position = _blank_end(self.text, position)
            if not self.text.startswith(".", position):
                return tuple(keys), position
            position += 1

    def _key(self, position: int) -> tuple[str, int]:
        for kind in (_BARE_KEY, _BASIC, _LITERAL):
            match = kind.match(self.text, position)
            if match is None:
                continue
            word = match[0]
            if kind is _BASIC:
                return str(tomllib.loads(f"k = {word}")["k"]), match.end()
            return (word[1:-1] if kind is _LITERAL else word), match.end()
        raise _LostError

    def _value(self, path: Keys, head: int, position: int, *, inline: bool) -> Iterator[Entry]:
        for mark, long in zip(('"""', "'''"), _LONG, strict=True):
            if self.text.startswith(mark, position):
                end = self._match(long, position)
                fault = "is written over several lines"
                yield self._entry(path, Form.OTHER, head, position, end, end, inline=inline, fault=fault)
                return
        char = self.text[position : position + 1]
        if char in ("'", '"'):
            end = self._match(_BASIC if char == '"' else _LITERAL, position)
            escaped = char == '"' and "\\" in self.text[position:end]
            fault = "is written with escapes" if escaped else ""
            yield self._entry(path, Form.QUOTED, head, position + 1, end - 1, end, inline=inline, fault=fault)
        elif char == "[":
            yield from self._array(path, head, position, inline=inline)
        elif char == "{":
            yield from self._inline_table(path, head, position, inline=inline)
        else:
            raw = self.text[position : self._match(_BARE, position)].rstrip(" \t\r")
            end = position + len(raw)
            yield self._entry(path, Form.BARE, head, position, end, end, inline=inline)

    def _array(self, path: Keys, head: int, position: int, *, inline: bool) -> Iterator[Entry]:
        items: list[Entry] = []
        at, count = self._skip(position + 1), 0
        while not self.text.startswith("]", at):
            found = list(self._value((*path, str(count)), at, at, inline=True))
            items += found
            at = self._skip(max(entry.tail for entry in found))
            at = self._skip(at + 1) if self.text.startswith(",", at) else at
            count += 1
        yield self._entry(path, Form.LIST, head, position, at + 1, at + 1, inline=inline)
        yield from items

    def _inline_table(self, path: Keys, head: int, position: int, *, inline: bool) -> Iterator[Entry]:
        members: list[Entry] = []
        at = self._skip(position + 1)
        while not self.text.startswith("}", at):
            keys, after = self._keys(at)
            value = self._skip(self._after(after, "="))
            found = list(self._value((*path, *keys), at, value, inline=True))
            members += found
            at = self._skip(max(entry.tail for entry in found))
            at = self._skip(at + 1) if self.text.startswith(",", at) else at
        yield self._entry(path, Form.MAPPING, head, position, at + 1, at + 1, inline=inline)
        yield from members

    def _entry(
        self, path: Keys, form: Form, head: int, start: int, end: int, tail: int, inline: bool = False, fault: str = ""
    ) -> Entry:
        text = self.text[start:end] if form in (Form.BARE, Form.QUOTED) else ""
        line = line_of(self.text, head)
        return Entry(
            path=path, form=form, line=line, head=head, start=start, end=end, tail=tail, text=text, inline=inline,
            fault=fault,
        )  # fmt: skip

    def _skip(self, position: int) -> int:
        match = _SPACE.match(self.text, position)
        return match.end() if match else position

    def _after(self, position: int, mark: str) -> int:
        if not self.text.startswith(mark, position):
            raise _LostError
        return position + len(mark)

    def _match(self, pattern: re.Pattern[str], position: int) -> int:
        match = pattern.match(self.text, position)
        if match is None:
            raise _LostError
        return match.end()


def _blank_end(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _agree(tree: dict[str, Any], entries: tuple[Entry, ...]) -> bool:
    """Whether the scanner saw every value that tomllib saw, where it can be compared with the same text."""
    meant = dict(_leaves(tree, ()))
    seen = {entry.path: entry for entry in entries if entry.form not in (Form.LIST, Form.MAPPING)}
    if meant.keys() != seen.keys():
        return False
    return all(_same(meant[path], entry) for path, entry in seen.items())


def _leaves(node: object, path: Keys) -> Iterator[tuple[Keys, object]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, (*path, str(index)))
    else:
        yield path, node


def _same(value: object, entry: Entry) -> bool:
    if entry.fault:
        return isinstance(value, str)
    if entry.form is Form.QUOTED:
        return value == entry.text
    if isinstance(value, bool):
        return entry.text == ("true" if value else "false")
    if isinstance(value, int):
        return int(entry.text, 0) == value
    return not isinstance(value, str)
