"""Alertmanager's matchers: `name="value"`, `!=`, `=~`, `!~`, quoted or not, alone or in a list.

Follows Alertmanager's own two parsers (matcher/parse of 0.27 and later, pkg/labels before): Go's escapes inside
quotes, and where an escape is none of Go's, the backslash is kept, so that `=~"a\\.b"` means what it looks like.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tunewarden.domain.regex import RegexError, compiled

_OPERATOR = re.compile(r"=~|!~|!=|=")
_GO_ESCAPE = re.compile(
    r'\\(?:([abfnrtv\\"])|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{3}))|(\\)', re.DOTALL
)
_GO_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"'}
_BARE_NAME = re.compile(r"[^\s{}!=~,\\\"'`]+")


class MatcherError(ValueError):
    """The text is no matcher; the message says why and what to write."""


class MatchOp(StrEnum):
    """The four operators."""

    EQUAL = "="
    NOT_EQUAL = "!="
    REGEX = "=~"
    NOT_REGEX = "!~"


@dataclass(frozen=True, kw_only=True)
class Matcher:
    """One matcher. A missing label counts as the empty string; regular expressions match the whole value.

    Raises MatcherError when the value of a regex operator can't be used.
    """

    name: str
    op: MatchOp
    value: str

    def __post_init__(self) -> None:
        if self.op in (MatchOp.REGEX, MatchOp.NOT_REGEX):
            try:
                compiled(self.value)
            except RegexError as error:
                raise MatcherError(f"{self}: {error}") from error

    def matches(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.name, "")
        if self.op is MatchOp.EQUAL:
            return found == self.value
        if self.op is MatchOp.NOT_EQUAL:
            return found != self.value
        return bool(compiled(self.value).fullmatch(found)) is (self.op is MatchOp.REGEX)

    def __str__(self) -> str:
        bare = self.name if _BARE_NAME.fullmatch(self.name) else _quote(self.name)
        return f"{bare}{self.op}{_quote(self.value)}"


def all_match(matchers: Sequence[Matcher], labels: Mapping[str, str]) -> bool:
    """Whether every one of `matchers` fits."""
    return all(matcher.matches(labels) for matcher in matchers)


def parse_matchers(text: str) -> tuple[Matcher, ...]:
    """The matchers of `{a="b",c=~"d.*"}`, with or without braces; a trailing comma is allowed.

    Raises MatcherError.
    """
    body = text.strip()
    if body.startswith("{") != body.endswith("}") and _braces_are_a_frame(body):
        raise MatcherError(f"{text!r}: a brace is missing at one end")
    if body.startswith("{"):
        body = body[1:-1]
    parts = _split(body)
    if parts and not parts[-1].strip():
        parts.pop()
    if not parts:
        raise MatcherError(f'{text!r}: no matcher; write for example alertname="GpuMemoryNearlyFull"')
    return tuple(parse_matcher(part) for part in parts)


def parse_matcher(text: str) -> Matcher:
    """One matcher.

    Raises MatcherError.
    """
    name, rest = _name(text)
    operator = _OPERATOR.match(rest)
    if operator is None:
        raise MatcherError(f'{text!r}: no operator after the label name; write name="value" (=, !=, =~ or !~)')
    value = rest[operator.end() :].strip()
    return Matcher(name=name, op=MatchOp(operator.group()), value=_value(value, text))


def _name(text: str) -> tuple[str, str]:
    body = text.strip()
    if body.startswith('"'):
        end = _closing_quote(body)
        if end is None:
            raise MatcherError(f"{text!r}: the quote of the label name is not closed")
        name, rest = _unquote(body[1:end], text), body[end + 1 :]
    else:
        found = _BARE_NAME.match(body)
        name, rest = (found.group(), body[found.end() :]) if found else ("", body)
    if not name:
        raise MatcherError(f'{text!r}: no label name; write name="value"')
    return name, rest.lstrip()


def _value(value: str, text: str) -> str:
    if value.startswith('"'):
        if _closing_quote(value) != len(value) - 1:
            raise MatcherError(
                f'{text!r}: the value is quoted at one end only; write name="value", a quote inside as \\"'
            )
        return _unquote(value[1:-1], text)
    if '"' in value:
        raise MatcherError(f'{text!r}: a quote inside an unquoted value; write name="value", a quote inside as \\"')
    return value


def _closing_quote(text: str) -> int | None:
    """Where the string that starts at 0 with a quote ends."""
    escaped = False
    for at, char in enumerate(text[1:], start=1):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"':
            return at
    return None


def _unquote(body: str, text: str) -> str:
    spurious = False

    def go(found: re.Match[str]) -> str:
        nonlocal spurious
        letter, *codes, lone = found.groups()
        if lone:
            spurious = True
            return lone
        if letter:
            return _GO_LETTERS[letter]
        base = 8 if codes[3] else 16
        code = int(next(filter(None, codes)), base)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise MatcherError(f"{text!r}: {found.group()} is no character")
        return chr(code)

    decoded = _GO_ESCAPE.sub(go, body)
    if not spurious:
        if "\b" in decoded and r"\b" in body:
            raise MatcherError(rf"{text!r}: \b inside quotes is a backspace; for a word boundary write \\b")
        return decoded
    return re.sub(r'\\([n"\\])', lambda found: "\n" if found[1] == "n" else found[1], body)


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _split(body: str) -> list[str]:
    """At commas outside quotes."""
    parts, start, quoted, escaped = [], 0, False, False
    for at, char in enumerate(body):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == "," and not quoted:
            parts.append(body[start:at])
            start = at + 1
    parts.append(body[start:])
    return parts if body.strip() else []


def _braces_are_a_frame(body: str) -> bool:
    """A `}` at the end of an unquoted value (`a=~b{2}`) is no frame."""
    return body.startswith("{") or "{" not in body
