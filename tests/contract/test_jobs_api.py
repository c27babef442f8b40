"""The jobs API over real HTTP and a real store: docs/reference/jobs-api.md, call by call."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection

from tests.jobs_service import TARGET, Service, Times, running
from tunewarden.adapters.store import audit, deliveries, jobs, orders, remediations
from tunewarden.adapters.store.tables import metadata, outbox
from tunewarden.api.wire import alerts_of
from tunewarden.domain.plan import Plan
from tunewarden.domain.policy import Step, StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import State
from tunewarden.pipeline.opening import begin

GPU = {"uuid": "GPU-11111111-2222-3333-4444-555555555555", "index": 0}
REPLACE = Plan(steps=(Step(kind=StepKind.REPLACE, knobs={"batch_size": "/2"}),))


@pytest.fixture(scope="module")
def one_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("service") / "tunewarden.db") as service:
        yield service


@pytest.fixture
def service(one_service: Service) -> Service:
    """The module's service with an empty store: a start takes longer than any of these tests."""

    def empty(conn: Connection) -> None:
        for table in reversed(metadata.sorted_tables):
            conn.execute(table.delete())

    one_service.store.write_now(empty)
    return one_service


def register(service: Service, job_id: str = "job-1", **changes: Any) -> httpx.Response:
    body = {
        "protocol": 1,
        "host_id": "host-1",
        "boot_id": "boot-1",
        "node": "gpu-node-1",
        "name": "cat-lora",
        "generation": 1,
        "run_id": f"{job_id}-g1",
        "state": "running",
        "enforce": False,
        "labels": {"owner": "li"},
        "trainer": "lora-yaml",
        "can": ["save", "stop", "resume"],
        "ranks": 1,
        "multi_node": False,
        "gpus": [GPU],
        "host_gpus": [GPU],
        "wall": time.time(),
        "a field of next year": 1,
        **changes,
    }
    return service.client.put(f"/api/v1/jobs/{job_id}", json=body)


def beat(service: Service, job_id: str = "job-1", **changes: Any) -> httpx.Response:
    body = {"protocol": 1, "generation": 1, "state": "running", "wall": time.time(), "job": {"step": 120}, **changes}
    return service.client.post(f"/api/v1/jobs/{job_id}/heartbeat", json=body)


def report(service: Service, order_id: str, phase: str, job_id: str = "job-1", **body: Any) -> httpx.Response:
    path = f"/api/v1/jobs/{job_id}/orders/{order_id}/reports/{phase}"
    return service.client.put(path, json={"protocol": 1, "generation": 1, **body})


def order(service: Service, job_id: str = "job-1", wait: float = 5.0) -> dict[str, Any] | None:
    answer = service.client.get(f"/api/v1/jobs/{job_id}/order", params={"generation": 1, "wait": wait})
    return answer.json() if answer.status_code == 200 else None


def event(service: Service, job_id: str = "job-1", **changes: Any) -> httpx.Response:
    body = {
        "protocol": 1,
        "event_id": f"{job_id}-g1-ended",
        "generation": 1,
        "kind": "ended",
        "cause": "cuda_oom",
        "exit_status": 1,
        "step": 130,
        "last_state_step": 100,
        "waits_s": 60.0,
        "evidence": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        **changes,
    }
    return service.client.post(f"/api/v1/jobs/{job_id}/events", json=body)


def open_automatic(service: Service, plan: Plan = REPLACE, job_id: str = "job-1") -> str:
    """As the dispatcher does it: insert and begin in one commit."""

    def act(conn: Connection) -> str:
        now = time.time()
        remediation_id = remediations.open_remediation(
            conn, job_id=job_id, generation=1, policy="vram-pressure", plan=plan, reason=Reason.POLICY_MATCHED, now=now
        )
        assert remediation_id is not None
        begin(conn, remediation_id, now)
        return remediation_id

    return service.store.write_now(act)


def state_of(service: Service, remediation_id: str) -> State:
    found = service.store.read_now(lambda conn: remediations.load(conn, remediation_id))
    assert found is not None
    return found.state


def until(condition: Callable[[], Any], within_s: float = 5.0) -> Any:
    """Look until it holds; fails after `within_s` seconds."""
    ends = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < ends, "not in time"
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YTpi"}])
@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/remediations", "/api/v1/breaker", "/api/v1/jobs/x/order"])
def test_every_call_needs_the_agent_token(service: Service, path: str, headers: dict[str, str]) -> None:
    """No token, a wrong one and another scheme get 401 and a fixed text."""
    answer = httpx.get(service.url + path, headers=headers)

    assert (answer.status_code, answer.json()) == (401, {"error": "wrong or missing token"})


def test_the_webhook_token_opens_nothing_here(service: Service) -> None:
    """A good token of the wrong part is told so."""
    answer = httpx.get(service.url + "/api/v1/jobs", headers={"Authorization": "Bearer webhook-token"})

    assert answer.status_code == 403


def test_a_job_registers_and_is_listed(service: Service) -> None:
    """Registering answers with the id; the list shows what was registered."""
    answer = register(service)
    listed = service.client.get("/api/v1/jobs").json()["jobs"]

    assert (answer.status_code, answer.json()) == (200, {"job_id": "job-1", "protocol": 1})
    assert [(job["job_id"], job["name"], job["state"], job["can"]) for job in listed] == [
        ("job-1", "cat-lora", "running", ["resume", "save", "stop"])
    ]


def test_registering_again_keeps_what_a_person_set(service: Service) -> None:
    """A job that is held stays held through its next launch."""
    register(service)
    service.client.post("/api/v1/jobs/job-1/hold")
    register(service, generation=2)
    job = service.client.get("/api/v1/jobs/job-1").json()

    assert (job["held"], job["generation"]) == (True, 2)


def test_the_same_name_on_a_host_lives_once(service: Service) -> None:
    """Of two jobs with one host and name the earlier one is over: the host's lock says so."""
    register(service, "job-1")
    remediation_id = open_automatic(service)
    register(service, "job-2")
    states = {job["job_id"]: job["state"] for job in service.client.get("/api/v1/jobs").json()["jobs"]}

    assert states == {"job-1": "ended", "job-2": "running"}
    assert state_of(service, remediation_id) is State.SUPERSEDED


def test_another_host_cannot_take_a_job_id(service: Service) -> None:
    """Two agents that claim one job: the first keeps it."""
    register(service)
    answer = register(service, host_id="host-2", name="other")

    assert answer.status_code == 409
    assert service.client.get("/api/v1/jobs/job-1").json()["name"] == "cat-lora"


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 0},
        {"generation": None},
        {"name": ""},
        {"labels": {"a": 1}},
        {"gpus": [{"uuid": ""}]},
        {"protocol": "x"},
    ],
)
def test_a_registration_of_the_wrong_shape_gets_422(service: Service, changes: dict[str, Any]) -> None:
    """What is not understood is refused with a fixed text, and nothing is stored."""
    answer = register(service, **changes)

    assert (answer.status_code, answer.json()) == (422, {"error": "wrong shape"})
    assert service.client.get("/api/v1/jobs").json() == {"jobs": []}


def test_a_heartbeat_of_an_unknown_job_gets_404(service: Service) -> None:
    """The agent is to register again."""
    assert beat(service).status_code == 404


def test_a_heartbeat_tells_of_orders_and_holds(service: Service) -> None:
    """`order` says that a long poll would find one, `held` that a person holds the job."""
    register(service)
    quiet = beat(service).json()
    open_automatic(service)
    service.client.post("/api/v1/jobs/job-1/release")
    busy = beat(service).json()

    assert (quiet, busy) == ({"order": False, "held": False}, {"order": True, "held": False})


def test_samples_of_a_heartbeat_reach_the_board(service: Service) -> None:
    """What /metrics shows is the newest heartbeat."""
    register(service)
    beat(service, gpus=[{**GPU, "memory_used": 95, "memory_free": 5}], gpus_of_job=[GPU])
    entry = service.wiring.board.newest("job-1", service.wiring.clock.monotonic())

    assert entry is not None
    assert entry.heartbeat.gpus[0].memory_ratio == 0.95


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"generation": 1}', b'{"generation": "x", "state": "running"}'])
def test_a_heartbeat_that_says_nothing_gets_422(service: Service, raw: bytes) -> None:
    """Broken samples are not guessed at."""
    register(service)

    assert service.client.post("/api/v1/jobs/job-1/heartbeat", content=raw).status_code == 422


def test_an_old_heartbeat_does_not_bring_an_ended_generation_back(service: Service) -> None:
    """One that was under way while the end was told changes nothing; the next generation's does."""
    register(service)
    event(service)
    beat(service)
    waiting = service.client.get("/api/v1/jobs/job-1").json()["state"]
    beat(service, generation=2)
    running_again = service.client.get("/api/v1/jobs/job-1").json()

    assert (waiting, running_again["state"], running_again["generation"]) == ("waiting", "running", 2)


def test_a_long_poll_gets_the_order_as_it_is_issued(service: Service) -> None:
    """It waits, and the commit of an order wakes it."""
    register(service)
    with ThreadPoolExecutor() as pool:
        polling = pool.submit(order, service)
        until(lambda: service.polled("job-1"))
        open_automatic(service)
        found = polling.result()

    assert found is not None
    assert (found["protocol"], found["job_id"], found["generation"]) == (1, "job-1", 1)
    assert (found["kind"], found["knobs"], found["save_first"]) == ("replace", {"batch_size": "/2"}, True)
    assert 59 < found["expires_in_s"] <= 60


def test_a_long_poll_without_an_order_ends_with_204(service: Service) -> None:
    """After `wait` seconds."""
    register(service)
    begun = time.monotonic()
    answer = service.client.get("/api/v1/jobs/job-1/order", params={"generation": 1, "wait": 0.2})

    assert answer.status_code == 204
    assert 0.15 < time.monotonic() - begun < 1.5


def test_a_long_poll_ends_within_a_second_of_a_shutdown(tmp_path: Path) -> None:
    """A stopping service does not wait for its agents."""
    with running(tmp_path / "tunewarden.db") as service, ThreadPoolExecutor() as pool:
        register(service)
        path = service.url + "/api/v1/jobs/job-1/order"
        headers = dict(service.client.headers)
        polling = pool.submit(httpx.get, path, params={"generation": 1, "wait": 30}, headers=headers, timeout=20)
        until(lambda: service.polled("job-1"))
        begun = time.monotonic()
        service.stop()
        answer = polling.result()

    assert answer.status_code == 204
    assert time.monotonic() - begun < 1.0


def test_the_same_order_comes_again_with_the_rest_of_its_life(tmp_path: Path) -> None:
    """Also from a service that was started again in between."""
    path = tmp_path / "tunewarden.db"
    with running(path) as service:
        register(service)
        open_automatic(service)
        first = order(service)
    with running(path) as service:
        second = order(service)

    assert first is not None and second is not None
    assert second["order_id"] == first["order_id"]
    assert second["expires_in_s"] < first["expires_in_s"]


def test_an_order_that_was_begun_is_not_handed_out_again(service: Service) -> None:
    """From the go-ahead on the agent's journal has it."""
    register(service)
    open_automatic(service)
    found = order(service)
    assert found is not None
    report(service, found["order_id"], "planned")

    assert order(service, wait=0.1) is None


def test_nobody_takes_an_order_in_time(tmp_path: Path) -> None:
    """It ends as refused: expired, and its planned report gets no go."""
    with running(tmp_path / "tunewarden.db", times=Times(order_expires_s=0.2)) as service:
        register(service)
        opened = service.client.post("/api/v1/jobs/job-1/save").json()
        until(lambda: state_of(service, opened["remediation_id"]) is State.REFUSED)
        late = report(service, opened["order_id"], "planned").json()
        entry = service.client.get(f"/api/v1/remediations/{opened['remediation_id']}").json()

    assert late == {"go": False}
    assert (entry["reason"], entry["attempts"][0]["outcome"]) == ("expired", "refused")


def test_a_replacement_runs_through_its_phases(service: Service) -> None:
    """Each report moves the remediation; what they told is kept for the message."""
    register(service)
    beat(service)
    remediation_id = open_automatic(service)
    found = order(service)
    assert found is not None
    order_id = found["order_id"]
    changes = [{"knob": "batch_size", "from": "4", "to": "2", "file": "x.yaml", "line": 3}]
    for phase, detail in (
        ("accepted", {}),
        ("planned", {"changes": changes, "diff": "-4\n+2", "config_path": "x.yaml"}),
        ("saved", {"step": 121, "path": "/abs/state-121", "seconds": 0.2}),
        ("stopped", {"exit_status": 0, "pids": [1], "unsaved_steps": 0}),
        ("launched", {"generation": 2, "pid": 2, "resume_step": 121}),
    ):
        assert report(service, order_id, phase, detail=detail).json() == {"go": True}
        wanted = {"launched": State.VERIFYING, "stopped": State.HALTED}.get(phase) or State(phase)
        until(lambda wanted=wanted: state_of(service, remediation_id) is wanted)
    facts = service.client.get(f"/api/v1/remediations/{remediation_id}").json()["facts"]

    assert (facts["changes"], facts["receipt_step"], facts["launched_generation"]) == (changes, 121, 2)
    lines = service.store.read_now(lambda conn: audit.newest(conn, job_id="job-1"))
    assert [line["detail"]["diff"] for line in lines if line["action"] == "order.planned"] == ["-4\n+2"]


def test_a_repeated_planned_report_gets_the_same_answer(service: Service) -> None:
    """The gate's answer is stored with the report, so that a lost answer can be asked for again."""
    register(service)
    remediation_id = open_automatic(service)
    found = order(service)
    assert found is not None
    first = report(service, found["order_id"], "planned").json()
    second = report(service, found["order_id"], "planned").json()

    assert (first, second) == ({"go": True}, {"go": True})
    assert state_of(service, remediation_id) is State.PLANNED


def test_a_cancel_before_the_plan_wins(service: Service) -> None:
    """The gate says no: the agent saves and stops nothing. And says it again."""
    register(service)
    remediation_id = open_automatic(service)
    found = order(service)
    assert found is not None
    report(service, found["order_id"], "accepted")
    cancelled = service.client.post(f"/api/v1/remediations/{remediation_id}/cancel")

    assert cancelled.status_code == 202
    assert report(service, found["order_id"], "planned").json() == {"go": False}
    assert report(service, found["order_id"], "planned").json() == {"go": False}
    assert state_of(service, remediation_id) is State.CANCELLED


def test_a_cancel_after_the_plan_is_too_late(service: Service) -> None:
    """From the go-ahead on the remediation runs to its end."""
    register(service)
    remediation_id = open_automatic(service)
    found = order(service)
    assert found is not None
    report(service, found["order_id"], "planned")
    answer = service.client.post(f"/api/v1/remediations/{remediation_id}/cancel")

    assert answer.status_code == 409
    assert state_of(service, remediation_id) is State.PLANNED


def test_cancel_and_plan_at_once_agree(service: Service) -> None:
    """Whoever commits first wins, and the other one is told so: never both, never neither."""
    for number in range(6):
        job_id = f"race-{number}"
        register(service, job_id, name=job_id)
        remediation_id = open_automatic(service, job_id=job_id)
        found = order(service, job_id)
        assert found is not None
        with ThreadPoolExecutor() as pool:
            planned = pool.submit(report, service, found["order_id"], "planned", job_id)
            cancelled = pool.submit(service.client.post, f"/api/v1/remediations/{remediation_id}/cancel")
            go, status = planned.result().json()["go"], cancelled.result().status_code
        state = state_of(service, remediation_id)

        assert (go, status, state) in [(True, 409, State.PLANNED), (False, 202, State.CANCELLED)]


def test_twenty_opens_at_once_are_one(service: Service) -> None:
    """At most one open remediation and one open order per job."""
    register(service)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: service.client.post("/api/v1/jobs/job-1/save").status_code, range(20)))
    found = service.client.get("/api/v1/remediations").json()["remediations"]

    assert sorted(answers) == [202] + [409] * 19
    assert len(found) == 1


def test_late_reports_are_kept_and_change_nothing(service: Service) -> None:
    """After the end the agent's word is evidence."""
    register(service)
    remediation_id = open_automatic(service)
    found = order(service)
    assert found is not None
    report(service, found["order_id"], "refused", reason="config_not_found", detail={"text": "no config"})
    until(lambda: state_of(service, remediation_id) is State.REFUSED)
    late = report(service, found["order_id"], "saved", detail={"step": 9})
    until(lambda: service.store.read_now(orders.orders_with_unapplied) == [])

    assert late.json() == {"go": False}
    assert state_of(service, remediation_id) is State.REFUSED


@pytest.mark.parametrize(("order_id", "job_id"), [("o-unknown", "job-1"), (None, "job-2")])
def test_a_report_about_no_order_of_the_job_gets_404(service: Service, order_id: str | None, job_id: str) -> None:
    """Neither an unknown order, nor another job's."""
    register(service)
    register(service, "job-2", name="other")
    open_automatic(service)
    found = order(service)
    assert found is not None

    assert report(service, order_id or found["order_id"], "accepted", job_id).status_code == 404


def test_an_unknown_phase_gets_422(service: Service) -> None:
    """Phases are a closed list."""
    register(service)

    assert report(service, "o-1", "finished").status_code == 422


def test_an_oom_end_is_stored_as_an_alert_and_the_run_waits(service: Service) -> None:
    """Event, job row and answer are one commit; the delivery reads as an alert of Alertmanager's does."""
    register(service)
    answer = event(service)
    delivery = service.store.read_now(deliveries.next_open)
    job = service.client.get("/api/v1/jobs/job-1").json()
    assert delivery is not None
    (alert,) = alerts_of(delivery.body)

    assert (answer.status_code, answer.json()) == (202, {"wait": True})
    assert (job["state"], job["ended_cause"]) == ("waiting", "cuda_oom")
    assert 58 < job["waits_s"] <= 60
    assert alert.labels == {
        "alertname": "TrainingJobEnded",
        "training_job_id": "job-1",
        "training_job": "cat-lora",
        "node": "gpu-node-1",
        "generation": "1",
        "cause": "cuda_oom",
    }
    assert (alert.annotations["step"], alert.annotations["last_state_step"]) == ("130", "100")


@pytest.mark.parametrize(
    ("facts", "kept"),
    [
        (
            {"tried_bytes": 2147483648, "fragmented": "yes"},
            {"fact_tried_bytes": "2147483648", "fact_fragmented": "yes"},
        ),
        ({"a": [1], "b": None, "c": True, "d": 2**60, "": "x", "e" * 65: "x", "f": "x" * 2000}, {"fact_f": "x" * 1024}),
        ({f"n{number}": number for number in range(40)}, {f"fact_n{number}": str(number) for number in range(32)}),
        ("no object", {}),
        (None, {}),
    ],
)
def test_the_facts_of_a_death_are_annotations_within_bounds(service: Service, facts: Any, kept: dict[str, str]) -> None:
    """Numbers and short texts; an agent is trusted, not unlimited, and an event is never refused for its facts."""
    register(service)
    event(service, facts=facts)
    delivery = service.store.read_now(deliveries.next_open)
    assert delivery is not None
    (alert,) = alerts_of(delivery.body)

    assert {name: text for name, text in alert.annotations.items() if name.startswith("fact_")} == kept


@pytest.mark.parametrize(
    ("host", "cpus"), [({"cpus": 16}, 16), ({"cpus": "16"}, None), ({"cpus": 0}, None), ([], None), ({}, None)]
)
def test_the_cpus_of_a_host_are_kept(service: Service, host: Any, cpus: int | None) -> None:
    """A registration is never refused for what only describes the host."""
    register(service, host=host)
    job = service.store.read_now(lambda conn: jobs.get(conn, "job-1"))

    assert job is not None
    assert job.cpus == cpus


def test_an_event_counts_once(service: Service) -> None:
    """The same event_id again gets the same answer and no second delivery."""
    register(service)
    answers = [event(service).json() for _ in range(3)]
    count = service.store.read_now(deliveries.count_open)

    assert (answers, count) == ([{"wait": True}] * 3, 1)


@pytest.mark.parametrize(
    ("cause", "labels", "state"),
    [
        ("finished", {}, "ended"),
        ("user_stop", {}, "ended"),
        ("killed", {}, "ended"),
        ("failed", {}, "ended"),
        ("cuda_oom", {"remediation": "off"}, "ended"),
        ("replaced", {}, "running"),
    ],
)
def test_only_an_oom_end_waits(service: Service, cause: str, labels: dict[str, str], state: str) -> None:
    """Nothing else is launched again, and what opted out neither; a replaced generation's job lives on."""
    register(service, labels=labels)
    answer = event(service, cause=cause)

    assert answer.json() == {"wait": False}
    assert service.client.get("/api/v1/jobs/job-1").json()["state"] == state


def test_a_held_job_does_not_wait(service: Service) -> None:
    """A person holds it: nothing automatic."""
    register(service)
    service.client.post("/api/v1/jobs/cat-lora/hold")

    assert event(service).json() == {"wait": False}


def test_a_jobs_own_end_supersedes_its_order(service: Service) -> None:
    """Also one that was begun: what the job does locally wins. An OOM end can then be decided anew."""
    register(service)
    remediation_id = open_automatic(service)
    found = order(service)
    assert found is not None
    report(service, found["order_id"], "planned")
    answer = event(service)

    assert answer.json() == {"wait": True}
    assert state_of(service, remediation_id) is State.SUPERSEDED
    assert service.store.read_now(lambda conn: remediations.open_of_job(conn, "job-1")) is None


def test_the_end_that_our_own_order_brought_supersedes_nothing(service: Service) -> None:
    """`replaced` comes before `launched`: the replacement goes on."""
    register(service)
    remediation_id = open_automatic(service)
    found = order(service)
    assert found is not None
    for phase in ("planned", "saved", "stopped"):
        report(service, found["order_id"], phase)
    event(service, cause="replaced", waits_s=None)
    until(lambda: state_of(service, remediation_id) is State.HALTED)
    report(service, found["order_id"], "launched", detail={"generation": 2})

    until(lambda: state_of(service, remediation_id) is State.VERIFYING)


def test_a_wait_that_nobody_answers_ends(service: Service) -> None:
    """After `waits_s` the job counts as ended, with its cause."""
    register(service)
    event(service, waits_s=0.2)
    until(lambda: service.client.get("/api/v1/jobs/job-1").json()["state"] == "ended")

    assert service.client.get("/api/v1/jobs/job-1").json()["ended_cause"] == "cuda_oom"


def test_an_order_for_a_waiting_job_only_plans_and_launches(service: Service) -> None:
    """Nothing is left to save or to confirm, and it expires with the wait."""
    register(service)
    event(service, waits_s=20)
    open_automatic(service)
    found = order(service)

    assert found is not None
    assert (found["after_oom"], found["save_first"], found["confirm"]) == (True, False, [])
    assert found["expires_in_s"] <= 20


def test_a_person_saves_a_job(service: Service) -> None:
    """By name; the audit has the actor; the agent's receipt ends it."""
    register(service)
    answer = service.client.post("/api/v1/jobs/cat-lora/save", headers={"X-Tunewarden-Actor": "li"})
    found = order(service)
    assert found is not None
    for phase in ("accepted", "planned", "saved"):
        report(service, found["order_id"], phase, detail={"step": 121} if phase == "saved" else {})
    until(lambda: state_of(service, answer.json()["remediation_id"]) is State.DONE)
    lines = service.store.read_now(lambda conn: audit.newest(conn, job_id="job-1"))
    rows = service.store.read_now(lambda conn: list(conn.execute(outbox.select())))

    assert answer.status_code == 202
    assert answer.json()["order_id"] == found["order_id"]
    assert ("job.save", "li") in [(line["action"], line["actor"]) for line in lines]
    assert [(row.target, row.payload["reason"]) for row in rows] == [(TARGET, "saved")]


@pytest.mark.parametrize(("now", "save_first", "lose_unsaved"), [(False, True, False), (True, False, True)])
def test_a_person_stops_a_job(service: Service, now: bool, save_first: bool, lose_unsaved: bool) -> None:
    """It saves first; with `now` it does not."""
    register(service)
    service.client.post("/api/v1/jobs/job-1/stop", json={"now": now})
    found = order(service)

    assert found is not None
    assert (found["kind"], found["save_first"], found["lose_unsaved"]) == ("stop", save_first, lose_unsaved)


@pytest.mark.parametrize(
    ("prepare", "action", "reason"),
    [
        ({"state": "ended"}, "save", "job_ended"),
        ({"state": "lost"}, "stop", "job_lost"),
        ({"can": []}, "save", "no_save_channel"),
        ({"can": []}, "stop", "no_save_channel"),
        ({"multi_node": True}, "stop", "multi_node"),
    ],
)
def test_what_a_person_cannot_have_is_refused_with_its_reason(
    service: Service, prepare: dict[str, Any], action: str, reason: str
) -> None:
    """409, and the job is left as it was."""
    register(service, **prepare)
    answer = service.client.post(f"/api/v1/jobs/job-1/{action}")

    assert (answer.status_code, answer.json()["reason"]) == (409, reason)
    assert service.client.get("/api/v1/remediations").json() == {"remediations": []}


def test_a_job_that_cannot_save_can_be_stopped_now(service: Service) -> None:
    """`--now` asks for no save, so none must be possible."""
    register(service, can=[])

    assert service.client.post("/api/v1/jobs/job-1/stop", json={"now": True}).status_code == 202


def test_a_persons_stop_supersedes_what_was_not_begun(service: Service) -> None:
    """The agent that had accepted the other order gets no go for it, and then finds the stop."""
    register(service)
    remediation_id = open_automatic(service)
    found = order(service)
    assert found is not None
    report(service, found["order_id"], "accepted")
    answer = service.client.post("/api/v1/jobs/job-1/stop")
    refused = report(service, found["order_id"], "planned").json()
    stop = order(service)

    assert (answer.status_code, refused) == (202, {"go": False})
    assert state_of(service, remediation_id) is State.SUPERSEDED
    assert stop is not None
    assert stop["order_id"] == answer.json()["order_id"]


def test_a_persons_stop_waits_for_what_was_begun(service: Service) -> None:
    """409: one order at a time."""
    register(service)
    open_automatic(service)
    found = order(service)
    assert found is not None
    report(service, found["order_id"], "planned")
    answer = service.client.post("/api/v1/jobs/job-1/stop")

    assert (answer.status_code, answer.json()["reason"]) == (409, "order_open")


def test_holding_a_job_takes_its_automatic_order_back(service: Service) -> None:
    """Nothing automatic until it is released."""
    register(service)
    remediation_id = open_automatic(service)
    service.client.post("/api/v1/jobs/job-1/hold")

    assert state_of(service, remediation_id) is State.CANCELLED
    assert order(service, wait=0.1) is None


def test_a_name_that_two_living_jobs_have_is_ambiguous(service: Service) -> None:
    """It is never guessed which one is meant."""
    register(service, "job-1")
    register(service, "job-2", host_id="host-2")
    answer = service.client.post("/api/v1/jobs/cat-lora/stop")

    assert (answer.status_code, answer.json()["reason"]) == (409, "ambiguous_target")


def test_a_job_that_is_not_there_gets_404(service: Service) -> None:
    """For people and for agents."""
    assert service.client.post("/api/v1/jobs/nobody/save").status_code == 404
    assert service.client.get("/api/v1/jobs/nobody/order").status_code == 404
    assert service.client.get("/api/v1/remediations/R-NOBODY").status_code == 404
    assert service.client.post("/api/v1/remediations/R-NOBODY/cancel").status_code == 404
    assert event(service).status_code == 404


def test_the_breaker_is_shown_and_closed_by_a_person(service: Service) -> None:
    """Closing what is closed does no harm; it is audited."""
    shown = service.client.get("/api/v1/breaker").json()
    closed = service.client.post("/api/v1/breaker/close", headers={"X-Tunewarden-Actor": "li"})

    assert (shown["open"], closed.status_code, closed.json()) == (False, 202, {"was_open": False})
    assert service.client.get("/api/v1/breaker").json()["closed_by"] == "li"


def test_a_test_message_goes_through_the_outbox(service: Service) -> None:
    """The answer says what became of it."""
    done = threading.Event()

    def deliver() -> None:
        until(lambda: service.store.read_now(lambda conn: list(conn.execute(outbox.select()))))
        service.store.write_now(lambda conn: conn.execute(outbox.update().values(state="sent")))
        done.set()

    thread = threading.Thread(target=deliver)
    thread.start()
    answer = service.client.post("/api/v1/messages/test", json={})
    thread.join()

    assert (answer.status_code, answer.json()) == (202, {"target": TARGET, "state": "sent"})


def test_a_test_message_needs_a_known_target(service: Service) -> None:
    """The error names those that are set."""
    answer = service.client.post("/api/v1/messages/test", json={"target": "nobody"})

    assert (answer.status_code, answer.json()) == (
        404,
        {"error": f"no such target; targets: {TARGET}; after a change of the settings start the service again"},
    )


def test_a_lost_job_makes_its_remediation_uncertain(tmp_path: Path) -> None:
    """A person is told, once, with the command that goes on; a heartbeat brings the job back."""
    with running(tmp_path / "tunewarden.db", times=Times(silence_s=0.3)) as service:
        register(service)
        remediation_id = open_automatic(service)
        until(lambda: state_of(service, remediation_id) is State.UNCERTAIN)
        lost = service.client.get("/api/v1/jobs/job-1").json()["state"]
        rows = service.store.read_now(lambda conn: list(conn.execute(outbox.select())))
        beat(service)
        back = service.client.get("/api/v1/jobs/job-1").json()["state"]

    assert (lost, back) == ("lost", "running")
    assert [(row.payload["reason"], row.payload["mention"]) for row in rows] == [("job_lost", True)]
    assert "tunewarden run --name cat-lora" in rows[0].payload["facts"]["resume_command"]


def test_nothing_personal_of_the_host_is_stored(service: Service) -> None:
    """An agent that sends argv, environment or paths by mistake: unknown fields are dropped at registration."""
    register(service, argv=["python", "--token=x"], env={"SECRET": "1"})
    job = service.store.read_now(lambda conn: jobs.get(conn, "job-1"))

    assert "SECRET" not in json.dumps(job, default=str)


def test_a_new_boot_of_the_host_ends_what_was_started_before(service: Service) -> None:
    """Nothing of an earlier boot can be alive: told once with the reason, and other hosts are left alone."""
    register(service, "job-1")
    register(service, "job-2", name="dog-lora", host_id="host-2")

    register(service, "job-3", name="next-run", boot_id="boot-2")

    jobs_now = service.store.read_now(lambda conn: conn.execute(metadata.tables["jobs"].select()).all())
    told = [row.payload["reason"] for row in service.store.read_now(lambda conn: conn.execute(outbox.select()).all())]
    states = {row.job_id: (row.state, row.ended_cause) for row in jobs_now}
    assert states == {
        "job-1": ("ended", "host_rebooted"),
        "job-2": ("running", None),
        "job-3": ("running", None),
    }
    assert told == ["host_rebooted"]
