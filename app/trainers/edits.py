"""Wishes turned into edits of files and of the command's words, checked by reading the result again."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import flag_splice, insertion
from tunewarden.trainers.beside import original_of
from tunewarden.trainers.document import Document, Edit, Entry, Form, Intent, Keys, edited, find, fits
from tunewarden.trainers.layer import Syntax
from tunewarden.trainers.recipe import KnobChange
from tunewarden.trainers.sources import Place, Source, load_file
from tunewarden.trainers.wishes import Wish

_BARE = re.compile(r"[+-]?\d+(\.\d+)?|true|false")
_SEPARATORS: Mapping[Syntax, str] = {Syntax.TOML: " = ", Syntax.JSON: ": "}  # else: always the same
_FIXED: Mapping[Syntax, str] = {Syntax.YAML: ": ", Syntax.SHELL: "="}


@dataclass(frozen=True, kw_only=True)
class Act:
    """What one wish does to its source."""

    wish: Wish
    source: Source
    path: Keys
    edits: tuple[Edit, ...]
    intent: Intent
    line: int


def acts_for(sources: Sequence[Source], wishes: Sequence[Wish]) -> tuple[Act, ...]:
    """The edits of all wishes. Raises Refused where a key can't be put in or taken out."""
    return tuple(_change(wish.place, wish) if wish.place else _put_in(sources, wish) for wish in wishes)


def after(source: Source, acts: Sequence[Act]) -> Document:
    """The source's document after all acts on its file or command; those of other sources count as edits only."""
    mine = [act for act in acts if act.source.document.where == source.document.where]
    own = [act.intent for act in mine if act.source.grammar == source.grammar]
    intent = Intent(
        replaced={start: text for each in own for start, text in each.replaced.items()},
        added={path: text for each in own for path, text in each.added.items()},
        removed=frozenset(start for each in own for start in each.removed),
    )
    return edited(source.document, [edit for act in mine for edit in act.edits], intent, source.parse)


def change_of(act: Act, document: Document) -> KnobChange:
    """The act as a plan tells it; `document` is the one after it."""
    put_in = next(
        (entry.line for entry in document.entries if act.path in act.intent.added and entry.path == act.path), 0
    )
    return KnobChange(
        knob=act.wish.knob, old=act.wish.old, new=act.wish.new_says, file=act.source.layer.file, line=put_in or act.line
    )


def _change(place: Place, wish: Wish) -> Act:
    source, entry, new = place.source, place.entry, wish.new
    taken_out = new is None or (entry.form is Form.SWITCH and new == "false")
    if taken_out or (new is not None and _was_put_in(source, wish.knob, new)):
        return _take_out(source, entry, wish)
    if place.items:
        parts = str(new).split(",")
        edits = tuple(
            Edit(start=item.start, end=item.end, text=part) for item, part in zip(place.items, parts, strict=True)
        )
        replaced = {item.start: part for item, part in zip(place.items, parts, strict=True)}
    else:
        written = f"{new}{place.fraction}"
        edits = (Edit(start=entry.start, end=entry.end, text=written),)
        replaced = {entry.start: written}
    return Act(
        wish=wish, source=source, path=entry.path, edits=edits, intent=Intent(replaced=replaced), line=entry.line
    )


def _take_out(source: Source, entry: Entry, wish: Wish) -> Act:
    edit = _edit_out(source, entry)
    if edit is None:
        raise Refused(
            Reason.KNOB_NOT_CHANGEABLE,
            f"{source.document.at(entry.line)}: `{entry.path[-1]}` stands on one line with other things; "
            "take it out by hand",
        )
    inner = [each.start for each in source.document.items(entry)]
    intent = Intent(removed=frozenset({entry.start, *inner}))
    return Act(wish=wish, source=source, path=entry.path, edits=(edit,), intent=intent, line=entry.line)


def _edit_out(source: Source, entry: Entry) -> Edit | None:
    if source.grammar is not None:
        return flag_splice.take_out(entry)
    return insertion.take_out(source.document, entry)


def _was_put_in(source: Source, knob: str, new: str) -> bool:
    """Whether a copy of ours returns to the trainer's default in a key that the original beside it doesn't have.

    Taking it out makes `/2` and then `*2` give the original's bytes.
    """
    original = original_of(source.layer.file) if source.layer.file is not None else None
    if original is None or source.layer.defaults.get(knob) != new:
        return False
    try:
        document = load_file(original, source.layer.syntax)
        return not any(find(document, path) for path in source.layer.keys[knob])
    except Refused:
        return False


def _put_in(sources: Sequence[Source], wish: Wish) -> Act:
    """Put a key in: where knobs are set already, if that can be."""
    able = [each for each in sources if wish.knob in each.layer.defaults and each.layer.keys.get(wish.knob)]
    for source in sorted(able, key=lambda each: not any(True for _ in _knob_entries(each, wish.knob))):
        found = _insertion(source, wish.knob, str(wish.new))
        if found is not None:
            edit, path = found
            intent = Intent(added={path: str(wish.new)})
            line = source.document.text.count(flag_splice.SEPARATOR) + 2 if source.grammar is not None else 0
            return Act(wish=wish, source=source, path=path, edits=(edit,), intent=intent, line=line)
    first, key = able[0], able[0].layer.keys[wish.knob][0][-1]
    raise Refused(
        Reason.KNOB_NOT_FOUND,
        f"{first.document.at(1)}: nothing sets {wish.knob}, and no place for `{key}` can be told; add it to the file",
    )


def _insertion(source: Source, knob: str, value: str) -> tuple[Edit, Keys] | None:
    patterns = source.layer.keys[knob]
    if source.grammar is not None and isinstance(source.document, flag_splice.Words):
        key = patterns[0][0]
        return flag_splice.put_in(source.document, source.grammar, key, value), (key,)
    syntax = source.layer.syntax
    key, written = _written(syntax, patterns[0][-1], value)
    if _many_places(source, knob):
        return None
    for sibling in _siblings(source, knob):
        path = (*sibling.path[:-1], patterns[0][-1])
        if any(fits(path, pattern) for pattern in patterns) and _is_free(source.document, sibling, path):
            separator = _SEPARATORS.get(syntax)
            edit = insertion.put_in(
                source.document, sibling, key, written, separator or _FIXED[syntax], mimic=separator is not None
            )
            return edit, path
    return None


def _siblings(source: Source, knob: str) -> Iterator[Entry]:
    """The entries beside which a knob may be put: batch size first, then other knobs, then the last entries."""
    yield from _knob_entries(source, knob)
    yield from reversed(source.document.entries)


def _many_places(source: Source, knob: str) -> bool:
    """Whether the batch size stands in several mappings that would each need the knob."""
    batches = [each for path in source.layer.keys.get(tuning.BATCH, ()) for each in find(source.document, path)]
    paths = {(*each.path[:-1], pattern[-1]) for pattern in source.layer.keys[knob] for each in batches}
    mine = [path for path in paths if any(fits(path, pattern) for pattern in source.layer.keys[knob])]
    return len(mine) > 1 and not source.layer.last_wins


def _knob_entries(source: Source, knob: str) -> Iterator[Entry]:
    order = sorted(source.layer.keys, key=lambda each: each != tuning.BATCH)
    for other in order:
        paths = source.layer.keys[other] if other != knob else ()
        found = [entry for entry in source.document.entries if any(fits(entry.path, path) for path in paths)]
        yield from reversed(found) if source.layer.last_wins else found


def _is_free(document: Document, sibling: Entry, path: Keys) -> bool:
    """Whether `path` can stand beside `sibling`: it is not there, nor may be merged in from elsewhere."""
    plain = sibling.form in (Form.BARE, Form.QUOTED) and not sibling.fault
    taken = any(entry.path == path for entry in document.entries)
    return plain and not taken and path[:-1] not in document.merged


def _written(syntax: Syntax, key: str, value: str) -> tuple[str, str]:
    """Key and value as the syntax writes them."""
    quoted = value if _BARE.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    if syntax is Syntax.JSON:
        return json.dumps(key, ensure_ascii=False), quoted
    if syntax is Syntax.YAML and value == "no":  # bare it is false
        return key, '"no"'
    return key, quoted if syntax is Syntax.TOML else value


def files_of(sources: Sequence[Source]) -> tuple[Path, ...]:
    """The files, each once, in the order of their layers."""
    return tuple(dict.fromkeys(source.layer.file for source in sources if source.layer.file is not None))
