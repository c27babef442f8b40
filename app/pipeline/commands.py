"""The run_command steps: intent, effect, outcome. What was killed in between is uncertain, and a person is told."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from tunewarden.adapters.command import CommandResult, environment_of, run_command
from tunewarden.adapters.store import jobs, remediations, steps
from tunewarden.adapters.store.engine import Store
from tunewarden.domain.advance import Begin, begin_of, done_reason, end_of_step, refusal_of
from tunewarden.domain.job import Job
from tunewarden.domain.policy import StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, Remediation, State, name_of
from tunewarden.pipeline.moves import Acting, Moves, write_moves
from tunewarden.pipeline.opening import begin
from tunewarden.ports import Clock

log = structlog.get_logger(__name__)

LEASE_S = 15.0
_NAME = name_of(State.DECIDED, Event.COMMAND_BEGUN)


@dataclass(frozen=True, kw_only=True)
class Intent:
    """A command that is about to run: its remediation under our lease, and the job that it is about."""

    remediation: Remediation
    job: Job | None


class Commands:
    """Runs the current step of one remediation. `own`: the service's environment, of which names are let through."""

    def __init__(
        self,
        store: Store,
        acting: Acting,
        clock: Clock,
        *,
        owner: str,
        own: Mapping[str, str],
        lease_s: float = LEASE_S,
    ) -> None:
        self._store, self._acting, self._clock = store, acting, clock
        self._owner, self._own, self._lease_s = owner, own, lease_s

    async def carry_out(self, remediation_id: str) -> None:
        """Commit the intent, run the command, commit the outcome with what follows."""
        intent = await write_moves(
            self._store, self._acting, lambda conn, moves: self._intend(conn, moves, remediation_id)
        )
        if intent is None:
            return
        held = intent.remediation
        if not await self._hold(held):  # paused past our lease: somebody else says what became of it
            return
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._keep(held))
            result = await self._run(intent)
            renewing.cancel()
        self._acting.boundary.reach(_NAME, "after_effect")
        await write_moves(self._store, self._acting, lambda conn, moves: self._end(conn, moves, held, result))
        self._acting.boundary.reach(_NAME, "after_outcome")

    def _intend(self, conn: Connection, moves: Moves, remediation_id: str) -> Intent | None:
        now = self._now()
        waiting = remediations.load(conn, remediation_id)
        if waiting is None or waiting.state is not State.DECIDED:
            return None
        if begin_of(waiting.plan.steps[waiting.step]) is not Begin.COMMAND:
            return None
        job = jobs.get(conn, waiting.job_id)
        refusal = refusal_of(waiting, job, low_on_space=False) if job else None
        if refusal is not None:
            moves.move(conn, waiting, refusal[0], now, reason=refusal[1])
            return None
        claimed = remediations.claim(conn, remediation_id, owner=self._owner, now=now, lease_s=self._lease_s)
        if claimed is None:
            return None
        moved = moves.move(conn, claimed, Event.COMMAND_BEGUN, now)
        kind = StepKind.RUN_COMMAND.value
        steps.begin_step(conn, remediation_id=remediation_id, step=moved.step, kind=kind, now=now)
        return Intent(remediation=moved, job=job)

    async def _run(self, intent: Intent) -> CommandResult:
        remediation = intent.remediation
        step = remediation.plan.steps[remediation.step]
        environment = environment_of(step.environment, self._own, facts_for_command(remediation, intent.job))
        result = await run_command(step.command, environment=environment, timeout_s=step.timeout.total_seconds())
        log.info(
            "command ended",
            action="command_ended",
            remediation_id=remediation.remediation_id,
            exit_status=result.exit_status,
            timed_out=result.timed_out,
        )
        return result

    def _end(self, conn: Connection, moves: Moves, held: Remediation, result: CommandResult) -> None:
        now = self._now()
        detail = {"exit_status": result.exit_status, "timed_out": result.timed_out, "output": result.output}
        outcome = Reason.COMMAND_DONE if result.ok else Reason.COMMAND_FAILED
        steps.end_step(
            conn, remediation_id=held.remediation_id, step=held.step, outcome=outcome.value, now=now, detail=detail
        )
        event = end_of_step(held) if result.ok else Event.COMMAND_FAILED
        reason = done_reason(held) if event is Event.PLAN_DONE else None if result.ok else Reason.COMMAND_FAILED
        step = held.step + 1 if event is Event.STEP_DONE else held.step
        moves.move(conn, held, event, now, reason=reason, step=step, lease_owner=None, lease_until=None)
        if event is Event.STEP_DONE:
            begin(conn, held.remediation_id, now, moves)

    async def _hold(self, held: Remediation) -> bool:
        now = self._now()
        return await self._store.write(lambda conn: remediations.renew(conn, held, now=now, lease_s=self._lease_s))

    async def _keep(self, held: Remediation) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            await self._hold(held)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def facts_for_command(remediation: Remediation, job: Job | None) -> dict[str, str]:
    """The variables that a command finds beside those that its policy lets through."""
    return {
        "REMEDIATION_ID": remediation.remediation_id,
        "REMEDIATION_POLICY": remediation.policy,
        "REMEDIATION_ALERT": str(remediation.facts.get("alertname", "")),
        "REMEDIATION_JOB_ID": remediation.job_id,
        "REMEDIATION_JOB_NAME": job.name if job else "",
        "REMEDIATION_NODE": job.node if job else "",
        "REMEDIATION_GENERATION": str(job.generation if job else remediation.generation),
    }
