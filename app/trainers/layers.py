"""Knobs over layers of configuration: flags, TOML, YAML, JSON and shell text, in the order in which they rule.

A trainer says in a table where its knobs stand; reading and planning changes is the same for all.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import config_file, flag_splice
from tunewarden.trainers.beside import name_beside
from tunewarden.trainers.config_file import hash_of
from tunewarden.trainers.document import Document, Entry, find
from tunewarden.trainers.edits import Act, acts_for, after, change_of, files_of
from tunewarden.trainers.layer import KeyPath, Layer, Syntax
from tunewarden.trainers.recipe import ConfigPlan, FileCopy, Knob, Reference
from tunewarden.trainers.sources import Place, Source, load, load_file, ruling, seen, shadowed
from tunewarden.trainers.wishes import wishes_for

__all__ = ["KeyPath", "Layer", "Syntax", "hash_of", "plan_layers", "read_layers"]

_ENVIRONMENT = {tuning.EXPANDABLE: "PYTORCH_CUDA_ALLOC_CONF"}


def read_layers(layers: Sequence[Layer], argv: Sequence[str]) -> dict[str, Knob]:
    """The knobs that are set plainly, by canonical name, from the first layer that sets each.

    Of several places the smallest number is shown. Names in the tables that are no knobs are read alike.
    Raises Refused(config_not_found | config_malformed).
    """
    sources = load(layers, argv)
    names = dict.fromkeys(name for layer in layers for name in layer.keys)
    shown = {name: _shown([place for place in seen(sources, name) if not place.fault]) for name in names}
    return {
        name: Knob(value=place.text, file=place.file, line=place.entry.line)
        for name, place in shown.items()
        if place is not None
    }


def plan_layers(
    layers: Sequence[Layer],
    argv: Sequence[str],
    knobs: Mapping[str, str],
    *,
    allow_effective_batch_change: bool,
    resuming: bool = True,
) -> ConfigPlan:
    """How files and argv would read with `knobs` changed; see Recipe.plan.

    `resuming`: the job goes on from a state, so knobs that a state depends on are refused. Raises Refused.
    """
    sources = load(layers, argv)
    config_knobs = {knob: asked for knob, asked in knobs.items() if knob not in _ENVIRONMENT}
    wishes = wishes_for(sources, config_knobs, allow=allow_effective_batch_change, resuming=resuming)
    acts = acts_for(sources, wishes.each)
    documents = {(source.document.where, source.grammar): after(source, acts) for source in sources if acts}
    changes = [(act, change_of(act, documents[act.source.document.where, act.source.grammar])) for act in acts]
    order: dict[Path | None, int] = {None: -1, **{file: index for index, file in enumerate(files_of(sources))}}
    changes.sort(key=lambda each: (order[each[1].file], each[1].line))
    new_argv = _new_argv(acts, argv)
    return ConfigPlan(
        changes=tuple(change for _, change in changes),
        copies=tuple(_copies(sources, acts)),
        argv=new_argv,
        env={_ENVIRONMENT[knob]: _allocator(asked) for knob, asked in knobs.items() if knob in _ENVIRONMENT},
        effective_batch=wishes.effective_batch,
        warnings=(*wishes.warnings, *_overruled(sources, acts)),
        argv_diff=flag_splice.difference(argv, new_argv),
    )


def _shown(places: Sequence[Place]) -> Place | None:
    counts = [(count, index) for index, each in enumerate(places) if (count := tuning.as_count(each.text)) is not None]
    return places[min(counts)[1]] if counts else next(iter(places), None)


def _new_argv(acts: Sequence[Act], argv: Sequence[str]) -> tuple[str, ...]:
    changed = [act for act in acts if act.source.grammar is not None]
    if not changed:
        return tuple(argv)
    return flag_splice.words_of(after(changed[0].source, acts).text)


def _copies(sources: Sequence[Source], acts: Sequence[Act]) -> Iterator[FileCopy]:
    """The adjusted files, those before that others name."""
    naming: dict[Path, list[tuple[Syntax, KeyPath, Path]]] = {}
    news: dict[Path, tuple[Document, Document]] = {}
    for source in sources:
        file = source.layer.file
        if file is None or file in news or not any(act.source.layer.file == file for act in acts):
            continue
        news[file] = (source.document, after(source, acts))
        if source.layer.named_in is not None:
            parent, syntax, path = source.layer.named_in
            naming.setdefault(parent, []).append((syntax, path, file))
    for parent, named in naming.items():
        if parent not in news:
            document = load_file(parent, named[0][0])
            news[parent] = (document, document)
    for file, (old, new) in sorted(news.items(), key=lambda item: item[0] in naming):
        references = tuple(_reference(new, path, named) for _, path, named in naming.get(file, ()))
        yield _copy(file, old.data(), new.data(), references)


def _copy(file: Path, old: bytes, new: bytes, references: tuple[Reference, ...]) -> FileCopy:
    shown = new
    for each in sorted(references, key=lambda each: each.start, reverse=True):
        shown = shown[: each.start] + name_beside(each.path, "N").name.encode() + shown[each.end :]
    return FileCopy(
        config_path=file,
        config_sha256=config_file.sha256(old),
        new_bytes=new,
        diff=config_file.difference(file, old, shown),
        references=references,
    )


def _reference(document: Document, path: KeyPath, file: Path) -> Reference:
    """The place in `document` that is the name of `file`."""
    entries: Sequence[Entry] = find(document, path)
    entry = entries[-1] if entries else None
    if entry is None or entry.fault or not entry.text.endswith(file.name):
        raise Refused(
            Reason.KNOB_NOT_CHANGEABLE,
            f"{document.at(entry.line if entry else 1)}: does not name {file.name} plainly, so it can't name a copy",
        )
    before = len(document.bom) + len(document.text[: entry.end].encode())
    return Reference(path=file, start=before - len(file.name.encode()), end=before)


def _overruled(sources: Sequence[Source], acts: Sequence[Act]) -> Iterator[str]:
    """Warnings of places that set a changed knob too and don't count."""
    for knob in dict.fromkeys(act.wish.knob for act in acts):
        with suppress(Refused):
            places = ruling(sources, knob)
            for place in shadowed(sources, knob, places):
                counts = f"; {places[0].where} counts" if places else ""
                yield f"{place.where}: `{place.key}` is set here too{counts}"


def _allocator(asked: str) -> str:
    return f"expandable_segments:{tuning.switch(asked) or False}"
