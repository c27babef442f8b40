"""Durations as Prometheus writes them: `90s`, `5m`, `1h30m`, `1d`."""

import re
from datetime import timedelta

_UNITS_MS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_LONGEST_TEXT = 64


def parse_duration(text: str) -> timedelta:
    """The duration that `text` names; units in the order y w d h m s ms, each once.

    The grammar is prometheus/common's model.ParseDuration. Raises ValueError for
    anything else. A bare `0` is allowed, as in Prometheus.
    """
    if text == "0":
        return timedelta(0)
    found = _DURATION.fullmatch(text) if text and len(text) <= _LONGEST_TEXT else None
    if found is None:
        raise ValueError(f"{text[:_LONGEST_TEXT]!r} is no duration; write it like 30s, 5m or 1h30m")
    numbers = zip(found.groups(), _UNITS_MS.values(), strict=True)
    try:
        return timedelta(milliseconds=sum(int(number) * unit for number, unit in numbers if number))
    except OverflowError:
        raise ValueError(f"{text!r} is too long a duration") from None


def format_duration(duration: timedelta) -> str:
    """The shortest text that parse_duration reads back as `duration` (to the millisecond): `5m`, `1h30m`, `0s`."""
    rest = round(duration.total_seconds() * 1000)
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        number, rest = divmod(rest, _UNITS_MS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"
