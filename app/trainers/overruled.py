"""Settings that do nothing because another place rules: two files that disagree, a flag beside a dataset config."""

from collections.abc import Iterator, Sequence

from tunewarden.domain.tuning import KNOBS
from tunewarden.errors import Refused
from tunewarden.trainers.layers import Layer
from tunewarden.trainers.sources import Source, load, ruling, shadowed


def overruled(layers: Sequence[Layer], argv: Sequence[str]) -> tuple[str, ...]:
    """A line for each knob that is set in two places with two values; none where a file can't be read."""
    try:
        sources = load(layers, argv)
    except Refused:
        return ()
    return tuple(line for knob in KNOBS for line in _of_knob(sources, knob))


def _of_knob(sources: Sequence[Source], knob: str) -> Iterator[str]:
    try:
        ruled = ruling(sources, knob)
        others = [place for place in shadowed(sources, knob, ruled) if ruled and place.text != ruled[0].text]
    except Refused as refused:  # it can't be told which counts: that is what a person must know
        yield str(refused)
        return
    for place in others:
        yield (
            f"{place.where}: {place.key} {place.text} does nothing: {ruled[0].where} sets {ruled[0].key} "
            f"{ruled[0].text}, and that counts; change it there"
        )
