"""Put a key into a configuration beside another, and take one out: each undoes the other to the byte."""

import re
from itertools import pairwise

from tunewarden.trainers.document import Document, Edit, Entry, line_of

_LINE_END = re.compile(r"\r\n|\n|\r|$")


def put_in(document: Document, sibling: Entry, key: str, value: str, separator: str, *, mimic: bool) -> Edit:
    """The edit that puts `key` with `value`, as they are to be written, behind `sibling` in the same mapping.

    `separator` stands between key and value, or with `mimic` what stands there at the sibling.
    """
    between = (_between(document, sibling) if mimic else "") or separator
    key = _above(document, sibling) + key
    if not sibling.inline:
        return _put_line(document, sibling, f"{key}{between}{value}")
    indent = _indent(document.text, sibling.head)
    gap = _gap(document, sibling)
    if indent is not None:  # members on lines of their own
        gap = _newline(document.text) + indent
    return Edit(start=sibling.tail, end=sibling.tail, text=f",{gap}{key}{between}{value}")


def take_out(document: Document, entry: Entry) -> Edit | None:
    """The edit that takes an entry out with its line, or with its comma; None where it can't be done safely."""
    return _take_member(document, entry) if entry.inline else _take_line(document, entry)


def siblings(document: Document, entry: Entry) -> tuple[Entry, ...]:
    """The entries of the same mapping that are parted as it is, in order, itself included."""
    parent = entry.path[:-1]
    return tuple(
        each
        for each in document.entries
        if each.path[:-1] == parent and each.path != parent and each.inline == entry.inline
    )


def _put_line(document: Document, sibling: Entry, written: str) -> Edit:
    text = document.text
    match = _LINE_END.search(text, sibling.tail)
    end = match.end() if match else len(text)
    first = max(text.rfind("\n", 0, sibling.head), text.rfind("\r", 0, sibling.head)) + 1
    before = text[first : sibling.head]
    indent = before if not before.strip() else " " * len(before)  # behind the dash of a list's item
    if match is not None and not match[0]:  # the last line has no end
        return Edit(start=end, end=end, text=f"{_newline(text)}{indent}{written}")
    return Edit(start=end, end=end, text=f"{indent}{written}{match[0] if match else ''}")


def _take_line(document: Document, entry: Entry) -> Edit | None:
    text = document.text
    indent = _indent(text, entry.head)
    if indent is None or line_of(text, entry.head) != line_of(text, entry.tail):
        return None
    start = entry.head - len(indent)
    match = _LINE_END.search(text, entry.tail)
    end = match.end() if match else len(text)
    rest = text[entry.tail : end].strip()
    if rest and not rest.startswith("#"):
        return None
    if match is not None and not match[0] and start:  # the last line: the end of the one before goes
        start -= 2 if text[:start].endswith("\r\n") else 1
    return Edit(start=start, end=end, text="")


def _take_member(document: Document, entry: Entry) -> Edit | None:
    members = siblings(document, entry)
    index = members.index(entry)
    if index:
        return Edit(start=members[index - 1].tail, end=entry.tail, text="")
    if len(members) > 1:
        return Edit(start=entry.head, end=members[1].head, text="")
    return None


def _between(document: Document, sibling: Entry) -> str:
    """What stands between the sibling's key and its value, without the key and the quote."""
    written = document.text[sibling.head : sibling.start]
    match = re.search(r"[ \t]*[:=][ \t]*(?=[\"']?$)", written)
    return match[0] if match else ""


def _above(document: Document, sibling: Entry) -> str:
    """The keys before the last of a dotted key of TOML: `train.` of `train.batch_size = 4`."""
    written = document.text[sibling.head : sibling.start]
    match = re.match(r"((?:[\w-]+[ \t]*\.[ \t]*)+)[\w-]+[ \t]*=", written)
    return match[1] if match else ""


def _gap(document: Document, sibling: Entry) -> str:
    """The space that members of one line have behind their commas."""
    for first, second in pairwise(siblings(document, sibling)):
        if first.tail < second.head:
            return document.text[first.tail : second.head].partition(",")[2]
    return " "


def _indent(text: str, head: int) -> str | None:
    """The white space between the line's beginning and `head`; None where something else stands there."""
    first = max(text.rfind("\n", 0, head), text.rfind("\r", 0, head)) + 1
    before = text[first:head]
    return before if not before.strip() else None


def _newline(text: str) -> str:
    match = re.search(r"\r\n|\n|\r", text)
    return match[0] if match else "\n"
