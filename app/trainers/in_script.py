"""A trainer whose words stand in a shell script: what is literal there can be changed in a copy of the script."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tunewarden.errors import Refused
from tunewarden.trainers.command import Shell
from tunewarden.trainers.known import Known, sha_of
from tunewarden.trainers.layers import Layer, Syntax, read_layers
from tunewarden.trainers.recipe import Knob


def from_script(known: Known) -> Known:
    """`known` with the script as a layer in the place of the command line, where a script holds the words.

    What the script hands on with "$@" stays the command line's, and rules: it comes last in the trainer's words.
    """
    script = next((shell for shell in known.command.shells if shell.file is not None), None)
    if script is None or script.file is None:
        return known
    tail = script.statement.positional if script is known.command.shells[-1] else None
    layers = tuple(new for layer in known.layers for new in _split(layer, script.file, tail))
    values = _expanded(known, script, tail)
    return replace(
        known,
        layers=layers,
        config_sha256=sha_of(layers),
        main=known.main or script.file,
        extra={**values, **known.extra},
    )


def _split(layer: Layer, file: Path, tail: int | None) -> tuple[Layer, ...]:
    if layer.file is not None or layer.syntax is not Syntax.FLAGS:
        return (layer,)
    written = Layer(syntax=Syntax.SHELL, file=file, keys=layer.keys)
    if tail is None:
        return (written,)
    return replace(layer, first=max(layer.first, tail)), written


def _expanded(known: Known, script: Shell, tail: int | None) -> Mapping[str, Knob]:
    """The knobs as the trainer gets them, for showing where a variable stands in the script's text."""
    flags = tuple(layer for layer in known.layers if layer.file is None)
    try:
        read = read_layers(flags, known.command.words)
    except Refused:
        return {}
    last = len(known.command.words) if tail is None else tail
    return {
        knob: replace(each, file=script.file, line=script.statement.line)
        for knob, each in read.items()
        if each.line <= last
    }
