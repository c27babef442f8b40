"""Read the commands in a shell's text, as far as they are written plainly. Nothing is run.

A word may hold variables that the text itself sets. What only a run could tell (another program's output, an array,
a condition) leaves a word out and the statement marked as not whole.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 256 * 1024

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_NAME = re.compile(r"[A-Za-z_]\w*|[@*#?$!0-9-]")
_REDIRECT = re.compile(r"\d*(&>>|&>|>>|>&|>\||<<|<&|>|<)[ \t]*")
_SEPARATORS = (";;", "&&", "||", "|&", ";", "&", "|", "(", ")")
# `cd "$(dirname "$0")"` is how many scripts find their own folder.
_OWN_FOLDER = re.compile(r"\$\(\s*dirname\s+(--\s+)?\"?(\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(\[0\])?\})\"?\s*\)")
_OPENING = frozenset({"if", "while", "until", "for", "case", "select", "{", "("})
_LOOPS = frozenset({"while", "until", "for", "select"})
_CLOSING = {"fi": {"if"}, "done": _LOOPS, "esac": {"case"}, "}": {"{"}, ")": {"("}}
_BETWEEN = frozenset({"then", "else", "elif", "do", "!", "time"})


class NotPlainError(Exception):
    """The text holds something that can't be read without running it."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One simple command. `whole`: every word is known. `depth`: how many conditions and loops stand around it.

    `positional` is the index of the first word that came from "$@" at the end, or None. `start` and `end` are its
    place in the text.
    """

    words: tuple[str, ...]
    line: int
    start: int
    end: int
    whole: bool
    depth: int
    in_loop: bool
    positional: int | None


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A part of a word: literal text, the name of a variable, or not `known`. `quoted`: it isn't split into words."""

    text: str
    variable: bool = False
    known: bool = True
    quoted: bool = False


@dataclass(frozen=True, kw_only=True)
class _Token:
    pieces: tuple[_Piece, ...]  # empty: a separator
    separator: str
    line: int
    start: int
    end: int


def statements(text: str, arguments: Sequence[str] = (), folder: Path | None = None) -> Iterator[Statement]:
    """The simple commands of `text` in order; `arguments` are its "$@", `folder` is where the script itself lies.

    Raises NotPlainError for a here-document, an unclosed quote and the like.
    """
    variables: dict[str, str] = {}
    nesting: list[str] = []
    for group in _groups(_tokens(text, folder)):
        group = _without_keywords(group, nesting)
        conditional = bool(nesting)
        while group and (name := _assigned(group[0])) is not None:
            if not (conditional and name in variables):  # what stands outside of conditions is the default
                variables[name] = _value(group[0], variables)
            group = group[1:]
        if not group:
            continue
        yield _statement(group, variables, arguments, nesting)


def _statement(
    group: Sequence[_Token], variables: Mapping[str, str], arguments: Sequence[str], nesting: Sequence[str]
) -> Statement:
    words: list[str] = []
    whole, positional = True, None
    for token in group:
        if [piece.text for piece in token.pieces] == ["@"] and token.pieces[0].variable:
            positional = len(words)
            words += arguments
            continue
        expanded, known = _expanded(token, variables)
        whole = whole and known
        words += expanded
        if expanded:
            positional = None
    return Statement(
        words=tuple(words),
        line=group[0].line,
        start=group[0].start,
        end=group[-1].end,
        whole=whole,
        depth=len(nesting),
        in_loop=any(word in _LOOPS for word in nesting),
        positional=positional,
    )


def _expanded(token: _Token, variables: Mapping[str, str]) -> tuple[list[str], bool]:
    """The words that a token becomes, and whether all of it is known."""
    text, known, quoted = "", True, False
    for piece in token.pieces:
        quoted = quoted or piece.quoted
        if not piece.known or (piece.variable and piece.text not in variables):
            known = False
        else:
            text += variables[piece.text] if piece.variable else piece.text
    if quoted or not any(piece.variable for piece in token.pieces):
        return ([text] if known or text else []), known
    return text.split(), known


def _value(token: _Token, variables: Mapping[str, str]) -> str:
    words, _ = _expanded(token, variables)
    return " ".join(words).partition("=")[2]


def _assigned(token: _Token) -> str | None:
    first = token.pieces[0]
    match = None if first.variable or first.quoted else _ASSIGNMENT.match(first.text)
    return match[1] if match and not match[2] else None


def _without_keywords(group: list[_Token], nesting: list[str]) -> list[_Token]:
    """The words behind `then`, `do` and their like; conditions and loops are counted in `nesting`."""
    while group:
        word = _plain(group[0])
        if word in _OPENING:
            nesting.append(word)
            if word in ("for", "case", "select"):
                return []
        elif word in _CLOSING:
            if nesting and nesting[-1] in _CLOSING[word]:  # in `case`, a `)` closes a pattern
                nesting.pop()
        elif word not in _BETWEEN:
            break
        group = group[1:]
    if group and _plain(group[0]) in ("export", "local", "readonly", "declare"):
        group = group[1:]
    return group


def _plain(token: _Token) -> str:
    only = token.pieces[0] if len(token.pieces) == 1 else None
    return only.text if only is not None and not only.variable and not only.quoted else ""


def _groups(tokens: Iterator[_Token]) -> Iterator[list[_Token]]:
    group: list[_Token] = []
    for token in tokens:
        if token.pieces:
            group.append(token)
            continue
        if group:
            yield group
        group = []
        if token.separator in ("(", ")"):
            literal = _Piece(text=token.separator)
            yield [_Token(pieces=(literal,), separator="", line=token.line, start=token.start, end=token.end)]
    if group:
        yield group


def _tokens(text: str, folder: Path | None) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        char = text[position]
        if char == "\n":
            yield _Token(pieces=(), separator="\n", line=line, start=position, end=position + 1)
            position, line = position + 1, line + 1
        elif char in " \t\r":
            position += 1
        elif text.startswith("\\\n", position) or text.startswith("\\\r\n", position):
            position, line = text.index("\n", position) + 1, line + 1
        elif char == "#":
            end = text.find("\n", position)
            position = end if end >= 0 else len(text)
        elif redirect := _REDIRECT.match(text, position):
            if redirect[1] == "<<":
                raise NotPlainError(f"line {line}: a here-document")
            _, position = _word(text, redirect.end(), folder)
        elif separator := next((each for each in _SEPARATORS if text.startswith(each, position)), None):
            yield _Token(pieces=(), separator=separator, line=line, start=position, end=position + len(separator))
            position += len(separator)
        else:
            start, pieces, position = position, *_word(text, position, folder)
            yield _Token(pieces=tuple(pieces), separator="", line=line, start=start, end=position)
            line += text.count("\n", start, position)


def _word(text: str, position: int, folder: Path | None) -> tuple[list[_Piece], int]:
    """The pieces of the word that begins at `position`, and where it ends."""
    pieces: list[_Piece] = []
    while position < len(text) and text[position] not in " \t\r\n;&|<>()":
        char = text[position]
        if char == "'":
            end = _closing(text, "'", position + 1)
            pieces.append(_Piece(text=text[position + 1 : end], quoted=True))
            position = end + 1
        elif char == '"':
            inner, position = _double_quoted(text, position + 1, folder)
            pieces += inner
        elif char == "\\":
            if not text.startswith("\\\n", position):
                pieces.append(_Piece(text=text[position + 1 : position + 2]))
            position += 2
        elif char in "$`":
            piece, position = _expansion(text, position, folder, quoted=False)
            pieces.append(piece)
        else:
            end = position + 1
            while end < len(text) and text[end] not in " \t\r\n;&|<>()'\"\\$`":
                end += 1
            pieces.append(_Piece(text=text[position:end]))
            position = end
            if position < len(text) and text[position] == "(" and text[position - 1] == "=":  # an array
                position = _closing(text, ")", position) + 1
                pieces.append(_Piece(text="", known=False))
    return pieces, position


def _double_quoted(text: str, position: int, folder: Path | None) -> tuple[list[_Piece], int]:
    pieces = [_Piece(text="", quoted=True)]
    while True:
        if position >= len(text):
            raise NotPlainError("a quote is not closed")
        char = text[position]
        if char == '"':
            merged = [piece for piece in pieces if piece.text or piece.variable or not piece.known]
            return merged or pieces, position + 1
        if char in "$`":
            piece, position = _expansion(text, position, folder, quoted=True)
            pieces.append(piece)
        elif char == "\\" and text[position + 1 : position + 2] in ("$", "`", '"', "\\", "\n"):
            pieces.append(_Piece(text=text[position + 1].replace("\n", ""), quoted=True))
            position += 2
        else:
            pieces.append(_Piece(text=char, quoted=True))
            position += 1


def _expansion(text: str, position: int, folder: Path | None, *, quoted: bool) -> tuple[_Piece, int]:
    """What `$name`, `${name}`, `$(…)` or a backquoted command at `position` is."""
    own = _OWN_FOLDER.match(text, position)
    if own is not None and folder is not None:
        return _Piece(text=str(folder), quoted=quoted), own.end()
    unknown = _Piece(text="", known=False, quoted=quoted)
    if text[position] == "`":
        return unknown, _closing(text, "`", position + 1) + 1
    if text.startswith("$(", position):
        return unknown, _balanced(text, position + 1)
    if text.startswith("${", position):
        end = _closing(text, "}", position)
        name = text[position + 2 : end]
        default = re.fullmatch(r"([A-Za-z_]\w*|\d):?-([^$`{}]*)", name)
        if default is not None:  # an environment could say otherwise: the default is what the text says
            return _Piece(text=default[2], quoted=quoted), end + 1
        plain = _NAME.fullmatch(name)
        return (_Piece(text=name, variable=True, quoted=quoted) if plain else unknown), end + 1
    match = _NAME.match(text, position + 1)
    if match is None:
        return _Piece(text="$", quoted=quoted), position + 1
    return _Piece(text=match[0], variable=True, quoted=quoted), match.end()


def _closing(text: str, mark: str, position: int) -> int:
    end = text.find(mark, position)
    if end < 0:
        raise NotPlainError(f"{mark} is missing")
    return end


def _balanced(text: str, position: int) -> int:
    depth = 0
    for index in range(position, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    raise NotPlainError(") is missing")
