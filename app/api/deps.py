"""What the routers of the jobs API are given: bootstrap wires it, tests build it by hand."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tunewarden.adapters.sample_board import SampleBoard
from tunewarden.adapters.store.engine import Store
from tunewarden.api.auth import Guard
from tunewarden.domain.job import Job
from tunewarden.domain.job_event import JobEvent
from tunewarden.domain.order import Report
from tunewarden.domain.policy import StepKind
from tunewarden.ports import Clock


class Acts(Protocol):
    """What a request may do to remediations, each in one commit. The stages implement it: pipeline/acts.py."""

    async def register(self, job: Job, *, boot_id: str) -> bool:
        """Register a job; false when another host has this job_id."""
        ...

    async def report(self, job_id: str, report: Report) -> bool | None:
        """Store a report; whether the agent may go on; None when the job has no such order."""
        ...

    async def event(self, job_id: str, event: JobEvent, body: bytes) -> bool | None:
        """Store an event and what it means for the job; whether its `run` is to wait; None when the job is unknown."""
        ...

    async def manual(self, job_id: str, kind: StepKind, *, stop_now: bool, actor: str) -> Mapping[str, str]:
        """A person's save or stop. Raises Refused."""
        ...

    async def hold(self, job_id: str, *, held: bool, actor: str) -> None:
        """Hold a job, or release it."""
        ...

    async def cancel(self, remediation_id: str, *, actor: str) -> Mapping[str, Any] | None:
        """Cancel; None when there is no such remediation. Raises Refused when it is too late."""
        ...

    async def close_breaker(self, *, actor: str) -> bool:
        """Close the breaker; false when it was not open."""
        ...


@dataclass(frozen=True, kw_only=True)
class ApiDeps:
    """`stopping` is set in the moment of the signal, so that long polls end. `targets`: the first is the default."""

    store: Store
    acts: Acts
    board: SampleBoard
    clock: Clock
    guard: Guard
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    targets: tuple[str, ...] = ()
