"""The dispatcher: takes deliveries apart, decides about each alert, looks again at what waits, ends old episodes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from sqlalchemy import Connection

from tunewarden.adapters.store import deliveries, episodes
from tunewarden.adapters.store.deliveries import Delivery
from tunewarden.adapters.store.engine import Store
from tunewarden.domain.alert import Alert
from tunewarden.domain.decision import Decision, Verdict
from tunewarden.domain.episode import EXPIRES_AFTER, REPEAT_INTERVAL, closes, expires
from tunewarden.domain.reason import Reason
from tunewarden.errors import StoreUnavailable, TunewardenError
from tunewarden.pipeline.deciding import Deciding, Gathered, Incoming, Newest, decide_one
from tunewarden.pipeline.gathering import Sources, gather, known_jobs, listed_now
from tunewarden.pipeline.moves import Acting, Moves, write_moves
from tunewarden.ports import Clock
from tunewarden.telemetry import Metrics

log = structlog.get_logger(__name__)

CHUNK = 200  # alerts of one transaction: others' writes come between two of them
POLL_S = 1.0
AGEING_S = 30.0  # between looks for episodes that close or expire
_PUT_OFF_S = 60.0
_MOST_SAID = 1000
_PARSE_ASIDE_BYTES = 64 * 1024
_REFUSALS = (TunewardenError, ValueError, RecursionError)


class _Overtaken(Exception):
    """Somebody else took this part of the delivery: everything of it is undone."""


@dataclass(frozen=True, kw_only=True)
class _Parsed:
    delivery_id: int
    alerts: Sequence[Alert]


class Dispatcher:
    """One a service. `alerts_of` reads a stored body and raises TunewardenError or ValueError for one that it can't.

    `deciding` may be replaced while it runs (new policies): each transaction takes what is there when it begins.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        alerts_of: Callable[[bytes], list[Alert]],
        deciding: Deciding,
        *,
        sources: Sources | None = None,
        acting: Acting | None = None,
        metrics: Metrics | None = None,
        expires_after: timedelta = EXPIRES_AFTER,
        repeat_interval: timedelta = REPEAT_INTERVAL,
    ) -> None:
        self.deciding = deciding
        self._store, self._clock, self._alerts_of = store, clock, alerts_of
        self._sources, self._acting, self._metrics = sources or Sources(), acting or Acting(), metrics
        self._expires_after, self._repeat_interval = expires_after, repeat_interval
        self._parsed: _Parsed | None = None
        self._aged_at = 0.0
        self._said: dict[tuple[str, str], Reason] = {}  # (job_id, policy) -> the newest reason in the log

    async def run(self, stopping: asyncio.Event) -> None:
        """Look whenever a delivery is committed, an episode is due, or a second has passed, until `stopping` is set."""
        with self._store.subscribe(deliveries.TOPIC) as woken:
            while not stopping.is_set():
                try:
                    await self.look(stopping)
                except StoreUnavailable as error:
                    log.warning("the store is away", action="dispatcher_waits", error=str(error))
                except Exception:
                    log.exception("one look failed", action="dispatcher_failed")
                    self._count_failure()
                await woken.wait(await self._pause_s())

    async def look(self, stopping: asyncio.Event | None = None) -> None:
        """Everything that is there now: deliveries in their order, then episodes that are due, then old ones."""
        while not (stopping and stopping.is_set()):
            delivery = await self._store.read(deliveries.next_open)
            if delivery is None:
                break
            await self._take_apart(delivery)
        await self._recheck()
        if self._clock.monotonic() - self._aged_at >= AGEING_S or not self._aged_at:
            self._aged_at = self._clock.monotonic()
            await self.age()

    async def age(self) -> None:
        """Close episodes that have been resolved long enough, and those that nobody mentions any more."""
        now = self._clock.now()
        seen_before = now - min(self._expires_after, self._repeat_interval)
        resolved_before = now - self.deciding.close_after
        old = await self._store.read(
            lambda conn: episodes.ageing(
                conn,
                resolved_before=resolved_before.timestamp(),
                seen_before=seen_before.timestamp(),
                limit=1000,
            )
        )
        if not old:
            return
        listed = await listed_now(self._sources) if any(row.episode.firing for row in old) else None
        over = [row.episode.episode_id for row in old if self._over(row, now, listed)]

        def write(conn: Connection) -> None:
            for episode_id in over:
                row = episodes.get(conn, episode_id)
                if row is not None and row.episode.closed_at is None and self._over(row, now, listed):
                    episodes.close(conn, episode_id, now.timestamp())

        if over:
            await self._store.write(write)

    def _over(self, row: episodes.EpisodeRow, now: datetime, listed: frozenset[str] | None) -> bool:
        if closes(row.episode, now, self.deciding.close_after):
            return True
        known = None if listed is None else row.episode.fingerprint in listed
        return expires(
            row.episode,
            now,
            listed=known,
            expires_after=self._expires_after,
            repeat_interval=self._repeat_interval,
        )

    async def _take_apart(self, delivery: Delivery) -> None:
        """Decide about the next alerts of a delivery. One that can't be read is set aside; one alert that can't be
        decided is skipped, so that neither holds up what comes after it."""
        alerts = await self._alerts(delivery)
        if alerts is None:
            return
        chunk = alerts[delivery.next_alert : delivery.next_alert + CHUNK]
        try:
            await self._decide(delivery, chunk, last=delivery.next_alert + len(chunk) >= len(alerts))
        except _Overtaken:
            log.info("a delivery was taken by another", action="dispatcher_overtaken", delivery=delivery.delivery_id)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("a part of a delivery failed", action="dispatcher_failed", delivery=delivery.delivery_id)
            self._count_failure()
            await self._one_by_one(delivery, chunk, total=len(alerts))

    async def _one_by_one(self, delivery: Delivery, chunk: Sequence[Alert], *, total: int) -> None:
        for at, alert in enumerate(chunk, start=delivery.next_alert):
            part = Delivery(
                delivery_id=delivery.delivery_id,
                source=delivery.source,
                received_at=delivery.received_at,
                body=b"",
                next_alert=at,
            )
            try:
                await self._decide(part, [alert], last=at + 1 >= total)
            except (StoreUnavailable, _Overtaken):
                raise
            except Exception as error:
                text = f"alert {at} ({alert.fingerprint}) could not be decided: {type(error).__name__}"
                log.exception("an alert was skipped", action="alert_skipped", fingerprint=alert.fingerprint)
                await self._store.write(partial(_skip, part=part, total=total, text=text))

    async def _alerts(self, delivery: Delivery) -> Sequence[Alert] | None:
        """The alerts of a body, read once for all its parts; None when it can't be read."""
        if self._parsed is not None and self._parsed.delivery_id == delivery.delivery_id:
            return self._parsed.alerts
        try:
            if len(delivery.body) > _PARSE_ASIDE_BYTES:
                alerts = await asyncio.to_thread(self._alerts_of, delivery.body)
            else:
                alerts = self._alerts_of(delivery.body)
        except _REFUSALS as error:
            text = f"{type(error).__name__}: {error}"
            log.warning("a delivery can't be read", action="delivery_bad", delivery=delivery.delivery_id, error=text)
            await self._store.write(lambda conn: deliveries.mark_bad(conn, delivery.delivery_id, text))
            return None
        self._parsed = _Parsed(delivery_id=delivery.delivery_id, alerts=alerts)
        return alerts

    async def _decide(self, delivery: Delivery, chunk: Sequence[Alert], *, last: bool) -> None:
        incoming = [Incoming(alert=alert, delivery_id=delivery.delivery_id) for alert in chunk]
        deciding = self.deciding
        gathered = await gather(self._store, self._sources, incoming, deciding, self._now())
        move_on = deliveries.finish if last else deliveries.advance

        def act(conn: Connection, moves: Moves) -> list[Decision]:
            now = self._now()
            found = _decide_all(conn, moves, incoming, deciding, gathered, now)
            next_alert = delivery.next_alert + len(chunk)
            if not move_on(conn, delivery.delivery_id, expected=delivery.next_alert, next_alert=next_alert):
                raise _Overtaken
            return found

        self._count(await write_moves(self._store, self._acting, act))

    async def _recheck(self) -> None:
        now = self._now()
        due = await self._store.read(lambda conn: episodes.due(conn, now, limit=CHUNK))
        try:
            await self._decide_again(due)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("rechecks failed", action="dispatcher_failed")
            self._count_failure()
            for row in due:
                await self._decide_one_again(row)

    async def _decide_one_again(self, row: episodes.EpisodeRow) -> None:
        try:
            await self._decide_again([row])
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("a recheck was put off", action="alert_skipped", fingerprint=row.episode.fingerprint)
            later = self._now() + _PUT_OFF_S
            await self._store.write(partial(episodes.note, episode_id=row.episode.episode_id, recheck_at=later))

    async def _decide_again(self, due: Sequence[episodes.EpisodeRow]) -> None:
        if not due:
            return
        incoming = [Incoming(alert=row.alert, recheck_of=row.episode.episode_id) for row in due]
        deciding = self.deciding
        gathered = await gather(self._store, self._sources, incoming, deciding, self._now())

        def act(conn: Connection, moves: Moves) -> list[Decision]:
            return _decide_all(conn, moves, incoming, deciding, gathered, self._now())

        self._count(await write_moves(self._store, self._acting, act))

    async def _pause_s(self) -> float:
        """Until the next episode is due, at most the poll time."""
        try:
            due = await self._store.read(episodes.next_recheck)
        except StoreUnavailable:
            return POLL_S
        return POLL_S if due is None else min(POLL_S, max(0.05, due - self._now()))

    def _count(self, found: Sequence[Decision]) -> None:
        for decision in found:
            if self._metrics is not None:
                self._metrics.decisions.labels(decision.verdict.value, decision.reason.value).inc()
            key = (decision.job_id, decision.policy)
            same = self._said.get(key) == decision.reason
            self._said[key] = decision.reason
            if len(self._said) > _MOST_SAID:
                del self._said[next(iter(self._said))]
            # What is asked again every few seconds, all night, is one line until the answer changes.
            level = log.debug if same and decision.verdict is Verdict.WAIT else log.info
            level(
                "decided",
                action="decided",
                verdict=decision.verdict.value,
                reason=decision.reason.value,
                policy=decision.policy,
                job_id=decision.job_id,
            )

    def _count_failure(self) -> None:
        if self._metrics is not None:
            self._metrics.stage_failures.labels("dispatcher").inc()

    def _now(self) -> float:
        return self._clock.now().astimezone(UTC).timestamp()


def _decide_all(
    conn: Connection, moves: Moves, incoming: Sequence[Incoming], deciding: Deciding, gathered: Gathered, now: float
) -> list[Decision]:
    jobs = known_jobs(conn, now)
    newest = Newest(conn, incoming)
    found = (decide_one(conn, moves, item, newest, jobs, deciding, gathered, now) for item in incoming)
    return [decision for decision in found if decision is not None]


def _skip(conn: Connection, *, part: Delivery, total: int, text: str) -> None:
    """Past one alert that can't be decided; the delivery says so."""
    at = part.next_alert
    move_on = deliveries.finish if at + 1 >= total else deliveries.advance
    move_on(conn, part.delivery_id, expected=at, next_alert=at + 1)
    deliveries.note_error(conn, part.delivery_id, text)
