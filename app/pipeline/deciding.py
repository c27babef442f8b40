"""One alert, decided and written down in the transaction that decides: episode, decision, remediation, messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from tunewarden.adapters.store import audit, budgets, decisions, episodes, remediations
from tunewarden.adapters.store.episodes import EpisodeRow
from tunewarden.domain.alert import Alert
from tunewarden.domain.budget import trips
from tunewarden.domain.choice import Rules, choose
from tunewarden.domain.decide import decide
from tunewarden.domain.decision import Decision, Verdict
from tunewarden.domain.episode import CLOSE_AFTER, DECIDING, EpisodeEvent, advance
from tunewarden.domain.evidence import Answer, Evidence, substitute, variables_of
from tunewarden.domain.footing import suggestion
from tunewarden.domain.history import History
from tunewarden.domain.job import Job
from tunewarden.domain.plan import Plan, plan_of
from tunewarden.domain.policy import DESTRUCTIVE, Policy
from tunewarden.domain.reason import Reason
from tunewarden.domain.resolution import Meant, resolve
from tunewarden.pipeline.moves import Moves
from tunewarden.pipeline.notices import breaker_opened, decision_notice
from tunewarden.pipeline.opening import begin, cancel
from tunewarden.pipeline.past import heartbeat_of, history_of, rung_facts

_SHORTEST_SILENCE_S = 15.0  # a busy host may be late by more than a short heartbeat
_NOT_WRITTEN = frozenset({EpisodeEvent.REPEATED, EpisodeEvent.STALE_DUPLICATE, EpisodeEvent.NOTHING})


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """What deciding needs besides the alert: the policies, and what the settings say."""

    policies: tuple[Policy, ...]
    rules: Rules = field(default_factory=Rules)
    node_aliases: Mapping[str, str] = field(default_factory=dict)
    close_after: timedelta = CLOSE_AFTER
    heartbeat_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What was asked outside the transaction. `listed`: the fingerprints that Alertmanager has now; None: not asked."""

    answers: Mapping[str, Answer] = field(default_factory=dict)
    max_age_s: float = 30.0
    listed: frozenset[str] | None = None
    diagnoses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by fingerprint


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One alert to be decided: of a delivery, or an episode that is looked at again (`recheck_of`)."""

    alert: Alert
    delivery_id: int | None = None
    recheck_of: int | None = None


class Newest:
    """The newest episodes of a part of a delivery, read at once; one that was changed meanwhile is read again."""

    def __init__(self, conn: Connection, incoming: Sequence["Incoming"]) -> None:
        self._conn = conn
        fingerprints = {item.alert.fingerprint for item in incoming if item.recheck_of is None}
        self._rows = episodes.newest_of(conn, fingerprints) if fingerprints else {}
        self._changed: set[str] = set()

    def get(self, fingerprint: str) -> EpisodeRow | None:
        if fingerprint in self._changed:
            return episodes.newest(self._conn, fingerprint)
        self._changed.add(fingerprint)
        return self._rows.get(fingerprint)


def decide_one(
    conn: Connection,
    moves: Moves,
    incoming: Incoming,
    newest: Newest,
    jobs: Sequence[Job],
    deciding: Deciding,
    gathered: Gathered,
    now: float,
) -> Decision | None:
    """Decide on the state as it is now, and write all that follows; None when the episode is over by now."""
    alert, at = incoming.alert, datetime.fromtimestamp(now, UTC)
    recheck_of = incoming.recheck_of
    seen = newest.get(alert.fingerprint) if recheck_of is None else episodes.get(conn, recheck_of)
    event = _event(seen, incoming, at, deciding, gathered)
    if event is None:
        return None
    meant = resolve(alert, jobs, deciding.node_aliases)
    judged = judge(conn, alert, event, seen, meant, deciding, gathered, at, low_on_space=moves.acting.low_on_space())
    noted = _noted(judged.decision, now)
    episode_id = episodes.apply(conn, event, seen, alert, now, delivery_id=incoming.delivery_id, noted=noted)
    if event in _NOT_WRITTEN or episode_id is None:
        return judged.decision
    return _carry_out(conn, moves, incoming, judged, episode_id, seen, now)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A decision and what it was made of."""

    decision: Decision
    policy: Policy | None
    meant: Meant
    history: History
    alert: Alert
    rules: Rules


def judge(
    conn: Connection,
    alert: Alert,
    event: EpisodeEvent,
    seen: EpisodeRow | None,
    meant: Meant,
    deciding: Deciding,
    gathered: Gathered,
    now: datetime,
    *,
    low_on_space: bool,
) -> Judged:
    """The decision, on the state that `conn` sees; nothing is written."""
    episode_id = seen.episode.episode_id if seen and event is not EpisodeEvent.OPENED else None
    policy, history, evidence = None, History(), Evidence()
    if event in DECIDING:
        policy, _ = choose(deciding.policies, alert, meant.job, now)
    if meant.job is not None and (policy is not None or event is EpisodeEvent.RESOLVED):
        history = history_of(conn, meant.job, policy, episode_id, now, low_on_space=low_on_space)
    if meant.job is not None and policy is not None:
        heartbeat, age_s = heartbeat_of(conn, meant.job.job_id, now.timestamp())
        evidence = Evidence(
            answers=gathered.answers,
            heartbeat=heartbeat,
            heartbeat_age_s=age_s,
            max_age_s=gathered.max_age_s,
            heartbeat_max_age_s=max(_SHORTEST_SILENCE_S, 3 * deciding.heartbeat_s),
        )
    decision = decide(
        alert,
        event=event,
        messaged=bool(seen and event is not EpisodeEvent.OPENED and seen.episode.messaged),
        meant=meant,
        policies=deciding.policies,
        history=history,
        evidence=evidence,
        rules=deciding.rules,
        now=now,
    )
    diagnosis = gathered.diagnoses.get(alert.fingerprint)
    if diagnosis and policy is not None and policy.diagnose:
        suggested = suggestion(diagnosis, meant.job, evidence.fresh_heartbeat)
        decision = replace(decision, facts={**decision.facts, **diagnosis, **suggested})
    return Judged(decision=decision, policy=policy, meant=meant, history=history, alert=alert, rules=deciding.rules)


def _event(
    seen: EpisodeRow | None, incoming: Incoming, now: datetime, deciding: Deciding, gathered: Gathered
) -> EpisodeEvent | None:
    if incoming.recheck_of is not None:
        return EpisodeEvent.RECHECKED if seen is not None and seen.episode.firing else None
    listed = None if gathered.listed is None else incoming.alert.fingerprint in gathered.listed
    episode = seen.episode if seen else None
    return advance(episode, incoming.alert, now, close_after=deciding.close_after, listed=listed)


def _carry_out(
    conn: Connection,
    moves: Moves,
    incoming: Incoming,
    judged: Judged,
    episode_id: int,
    seen: EpisodeRow | None,
    now: float,
) -> Decision:
    decision, remediation_id = judged.decision, None
    if decision.verdict is Verdict.ACT:
        remediation_id = _open(conn, judged, episode_id, now)
        if remediation_id is None:  # another transaction was first: the unique index says so
            decision = replace(decision, verdict=Verdict.WAIT, reason=Reason.JOINED, message=False, steps=())
    standing = judged.history.open
    if decision.reason is Reason.JOINED and standing is not None:
        remediation_id = standing.remediation_id
    if decision.verdict is Verdict.CANCEL and standing is not None:
        cancelled = cancel(conn, standing.remediation_id, now, reason=Reason.RESOLVED, moves=moves)
        decision = decision if cancelled else replace(decision, verdict=Verdict.IGNORE)
        remediation_id = standing.remediation_id
    if incoming.recheck_of is None or decision.verdict is Verdict.ACT or _new(decision, seen):
        delivery_id = incoming.delivery_id
        decisions.add(
            conn, decision, now=now, episode_id=episode_id, delivery_id=delivery_id, remediation_id=remediation_id
        )
    if decision is not judged.decision:
        episodes.note(conn, episode_id, **_noted(decision, now))
    judged = replace(judged, decision=decision)
    if decision.message:
        _tell(conn, moves, judged, episode_id, remediation_id, now)
    if decision.verdict is Verdict.ACT and remediation_id is not None:
        _begin(conn, moves, judged, remediation_id, now)
    return decision


def _open(conn: Connection, judged: Judged, episode_id: int, now: float) -> str | None:
    """The remediation row and its reservations; None when the job has an open one."""
    decision, policy, job = judged.decision, judged.policy, judged.meant.job
    if policy is None or job is None:
        return None
    numbers = {name: value for name, value in decision.facts.items() if isinstance(value, int | float)}
    plan = _plan(judged, policy, job)
    remediation_id = remediations.open_remediation(
        conn,
        job_id=job.job_id,
        generation=job.generation,
        policy=policy.name,
        policy_digest=policy.digest,
        group=policy.limits.group,
        plan=plan,
        reason=decision.reason,
        episode_id=episode_id,
        facts={"alertname": judged.alert.name, "numbers": numbers, **rung_facts(conn, decision, job, now)},
        now=now,
    )
    if remediation_id is not None:
        kinds = tuple(step.kind for step in plan.steps)
        group = policy.limits.group
        budgets.reserve(conn, job_id=job.job_id, remediation_id=remediation_id, group=group, kinds=kinds, now=now)
    return remediation_id


def _plan(judged: Judged, policy: Policy, job: Job) -> Plan:
    """The plan, with the expressions that will be asked later filled in: policies and labels may change meanwhile."""
    variables = variables_of(judged.alert, job, judged.meant.uuid, policy)
    plan = plan_of(policy, judged.decision.steps)
    expect = plan.expect
    filled = substitute(expect.expr, variables)
    if filled is None:  # no card is known: the host's own check must do, or nothing can be measured
        filled = "" if expect.host is not None else expect.expr
    exprs = tuple(expr for item in plan.confirm_exprs if (expr := substitute(item, variables)))
    return replace(plan, expect=replace(expect, expr=filled), confirm_exprs=exprs)


def _begin(conn: Connection, moves: Moves, judged: Judged, remediation_id: str, now: float) -> None:
    """The first order goes out with this commit. A cap that this one reaches opens the breaker for those after it."""
    decision, job = judged.decision, judged.meant.job
    audit.append(
        conn,
        at=now,
        action="decision.act",
        actor="service",
        job_id=decision.job_id,
        remediation_id=remediation_id,
        reason=decision.reason,
        detail={"policy": decision.policy, "steps": [step.kind.value for step in decision.steps], **decision.facts},
    )
    begin(conn, remediation_id, now, moves)
    replaces = any(step.kind in DESTRUCTIVE for step in decision.steps)
    tripped = trips(judged.history.spent, judged.rules.caps, replaces=replaces)
    if tripped is None or job is None or not budgets.open_breaker(conn, reason=tripped, now=now):
        return
    audit.append(conn, at=now, action="breaker.opened", actor="service", reason=tripped, detail={"by": remediation_id})
    notice = breaker_opened(tripped, job, remediation_id)
    moves.acting.tell(conn, notice, remediation_id=remediation_id, moment="breaker", now=now)


def _tell(
    conn: Connection, moves: Moves, judged: Judged, episode_id: int, remediation_id: str | None, now: float
) -> None:
    """Once: for a remediation, for each reason of an episode, and for all alerts after a job's last attempt."""
    decision = judged.decision
    if decision.verdict is Verdict.ACT and remediation_id is not None:
        short_id, moment = remediation_id, "decided"
    else:
        short_id, moment = f"E{episode_id}", decision.reason.value
    key = short_id
    if decision.reason is Reason.JOB_BUDGET_SPENT and judged.history.attempts:
        key = judged.history.attempts[-1].split(" ", 1)[0]
    notice = decision_notice(decision, judged.alert, judged.meant.job, short_id)
    moves.acting.tell(conn, notice, remediation_id=key, moment=moment, now=now)


def _noted(decision: Decision, now: float) -> dict[str, Any]:
    """What a decision leaves on its episode."""
    noted: dict[str, Any] = {"reason": decision.reason.value}
    if decision.reason is not Reason.RESOLVED:
        recheck_at = None if decision.recheck_s is None else now + decision.recheck_s
        noted |= {"recheck_at": recheck_at, "policy": decision.policy or None, "job_id": decision.job_id or None}
    return noted | ({"messaged": True} if decision.message else {})


def _new(decision: Decision, seen: EpisodeRow | None) -> bool:
    """A recheck that says the same again is no new row."""
    return seen is None or seen.reason != decision.reason.value
