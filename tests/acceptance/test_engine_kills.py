"""kill -9 of the real service at every boundary of the transition table: nothing is lost, nothing is done twice."""

import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, select

from tests.acceptance.engine_seed import CASES, DETAILS, JOB, Case, seed
from tests.acceptance.killing_service import Nursery
from tests.jobs_service import TOKEN
from tunewarden.adapters.store.engine import Store, read_beside
from tunewarden.adapters.store.tables import audit, orders, outbox, remediations, steps
from tunewarden.domain.remediation import TRANSITIONS, Effect, Event, State, name_of, points_of, transition

WITHIN_S = 15.0

KILLS = [(case, point) for case in CASES for point in points_of(transition(*case.key))]


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


def test_every_transition_of_the_table_has_a_kill() -> None:
    """A new row of the table needs a case here, and a case needs a row."""
    table = Counter((row.source, row.event) for row in TRANSITIONS)
    cases = Counter(case.key for case in CASES)

    assert cases == table


@pytest.mark.parametrize(("case", "point"), KILLS, ids=[f"{name_of(*case.key)}:{point}" for case, point in KILLS])
def test_a_kill_loses_nothing_and_doubles_nothing(
    case: Case, point: str, nursery: Nursery, migrated: Path, tmp_path: Path
) -> None:
    """The killed service, started again, brings the remediation to where it belongs, by each row of the table once."""
    path, marker = tmp_path / "tunewarden.db", tmp_path / "commands"
    shutil.copy(migrated, path)
    remediation_id = seed(path, case, marker)
    nursery.start(path, kill=f"{name_of(*case.key)}:{point}", **case.times)
    try:
        tell(nursery, case, path, until_dead=True)
        assert nursery.status(WITHIN_S) == -signal.SIGKILL, f"{point} was never reached"
        nursery.start(path, **case.times)
        tell(nursery, case, path)
        wanted = end_of(case, point)
        until(lambda: read_beside(path, state_of) is wanted, path)
    finally:
        nursery.stop()

    read_beside(path, lambda conn: check(conn, case, point, remediation_id))
    assert commands_run(marker) == commands_wanted(case, point)


def end_of(case: Case, point: str) -> State:
    """A command that was killed between intent and outcome can't be told: a person must look."""
    unsure = transition(*case.key).effect is Effect.COMMAND and point in ("after_intent", "after_effect")
    inside = case.source is State.COMMANDING and point == "before_intent"  # its outcome was not written
    return State.UNCERTAIN if unsure or inside else case.end


def commands_wanted(case: Case, point: str) -> int:
    if "run_command" not in [kind.value for kind in case.plan] or case.event is Event.COMMAND_UNCERTAIN:
        return 0
    return 0 if case.event is Event.COMMAND_BEGUN and point == "after_intent" else 1


def commands_run(marker: Path) -> int:
    return len(marker.read_text().splitlines()) if marker.exists() else 0


def check(conn: Connection, case: Case, point: str, remediation_id: str) -> None:
    """What must hold in the store at the end."""
    moved = Counter(
        (row.detail["from"], row.action.removeprefix("remediation."), row.detail["step"])
        for row in conn.execute(select(audit).where(audit.c.action.like("remediation.%")))
        if "from" in row.detail
    )
    row = conn.execute(select(remediations)).one()
    attempts = [(each.step, each.attempt) for each in conn.execute(select(steps))]
    issued = conn.execute(select(orders)).all()
    told = Counter(each.dedup_key for each in conn.execute(select(outbox)))

    assert set(moved.values()) == {1}, moved
    assert len(attempts) == len(set(attempts))
    assert len(issued) == sum(step.kind != "run_command" for step in conn.execute(select(steps)))
    assert len([each for each in issued if each.state == "open"]) <= 1
    assert set(told.values()) <= {1}
    assert (f"{remediation_id}:outcome:ops" in told) is (not row.open)
    if end_of(case, point) is case.end:
        assert (case.source.value, case.event.value) in {key[:2] for key in moved}


def state_of(conn: Connection) -> State:
    return State(conn.execute(select(remediations.c.state)).scalar_one())


def tell(nursery: Nursery, case: Case, path: Path, *, until_dead: bool = False) -> None:
    """The agent's or a person's part: as an agent does, again and again until it is answered."""
    trigger = case.trigger
    with httpx.Client(base_url=nursery.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10.0) as client:
        calls: list[tuple[str, str, dict[str, Any]]] = []
        if trigger.report:
            order_id = read_beside(
                path, lambda conn: conn.scalar(select(orders.c.order_id).order_by(orders.c.issued_at))
            )
            detail = dict(DETAILS.get(trigger.report, {}))
            body = {"protocol": 1, "generation": 1, "detail": detail}
            calls.append(("PUT", f"/api/v1/jobs/{JOB}/orders/{order_id}/reports/{trigger.report}", body))
        if trigger.cancel:
            remediation_id = read_beside(
                path, lambda conn: conn.execute(select(remediations.c.remediation_id)).scalar()
            )
            calls.append(("POST", f"/api/v1/remediations/{remediation_id}/cancel", {}))
        if trigger.event:
            event = {"protocol": 1, "event_id": "e-1", "generation": 2, "cause": trigger.event, "waits_s": 60}
            calls.append(("POST", f"/api/v1/jobs/{JOB}/events", event))
        for beat in trigger.beats:
            calls.append(("POST", f"/api/v1/jobs/{JOB}/heartbeat", {"protocol": 1, "state": "running", **beat}))
        for method, url, body in calls:
            insist(client, nursery, method, url, body, until_dead=until_dead)


def insist(
    client: httpx.Client, nursery: Nursery, method: str, url: str, body: dict[str, Any], *, until_dead: bool
) -> None:
    """Retry what got no answer; a service that is to die may die instead of answering."""
    ends = time.monotonic() + WITHIN_S
    while time.monotonic() < ends:
        try:
            answer = client.request(method, url, json=body)
        except httpx.TransportError:
            if until_dead:
                return
            time.sleep(0.02)
            continue
        assert answer.status_code in (200, 202, 409), answer.text
        if method == "POST" and url.endswith("/heartbeat"):
            time.sleep(0.15)  # the next sample is another one: the verifier must have seen this
        return
    raise AssertionError("the service did not answer")


def until(condition: Any, path: Path) -> None:
    ends = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < ends, (read_beside(path, state_of), Path(str(path) + ".log").read_text()[-3000:])
        time.sleep(0.02)
