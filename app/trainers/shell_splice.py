"""Find plain settings in a shell script: `name=value` lines and `--name value` of commands. Only literals count.

What stands under a condition, comes from an expression or belongs to one command (`A=1 python …`) is not offered.
What `eval`, `source` or a name made at run time sets is not seen.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from tunewarden.trainers.document import Document, Entry, Form, decoded, line_of, malformed

_GAP = re.compile(r"(?:[ \t\r\n;&|)]|\\\r?\n|#[^\n]*)*")
_DECLARING = r"(?:(?:export|readonly|declare|typeset|local)[ \t]+(?:-\w+[ \t]+)*)"
_ASSIGNMENT = re.compile(rf"{_DECLARING}?([A-Za-z_]\w*)\+?=")
_ODD_ASSIGNMENT = re.compile(r"[^=A-Za-z_]*([A-Za-z_]\w*)[^=\w]*=")
_DECLARATION = re.compile(_DECLARING)
_BLANKS = re.compile(r"(?:[ \t]|\\\r?\n)*")
_PLAIN = re.compile(r"""[\w./:,+%@~-]+|"[^"$`\\\n]*"|'[^'\n]*'""")
_OPTION = re.compile(r"(--[A-Za-z][\w.-]*)(=?)")
_WORD = re.compile(r"[^\s;&|()<>'\"$`\\#]+|#")
_CONTINUED = re.compile(r"\\\r?\n")
_HERE = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
_STATEMENT_END = re.compile(r"[ \t\r]*(?:[;\n<>]|#|&&|\|\||$)")
# What stands before a command that may not run, or runs apart.
_CONDITIONAL = re.compile(r"(?:&&|\|)(?:[ \t\r\n]|\\\r?\n|#[^\n]*\n)*$")
_OPENING = frozenset({"if", "for", "while", "until", "select", "case", "{"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_BETWEEN = frozenset({"then", "do", "else", "elif", "!", "time"})
_BEHIND_A_WORD = " \t\r\n;&|()<>"  # or nothing; a quote or a backslash goes on with the word
_QUOTES = {"'": re.compile(r"'[^']*'"), '"': re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)}


@lru_cache(maxsize=8)  # a plan asks for the same bytes several times; what is given out is frozen
def parse(data: bytes, where: str) -> Document:
    """Parse a shell script. Raises Refused(config_malformed) with `where`:line for what can't be followed."""
    bom, text = decoded(data, where)
    scanner = _Scanner(text=text)
    try:
        entries = tuple(scanner.entries())
    except _LostError:
        line = line_of(text, scanner.began)
        raise malformed(where, line, "is no shell text that can be followed from here; write it more plainly") from None
    return Document(where=where, text=text, entries=entries, bom=bom)


class _LostError(Exception):
    """A quote or a bracket has no end."""


@dataclass(kw_only=True)
class _Scanner:
    """Goes through the text once, command by command. `began`: where the command at hand begins.

    `options`: those of the commands so far; `waiting`: the place of one whose value may be the next word.
    """

    text: str
    began: int = 0
    nesting: list[str] = field(default_factory=list)
    options: list[Entry] = field(default_factory=list)
    waiting: re.Match[str] | None = None

    def entries(self) -> Iterator[Entry]:
        position = self._gap(0)
        while position < len(self.text):
            self.began = position
            found = self._assignments(position)
            if found:
                end = found[-1][1]
                if _STATEMENT_END.match(self.text, end) or _DECLARATION.match(self.text, position):
                    yield from (self._entry(match, end) for match, end in found)
                position = self._gap(self._command(end))
            else:
                position = self._gap(self._keyword(position))
            self.began = position
        yield from self.options

    def _assignments(self, position: int) -> list[tuple[re.Match[str], int]]:
        """The assignments that follow each other there, with their ends; all words of an `export` are looked at."""
        found: list[tuple[re.Match[str], int]] = []
        declares = _DECLARATION.match(self.text, position) is not None
        while True:
            match = _ASSIGNMENT.match(self.text, position)
            end = self._word(match.end() if match else position)
            if match is None and declares:  # `export "x=1"`: seen, and never plain
                match = _ODD_ASSIGNMENT.match(self.text, position, end)
            if match is not None:
                found.append((match, end))
            elif not declares or end == position or self.text[position] == "#":
                return found
            blanks = _BLANKS.match(self.text, end)
            position = blanks.end() if blanks else end

    def _option(self, begin: int, end: int) -> None:
        """Note the word there when it is an option with its value, or the value of the one before."""
        waiting, self.waiting = self.waiting, None
        match = _OPTION.match(self.text, begin, end)
        if match is None:
            if waiting is not None and self.text[begin] != "-":
                self.options.append(self._entry(waiting, end, begin))
        elif match[2]:
            self.options.append(self._entry(match, end))
        elif match.end() == end:
            self.waiting = match

    def _entry(self, match: re.Match[str], end: int, start: int | None = None) -> Entry:
        start = match.end() if start is None else start
        written = self.text[start:end]
        plain = _PLAIN.fullmatch(written) is not None and match.re is not _ODD_ASSIGNMENT
        quote = written[:1] in ("'", '"') and plain
        fault = "" if plain else "is an expression, a list or empty"
        fault = "is added to" if match[0].endswith("+=") else fault
        apart = _CONDITIONAL.search(self.text, max(0, self.began - 200), self.began)
        fault = "is set under a condition" if self.nesting or apart else fault
        return Entry(
            path=(match[1],), form=Form.QUOTED if quote else Form.BARE, line=line_of(self.text, match.start()),
            head=match.start(), start=start + quote, end=end - quote, tail=end,
            text=self.text[start + quote : end - quote], fault=fault,
        )  # fmt: skip

    def _keyword(self, position: int) -> int:
        """Where to look next: behind a keyword that another command may follow, else behind the command."""
        match = _WORD.match(self.text, position)
        whole = match is not None and self.text[match.end() : match.end() + 1] in _BEHIND_A_WORD
        word = match[0] if match and whole else ""
        if word in _CLOSING and self.nesting:
            self.nesting.pop()
        if word in _OPENING:
            self.nesting.append(word)
        if match is not None and word in _OPENING - {"for", "select", "case"} | _BETWEEN:
            return match.end()
        return self._command(position)

    def _command(self, position: int) -> int:
        """The end of the command whose words go on at `position`."""
        here: list[str] = []
        self.waiting = None
        while position < len(self.text) and self.text[position] not in "\n;&|)":
            found = _HERE.match(self.text, position)
            if found is not None and not self.text.startswith("<<<", position):
                here.append(found[2])
                position = found.end()
            elif self.text[position] in " \t\r<>":
                position += 3 if self.text.startswith("<<<", position) else 1
            elif self.text[position] == "#":
                end = self.text.find("\n", position)
                position = end if end >= 0 else len(self.text)
            elif self.text[position] == "(":
                position = self._balanced(position)
            elif found := _CONTINUED.match(self.text, position):
                position = found.end()
            else:
                begin, position = position, self._word(position)
                self._option(begin, position)
        for mark in here:
            closing = re.compile(rf"\n\t*{re.escape(mark)}(?=\r?\n|$)").search(self.text, position)
            if closing is None:
                raise _LostError
            position = closing.end()
        return position

    def _word(self, position: int) -> int:
        """The end of the word that begins at `position`, or of the value behind an equals sign."""
        if self.text.startswith("=(", position - 1):  # an array
            position = self._balanced(position)
        while position < len(self.text) and self.text[position] not in " \t\r\n;&|<>()":
            char = self.text[position]
            if char in _QUOTES:
                position = self._quoted(position)
            elif char == "\\":
                position += 2
            elif char == "`":
                position = self._find("`", position + 1)
            elif self.text.startswith("$(", position):
                position = self._balanced(position + 1)
            elif self.text.startswith("${", position):
                position = self._find("}", position)
            else:
                position += 1
            if self.text[position : position + 1] == "(" and self.text[position - 1] == "=":  # an array
                position = self._balanced(position)
        return position

    def _balanced(self, position: int) -> int:
        depth = 0
        while position < len(self.text):
            char = self.text[position]
            if char in _QUOTES:
                position = self._quoted(position)
                continue
            if char == "\\":
                position += 2
                continue
            depth += {"(": 1, ")": -1}.get(char, 0)
            position += 1
            if depth == 0:
                return position
        raise _LostError

    def _quoted(self, position: int) -> int:
        match = _QUOTES[self.text[position]].match(self.text, position)
        if match is None:
            raise _LostError
        return match.end()

    def _find(self, mark: str, position: int) -> int:
        end = self.text.find(mark, position)
        if end < 0:
            raise _LostError
        return end + 1

    def _gap(self, position: int) -> int:
        match = _GAP.match(self.text, position)
        return match.end() if match else position
