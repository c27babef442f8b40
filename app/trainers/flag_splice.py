"""Find settings among the words of a command: `--key value`, `--key=value`, `--switch`, `key=value`.

The words are one text, parted by zero bytes (no word of a command can hold one), so that they are changed as files are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tunewarden.trainers.document import Document, Edit, Entry, Form, Keys

SEPARATOR = "\0"
_OPTION = re.compile(r"--?[A-Za-z]")
_ASSIGNMENT = re.compile(r"(?:\+{1,2})?([A-Za-z_][\w.]*)=(.+)", re.DOTALL)
_SWITCH_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})


@dataclass(frozen=True, kw_only=True)
class Words(Document):
    """The words of a command as a document: an entry's line is the index of its word, from 1."""

    def at(self, line: int) -> str:
        """The place as messages name it."""
        return f"{self.where}, word {line}"


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """How words are read: from index `first` on; `switches` need no value, `pairs` may take two numbers.

    `assignments`: settings are `key=value` words instead of options.
    """

    first: int
    switches: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    assignments: bool = False


def parse(words: Sequence[str], grammar: Grammar) -> Words:
    """The settings among `words`."""
    reader = _Reader(words=tuple(words), grammar=grammar, starts=_starts(words))
    entries = reader.assignments() if grammar.assignments else reader.options()
    return Words(where="the command", text=SEPARATOR.join(words), entries=tuple(entries))


def words_of(text: str) -> tuple[str, ...]:
    """The words again."""
    return tuple(text.split(SEPARATOR)) if text else ()


def put_in(document: Words, grammar: Grammar, key: str, value: str) -> Edit:
    """The edit that appends a setting, before a bare `--`. A switch that is wanted needs no value."""
    words = words_of(document.text)
    end = next((i for i in range(grammar.first, len(words)) if words[i] == "--"), len(words))
    position = len(SEPARATOR.join(words[:end]))
    if grammar.assignments:
        new = [f"{key}={value}"]
    else:
        new = [key] if key in grammar.switches and value == "true" else [key, value]
    return Edit(start=position, end=position, text="".join(SEPARATOR + word for word in new))


def take_out(entry: Entry) -> Edit:
    """The edit that takes a setting's words out."""
    return Edit(start=entry.head - 1, end=entry.tail, text="")


def difference(old: Sequence[str], new: Sequence[str]) -> str:
    """The two commands in the form of a diff."""
    if list(old) == list(new):
        return ""
    return f"--- command\n+++ command (adjusted)\n-{' '.join(old)}\n+{' '.join(new)}"


def _starts(words: Sequence[str]) -> tuple[int, ...]:
    position, starts = 0, []
    for word in words:
        starts.append(position)
        position += len(word) + 1
    return tuple(starts)


@dataclass(frozen=True, kw_only=True)
class _Reader:
    words: tuple[str, ...]
    grammar: Grammar
    starts: tuple[int, ...]

    def assignments(self) -> list[Entry]:
        found = []
        for index in range(self.grammar.first, len(self.words)):
            match = _ASSIGNMENT.fullmatch(self.words[index])
            if match is not None:
                found.append(self._entry((match[1],), index, index, len(self.words[index]) - len(match[2])))
        return found

    def options(self) -> list[Entry]:
        found: list[Entry] = []
        index = self.grammar.first
        while index < len(self.words):
            word = self.words[index]
            if word == "--":
                break
            if not _OPTION.match(word):
                index += 1
                continue
            name, equals, _ = word.partition("=")
            if equals:
                found.append(self._entry((name,), index, index, len(name) + 1))
                index += 1
                continue
            values = self._values(index, name)
            found += self._spaced(index, name, values)
            index += 1 + values
        return found

    def _values(self, index: int, name: str) -> int:
        """How many of the next words are the option's."""
        following = self.words[index + 1 : index + 3]
        if not following or _OPTION.match(following[0]) or following[0] == "--":
            return 0
        if name in self.grammar.switches and following[0].lower() not in _SWITCH_WORDS:
            return 0
        return 2 if name in self.grammar.pairs and len(following) == 2 and following[1].isdecimal() else 1

    def _spaced(self, index: int, name: str, values: int) -> list[Entry]:
        if values == 0:
            head, tail = self.starts[index], self.starts[index] + len(self.words[index])
            return [
                Entry(
                    path=(name,), form=Form.SWITCH, line=index + 1, head=head, start=tail, end=tail, tail=tail,
                    text="true",
                )
            ]  # fmt: skip
        if values == 1:
            return [self._entry((name,), index, index + 1, 0)]
        items = [self._entry((name, str(each)), index + 1 + each, index + 1 + each, 0) for each in range(values)]
        head, tail = self.starts[index], items[-1].tail
        whole = Entry(path=(name,), form=Form.LIST, line=index + 1, head=head, start=head, end=tail, tail=tail, text="")
        return [whole, *items]

    def _entry(self, path: Keys, first: int, last: int, offset: int) -> Entry:
        start, end = self.starts[last] + offset, self.starts[last] + len(self.words[last])
        return Entry(
            path=path, form=Form.BARE, line=last + 1, head=self.starts[first], start=start, end=end, tail=end,
            text=self.words[last][offset:], fault="" if self.words[last][offset:] else "is empty",
        )  # fmt: skip
