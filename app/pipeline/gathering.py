"""What is asked before a decision, outside its transaction: Prometheus, Alertmanager, the cause of low utilisation."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog
from sqlalchemy import Connection

from tunewarden.adapters.store import jobs as job_rows
from tunewarden.adapters.store.engine import Store
from tunewarden.domain.alert import Alert
from tunewarden.domain.choice import choose, questions_for
from tunewarden.domain.episode import DECIDING, EpisodeEvent, advance, looks_stale
from tunewarden.domain.evidence import Answer
from tunewarden.domain.job import Job
from tunewarden.domain.resolution import Meant, resolve
from tunewarden.errors import Permanent, Retryable
from tunewarden.pipeline.deciding import Deciding, Gathered, Incoming, Newest

log = structlog.get_logger(__name__)

KNOWN_FOR_S = 24 * 3600.0  # an alert can still mean a job that ended so long ago
_DIAGNOSE_S = 5.0
_SCRAPES = 2
_SHORTEST_S = 5.0  # a busy Prometheus that scrapes each second is late by more than two of them


class AsksPrometheus(Protocol):
    """Prometheus, as deciding needs it."""

    async def ask_all(self, exprs: Iterable[str]) -> Mapping[str, Answer]:
        """The answers, within a bound; what fails is left out."""
        ...

    async def scrape_interval_s(self) -> float: ...


class ListsAlerts(Protocol):
    """Alertmanager, as episodes need it."""

    async def firing(self) -> frozenset[str]:
        """Raises Retryable or Permanent."""
        ...


class Diagnoses(Protocol):
    """Finds the cause of low utilisation: the facts `cause` and the numbers that decided."""

    async def __call__(self, alert: Alert, job: Job | None, uuid: str | None) -> Mapping[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Who can be asked. None: not set up; then there is no evidence of that kind."""

    prometheus: AsksPrometheus | None = None
    alertmanager: ListsAlerts | None = None
    diagnose: Diagnoses | None = None


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    questions: tuple[str, ...] = ()
    stale: bool = False
    diagnoses: tuple[tuple[Alert, Meant], ...] = field(default=())


async def gather(
    store: Store, sources: Sources, incoming: Sequence[Incoming], deciding: Deciding, now: float
) -> Gathered:
    """All that these alerts need, asked at once; each expression once, whoever asks for it."""
    wanted = await store.read(lambda conn: _wanted(conn, incoming, deciding, now))
    answers, interval_s, listed, diagnoses = await asyncio.gather(
        _answers(sources, wanted.questions),
        _interval(sources, wanted.questions),
        _listed(sources, wanted.stale),
        _diagnoses(sources, wanted.diagnoses),
    )
    return Gathered(
        answers=answers, max_age_s=max(_SHORTEST_S, _SCRAPES * interval_s), listed=listed, diagnoses=diagnoses
    )


def known_jobs(conn: Connection, now: float) -> list[Job]:
    """The jobs that an alert can mean."""
    return job_rows.recent(conn, ended_after=now - KNOWN_FOR_S)


async def listed_now(sources: Sources) -> frozenset[str] | None:
    """The fingerprints that Alertmanager has now; None when it isn't set up or can't be asked."""
    if sources.alertmanager is None:
        return None
    try:
        return await sources.alertmanager.firing()
    except (Retryable, Permanent) as error:
        log.warning("Alertmanager can't be asked", action="alertmanager_unasked", error=str(error))
        return None


def _wanted(conn: Connection, incoming: Sequence[Incoming], deciding: Deciding, now: float) -> _Wanted:
    jobs, at = known_jobs(conn, now), datetime.fromtimestamp(now, UTC)
    asked: dict[str, None] = {}
    stale, diagnoses = False, []
    newest = Newest(conn, incoming)
    for item in incoming:
        seen = None if item.recheck_of is not None else newest.get(item.alert.fingerprint)
        episode = seen.episode if seen else None
        stale |= looks_stale(episode, item.alert)
        event = EpisodeEvent.RECHECKED if item.recheck_of is not None else None
        event = event or advance(episode, item.alert, at, close_after=deciding.close_after, listed=True)
        if event not in DECIDING:
            continue
        meant = resolve(item.alert, jobs, deciding.node_aliases)
        asked |= dict.fromkeys(questions_for(item.alert, meant, deciding.policies, at))
        policy, _ = choose(deciding.policies, item.alert, meant.job, at)
        if policy is not None and policy.diagnose:
            diagnoses.append((item.alert, meant))
    return _Wanted(questions=tuple(asked), stale=stale, diagnoses=tuple(diagnoses))


async def _answers(sources: Sources, questions: Sequence[str]) -> Mapping[str, Answer]:
    if sources.prometheus is None or not questions:
        return {}
    return await sources.prometheus.ask_all(questions)


async def _interval(sources: Sources, questions: Sequence[str]) -> float:
    if sources.prometheus is None or not questions:
        return Gathered.max_age_s / _SCRAPES
    return await sources.prometheus.scrape_interval_s()


async def _listed(sources: Sources, stale: bool) -> frozenset[str] | None:
    return await listed_now(sources) if stale else None


async def _diagnoses(sources: Sources, wanted: Sequence[tuple[Alert, Meant]]) -> Mapping[str, Mapping[str, Any]]:
    diagnose = sources.diagnose
    if diagnose is None or not wanted:
        return {}

    async def one(alert: Alert, meant: Meant) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(_DIAGNOSE_S):
                return await diagnose(alert, meant.job, meant.uuid)
        except (Retryable, Permanent, TimeoutError) as error:
            log.warning("no diagnosis", action="diagnosis_failed", error=str(error))
            return {"cause": "unknown"}

    found = await asyncio.gather(*(one(alert, meant) for alert, meant in wanted))
    return {alert.fingerprint: facts for (alert, _), facts in zip(wanted, found, strict=True)}
