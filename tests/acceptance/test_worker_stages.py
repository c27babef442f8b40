"""Worker, verifier and watch behind the real API: a scripted agent behaves per the contract, a clock is not faked."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, update

from tests.jobs_service import Service, running
from tunewarden.adapters.store import budgets, orders, remediations
from tunewarden.adapters.store.tables import order_reports, outbox
from tunewarden.adapters.store.tables import remediations as remediations_table
from tunewarden.domain.evidence import Answer
from tunewarden.domain.order import HostCheck
from tunewarden.domain.plan import Plan
from tunewarden.domain.policy import Expectation, Step, StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Remediation, State
from tunewarden.errors import Retryable
from tunewarden.pipeline.opening import begin

GPU = {"uuid": "GPU-1", "index": 0}
FULL = {"gpus_of_job": [GPU], "gpus": [{**GPU, "memory_used": 97, "memory_free": 3}]}
ROOMY = {"gpus_of_job": [GPU], "gpus": [{**GPU, "memory_used": 50, "memory_free": 50}]}
HOST_CHECK = HostCheck(metric="memory_ratio", op=">", value=0.95)
QUICK = Expectation(host=HOST_CHECK, verify_for=timedelta(seconds=0.2), steps=5, deadline=timedelta(seconds=30))
REPLACE = Step(kind=StepKind.REPLACE, knobs={"batch_size": "/2"})
CHANGES = [{"knob": "batch_size", "from": "4", "to": "2", "file": "x.yaml", "line": 3}]


class ScriptedPrometheus:
    """Answers by a script; the last answer stays."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def ask(self, expr: str) -> Answer:
        self.asked.append(expr)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Agent:
    """Speaks docs/reference/jobs-api.md for one job."""

    def __init__(self, service: Service, job_id: str = "job-1") -> None:
        self.service, self.job_id, self.generation = service, job_id, 1
        self.register()

    def register(self) -> None:
        body = {
            "protocol": 1,
            "host_id": "host-1",
            "node": "gpu-node-1",
            "name": self.job_id,
            "generation": self.generation,
            "can": ["save", "stop", "resume"],
        }
        self._ok(self.service.client.put(f"/api/v1/jobs/{self.job_id}", json=body))

    def beat(self, step: int | None = None, resumed: int | None = None, **more: Any) -> None:
        job = {"step": step, "resumed_step": resumed}
        body = {"protocol": 1, "generation": self.generation, "state": "running", "job": job, **more}
        self._ok(self.service.client.post(f"/api/v1/jobs/{self.job_id}/heartbeat", json=body))

    def order(self) -> dict[str, Any]:
        path = f"/api/v1/jobs/{self.job_id}/order"
        answer = self.service.client.get(path, params={"generation": self.generation, "wait": 10})
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found

    def report(self, order_id: str, phase: str, **detail: Any) -> None:
        path = f"/api/v1/jobs/{self.job_id}/orders/{order_id}/reports/{phase}"
        body = {"protocol": 1, "generation": self.generation, "detail": detail}
        self._ok(self.service.client.put(path, json=body))

    def ended(self, cause: str, **more: Any) -> dict[str, Any]:
        body = {
            "protocol": 1,
            "event_id": f"{self.job_id}-g{self.generation}-ended",
            "generation": self.generation,
            "cause": cause,
            **more,
        }
        answer: dict[str, Any] = self._ok(
            self.service.client.post(f"/api/v1/jobs/{self.job_id}/events", json=body)
        ).json()
        return answer

    def replace_job(self, *, save: bool = True) -> dict[str, Any]:
        """Carry a replace order out, to the launch of the next generation."""
        order = self.order()
        self.report(order["order_id"], "accepted")
        self.report(order["order_id"], "planned", changes=CHANGES)
        if save:
            self.report(order["order_id"], "saved", step=100, path="/state-100")
            self.report(order["order_id"], "stopped", exit_status=0)
        self.generation += 1
        self.report(order["order_id"], "launched", generation=self.generation, resume_step=100)
        self.register()
        return order

    def _ok(self, answer: Any) -> Any:
        assert answer.is_success, answer.text
        return answer


def open_remediation(
    service: Service, *steps: Step, job_id: str = "job-1", expect: Expectation = QUICK, plan: Plan | None = None
) -> str:
    """As the dispatcher opens one."""

    def act(conn: Connection) -> str:
        now = time.time()
        remediation_id = remediations.open_remediation(
            conn,
            job_id=job_id,
            generation=1,
            policy="vram-pressure",
            plan=plan or Plan(steps=steps or (REPLACE,), expect=expect),
            reason=Reason.POLICY_MATCHED,
            now=now,
        )
        assert remediation_id is not None
        begin(conn, remediation_id, now)
        return remediation_id

    return service.store.write_now(act)


def load(service: Service, remediation_id: str) -> Remediation:
    found = service.store.read_now(lambda conn: remediations.load(conn, remediation_id))
    assert found is not None
    return found


def until(condition: Callable[[], Any], within_s: float = 15.0) -> Any:
    ends = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < ends, "not in time"
        time.sleep(0.01)
    return found


def ends_as(service: Service, remediation_id: str, state: State) -> Remediation:
    """Wait for an ending state and check that it is this one."""
    until(lambda: not load(service, remediation_id).open)
    found = load(service, remediation_id)
    assert found.state is state, (found.state, found.reason)
    return found


def over(service: Service, order_id: str) -> bool:
    found = service.store.read_now(lambda conn: orders.load(conn, order_id))
    return found is not None and found.state != orders.OPEN


def told(service: Service) -> list[dict[str, Any]]:
    rows = service.store.read_now(lambda conn: list(conn.execute(outbox.select().order_by(outbox.c.outbox_id))))
    return [row.payload for row in rows]


@contextmanager
def stages(tmp_path: Path, **more: Any) -> Iterator[Service]:
    with running(tmp_path / "tunewarden.db", **more) as service:
        yield service


def test_a_replaced_job_recovers(tmp_path: Path) -> None:
    """Receipt, resume, steps, and the condition is gone: one message says what changed and from where it goes on."""
    with stages(tmp_path) as service:
        agent = Agent(service)
        agent.beat(step=100)
        remediation_id = open_remediation(service)
        agent.replace_job()
        agent.beat(step=101, resumed=100, **ROOMY)
        until(lambda: load(service, remediation_id).facts.get("verify"))
        agent.beat(step=120, resumed=100, **ROOMY)
        ends_as(service, remediation_id, State.RECOVERED)
        (message,) = told(service)

    assert (message["kind"], message["reason"], message["mention"]) == ("outcome", "recovered", False)
    assert message["changes"] == [{"knob": "batch_size", "before": "4", "after": "2"}]
    assert (message["facts"]["checkpoint"], message["facts"]["step"]) == ("/state-100", 100)


def test_a_job_that_is_still_full_is_left_alone(tmp_path: Path) -> None:
    """It trains on: told, not touched again, and not brought back to the bigger batch."""
    with stages(tmp_path) as service:
        agent = Agent(service)
        remediation_id = open_remediation(service)
        agent.replace_job()
        agent.beat(step=101, resumed=100, **FULL)
        until(lambda: load(service, remediation_id).facts.get("verify"))
        agent.beat(step=120, resumed=100, **FULL)
        found = ends_as(service, remediation_id, State.RUNNING_NOT_RECOVERED)

    assert found.reason is Reason.STILL_FULL


def test_prometheus_is_asked_at_the_end_and_again_while_it_is_away(tmp_path: Path) -> None:
    """An error or an old answer is no measurement: it is asked again, until one is fresh."""
    prometheus = ScriptedPrometheus(
        Retryable("away"),
        Answer(holds=True, age_s=None),
        Answer(holds=True, age_s=999.0),
        Answer(holds=False, age_s=1.0),
    )
    expect = replace(QUICK, host=None, expr='ratio{training_job_id="job-1"} > 0.95')
    with stages(tmp_path, prometheus=prometheus) as service:
        agent = Agent(service)
        remediation_id = open_remediation(service, expect=expect)
        agent.replace_job()
        agent.beat(step=101, resumed=100)
        until(lambda: load(service, remediation_id).facts.get("verify"))
        assert prometheus.asked == []
        agent.beat(step=120, resumed=100)
        ends_as(service, remediation_id, State.RECOVERED)

    assert prometheus.asked == [expect.expr] * 4


def test_a_second_oom_death_calls_a_person_and_never_goes_back(tmp_path: Path) -> None:
    """The bigger batch was the cause; the job's run does not wait."""
    with stages(tmp_path) as service:
        agent = Agent(service)
        remediation_id = open_remediation(service)
        agent.replace_job()
        answer = agent.ended("cuda_oom", waits_s=60)
        found = ends_as(service, remediation_id, State.BROKEN)
        (message,) = told(service)

    assert answer == {"wait": False}
    assert (found.reason, found.rolled_back) == (Reason.DIED_OF_OOM_AGAIN, False)
    assert message["mention"] is True


def test_a_generation_without_a_step_goes_back_once(tmp_path: Path) -> None:
    """By the old absolute values; what runs then was not recovered by us. A second silence is a person's."""
    expect = replace(QUICK, deadline=timedelta(seconds=0.3))
    with stages(tmp_path) as service:
        agent = Agent(service)
        agent.beat(step=100)
        remediation_id = open_remediation(service, expect=expect)
        agent.replace_job()
        agent.beat()
        until(lambda: load(service, remediation_id).rolled_back)
        back = agent.replace_job(save=False)
        agent.beat(step=101, resumed=100, **FULL)
        until(lambda: load(service, remediation_id).facts.get("verify"))
        agent.beat(step=120, resumed=100, **FULL)
        found = ends_as(service, remediation_id, State.RUNNING_NOT_RECOVERED)
        breaker = service.store.read_now(budgets.breaker_state)

    assert (back["knobs"], back["generation"], back["save_first"]) == ({"batch_size": "4"}, 2, False)
    assert found.reason is Reason.NO_STEP
    assert (breaker.broken_in_a_row, breaker.is_open) == (1, False)


def test_what_is_broken_after_going_back_is_a_persons(tmp_path: Path) -> None:
    """Once back, and no further."""
    expect = replace(QUICK, deadline=timedelta(seconds=0.3))
    with stages(tmp_path) as service:
        agent = Agent(service)
        agent.beat(step=100)
        remediation_id = open_remediation(service, expect=expect)
        agent.replace_job()
        agent.beat()
        until(lambda: load(service, remediation_id).rolled_back)
        agent.replace_job(save=False)
        agent.ended("failed", waits_s=60)
        ends_as(service, remediation_id, State.BROKEN)

        assert told(service)[-1]["mention"] is True
        assert len(service.client.get(f"/api/v1/remediations/{remediation_id}").json()["attempts"]) == 2


def test_a_death_that_waits_goes_back_by_a_launch_alone(tmp_path: Path) -> None:
    """The run was asked to wait, so the old knobs can be launched again."""
    with stages(tmp_path) as service:
        agent = Agent(service)
        remediation_id = open_remediation(service)
        agent.replace_job()
        answer = agent.ended("failed", waits_s=60)
        until(lambda: load(service, remediation_id).rolled_back)
        order = agent.order()

    assert answer == {"wait": True}
    assert (order["after_oom"], order["knobs"], order["generation"]) == (True, {"batch_size": "4"}, 2)


def test_a_generation_that_began_afresh_is_broken(tmp_path: Path) -> None:
    """It says so itself: resumed at an earlier step than the receipt's."""
    with stages(tmp_path) as service:
        agent = Agent(service)
        remediation_id = open_remediation(service)
        agent.replace_job()
        agent.beat(step=1, resumed=0)
        found = ends_as(service, remediation_id, State.BROKEN)

    assert found.reason is Reason.NOT_RESUMED


def test_three_broken_in_a_row_open_the_breaker(tmp_path: Path) -> None:
    """Said once, with a mention; only a person closes it."""
    with stages(tmp_path) as service:
        for number in range(3):
            agent = Agent(service, f"job-{number}")
            remediation_id = open_remediation(service, job_id=agent.job_id)
            agent.replace_job()
            agent.ended("cuda_oom")
            ends_as(service, remediation_id, State.BROKEN)
        opened = service.client.get("/api/v1/breaker").json()
        alarms = [message for message in told(service) if message["kind"] == "self_alert"]
        service.client.post("/api/v1/breaker/close")
        closed = service.client.get("/api/v1/breaker").json()

    assert (opened["open"], opened["broken_in_a_row"]) == (True, 3)
    assert [(alarm["reason"], alarm["mention"]) for alarm in alarms] == [("breaker_open", True)]
    assert (closed["open"], closed["broken_in_a_row"]) == (False, 0)


def test_a_verification_survives_a_restart(tmp_path: Path) -> None:
    """The first step stays where it was, and nothing is said unknown before anybody could speak."""
    expect = replace(QUICK, verify_for=timedelta(seconds=1.0), deadline=timedelta(seconds=0.5))
    with stages(tmp_path) as service:
        agent = Agent(service)
        agent.beat(step=100)
        remediation_id = open_remediation(service, expect=expect)
        agent.replace_job()
        agent.beat(step=101, resumed=100)
        kept = until(lambda: load(service, remediation_id).facts.get("verify"))
    until(lambda: time.time() > kept["first_step_at"] + 1.6)
    with stages(tmp_path) as service:
        agent.service = service
        agent.beat(step=120, resumed=100, **ROOMY)
        found = ends_as(service, remediation_id, State.RECOVERED)

    assert found.facts["verify"] == kept


def test_a_manual_stop_ends_the_watch_over_a_new_generation(tmp_path: Path) -> None:
    """A person's word counts more than our proof."""
    with stages(tmp_path) as service:
        agent = Agent(service)
        remediation_id = open_remediation(service)
        agent.replace_job()
        until(lambda: load(service, remediation_id).state is State.VERIFYING)
        answer = service.client.post("/api/v1/jobs/job-1/stop")
        found = load(service, remediation_id)

    assert answer.status_code == 202
    assert (found.state, found.reason) == (State.SUPERSEDED, Reason.SUPERSEDED)


def test_a_plan_of_several_steps_runs_in_order(tmp_path: Path) -> None:
    """A command on the service's host, then a save, then a stop, each begun when the one before is done."""
    marker = tmp_path / "ran"
    command = Step(
        kind=StepKind.RUN_COMMAND,
        command=("/bin/sh", "-c", f'echo "$REMEDIATION_JOB_NAME $LET_IN $LEFT_OUT." >> {marker}'),
        environment=("LET_IN", "PATH"),
    )
    own = {"LET_IN": "in", "LEFT_OUT": "out"}
    with stages(tmp_path, own=own) as service:
        agent = Agent(service)
        remediation_id = open_remediation(service, command, Step(kind=StepKind.SAVE), Step(kind=StepKind.STOP))
        for kind, phases in (("save", ("planned", "saved")), ("stop", ("planned", "saved", "stopped"))):
            order = agent.order()
            assert order["kind"] == kind
            for phase in phases:
                agent.report(order["order_id"], phase)
            until(
                lambda it=order: service.store.read_now(lambda conn: orders.load(conn, it["order_id"])).state != "open"
            )
        found = ends_as(service, remediation_id, State.DONE)
        attempts = service.client.get(f"/api/v1/remediations/{remediation_id}").json()["attempts"]

    assert marker.read_text() == "job-1 in .\n"
    assert found.reason is Reason.STOPPED
    assert [(row["step"], row["kind"], row["attempt"]) for row in attempts] == [
        (0, "run_command", 1),
        (1, "save", 1),
        (2, "stop", 1),
    ]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Answer(holds=True, age_s=1.0), State.ORDERED),
        (Answer(holds=False, age_s=1.0), State.REFUSED),
        (Answer(holds=True, age_s=999.0), State.REFUSED),
        (Answer(holds=True, age_s=None), State.REFUSED),
        (Retryable("away"), State.REFUSED),
    ],
)
def test_a_later_stop_is_confirmed_again(tmp_path: Path, answer: Answer | Exception, state: State) -> None:
    """What was measured before the first step is old by then: no fresh data, no stop."""
    command, stop = Step(kind=StepKind.RUN_COMMAND, command=("true",)), Step(kind=StepKind.STOP)
    plan = Plan(steps=(command, stop), confirm_exprs=("full",), expect=QUICK)
    prometheus = ScriptedPrometheus(answer)
    with stages(tmp_path, prometheus=prometheus) as service:
        Agent(service)
        remediation_id = open_remediation(service, plan=plan)
        until(lambda: load(service, remediation_id).state is state)

        assert prometheus.asked == ["full"]
        if state is State.REFUSED:
            assert load(service, remediation_id).reason is Reason.UNCONFIRMED


def test_a_failing_command_ends_the_plan(tmp_path: Path) -> None:
    """Nothing after it is done; its output is kept, bounded and without secrets."""
    step = Step(kind=StepKind.RUN_COMMAND, command=("/bin/sh", "-c", "echo token=abcdef; exit 3"))
    with stages(tmp_path) as service:
        Agent(service)
        remediation_id = open_remediation(service, step, Step(kind=StepKind.STOP))
        found = ends_as(service, remediation_id, State.FAILED)
        (attempt,) = service.client.get(f"/api/v1/remediations/{remediation_id}").json()["attempts"]

    assert found.reason is Reason.COMMAND_FAILED
    assert attempt["detail"]["exit_status"] == 3
    assert "abcdef" not in attempt["detail"]["output"]


def test_an_order_that_nobody_tells_of_any_more_is_uncertain(tmp_path: Path) -> None:
    """The job has ended, and its agent had a minute to say what became of the order."""
    with stages(tmp_path) as service:
        agent = Agent(service)
        remediation_id = open_remediation(service, Step(kind=StepKind.STOP))
        order = agent.order()
        agent.report(order["order_id"], "planned")
        agent.ended("policy_stop")
        long_ago = time.time() - 61

        def age(conn: Connection) -> None:
            conn.execute(update(remediations_table).values(state_since=long_ago))
            conn.exec_driver_sql("UPDATE jobs SET ended_at = ended_at - 61")

        service.store.write_now(age)
        found = ends_as(service, remediation_id, State.UNCERTAIN)

        assert told(service)[-1]["mention"] is True
    assert found.reason is Reason.UNCERTAIN


def test_a_rows_epoch_fences_an_older_worker(tmp_path: Path) -> None:
    """Who lost the lease writes nothing, and holds nothing."""
    with stages(tmp_path, stages=False) as service:
        Agent(service)
        remediation_id = open_remediation(service, Step(kind=StepKind.RUN_COMMAND, command=("true",)))
        now = time.time()
        claim = lambda at, who: service.store.write_now(  # noqa: E731 - three lines that belong together
            lambda conn: remediations.claim(conn, remediation_id, owner=who, now=at, lease_s=1.0)
        )
        first = claim(now, "a")
        taken = claim(now + 0.5, "b")
        second = claim(now + 2, "b")
        renewed = service.store.write_now(lambda conn: remediations.renew(conn, first, now=now + 3, lease_s=1.0))
        with pytest.raises(remediations.StaleClaim):
            service.store.write_now(lambda conn: remediations.write(conn, first, replace(first, state=State.FAILED)))

    assert taken is None
    assert (second.epoch, renewed) == (first.epoch + 1, False)


def test_every_report_is_applied_in_the_end(tmp_path: Path) -> None:
    """Also those stored while no worker ran."""
    with stages(tmp_path, stages=False) as service:
        agent = Agent(service)
        remediation_id = open_remediation(service, Step(kind=StepKind.SAVE))
        order = agent.order()
        for phase in ("accepted", "planned", "saved"):
            agent.report(order["order_id"], phase)
    with stages(tmp_path) as service:
        ends_as(service, remediation_id, State.DONE)
        left = service.store.read_now(
            lambda conn: conn.execute(order_reports.select().where(order_reports.c.applied.is_(False))).all()
        )

        assert [row["reason"] for row in told(service)] == ["saved"]
    assert left == []
