"""An episode: one fingerprint from its first firing until some minutes after resolved.

No key holds startsAt, externalURL or the root status. startsAt is only evidence for one question: is this firing
a late copy of one that is over? (Alertmanager's HA members deliver twice, and it re-sends old notices.)
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tunewarden.domain.alert import Alert, AlertStatus

CLOSE_AFTER = timedelta(minutes=5)
EXPIRES_AFTER = timedelta(hours=24)
REPEAT_INTERVAL = timedelta(hours=4)  # Alertmanager's default


class EpisodeEvent(StrEnum):
    """What one alert, or time, does to an episode."""

    OPENED = "opened"  # a new episode
    REPEATED = "repeated"  # it goes on: counted
    REOPENED = "reopened"  # it fires again before it closed: the same episode
    RESOLVED = "resolved"  # it is over, but closes only some minutes later
    RECHECKED = "rechecked"  # nothing came in: an undecided episode is looked at again
    STALE_DUPLICATE = "stale_duplicate"  # a late copy: nothing changes
    NOTHING = "nothing"  # a resolved for what isn't firing


DECIDING = frozenset({EpisodeEvent.OPENED, EpisodeEvent.REOPENED, EpisodeEvent.RECHECKED})


@dataclass(frozen=True, kw_only=True)
class Episode:
    """The newest episode of one fingerprint. All times but `starts_at` are our own clock's."""

    episode_id: int
    fingerprint: str
    opened_at: datetime
    last_seen_at: datetime
    starts_at: datetime | None = None  # of the newest firing seen
    resolved_at: datetime | None = None
    closed_at: datetime | None = None
    messaged: bool = False

    @property
    def firing(self) -> bool:
        return self.resolved_at is None and self.closed_at is None


def advance(
    episode: Episode | None,
    alert: Alert,
    now: datetime,
    *,
    close_after: timedelta = CLOSE_AFTER,
    listed: bool | None = None,
) -> EpisodeEvent:
    """What `alert` does to the newest episode of its fingerprint.

    `listed`: Alertmanager or Prometheus lists the alert as firing now, which overrules its startsAt; None: not asked.
    """
    over = episode is None or closes(episode, now, close_after)
    if alert.status is AlertStatus.RESOLVED:
        if episode is None or over or not episode.firing:
            return EpisodeEvent.NOTHING
        return EpisodeEvent.STALE_DUPLICATE if _ended_before(episode, alert) else EpisodeEvent.RESOLVED
    if looks_stale(episode, alert) and not listed:
        return EpisodeEvent.STALE_DUPLICATE
    if episode is None or over:
        return EpisodeEvent.OPENED
    return EpisodeEvent.REPEATED if episode.firing else EpisodeEvent.REOPENED


def looks_stale(episode: Episode | None, alert: Alert) -> bool:
    """True for a firing that began no later than one that is over: only a listing tells whether it still fires."""
    if episode is None or episode.firing or alert.status is not AlertStatus.FIRING:
        return False
    if episode.starts_at is None or alert.starts_at is None:
        return False
    return alert.starts_at <= episode.starts_at


def closes(episode: Episode, now: datetime, close_after: timedelta = CLOSE_AFTER) -> bool:
    """True when the episode is closed, or has been resolved for `close_after`."""
    if episode.closed_at is not None:
        return True
    return episode.resolved_at is not None and now - episode.resolved_at >= close_after


def expires(
    episode: Episode,
    now: datetime,
    *,
    listed: bool | None,
    expires_after: timedelta = EXPIRES_AFTER,
    repeat_interval: timedelta = REPEAT_INTERVAL,
) -> bool:
    """True when a firing episode must end by itself: a silenced alert never sends resolved.

    `listed` None means that there is no Alertmanager to ask, or that it didn't answer.
    """
    if not episode.firing or listed:
        return False
    return now - episode.last_seen_at > (expires_after if listed is None else repeat_interval)


def _ended_before(episode: Episode, alert: Alert) -> bool:
    """A resolved that ended before the newest firing began belongs to an earlier one."""
    if alert.ends_at is None or episode.starts_at is None:
        return False
    return alert.ends_at < episode.starts_at
