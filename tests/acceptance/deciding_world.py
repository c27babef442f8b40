"""A real store and a real dispatcher with a clock that tests move, for tests of deciding.

with World(tmp_path) as world:
    world.job("j1", uuid="GPU-1")
    world.deliver(world.firing("GpuMemoryNearlyFull", uuid="GPU-1"))
    world.remediations()
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Table, select, update

from tunewarden.adapters.policy_file import load_policies
from tunewarden.adapters.store import deliveries, jobs, tables
from tunewarden.adapters.store.engine import Store
from tunewarden.api.wire import alerts_of
from tunewarden.domain.choice import Rules
from tunewarden.domain.evidence import Answer
from tunewarden.domain.job import Gpu, Job, JobState
from tunewarden.pipeline.deciding import Deciding
from tunewarden.pipeline.diagnosing import Diagnosing
from tunewarden.pipeline.dispatcher import Dispatcher
from tunewarden.pipeline.gathering import Sources
from tunewarden.pipeline.moves import Acting
from tunewarden.pipeline.telling import TellTargets
from tunewarden.shipped import shipped_dir

START = datetime(2026, 12, 1, 3, 0, tzinfo=UTC)
GIB = 1024**3


class MovedClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - START).total_seconds() + 1000.0

    def move(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


class SaidPrometheus:
    """Answers what the test says. `holds` maps a piece of an expression to whether it holds; others have no data."""

    def __init__(self, holds: Mapping[str, bool] | None = None, *, age_s: float = 1.0) -> None:
        self.holds = dict(holds or {})
        self.age_s = age_s
        self.values: dict[str, float] = {}  # by piece of an expression: its number
        self.asked: list[str] = []

    async def ask_all(self, exprs: Iterable[str]) -> Mapping[str, Answer]:
        asked = list(exprs)
        self.asked += asked
        found = {
            expr: Answer(holds=holds, age_s=self.age_s)
            for expr in asked
            for piece, holds in self.holds.items()
            if piece in expr
        }
        numbers = {
            expr: Answer(holds=True, age_s=self.age_s, value=value)
            for expr in asked
            for piece, value in self.values.items()
            if expr.startswith(piece)
        }
        return found | numbers

    async def scrape_interval_s(self) -> float:
        return 15.0


class SaidAlertmanager:
    """Lists the fingerprints that the test says."""

    def __init__(self, *fingerprints: str) -> None:
        self.listed = frozenset(fingerprints)

    async def firing(self) -> frozenset[str]:
        return self.listed


PRESSURE = {"predict_linear": True, 'gpu:memory_used:ratio{uuid="GPU-1"} > 0.95': True}


class World:
    """One store, one dispatcher."""

    def __init__(self, folder: Path, *, prometheus: SaidPrometheus | None = None, **settings: Any) -> None:
        self.clock = MovedClock()
        self.prometheus = SaidPrometheus(PRESSURE) if prometheus is None else prometheus
        self.store = Store(folder / "store" / "tunewarden.db")
        policies = settings.pop("policies", None) or load_policies([shipped_dir("rules") / "policies"])
        self.alertmanager = settings.pop("alertmanager", None)
        deciding = Deciding(policies=policies, rules=Rules(enforce=settings.pop("enforce", False)), **settings)
        self.dispatcher = Dispatcher(
            self.store,
            self.clock,
            alerts_of,
            deciding,
            sources=Sources(
                prometheus=self.prometheus,
                alertmanager=self.alertmanager,
                diagnose=Diagnosing(self.prometheus),
            ),
            acting=Acting(tell=TellTargets(targets=("ops",))),
        )
        self.loop = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.close()
        self.loop.close()

    @property
    def now(self) -> float:
        return self.clock.now().timestamp()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(work)

    def write(self, work: Callable[[Connection], Any]) -> Any:
        return self.store.write_now(work)

    def job(self, job_id: str, *, uuid: str | None = "GPU-1", index: int = 0, **changes: Any) -> Job:
        """Register a running job with one card, and a heartbeat of it."""
        card = None if uuid is None else (Gpu(uuid=uuid, index=index),)
        values: dict[str, Any] = {
            "job_id": job_id,
            "name": f"lora-{job_id}",
            "host_id": "h1",
            "node": "gpu-node-1",
            "generation": 1,
            "state": JobState.RUNNING,
            "gpus": card,
            "host_gpus": card or (),
            "can": frozenset({"save", "stop", "resume"}),
            "registered_at": self.clock.now() - timedelta(hours=1),
            "seen_at": self.clock.now(),
        }
        job = Job(**(values | changes))
        self.write(lambda conn: jobs.upsert(conn, job))
        return job

    def heartbeat(
        self, job_id: str, *, used: float = 0.97, processes: Sequence[Mapping[str, Any]] = (), **job: Any
    ) -> None:
        """The newest heartbeat of a job: a 24 GiB card that is `used` full."""
        card = {
            "uuid": "GPU-1",
            "index": 0,
            "memory_used": int(24 * GIB * used),
            "memory_free": 24 * GIB - int(24 * GIB * used),
            "utilization": 98.0,
            "processes": list(processes),
        }
        body = {"protocol": 1, "generation": 1, "state": "running", "gpus": [card], "job": {"step": 120, **job}}
        self.write(lambda conn: jobs.seen(conn, job_id, seen_at=self.now, sample=body))

    def alert(self, name: str, *, status: str = "firing", starts: float = 0.0, **labels: str) -> dict[str, Any]:
        """One alert of a body; `starts` in seconds after now. A fingerprint comes from its labels."""
        at = self.clock.now() + timedelta(seconds=starts)
        ends = at.isoformat() if status == "resolved" else "0001-01-01T00:00:00Z"
        return {
            "status": status,
            "labels": {"alertname": name, "severity": "warning", **labels},
            "annotations": {"description": "97 % of the memory is in use"},
            "startsAt": (at if status == "firing" else at - timedelta(minutes=3)).isoformat(),
            "endsAt": ends,
            "generatorURL": "http://prometheus.example:9090/graph",
        }

    def deliver(self, *alerts: Mapping[str, Any], body: bytes | None = None, look: bool = True) -> None:
        """Store a body as the receiver does, and let the dispatcher look."""
        raw = body if body is not None else json.dumps({"version": "4", "alerts": list(alerts)}).encode()
        self.write(lambda conn: deliveries.add(conn, source="alertmanager", received_at=self.now, body=raw))
        if look:
            self.look()

    def look(self) -> None:
        self.run(self.dispatcher.look())

    def pass_time(self, seconds: float) -> None:
        """Move the clock, keep the heartbeats fresh, and look."""
        self.clock.move(seconds)
        self.write(lambda conn: conn.execute(update(tables.jobs).values(seen_at=self.now)))
        self.look()

    def rows(self, table: Table) -> list[dict[str, Any]]:
        return self.store.read_now(lambda conn: [dict(row) for row in conn.execute(select(table)).mappings()])

    def remediations(self) -> list[dict[str, Any]]:
        return self.rows(tables.remediations)

    def decisions(self) -> list[tuple[str, str]]:
        return [(row["verdict"], row["reason"]) for row in self.rows(tables.decisions)]

    def messages(self) -> list[tuple[str, str]]:
        return [(row["kind"], row["payload"]["reason"]) for row in self.rows(tables.outbox)]
