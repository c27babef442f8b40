"""Find values in a JSON file. json says what the file means, this says where values stand."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tunewarden.trainers.document import Document, Entry, Form, Keys, decoded, line_of, malformed

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BARE = re.compile(r"[^ \t\r\n,\]}]+")


@lru_cache(maxsize=8)  # a plan asks for the same bytes several times; what is given out is frozen
def parse(data: bytes, where: str) -> Document:
    """Parse a JSON file whose top is an object. Raises Refused(config_malformed) with `where`:line."""
    bom, text = decoded(data, where)
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise malformed(where, error.lineno, f"is no JSON: {error.msg}; correct it") from error
    except (RecursionError, ValueError) as error:
        raise malformed(where, 1, f"is no JSON: {str(error)[:120]}; correct it") from error
    if not isinstance(tree, dict):
        raise malformed(where, 1, "is no object of keys and values; give the right file")
    try:
        entries = tuple(_Scanner(text=text).members((), _skip(text, 0)))
    except RecursionError as error:
        raise malformed(where, 1, "is nested too deeply; give the right file") from error
    return Document(where=where, text=text, entries=entries, bom=bom)


@dataclass(frozen=True, kw_only=True)
class _Scanner:
    """Goes through sound JSON once."""

    text: str

    def members(self, path: Keys, position: int) -> Iterator[Entry]:
        """The members of the object whose brace stands at `position`."""
        at = _skip(self.text, position + 1)
        while not self.text.startswith("}", at):
            end = self._end(_STRING, at)
            key = json.loads(self.text[at:end])
            colon = _skip(self.text, end)
            found = list(self._value((*path, key), at, _skip(self.text, colon + 1)))
            yield from found
            at = self._behind(found)

    def _items(self, path: Keys, position: int) -> Iterator[Entry]:
        at, count = _skip(self.text, position + 1), 0
        while not self.text.startswith("]", at):
            found = list(self._value((*path, str(count)), at, at))
            yield from found
            at, count = self._behind(found), count + 1

    def _behind(self, found: list[Entry]) -> int:
        at = _skip(self.text, max(entry.tail for entry in found))
        return _skip(self.text, at + 1) if self.text.startswith(",", at) else at

    def _value(self, path: Keys, head: int, start: int) -> Iterator[Entry]:
        char = self.text[start]
        if char in "{[":
            inner = list(self.members(path, start) if char == "{" else self._items(path, start))
            end = _skip(self.text, max((entry.tail for entry in inner), default=start + 1)) + 1
            form = Form.MAPPING if char == "{" else Form.LIST
            yield self._entry(path, form, head, start, end, end)
            yield from inner
        elif char == '"':
            end = self._end(_STRING, start)
            yield self._entry(path, Form.QUOTED, head, start + 1, end - 1, end)
        else:
            end = self._end(_BARE, start)
            yield self._entry(path, Form.BARE, head, start, end, end)

    def _entry(self, path: Keys, form: Form, head: int, start: int, end: int, tail: int) -> Entry:
        text = self.text[start:end] if form in (Form.BARE, Form.QUOTED) else ""
        fault = "is written with escapes" if form is Form.QUOTED and "\\" in text else ""
        fault = "is null" if form is Form.BARE and text == "null" else fault
        line = line_of(self.text, head)
        return Entry(
            path=path, form=form, line=line, head=head, start=start, end=end, tail=tail, text=text, inline=True,
            fault=fault,
        )  # fmt: skip

    def _end(self, pattern: re.Pattern[str], position: int) -> int:
        match = pattern.match(self.text, position)
        return match.end() if match else position


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
