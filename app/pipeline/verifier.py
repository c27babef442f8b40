"""The verifier: watches a new generation until it can say whether the job recovered, and goes back at most once."""

import asyncio
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import structlog
from sqlalchemy import Connection

from tunewarden.adapters.store import remediations
from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.job_now import JobNow, job_now
from tunewarden.adapters.store.remediations import StaleClaim
from tunewarden.domain.evidence import Answer
from tunewarden.domain.job import JobState
from tunewarden.domain.order import HostCheck
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, InvalidTransition, Remediation, State
from tunewarden.domain.sample import Heartbeat
from tunewarden.domain.verification import Evidence, Finding, Recovery, long_enough, verdict
from tunewarden.errors import Permanent, Retryable, StoreUnavailable
from tunewarden.pipeline.moves import REMEDIATIONS_TOPIC, Acting, Moves, write_moves
from tunewarden.pipeline.rollback import roll_back
from tunewarden.ports import Clock

log = structlog.get_logger(__name__)

POLL_S = 1.0
_FRESH_HEARTBEATS = 3
_VERIFYING = frozenset({State.VERIFYING})
_OPERATORS = {">": operator.gt, "<": operator.lt}
_EVENTS = {
    Recovery.RECOVERED: Event.RECOVERED,
    Recovery.RUNNING_NOT_RECOVERED: Event.STILL_FULL,
    Recovery.BROKEN: Event.DIED,
    Recovery.UNKNOWN: Event.NO_DATA,
    Recovery.SUPERSEDED: Event.SUPERSEDED,
}


class Asks(Protocol):
    """Prometheus, as the verifier needs it."""

    async def ask(self, expr: str) -> Answer:
        """Raises Retryable or Permanent when it can't be asked."""
        ...


class NoPrometheus:
    """No Prometheus is set: an expectation by PromQL can't be measured, so it stays unknown."""

    async def ask(self, expr: str) -> Answer:  # noqa: ARG002 - the port's name
        return Answer(holds=False, age_s=None)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The steps of a new generation as they were first seen. Times in epoch seconds of our clock."""

    generation: int
    first_step: int
    first_step_at: float
    step: int
    step_at: float


class Verifier:
    """One a service. `heartbeat_s`: how often agents send; `max_age_s`: how old an answer of Prometheus may be."""

    def __init__(
        self,
        store: Store,
        acting: Acting,
        clock: Clock,
        prometheus: Asks,
        *,
        heartbeat_s: float = 5.0,
        max_age_s: float = 30.0,
        poll_s: float = POLL_S,
    ) -> None:
        self._store, self._acting, self._clock, self._prometheus = store, acting, clock, prometheus
        self._heartbeat_s, self._max_age_s, self._poll_s = heartbeat_s, max_age_s, poll_s
        self._seen: dict[str, Seen] = {}
        self._listening_since = clock.monotonic()

    async def run(self, stopping: asyncio.Event) -> None:
        """Look at every generation under watch until `stopping` is set."""
        with self._store.subscribe(REMEDIATIONS_TOPIC) as woken:
            while not stopping.is_set():
                try:
                    await self.look()
                except StoreUnavailable as error:
                    log.warning("the store is away", action="verifier_waits", error=str(error))
                except Exception:
                    log.exception("one look failed", action="verifier_failed")
                await woken.wait(self._poll_s)

    async def look(self) -> None:
        """Take fresh evidence of each, and write down what can be said now."""
        now = self._now()
        watched = await self._store.read(lambda conn: _watched(conn, now))
        open_ids = {each.remediation_id for each, _ in watched}
        self._seen = {key: seen for key, seen in self._seen.items() if key in open_ids}
        for remediation, job in watched:
            try:
                await self._judge(remediation, job, now)
            except StoreUnavailable:
                raise
            except Exception:
                log.exception("not judged", action="verify_failed", remediation_id=remediation.remediation_id)

    async def _judge(self, remediation: Remediation, job: JobNow, now: float) -> None:
        evidence = await self._evidence(remediation, job, now)
        finding = verdict(evidence, remediation.plan.expect, now)
        if finding.recovery is Recovery.UNKNOWN and not self._listened:
            return
        if finding.recovery is not Recovery.NOT_YET:
            measured = {
                "vram_now": _fullest(job, "memory_ratio"),
                "step_seconds_after": _step_seconds(remediation, job),
                **_newest_state(remediation, job),
            }
            await self._conclude(remediation, evidence, finding, measured)

    async def _evidence(self, remediation: Remediation, job: JobNow, now: float) -> Evidence:
        facts = remediation.facts
        generation = int(facts.get("launched_generation") or remediation.generation + 1)
        mine = job.sample.get("generation") == generation
        seen = await self._steps(remediation, generation, job.step if mine else None, now)
        evidence = Evidence(
            launched_at=float(facts.get("launched_at") or remediation.state_since),
            required_step=_whole(facts.get("receipt_step"), facts.get("resume_step")),
            resumed_step=_whole((job.sample.get("job") or {}).get("resumed_step")) if mine else None,
            counts_steps=bool(facts.get("counts_steps", True)),
            died=_cause_of_death(job, generation),
            first_step=seen.first_step if seen else None,
            first_step_at=seen.first_step_at if seen else None,
            step=seen.step if seen else None,
            step_at=seen.step_at if seen else None,
            fresh=mine and now - job.seen_at <= _FRESH_HEARTBEATS * self._heartbeat_s,
        )
        if evidence.died is None and long_enough(evidence, remediation.plan.expect, now):
            return replace(evidence, holds=await self._holds(remediation, job, fresh=evidence.fresh))
        return evidence

    async def _steps(self, remediation: Remediation, generation: int, step: int | None, now: float) -> Seen | None:
        """What is remembered of the steps. The first one is written down: a restart of the service must not move it."""
        key = remediation.remediation_id
        seen = self._seen.get(key) or _remembered(remediation, generation, now)
        if seen is not None and seen.generation != generation:
            seen = None
        if step is not None and seen is None:
            seen = Seen(generation=generation, first_step=step, first_step_at=now, step=step, step_at=now)
            await self._store.write(partial(_remember, remediation_id=key, seen=seen))
        elif step is not None and seen is not None and step > seen.step:
            seen = replace(seen, step=step, step_at=now)
        if seen is not None:
            self._seen[key] = seen
        return seen

    async def _holds(self, remediation: Remediation, job: JobNow, *, fresh: bool) -> bool | None:
        """Whether the alert's condition still holds; None: not measured. A job that was rolled back isn't asked."""
        expect = remediation.plan.expect
        if remediation.rolled_back:
            return False
        found: list[bool | None] = []
        if expect.expr:
            found.append(await self._asked(expect.expr))
        if expect.host is not None:
            found.append(_host_holds(expect.host, job) if fresh else None)
        if True in found:
            return True
        return None if None in found else False

    async def _asked(self, expr: str) -> bool | None:
        try:
            answer = await self._prometheus.ask(expr)
        except (Retryable, Permanent) as error:
            log.info("Prometheus can't be asked", action="verify_unmeasured", error=str(error))
            return None
        if answer.age_s is None or answer.age_s > self._max_age_s:
            return None
        return answer.holds

    async def _conclude(
        self, remediation: Remediation, evidence: Evidence, finding: Finding, measured: Mapping[str, Any]
    ) -> None:
        def act(conn: Connection, moves: Moves) -> None:
            now = self._now()
            current = remediations.load(conn, remediation.remediation_id)
            if current is None or current.state is not State.VERIFYING:
                return
            facts = {"step_now": evidence.step, "resumed_step": evidence.resumed_step, **measured}
            kept = {name: value for name, value in facts.items() if value is not None}
            if not roll_back(conn, moves, current, evidence, finding, now):
                event, reason = _end_of(current, finding)
                moves.move(conn, current, event, now, reason=reason, facts=kept)

        try:
            await write_moves(self._store, self._acting, act)
        except (StaleClaim, InvalidTransition) as error:
            log.info("moved meanwhile", action="move_lost", error=str(error))

    @property
    def _listened(self) -> bool:
        """False right after a start: that nothing is fresh then says nothing about the job."""
        return self._clock.monotonic() - self._listening_since >= _FRESH_HEARTBEATS * self._heartbeat_s

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _watched(conn: Connection, now: float) -> list[tuple[Remediation, JobNow]]:
    rows = remediations.due(conn, _VERIFYING, now)
    return [(each, job) for each in rows if (job := job_now(conn, each.job_id)) is not None]


def _cause_of_death(job: JobNow, generation: int) -> str | None:
    if job.generation < generation or job.state not in (JobState.ENDED, JobState.WAITING):
        return None
    return job.ended_cause or "unknown"


def _remembered(remediation: Remediation, generation: int, now: float) -> Seen | None:
    kept = remediation.facts.get("verify") or {}
    if kept.get("generation") != generation:
        return None
    first = int(kept["first_step"])
    return Seen(
        generation=generation, first_step=first, first_step_at=float(kept["first_step_at"]), step=first, step_at=now
    )


def _remember(conn: Connection, *, remediation_id: str, seen: Seen) -> None:
    current = remediations.load(conn, remediation_id)
    if current is None or current.state is not State.VERIFYING:
        return
    kept = {"generation": seen.generation, "first_step": seen.first_step, "first_step_at": seen.first_step_at}
    remediations.write(conn, current, replace(current, facts={**current.facts, "verify": kept}))


def _newest_state(remediation: Remediation, job: JobNow) -> dict[str, Any]:
    """The newest state that the new generation itself has written; empty when it has told of none."""
    said = job.sample.get("job") or {}
    generation = int(remediation.facts.get("launched_generation") or remediation.generation + 1)
    if job.sample.get("generation") != generation or said.get("last_state_step") is None:
        return {}
    return {"newest_step": said["last_state_step"], "newest_checkpoint": said.get("last_state_path")}


def _step_seconds(remediation: Remediation, job: JobNow) -> float | None:
    """The median time of a step of the new generation; None: it has told of none."""
    generation = int(remediation.facts.get("launched_generation") or remediation.generation + 1)
    if job.sample.get("generation") != generation:
        return None
    return Heartbeat.from_wire(job.sample).job.step_seconds


def _host_holds(check: HostCheck, job: JobNow) -> bool | None:
    """The check against the newest sample."""
    value = _fullest(job, check.metric)
    return None if value is None else _OPERATORS[check.op](value, check.value)


def _fullest(job: JobNow, metric: str) -> float | None:
    """The memory ratio of the job's fullest card, or the utilisation of its busiest; from the newest sample."""
    if not job.sample:  # it ended before its first heartbeat
        return None
    heartbeat = Heartbeat.from_wire(job.sample)
    own = {gpu.uuid for gpu in heartbeat.gpus_of_job or ()}
    values = [
        gpu.memory_ratio if metric == "memory_ratio" else _share(gpu.utilization)
        for gpu in heartbeat.gpus
        if gpu.uuid in own
    ]
    return max((value for value in values if value is not None), default=None)


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _end_of(remediation: Remediation, finding: Finding) -> tuple[Event, Reason]:
    """What runs with its old knobs again was not recovered by us, however well it runs."""
    if remediation.rolled_back and finding.recovery is Recovery.RECOVERED:
        return Event.STILL_FULL, Reason(str(remediation.facts.get("broken_reason") or Reason.STILL_FULL.value))
    return _EVENTS[finding.recovery], finding.reason


def _whole(*values: Any) -> int | None:
    """The first that is a number."""
    return next((int(value) for value in values if isinstance(value, int | float)), None)
