"""The episodes: one row from the first firing of a fingerprint until it is closed. Times are epoch seconds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, or_, select, update

from tunewarden.adapters.store.tables import episodes
from tunewarden.domain.alert import Alert, AlertStatus
from tunewarden.domain.episode import Episode, EpisodeEvent

_INSERT = insert(episodes).returning(episodes.c.episode_id)
_UPDATE = update(episodes).where(episodes.c.episode_id == bindparam("this_episode"))


@dataclass(frozen=True, kw_only=True)
class EpisodeRow:
    """An episode with what a decision left on it. `alert` is its newest firing."""

    episode: Episode
    alert: Alert
    reason: str | None
    recheck_at: float | None
    repeats: int


def newest(conn: Connection, fingerprint: str) -> EpisodeRow | None:
    """The newest episode of a fingerprint, open or closed."""
    return newest_of(conn, [fingerprint]).get(fingerprint)


def newest_of(conn: Connection, fingerprints: Iterable[str]) -> dict[str, EpisodeRow]:
    """The newest episode of each fingerprint that has one: one query for a whole part of a delivery."""
    wanted = select(func.max(episodes.c.episode_id)).where(episodes.c.fingerprint.in_(set(fingerprints)))
    query = select(episodes).where(episodes.c.episode_id.in_(wanted.group_by(episodes.c.fingerprint)))
    return {row.fingerprint: _row(row) for row in conn.execute(query)}


def get(conn: Connection, episode_id: int) -> EpisodeRow | None:
    """One episode."""
    row = conn.execute(select(episodes).where(episodes.c.episode_id == episode_id)).one_or_none()
    return None if row is None else _row(row)


def apply(
    conn: Connection,
    event: EpisodeEvent,
    seen: EpisodeRow | None,
    alert: Alert,
    now: float,
    *,
    delivery_id: int | None,
    noted: Mapping[str, Any],
) -> int | None:
    """Write what `event` does; the id of the episode that it is about, None when it is about none.

    `noted` is what the decision leaves on it: reason, policy, job_id, recheck_at, messaged.
    """
    if event is EpisodeEvent.OPENED:
        if seen is not None and seen.episode.closed_at is None:
            close(conn, seen.episode.episode_id, now)
        return _open(conn, alert, now, delivery_id, noted)
    if seen is None:
        return None
    values: dict[str, Any] = {}
    if event is EpisodeEvent.RESOLVED:
        values = {"resolved_at": now, "last_seen_at": now, "recheck_at": None, **noted}
    elif event is EpisodeEvent.REPEATED:
        values = {"last_seen_at": now, "repeats": seen.repeats + 1, **_of_alert(alert)}
    elif event is EpisodeEvent.REOPENED:
        values = {"last_seen_at": now, "resolved_at": None, "repeats": seen.repeats + 1, **_of_alert(alert), **noted}
    elif event is EpisodeEvent.RECHECKED:
        values = dict(noted)
    starts_at, known = values.get("starts_at"), seen.episode.starts_at
    if known is not None and (starts_at is None or starts_at < known.timestamp()):
        values.pop("starts_at", None)  # the newest firing seen: HA members may deliver out of order
    if values:
        note(conn, seen.episode.episode_id, **values)
    return seen.episode.episode_id


def note(conn: Connection, episode_id: int, **values: Any) -> None:
    """Change columns of one episode, such as what a decision left: recheck_at, messaged, job_id, policy, reason."""
    conn.execute(_UPDATE, {"this_episode": episode_id, **values})


def due(conn: Connection, now: float, *, limit: int) -> list[EpisodeRow]:
    """Firing episodes that are to be looked at again, the longest due first."""
    query = select(episodes).where(
        episodes.c.recheck_at <= now, episodes.c.resolved_at.is_(None), episodes.c.closed_at.is_(None)
    )
    return [_row(row) for row in conn.execute(query.order_by(episodes.c.recheck_at).limit(limit))]


def next_recheck(conn: Connection) -> float | None:
    """When the next episode is due."""
    query = select(episodes.c.recheck_at).where(
        episodes.c.recheck_at.is_not(None), episodes.c.resolved_at.is_(None), episodes.c.closed_at.is_(None)
    )
    return conn.execute(query.order_by(episodes.c.recheck_at).limit(1)).scalar_one_or_none()


def ageing(conn: Connection, *, resolved_before: float, seen_before: float, limit: int) -> list[EpisodeRow]:
    """Open episodes that may close: resolved before one moment, or not seen since another."""
    query = select(episodes).where(
        episodes.c.closed_at.is_(None),
        or_(
            episodes.c.resolved_at <= resolved_before,
            episodes.c.resolved_at.is_(None) & (episodes.c.last_seen_at <= seen_before),
        ),
    )
    return [_row(row) for row in conn.execute(query.order_by(episodes.c.episode_id).limit(limit))]


def close(conn: Connection, episode_id: int, now: float) -> None:
    """The episode is over; the next firing opens a new one."""
    note(conn, episode_id, closed_at=now, recheck_at=None)


def _open(conn: Connection, alert: Alert, now: float, delivery_id: int | None, noted: Mapping[str, Any]) -> int:
    values = {
        "fingerprint": alert.fingerprint,
        "alertname": alert.name[:256],
        "opened_at": now,
        "last_seen_at": now,
        "first_delivery_id": delivery_id,
        "repeats": 0,
        "messaged": False,
        **_of_alert(alert),
        **noted,
    }
    return int(conn.execute(_INSERT, values).scalar_one())


def _of_alert(alert: Alert) -> dict[str, Any]:
    return {
        "labels": dict(alert.labels),
        "annotations": {**alert.annotations, **({"generatorURL": alert.generator_url} if alert.generator_url else {})},
        "starts_at": alert.starts_at.timestamp() if alert.starts_at else None,
    }


def _row(row: Row[Any]) -> EpisodeRow:
    annotations = dict(row.annotations)
    url = annotations.pop("generatorURL", "")
    starts_at = _moment(row.starts_at)
    return EpisodeRow(
        episode=Episode(
            episode_id=row.episode_id,
            fingerprint=row.fingerprint,
            opened_at=datetime.fromtimestamp(row.opened_at, UTC),
            last_seen_at=datetime.fromtimestamp(row.last_seen_at, UTC),
            starts_at=starts_at,
            resolved_at=_moment(row.resolved_at),
            closed_at=_moment(row.closed_at),
            messaged=row.messaged,
        ),
        alert=Alert(
            fingerprint=row.fingerprint,
            status=AlertStatus.FIRING,
            labels=row.labels,
            annotations=annotations,
            starts_at=starts_at,
            generator_url=url,
        ),
        reason=row.reason,
        recheck_at=row.recheck_at,
        repeats=row.repeats,
    )


def _moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
