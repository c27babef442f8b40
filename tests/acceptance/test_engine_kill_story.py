"""A whole replacement with a kill in its middle: a scripted agent that keeps to the contract sees each order once."""

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from tests.acceptance.engine_seed import CHANGES, JOB, Case, seed
from tests.acceptance.killing_service import Nursery
from tests.jobs_service import TOKEN
from tunewarden.adapters.store.engine import Store, read_beside
from tunewarden.adapters.store.tables import orders, outbox, remediations
from tunewarden.domain.policy import Expectation, StepKind
from tunewarden.domain.remediation import Event, State, name_of

WITHIN_S = 20.0
EXPECT = Expectation(steps=1, verify_for=timedelta(0))
STORY = Case(
    source=State.DECIDED,
    event=Event.ORDER_ISSUED,
    plan=(StepKind.RUN_COMMAND, StepKind.SAVE, StepKind.REPLACE),
    end=State.RECOVERED,
    expect=EXPECT,
)
# The road of the story; the command's own four moments are in test_engine_kills.
ROAD = [
    name_of(source, event)
    for source, event in (
        (State.COMMANDING, Event.STEP_DONE),
        (State.DECIDED, Event.ORDER_ISSUED),
        (State.ORDERED, Event.ACCEPTED),
        (State.ACCEPTED, Event.PLANNED),
        (State.PLANNED, Event.SAVED),
        (State.SAVED, Event.STEP_DONE),
        (State.SAVED, Event.STOPPED),
        (State.HALTED, Event.LAUNCHED),
        (State.VERIFYING, Event.RECOVERED),
    )
]
# Every boundary alone is in test_engine_kills; here, after each commit, and before the two that can't be taken back.
KILLS = [f"{name}:after_outcome" for name in ROAD] + ["accepted:planned:before_intent", "halted:launched:before_intent"]
PHASES = {"save": ("accepted", "planned", "saved"), "replace": ("accepted", "planned", "saved", "stopped", "launched")}
DETAIL: dict[str, dict[str, Any]] = {
    "planned": {"changes": CHANGES},
    "saved": {"step": 10, "path": "/state-10"},
    "launched": {"generation": 2, "resume_step": 10},
}


@dataclass
class Agent(threading.Thread):
    """Polls, does each order once by its journal, reports with retries, sends heartbeats. It never dies."""

    url: str
    done: dict[str, str] = field(default_factory=dict)  # the journal: order_id -> kind
    launches: int = 0
    refused: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    faults: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.generation = 1

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        try:
            with httpx.Client(
                base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=httpx.Timeout(2.0)
            ) as client:
                while not self.stopping.is_set():
                    self._live(client)
        except BaseException as fault:  # noqa: BLE001 - raised again in the test
            self.faults.append(fault)

    def _live(self, client: httpx.Client) -> None:
        job = {"step": 10 + len(self.done) + int(time.monotonic() * 20), "resumed_step": 10}
        beat = {"protocol": 1, "generation": self.generation, "state": "running", "job": job}
        self._insist(client, "POST", f"/api/v1/jobs/{JOB}/heartbeat", beat)
        found = self._insist(client, "GET", f"/api/v1/jobs/{JOB}/order?generation={self.generation}&wait=0.1", None)
        if found is not None and found.status_code == 200 and found.json()["order_id"] not in self.done:
            self._carry_out(client, found.json())

    def _carry_out(self, client: httpx.Client, order: dict[str, Any]) -> None:
        self.done[order["order_id"]] = order["kind"]
        for phase in PHASES[order["kind"]]:
            if phase == "launched":
                self.launches += 1
                self.generation = 2
            body = {"protocol": 1, "generation": self.generation, "detail": DETAIL.get(phase, {})}
            path = f"/api/v1/jobs/{JOB}/orders/{order['order_id']}/reports/{phase}"
            answer = self._insist(client, "PUT", path, body)
            if phase == "planned" and answer is not None and not answer.json()["go"]:
                self.refused.append(order["order_id"])
                return

    def _insist(
        self, client: httpx.Client, method: str, path: str, body: dict[str, Any] | None
    ) -> httpx.Response | None:
        while not self.stopping.is_set():
            try:
                answer = client.request(method, path, json=body)
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            assert answer.status_code < 500, answer.text
            return answer
        return None


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "tunewarden.db"
    Store(path).close()
    return path


@pytest.mark.parametrize("kill", KILLS)
def test_a_replacement_survives_a_kill(kill: str, nursery: Nursery, migrated: Path, tmp_path: Path) -> None:
    """One command, one save, one replacement, one launch, one message, whenever the service dies."""
    path, marker = tmp_path / "tunewarden.db", tmp_path / "commands"
    shutil.copy(migrated, path)
    seed(path, STORY, marker)
    agent = Agent(nursery.url)
    nursery.start(path, kill=kill)
    agent.start()
    try:
        assert nursery.status(WITHIN_S) == -signal.SIGKILL, f"{kill} was never reached"
        nursery.start(path)
        ends = time.monotonic() + WITHIN_S
        while (state := read_beside(path, lambda conn: conn.scalar(select(remediations.c.state)))) != "recovered":
            assert time.monotonic() < ends, (state, agent.faults)
            time.sleep(0.02)
    finally:
        agent.stopping.set()
        agent.join()
        nursery.stop()

    assert agent.faults == []
    assert list(agent.done.values()) == ["save", "replace"]
    assert (agent.launches, agent.refused) == (1, [])
    assert marker.read_text() == "done\n"
    issued = read_beside(path, lambda conn: conn.execute(select(orders.c.kind, orders.c.state)).all())
    assert sorted(tuple(row) for row in issued) == [("replace", "ended"), ("save", "ended")]
    assert read_beside(path, lambda conn: [row.kind for row in conn.execute(select(outbox))]) == ["outcome"]
