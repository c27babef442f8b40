"""Ladders with a real store and dispatcher: the next remedy of a job by its knobs and by what was tried before."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, update

from tests.acceptance.deciding_world import GIB, SaidPrometheus, World
from tunewarden.adapters.store import tables
from tunewarden.domain.job import JobState
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import State

KNOBS = {
    "batch_size": "2",
    "gradient_accumulation": "1",
    "expandable_segments": "false",
    "gradient_checkpointing": "false",
    "data_workers": "2",
    "persistent_workers": "false",
    "cache_latents": "false",
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


def die(world: World, generation: int, cause: str = "cuda_oom", **facts: str) -> None:
    """The job's agent tells an end, and its `run` waits."""
    waiting = {"state": JobState.WAITING.value, "generation": generation, "waits_until": world.now + 60}
    world.write(lambda conn: conn.execute(update(tables.jobs).values(**waiting)))
    labels = {"training_job_id": "j1", "cause": cause, "generation": str(generation), "node": "gpu-node-1"}
    alert = world.alert("TrainingJobEnded", **labels)
    alert["annotations"] |= {f"fact_{name}": value for name, value in facts.items()}
    world.deliver(alert)


def close(world: World, state: State, reason: Reason) -> None:
    """The open remediation and its order come to an end."""

    def write(conn: Connection) -> None:
        ended = {"state": state.value, "open": False, "reason": reason.value, "ended_at": world.now}
        conn.execute(update(tables.remediations).where(tables.remediations.c.open.is_(True)).values(**ended))
        conn.execute(update(tables.orders).values(state="ended"))

    world.write(write)
    world.clock.move(1.0)


def asked(world: World) -> Mapping[str, str]:
    """The knobs of the newest order."""
    return dict(world.rows(tables.orders)[-1]["body"]["knobs"])


def register(world: World, generation: int = 1, **knobs: str) -> None:
    world.job("j1", generation=generation, knobs={**KNOBS, **knobs}, changeable=frozenset(KNOBS))


def test_one_remedy_after_another(world: World) -> None:
    """Each death gets the next rung; orders hold plain knobs, and the rung stays with the remediation."""
    register(world)
    die(world, 1, fragmented="yes")
    first = asked(world)
    close(world, State.BROKEN, Reason.DIED_OF_OOM_AGAIN)

    register(world, 2, expandable_segments="true")
    die(world, 2, fragmented="yes")
    second = asked(world)
    close(world, State.REFUSED, Reason.KNOB_NOT_CHANGEABLE)

    register(world, 3, expandable_segments="true")
    die(world, 3)
    third = asked(world)

    assert [first, second, third] == [
        {"expandable_segments": "true"},
        {"batch_size": "/2"},
        {"gradient_checkpointing": "true"},
    ]
    assert [row["facts"]["rung"] for row in world.remediations()] == [
        "expandable_segments",
        "batch_size",
        "gradient_checkpointing",
    ]
    assert [step["knobs"] for row in world.remediations() for step in row["plan"]["steps"]] == [first, second, third]


def test_a_refusal_that_says_nothing_of_the_rung_does_not_spend_it(world: World) -> None:
    """An order that nobody took in time is asked again."""
    register(world)
    die(world, 1)
    close(world, State.REFUSED, Reason.EXPIRED)
    register(world, 2)
    die(world, 2)

    assert asked(world) == {"batch_size": "/2"}


def test_the_pace_before_the_change_is_kept(world: World) -> None:
    """To tell afterwards what it has cost; not the pace of another generation."""
    register(world)
    world.heartbeat("j1", step_seconds_median=0.45)
    die(world, 1)
    close(world, State.BROKEN, Reason.DIED_OF_OOM_AGAIN)
    register(world, 2)
    die(world, 2)

    assert [row["facts"].get("step_seconds_before") for row in world.remediations()] == [0.45, None]


def test_a_death_of_host_memory_gets_fewer_workers(world: World) -> None:
    """Never a smaller batch."""
    register(world)
    die(world, 1, "host_oom")

    assert asked(world) == {"data_workers": "1"}


def test_when_no_rung_is_left_a_person_is_told(world: World) -> None:
    """Nothing is ordered; the message says so, with `@`."""
    world.job("j1", knobs={"batch_size": "1"}, changeable=frozenset({"batch_size"}))
    die(world, 1)

    assert world.rows(tables.orders) == []
    assert world.decisions() == [("notify", "no_rung_left")]
    assert [row["payload"]["mention"] for row in world.rows(tables.outbox)] == [True]


def test_a_stalled_job_is_told_once_a_step_is_due(world: World) -> None:
    """Silent while it evaluates, told when it trains and makes none."""
    register(world)
    world.heartbeat("j1", phase="eval")
    world.deliver(world.alert("TrainingStalled", training_job_id="j1"))
    quiet = (world.decisions(), world.messages())
    world.heartbeat("j1", phase="train", step_idle_s=700.0)
    world.pass_time(61.0)
    world.pass_time(61.0)

    assert quiet == ([("wait", "steps_not_due")], [])
    assert world.messages() == [("notice", "notify_only")]
    assert world.rows(tables.outbox)[0]["payload"]["numbers"]["step_idle_s"] == 700.0


def test_a_slow_loader_is_told_with_a_suggestion(tmp_path: Path) -> None:
    """By the job's knobs and its host's memory; nothing is ordered."""
    values: dict[str, Any] = {
        "max(avg_over_time(gpu:utilization": 0.2,
        "max(avg_over_time(tunewarden_host_cpu_busy": 0.2,
        "max(avg_over_time(tunewarden_host_cpu_iowait": 0.0,
        "max(avg_over_time(tunewarden_host_disk_busy": 0.0,
        "max(avg_over_time(tunewarden_job_cpu_cores": 0.9,
        "sum(rate(tunewarden_job_read_bytes": 0.0,
        "sum(rate(pytorch_step_duration_seconds_count": 2.0,
        "sum(rate(pytorch_step_duration_seconds_sum": 0.5,
        "sum(rate(tunewarden_job_data_wait": 0.8,
    }
    prometheus = SaidPrometheus()
    prometheus.values = values
    with World(tmp_path, prometheus=prometheus) as world:
        world.job("j1", knobs=KNOBS, changeable=frozenset(KNOBS), cpus=8)
        world.heartbeat("j1")
        memory = {"memory_total": 64 * GIB, "memory_available": 32 * GIB}
        sample = {**world.rows(tables.jobs)[0]["sample"], "host": memory}
        world.write(lambda conn: conn.execute(update(tables.jobs).values(sample=sample)))
        world.deliver(world.alert("GpuUtilizationLow", uuid="GPU-1", node="gpu-node-1"))
        (message,) = world.rows(tables.outbox)
        ordered = world.rows(tables.orders)

    facts = message["payload"]["facts"]
    assert (facts["cause"], facts["suggested"], facts["rung"]) == ("loader", "data_workers 2 → 4", "more_workers")
    assert ordered == []
