"""Values that come from labels, paths and annotations, made harmless in DingTalk markdown."""

import re
import unicodedata

LONG_LIMIT = 1000
VALUE_LIMIT = 200  # characters of one value; paths keep their end, which is what tells them apart
_MARKDOWN = re.compile(r"([\\`*_\[\]#|~])")
# DingTalk makes links of bare addresses and mentions of @names: a space of no width keeps a label from doing so.
_LIVE = re.compile(r"(?<=:)(?=//)|(?<=@)(?=\w|\+)")
_NO_WIDTH = "\u200b"
_ENTITY = re.compile(r"&(?=#?\w+;)")


class Safe(str):
    """Text of our own: it is not escaped."""

    __slots__ = ()


class Long(str):
    """A value that is useless when its middle is missing: a command, a sentence of an annotation."""

    __slots__ = ()


def escape(value: object) -> str:
    """The value as plain text of one line.

    A backslash goes before what DingTalk reads as markdown. `<` and `>` become entities: DingTalk renders HTML on a
    desktop and shows a blank on phones, and a backslash does not stop an HTML parser.
    """
    if isinstance(value, Safe):
        return value
    line = one_line(str(value))
    short = clip_end(line, LONG_LIMIT) if isinstance(value, Long) else clip(line, VALUE_LIMIT)
    text = _MARKDOWN.sub(r"\\\1", _ENTITY.sub("&amp;", _LIVE.sub(_NO_WIDTH, short)))
    return text.replace("<", "&lt;").replace(">", "&gt;")


def one_line(text: str) -> str:
    """Without line breaks and control characters; the invisible ones that turn the direction of text go too."""
    kept = text if text.isprintable() else "".join(_visible(char) for char in text)
    return " ".join(kept.split())


def _visible(char: str) -> str:
    category = unicodedata.category(char)
    if category in {"Cc", "Zl", "Zp"}:
        return " "
    return "" if category in {"Cf", "Cs"} else char


def clip(text: str, limit: int) -> str:
    """At most `limit` characters: the middle goes, for the start says what it is and the end tells it apart."""
    if len(text) <= limit:
        return text
    head = limit // 3
    tail = limit - head - 1
    return f"{text[:head]}…{text[len(text) - tail :]}" if tail > 0 else text[:limit]


def clip_end(text: str, limit: int) -> str:
    """At most `limit` characters: the end goes."""
    return text if len(text) <= limit else text[: max(0, limit - 1)] + "…"
