"""The numbers of PyTorch's out-of-memory message: what was asked for, and what was there.

Texts of torch 1.x (`(GPU 0; 12.00 GiB total capacity; …)`, also spelt `capacty`) and of torch 2.1 and later
(`has a total capacity of …`). Each pattern is bounded, so that a hostile text costs no more than its length.
"""

import re
from dataclasses import dataclass

_SIZE = r"(\d{1,7}(?:\.\d{1,3})?) ?(GiB|MiB|KiB|bytes)"
_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "bytes": 1}
_LONGEST = 4096
_TRIED = re.compile(rf"Tried to allocate (?:more than )?{_SIZE}", re.IGNORECASE)
_TOTAL = (
    re.compile(rf"total capac(?:i)?ty of {_SIZE}", re.IGNORECASE),
    re.compile(rf"{_SIZE} total capac(?:i)?ty", re.IGNORECASE),
)
_FREE = re.compile(rf"{_SIZE} (?:is )?free", re.IGNORECASE)
_ALLOCATED = re.compile(rf"{_SIZE} (?:is allocated by PyTorch|already allocated)", re.IGNORECASE)
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated", re.IGNORECASE)
_RESERVED = re.compile(rf"{_SIZE} reserved in total", re.IGNORECASE)
_CACHED = re.compile(rf"{_SIZE} cached", re.IGNORECASE)  # torch < 1.4: what the cache holds beside the allocated
# Held unused: enough for what was asked, and more than the rounding that every allocator has.
_WORTH_TELLING = 1 / 16


@dataclass(frozen=True, kw_only=True)
class OomNumbers:
    """Bytes; None: the message does not say. `unused` is reserved by PyTorch and holds nothing."""

    tried: int | None = None
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    unused: int | None = None

    @property
    def fragmented(self) -> bool | None:
        """Whether there was room enough, in pieces too small; None: the message does not tell."""
        if self.tried is None or self.unused is None:
            return None
        return self.unused >= self.tried and self.unused >= (self.total or 0) * _WORTH_TELLING

    def facts(self) -> dict[str, str | int]:
        """What the event tells, by the names of docs/reference/causes.md."""
        named = {
            "tried_bytes": self.tried,
            "total_bytes": self.total,
            "free_bytes": self.free,
            "allocated_bytes": self.allocated,
            "unused_bytes": self.unused,
        }
        found: dict[str, str | int] = {name: value for name, value in named.items() if value is not None}
        return found if self.fragmented is None else {**found, "fragmented": "yes" if self.fragmented else "no"}


def read_oom(text: str) -> OomNumbers:
    """The numbers that `text` holds; all None where it holds none."""
    text = text[:_LONGEST]
    allocated = _bytes(_ALLOCATED, text)
    return OomNumbers(
        tried=_bytes(_TRIED, text),
        total=next((size for pattern in _TOTAL if (size := _bytes(pattern, text)) is not None), None),
        free=_bytes(_FREE, text),
        allocated=allocated,
        unused=_unused(text, allocated),
    )


def _unused(text: str, allocated: int | None) -> int | None:
    said, reserved = _bytes(_UNUSED, text), _bytes(_RESERVED, text)
    if said is not None:
        return said
    if reserved is not None and allocated is not None:
        return max(0, reserved - allocated)
    return _bytes(_CACHED, text)


def _bytes(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    if found is None:
        return None
    unit = next(size for name, size in _UNITS.items() if name.lower() == found[2].lower())
    return int(float(found[1]) * unit)
