"""As much of PromQL as a policy needs: is an expression plausible, and which series does it read."""

import re

from tunewarden.domain.evidence import VARIABLES

_PAIRS = {")": "(", "]": "[", "}": "{"}
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)", re.ASCII)
_BARE = frozenset({"window"})  # a duration: stands outside quotes
_SELECTOR = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)\s*(\{)?", re.ASCII)
_WORDS = "and or unless by without on ignoring group_left group_right offset bool inf nan start end atan2"
_NOT_METRICS = frozenset(_WORDS.split())
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_NUMBER = re.compile(r"(?:0x[0-9a-f]+|\d[\d.]*(?:e[+-]?\d+)?(?:[smhdwy]|ms)?)+", re.ASCII | re.IGNORECASE)


class PromqlError(ValueError):
    """The expression can't be right; the message says why."""


def check_expression(expr: str) -> None:
    """Refuse an expression that is empty, unbalanced, or uses a variable that isn't known or stands where it can't.

    Raises PromqlError. This is no parser: Prometheus has the last word, and its answer `bad_data` is no evidence.
    """
    if not expr.strip():
        raise PromqlError("the expression is empty")
    open_brackets: list[str] = []
    for quote, text, before in _pieces(expr):
        _check_variables(quote, text, before)
        if quote:
            continue
        for char in text:
            if char in "([{":
                open_brackets.append(char)
            elif char in _PAIRS and (not open_brackets or open_brackets.pop() != _PAIRS[char]):
                raise PromqlError(f"`{char}` closes nothing")
    if open_brackets:
        raise PromqlError(f"`{open_brackets[-1]}` is not closed")


def selectors(expr: str) -> tuple[str, ...]:
    """The instant selectors `name{...}` behind every series that the expression reads, ranges left off, each once."""
    found: list[str] = []
    at = 0
    while at < len(expr):
        if expr[at] in "\"'`":
            at = _end_of_quote(expr, at)
        elif number := _NUMBER.match(expr, at):
            at = number.end()
        elif name := _SELECTOR.match(expr, at):
            at = _after_selector(expr, name, found)
        elif expr[at] in "[{":  # a range, or a selector without a name
            at = _end_of_block(expr, at)
        else:
            at += 1
    return tuple(dict.fromkeys(found))


def _after_selector(expr: str, name: re.Match[str], found: list[str]) -> int:
    word = name[1].lower()
    if name[2]:
        end = _end_of_block(expr, name.end() - 1)
        found.append(name[1] + expr[name.end() - 1 : end])
        return end
    rest = expr[name.end() :].lstrip()
    if word in _GROUPING and rest.startswith("("):
        return expr.index("(", name.end()) + (rest + ")").index(")") + 1
    follows_call = rest.startswith("(") or bool(re.match(r"(?:by|without)\b", rest))
    if word not in _NOT_METRICS and not follows_call:
        found.append(name[1])
    return name.end()


def _check_variables(quote: str, text: str, before: str) -> None:
    for name in _VARIABLE.findall(text):
        if name not in VARIABLES:
            raise PromqlError(f"`${name}` is no variable; there are {', '.join('$' + known for known in VARIABLES)}")
        if name in _BARE:
            if quote:
                raise PromqlError(f"`${name}` is a duration and stands without quotes, as in [${name}]")
        elif not quote:
            raise PromqlError(f'`${name}` must stand in quotes, as in {{{name}="${name}"}}')
        elif quote == "`" or before.rstrip().endswith("~"):
            raise PromqlError(f"`${name}` can't stand in backquotes or after =~ or !~, for it isn't escaped there")


def _pieces(expr: str) -> list[tuple[str, str, str]]:
    """The expression as (quote or "", text, the text before): quoted strings and what is between them."""
    pieces, start, at = [], 0, 0
    while at < len(expr):
        if expr[at] == "#":
            raise PromqlError("comments don't belong here")
        if expr[at] not in "\"'`":
            at += 1
            continue
        pieces.append(("", expr[start:at], ""))
        end = _end_of_quote(expr, at)
        pieces.append((expr[at], expr[at + 1 : end - 1], expr[start:at]))
        start = at = end
    pieces.append(("", expr[start:], ""))
    return pieces


def _end_of_quote(expr: str, at: int) -> int:
    quote = expr[at]
    end = at + 1
    while end < len(expr) and expr[end] != quote:
        end += 2 if expr[end] == "\\" and quote != "`" else 1
    if end >= len(expr):
        raise PromqlError("a quote is not closed")
    return end + 1


def _end_of_block(expr: str, at: int) -> int:
    """After the bracket that closes the one at `at`."""
    close = {"{": "}", "[": "]"}[expr[at]]
    end = at + 1
    while end < len(expr) and expr[end] != close:
        end = _end_of_quote(expr, end) if expr[end] in "\"'`" else end + 1
    return end + 1
