"""Ladders: the remedies for one trouble, the cheapest first, of which each is tried once. Pure.

A rung is chosen from the knobs as the job's config has them, from those that an order may change there, and from the
rungs that were taken before. docs/reference/policies.md has the ladders in words, the messages each rung's price.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tunewarden.domain.tuning import ACCUMULATION, BATCH, EXPANDABLE, RESOLUTION, as_count

MOST_WORKERS = 4
LEAST_RESOLUTION = 256
_RESOLUTION_STEP = 64
_SIZE = re.compile(r"(\d{1,6})(?:(\s?[,x]\s?)(\d{1,6}))?")  # 512, or both sides as the config spells them
_TRUE = frozenset({"true", "yes", "on", "1"})


class Ladder(StrEnum):
    """The troubles that have a ladder."""

    MEMORY = "memory"  # the card's memory
    LOADER = "loader"  # the card waits for data
    HOST_MEMORY = "host_memory"  # the host's or the container's memory


class RungName(StrEnum):
    """A rung; each has a price in the messages."""

    EXPANDABLE_SEGMENTS = "expandable_segments"
    BATCH_SIZE = "batch_size"
    GRADIENT_CHECKPOINTING = "gradient_checkpointing"
    CACHE_LATENTS = "cache_latents"
    RESOLUTION = "resolution"
    MORE_WORKERS = "more_workers"
    PERSISTENT_WORKERS = "persistent_workers"
    PIN_MEMORY = "pin_memory"
    FEWER_WORKERS = "fewer_workers"
    UNPIN_MEMORY = "unpin_memory"


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One remedy: canonical knobs and what is asked of each (`/2` or a plain value), as an order has them."""

    name: RungName
    knobs: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Footing:
    """What a rung is chosen on.

    `knobs` as the config has them, None: unknown. `changeable`: those that an order may change. `taken`: rungs that
    were carried out before, `refused`: those that the agent could not. `fragmented`: the card had room, in pieces too
    small. `host_memory_short`, `cpus` of the host: None is unknown. `resolution_allowed`, `effective_batch_allowed`:
    the user's consent.
    """

    knobs: Mapping[str, str] | None = None
    changeable: frozenset[str] = frozenset()
    taken: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    fragmented: bool = False
    host_memory_short: bool | None = None
    cpus: int | None = None
    resolution_allowed: bool = False
    effective_batch_allowed: bool = False

    def count(self, knob: str) -> int | None:
        """The whole number that a changeable knob is now."""
        value = (self.knobs or {}).get(knob)
        return as_count(value) if value is not None and knob in self.changeable else None

    def can_switch(self, knob: str, *, on: bool) -> bool:
        """Whether a changeable switch is not yet so."""
        value = (self.knobs or {}).get(knob)
        return value is not None and knob in self.changeable and (value.lower() in _TRUE) is not on


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A place on a ladder: the knobs that it would ask for, None where it does not apply. `again`: more than once."""

    name: RungName
    asks: Callable[[Footing], Mapping[str, str] | None] = field(compare=False)
    again: bool = False


def rungs_left(ladder: Ladder, footing: Footing) -> list[Rung]:
    """The rungs that can be taken now, the next one first; empty: there is nothing left but to stop and tell."""
    if footing.knobs is None:
        blind = _BLIND.get(ladder)
        return [] if blind is None or blind.name in footing.refused else [blind]
    found = []
    for step in _LADDERS[ladder]:
        over = step.name in footing.refused or (step.name in footing.taken and not step.again)
        knobs = None if over else step.asks(footing)
        if knobs is not None:
            found.append(Rung(name=step.name, knobs=knobs))
    return found


def next_rung(ladder: Ladder, footing: Footing) -> Rung | None:
    """The next remedy; None: no rung is left."""
    return next(iter(rungs_left(ladder, footing)), None)


def _expandable_segments(footing: Footing) -> Mapping[str, str] | None:
    return {EXPANDABLE: "true"} if footing.fragmented and footing.can_switch(EXPANDABLE, on=True) else None


def _smaller_batch(footing: Footing) -> Mapping[str, str] | None:
    """Half the batch; the agent raises the accumulation to match, where the config has one."""
    batch = footing.count(BATCH)
    keeps = footing.count(ACCUMULATION) is not None
    if batch is None or batch < 2 or not (keeps or footing.effective_batch_allowed):
        return None
    return {BATCH: "/2"}


def _smaller_images(footing: Footing) -> Mapping[str, str] | None:
    """Three quarters, on a multiple of 64: half would cost more detail than is needed at once."""
    found = _SIZE.fullmatch((footing.knobs or {}).get(RESOLUTION, ""))
    if found is None or RESOLUTION not in footing.changeable or not footing.resolution_allowed:
        return None
    sides = [int(side) * 3 // 4 // _RESOLUTION_STEP * _RESOLUTION_STEP for side in (found[1], found[3]) if side]
    if min(sides) < LEAST_RESOLUTION:
        return None
    return {RESOLUTION: (found[2] or "").join(str(side) for side in sides)}


def _more_workers(footing: Footing) -> Mapping[str, str] | None:
    """Each worker holds memory of the host: none is added where that is short or unknown."""
    now = footing.count("data_workers")
    if now is None or footing.cpus is None or footing.host_memory_short is not False:
        return None
    most = min(footing.cpus - 1, MOST_WORKERS)
    return {"data_workers": str(most)} if most > now else None


def _persistent_workers(footing: Footing) -> Mapping[str, str] | None:
    """They mean nothing without workers, and torch refuses them then."""
    none = footing.count("data_workers") == 0 and _more_workers(footing) is None
    return {"persistent_workers": "true"} if footing.can_switch("persistent_workers", on=True) and not none else None


def _pin_memory(footing: Footing) -> Mapping[str, str] | None:
    short = footing.host_memory_short is not False
    return {"pin_memory": "true"} if footing.can_switch("pin_memory", on=True) and not short else None


def _fewer_workers(footing: Footing) -> Mapping[str, str] | None:
    now = footing.count("data_workers")
    return {"data_workers": str(now // 2)} if now else None


def _unpin_memory(footing: Footing) -> Mapping[str, str] | None:
    return {"pin_memory": "false"} if footing.can_switch("pin_memory", on=False) else None


def _switch_on(knob: str) -> Callable[[Footing], Mapping[str, str] | None]:
    return lambda footing: {knob: "true"} if footing.can_switch(knob, on=True) else None


_CHECKPOINTING = _Step(name=RungName.GRADIENT_CHECKPOINTING, asks=_switch_on("gradient_checkpointing"))
_CACHE = _Step(name=RungName.CACHE_LATENTS, asks=_switch_on("cache_latents"))
_LADDERS: Mapping[Ladder, Sequence[_Step]] = {
    Ladder.MEMORY: (
        _Step(name=RungName.EXPANDABLE_SEGMENTS, asks=_expandable_segments),
        _Step(name=RungName.BATCH_SIZE, asks=_smaller_batch, again=True),
        _CHECKPOINTING,
        _CACHE,
        _Step(name=RungName.RESOLUTION, asks=_smaller_images, again=True),
    ),
    Ladder.LOADER: (
        _Step(name=RungName.MORE_WORKERS, asks=_more_workers),
        _Step(name=RungName.PERSISTENT_WORKERS, asks=_persistent_workers),
        _Step(name=RungName.PIN_MEMORY, asks=_pin_memory),
        _CACHE,
    ),
    Ladder.HOST_MEMORY: (
        _Step(name=RungName.FEWER_WORKERS, asks=_fewer_workers, again=True),
        _Step(name=RungName.UNPIN_MEMORY, asks=_unpin_memory),
    ),
}
# Where the knobs aren't known the agent finds out: it refuses what its config does not set.
_BLIND: Mapping[Ladder, Rung] = {
    Ladder.MEMORY: Rung(name=RungName.BATCH_SIZE, knobs={BATCH: "/2"}),
    Ladder.HOST_MEMORY: Rung(name=RungName.FEWER_WORKERS, knobs={"data_workers": "/2"}),
}
