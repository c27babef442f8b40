"""Prometheus regular expressions (RE2) on Python's `re`: what both mean alike is translated, the rest is refused.

Facts: github.com/google/re2/wiki/Syntax; Alertmanager compiles `^(?:...)$` without flags.
"""

import re
from functools import lru_cache

_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_FLAGS = re.compile(r"\(\?([a-zA-Z-]*)([:)])")
_NAME = re.compile(r"\(\?P<[A-Za-z_][A-Za-z0-9_]*>")
_HEX = re.compile(r"\\x(?:\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{2}))")
_SAME_ESCAPES = "dDwWbBAafnrtv"  # of one meaning in both, with re.ASCII
_MAX_REPEAT = 1000  # RE2's own limit
_SPACE = r" \t\n\f\r"  # RE2's \s has no vertical tab


class RegexError(ValueError):
    """The expression can't be used; the message says why."""


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """The Python pattern for an RE2 expression; use it with `fullmatch`.

    Raises RegexError for what RE2 refuses, what `re` lacks or means otherwise, and for repeats inside repeats,
    which are fast in RE2 and can take for ever in `re`.
    """
    try:
        return re.compile(_Translation(pattern).text(), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise RegexError(f"bad regular expression: {error}") from error


class _Translation:
    """One walk over the expression."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._out: list[str] = []
        self._loops = [False]  # per open group: holds an unbounded repeat
        self._closed_loop = False  # the item just read is a group that holds one

    def text(self) -> str:
        while self._at < len(self._pattern):
            self._item()
        return "".join(self._out)

    def _take(self, length: int, text: str | None = None) -> None:
        self._out.append(self._pattern[self._at : self._at + length] if text is None else text)
        self._at += length

    def _item(self) -> None:
        char = self._pattern[self._at]
        if char in "*+?{":
            self._repeat(char)
            return
        self._closed_loop = False
        if char == "\\":
            self._escape(in_set=False)
        elif char == "[":
            self._set()
        elif char == "(":
            self._open()
        elif char == ")":
            self._take(1)
            inner = self._loops.pop() if len(self._loops) > 1 else False
            self._loops[-1] |= inner
            self._closed_loop = inner
        elif char == "$":
            self._take(1, r"\Z")  # Python's `$` also matches before a last newline
        else:
            self._take(1)

    def _repeat(self, char: str) -> None:
        length, unbounded = 1, char in "*+"
        if char == "{":
            found = _REPEAT.match(self._pattern, self._at)
            if not found or not found[1]:
                raise RegexError("a literal `{` must be written `\\{`")
            if max(int(found[1]), int(found[3] or 0)) > _MAX_REPEAT:
                raise RegexError(f"a repeat count over {_MAX_REPEAT} is not allowed")
            length, unbounded = len(found[0]), bool(found[2] and not found[3])
        if unbounded and self._closed_loop:
            raise RegexError("a repeat inside a repeat, such as `(a+)+`, is not allowed: it could run for ever")
        self._take(length)
        self._loops[-1] |= unbounded
        self._closed_loop = False
        if self._pattern[self._at : self._at + 1] == "?":
            self._take(1)  # lazy: the same matches in both
        if self._pattern[self._at : self._at + 1] in ("*", "+", "?"):
            raise RegexError("a repeat of a repeat, such as `a++`, is not allowed")

    def _open(self) -> None:
        rest = self._pattern[self._at :]
        if not rest.startswith("(?"):
            self._take(1)
        elif found := _NAME.match(rest):
            self._take(len(found[0]), "(?:")
        elif found := _FLAGS.match(rest):
            self._flags(found)
            if found[2] == ")":
                return
        else:
            raise RegexError(f"`{rest[:4]}` is not allowed: RE2 has no look-around, comments or atomic groups")
        self._loops.append(False)

    def _flags(self, found: re.Match[str]) -> None:
        if set(found[1]) - set("is"):
            raise RegexError(f"the flags `{found[1]}` are not allowed: only i and s are")
        if "i" in found[1] and not self._pattern.isascii():
            raise RegexError("(?i) with letters beyond ASCII is not allowed: RE2 and Python fold them differently")
        if found[2] == ")" and self._at:
            raise RegexError(f"`{found[0]}` is allowed only at the start; write `(?{found[1]}:...)`")
        self._take(len(found[0]))

    def _escape(self, *, in_set: bool) -> None:
        following = self._pattern[self._at + 1 : self._at + 2]
        if following == "Q" and not in_set:
            self._quoted()
        elif following == "z" and not in_set:
            self._take(2, r"\Z")
        elif following in ("s", "S"):
            self._space(following, in_set=in_set)
        elif found := _HEX.match(self._pattern, self._at):
            code = int(found[1] or found[2], 16)
            if code > 0x10FFFF:
                raise RegexError(f"`{found[0]}` is no character")
            self._take(len(found[0]), re.escape(chr(code)))
        elif following and (_same_escape(following, in_set=in_set) or _is_mark(following)):
            self._take(2)
        else:
            raise RegexError(f"the escape `\\{following}` is not allowed")

    def _space(self, letter: str, *, in_set: bool) -> None:
        if in_set and letter == "S":
            raise RegexError(r"`\S` inside brackets is not allowed")
        self._take(2, _SPACE if in_set else f"[{'^' if letter == 'S' else ''}{_SPACE}]")

    def _quoted(self) -> None:
        end = self._pattern.find(r"\E", self._at)
        body = self._pattern[self._at + 2 : end if end >= 0 else None]
        self._take(len(body) + (4 if end >= 0 else 2), re.escape(body))

    def _set(self) -> None:
        self._take(1)
        if self._pattern[self._at : self._at + 1] == "^":
            self._take(1)
        first = True
        while True:
            char = self._pattern[self._at : self._at + 1]
            if not char:
                raise RegexError("a `[` is not closed")
            if char == "]" and not first:
                self._take(1)
                return
            if char == "[" and self._pattern[self._at : self._at + 2] == "[:":
                raise RegexError("classes such as `[[:alpha:]]` are not allowed: write `[A-Za-z]`")
            if char == "\\":
                self._escape(in_set=True)
            else:
                # `[`, `&`, `~` and `|` are literal in RE2; Python warns that doubled they may mean something one day.
                self._take(1, "\\" + char if char in "[&~|]" else char)
            first = False


def _same_escape(letter: str, *, in_set: bool) -> bool:
    return letter in _SAME_ESCAPES and not (in_set and letter in "bBA")


def _is_mark(char: str) -> bool:
    return char.isascii() and not char.isalnum()
