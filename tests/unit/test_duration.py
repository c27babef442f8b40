"""Prometheus durations."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewarden.domain.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15s", 15),
        ("250ms", 0.25),
        ("3m", 180),
        ("1h30m", 5400),
        ("1d", 86400),
        ("1w", 604800),
        ("1y", 31536000),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """As Prometheus reads them."""
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1.5h", "15", "m", "1m1h", "1h 30m", "-1s", "1S", "٣s", "1h1h", "9" * 70 + "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Fractions, signs, blanks and wrong order."""
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**10))
def test_what_is_written_is_read_back(milliseconds: int) -> None:
    """format_duration and parse_duration agree."""
    length = timedelta(milliseconds=milliseconds)

    assert parse_duration(format_duration(length)) == length


@given(st.text(max_size=12))
def test_no_text_crashes_the_parser(text: str) -> None:
    """A length of time or ValueError."""
    try:
        assert parse_duration(text) >= timedelta(0)
    except ValueError:
        return
