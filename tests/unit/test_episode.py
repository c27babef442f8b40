"""What an alert does to an episode."""

from datetime import datetime, timedelta

import pytest

from tests.unit.deciding_values import NOW, an_alert
from tunewarden.domain.alert import Alert, AlertStatus
from tunewarden.domain.episode import Episode, EpisodeEvent, advance, expires

FIRING = Episode(episode_id=1, fingerprint="f", opened_at=NOW, last_seen_at=NOW, starts_at=NOW)
RESOLVED = Episode(
    episode_id=1,
    fingerprint="f",
    opened_at=NOW,
    last_seen_at=NOW,
    starts_at=NOW,
    resolved_at=NOW + timedelta(seconds=20),
)
CLOSED = Episode(
    episode_id=1,
    fingerprint="f",
    opened_at=NOW,
    last_seen_at=NOW,
    starts_at=NOW,
    resolved_at=NOW,
    closed_at=NOW + timedelta(minutes=5),
)


def alert(*, starts: float | None = 60.0, ends: float | None = None) -> Alert:
    """`starts`, `ends`: seconds after the first firing; `ends` makes it resolved."""
    return Alert(
        fingerprint="f",
        status=AlertStatus.FIRING if ends is None else AlertStatus.RESOLVED,
        labels=an_alert().labels,
        starts_at=None if starts is None else NOW + timedelta(seconds=starts),
        ends_at=None if ends is None else NOW + timedelta(seconds=ends),
    )


CASES: list[tuple[str, Episode | None, Alert, float, bool | None, EpisodeEvent]] = [
    ("first", None, alert(), 0, None, EpisodeEvent.OPENED),
    ("again", FIRING, alert(starts=0), 60, None, EpisodeEvent.REPEATED),
    ("again with another startsAt", FIRING, alert(starts=-3), 60, None, EpisodeEvent.REPEATED),
    ("over", FIRING, alert(ends=60), 60, None, EpisodeEvent.RESOLVED),
    ("over, with another startsAt", FIRING, alert(starts=30, ends=60), 60, None, EpisodeEvent.RESOLVED),
    ("over before it fired again", FIRING, alert(starts=-60, ends=-10), 60, None, EpisodeEvent.STALE_DUPLICATE),
    ("over, said again", RESOLVED, alert(ends=25), 60, None, EpisodeEvent.NOTHING),
    ("over, never heard of", None, alert(ends=0), 0, None, EpisodeEvent.NOTHING),
    ("fires again within five minutes", RESOLVED, alert(starts=40), 60, None, EpisodeEvent.REOPENED),
    ("a late copy of the first firing", RESOLVED, alert(starts=0), 60, None, EpisodeEvent.STALE_DUPLICATE),
    ("the same, but it is listed", RESOLVED, alert(starts=0), 60, True, EpisodeEvent.REOPENED),
    ("the same, and it is not listed", RESOLVED, alert(starts=0), 60, False, EpisodeEvent.STALE_DUPLICATE),
    ("fires at five minutes", RESOLVED, alert(starts=310), 320, None, EpisodeEvent.OPENED),
    ("fires just before", RESOLVED, alert(starts=310), 319.9, None, EpisodeEvent.REOPENED),
    ("fires after five minutes", RESOLVED, alert(starts=400), 400, None, EpisodeEvent.OPENED),
    ("fires after it was closed", CLOSED, alert(starts=400), 400, None, EpisodeEvent.OPENED),
    ("a late copy after it was closed", CLOSED, alert(starts=0), 400, None, EpisodeEvent.STALE_DUPLICATE),
    ("the same, but it is listed", CLOSED, alert(starts=0), 400, True, EpisodeEvent.OPENED),
    ("no startsAt at all", CLOSED, alert(starts=None), 400, None, EpisodeEvent.OPENED),
]


@pytest.mark.parametrize(
    ("episode", "said", "at", "listed", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_an_alert_moves_its_episode(
    episode: Episode | None, said: Alert, at: float, listed: bool | None, expected: EpisodeEvent
) -> None:
    """startsAt is in no key: it only tells late copies from new firings."""
    assert advance(episode, said, NOW + timedelta(seconds=at), listed=listed) is expected


@pytest.mark.parametrize(
    ("episode", "hours", "listed", "expected"),
    [
        (FIRING, 23.9, None, False),
        (FIRING, 24.1, None, True),
        (FIRING, 3.9, False, False),
        (FIRING, 4.1, False, True),
        (FIRING, 400, True, False),
        (RESOLVED, 400, None, False),
    ],
)
def test_an_episode_expires_only_unlisted(episode: Episode, hours: float, listed: bool | None, expected: bool) -> None:
    """A day where nobody can be asked; a repeat interval where Alertmanager no longer lists it."""
    now: datetime = NOW + timedelta(hours=hours)

    assert expires(episode, now, listed=listed) is expected
