"""What the store knows of the past, for one decision; read in the caller's transaction."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from tunewarden.adapters.store import budgets, decisions
from tunewarden.adapters.store import remediations as remediation_rows
from tunewarden.adapters.store.job_now import job_now
from tunewarden.adapters.store.tables import remediations, reservations
from tunewarden.domain.advance import may_cancel
from tunewarden.domain.budget import HOUR, Spent
from tunewarden.domain.decision import Decision
from tunewarden.domain.footing import RUNG
from tunewarden.domain.history import History, OpenRemediation, cools_down, settles
from tunewarden.domain.job import Job
from tunewarden.domain.plan import MANUAL_POLICY
from tunewarden.domain.policy import DESTRUCTIVE, Policy
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import ENDING_STATES, State
from tunewarden.domain.sample import Heartbeat

_COOLING = tuple(state.value for state in ENDING_STATES if cools_down(state))


def history_of(
    conn: Connection, job: Job, policy: Policy | None, episode_id: int | None, now: datetime, *, low_on_space: bool
) -> History:
    """The past of `job` as `policy` must see it. Without a policy (a resolved alert) only the open remediation."""
    standing = open_of(conn, job.job_id, episode_id)
    if policy is None:
        return History(open=standing)
    at = now.timestamp()
    ended_at = _ended_at(conn, job.job_id)
    saved_at = budgets.last_save_at(conn, job_id=job.job_id, policy=policy.name)
    link = None if episode_id is None else decisions.linked_to(conn, episode_id)
    since = at - policy.limits.window.total_seconds()
    return History(
        open=standing,
        ended_at=_moment(ended_at),
        settled=link is not None and not link.open and settles(link.state, link.reason),
        saved_at=_moment(saved_at),
        spent=Spent(
            replacements=budgets.replacements_of(conn, job_id=job.job_id, group=policy.limits.group, since=since),
            actions_last_hour=budgets.actions_since(conn, since=at - HOUR.total_seconds()),
            running_jobs=budgets.running_jobs(conn),
            jobs_acted_on=budgets.jobs_acted_on(conn),
        ),
        attempts=attempts_of(conn, job.job_id, policy.limits.group, since),
        **(rungs_of(conn, job.job_id) if any(step.ladder for step in policy.steps) else {}),
        breaker_open=budgets.breaker_state(conn).is_open,
        low_on_space=low_on_space,
    )


def open_of(conn: Connection, job_id: str, episode_id: int | None) -> OpenRemediation | None:
    """The open remediation of a job, and how this episode stands to it."""
    remediation = remediation_rows.open_of_job(conn, job_id)
    if remediation is None:
        return None
    link = None if episode_id is None else decisions.linked_to(conn, episode_id)
    firing = decisions.firing_of(conn, remediation.remediation_id)
    return OpenRemediation(
        remediation_id=remediation.remediation_id,
        state=remediation.state,
        cancellable=may_cancel(remediation, by_person=False),
        linked=link is not None and link.remediation_id == remediation.remediation_id,
        others_fire=bool(firing - {episode_id}),
    )


def attempts_of(conn: Connection, job_id: str, group: str, since: float) -> tuple[str, ...]:
    """The job's stops and replacements of the window, the oldest first: "R-7F3K2M broken (died_again)"."""
    query = (
        select(remediations.c.remediation_id, remediations.c.state, remediations.c.reason)
        .join(reservations, reservations.c.remediation_id == remediations.c.remediation_id)
        .where(
            reservations.c.job_id == job_id,
            reservations.c.equivalence_group == group,
            reservations.c.kind.in_([kind.value for kind in DESTRUCTIVE]),
            reservations.c.reserved_at > since,
        )
        .order_by(reservations.c.reservation_id)
    )
    return tuple(dict.fromkeys(f"{row.remediation_id} {row.state} ({row.reason})" for row in conn.execute(query)))


def rungs_of(conn: Connection, job_id: str) -> dict[str, frozenset[str]]:
    """The rungs that the job has been through, by whether they were carried out or could not be."""
    query = select(remediations.c.facts, remediations.c.state, remediations.c.reason).where(
        remediations.c.job_id == job_id, remediations.c.open.is_(False)
    )
    found: dict[str, set[str]] = {"rungs_taken": set(), "rungs_refused": set()}
    for row in conn.execute(query):
        rung, state = (row.facts or {}).get(RUNG), State(row.state)
        if isinstance(rung, str) and settles(state, Reason(row.reason)):
            found["rungs_refused" if state is State.REFUSED else "rungs_taken"].add(rung)
    return {name: frozenset(rungs) for name, rungs in found.items()}


def rung_facts(conn: Connection, decision: Decision, job: Job, now: float) -> dict[str, Any]:
    """Which remedy it is, so that it isn't tried twice; and how long a step took before it, to tell its real price."""
    rung = {RUNG: decision.facts[RUNG]} if RUNG in decision.facts else {}
    heartbeat, _ = heartbeat_of(conn, job.job_id, now)
    seconds = heartbeat.job.step_seconds if heartbeat and heartbeat.generation == job.generation else None
    return rung if seconds is None else {**rung, "step_seconds_before": seconds}


def heartbeat_of(conn: Connection, job_id: str, now: float) -> tuple[Heartbeat | None, float]:
    """The newest heartbeat of a job's agent, and its age in seconds since our receipt."""
    known = job_now(conn, job_id)
    if known is None or not known.sample:
        return None, 0.0
    try:
        return Heartbeat.from_wire(known.sample), max(0.0, now - known.seen_at)
    except ValueError:
        return None, 0.0


def _ended_at(conn: Connection, job_id: str) -> float | None:
    """Of the newest remediation that cooldowns count from.

    One that lost to the job or a person is none, and what a person asked for says nothing about the alerts.
    """
    query = select(remediations.c.ended_at).where(
        remediations.c.job_id == job_id,
        remediations.c.open.is_(False),
        remediations.c.state.in_(_COOLING),
        remediations.c.policy != MANUAL_POLICY,
    )
    return conn.execute(query.order_by(remediations.c.ended_at.desc()).limit(1)).scalar_one_or_none()


def _moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
