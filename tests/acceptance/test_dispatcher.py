"""The dispatcher on a real store: from deliveries to episodes, decisions, orders and messages."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, update

from tests.acceptance.deciding_world import PRESSURE, SaidAlertmanager, SaidPrometheus, World
from tunewarden.adapters.policy_file import load_policies
from tunewarden.adapters.store import budgets, deliveries, jobs, remediations, tables
from tunewarden.domain.advance import done_reason
from tunewarden.domain.job import Gpu, JobState
from tunewarden.domain.policy import StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, State
from tunewarden.pipeline import dispatcher
from tunewarden.pipeline.moves import Moves
from tunewarden.pipeline.opening import open_manual
from tunewarden.shipped import shipped_dir

FULL = "GpuMemoryNearlyFull"


def pressure(world: World, **changes: Any) -> dict[str, Any]:
    return world.alert(FULL, uuid="GPU-1", node="gpu-node-1", **changes)


def end(world: World, event: Event, *, through: tuple[Event, ...] = ()) -> None:
    """Take the open remediation along the table to an end, as the worker does."""

    def work(conn: Connection) -> None:
        remediation = remediations.open_of_job(conn, "j1")
        assert remediation is not None
        for each in (*through, event):
            reason = done_reason(remediation) if each is Event.PLAN_DONE else None
            remediation = Moves().move(conn, remediation, each, world.now, reason=reason)

    world.write(work)


TO_VERIFYING = (Event.ACCEPTED, Event.PLANNED, Event.SAVED, Event.STOPPED, Event.LAUNCHED)


def test_pressure_with_a_second_sign_ends_in_one_order(tmp_path: Path) -> None:
    """The order is there with the commit that decided, its expressions filled in, its attempt reserved."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")

        world.deliver(pressure(world))

        assert world.decisions() == [("act", "policy_matched")]
        [order] = world.rows(tables.orders)
        assert (order["kind"], order["body"]["knobs"], order["state"]) == ("replace", {"batch_size": "/2"}, "open")
        [remediation] = world.remediations()
        assert remediation["plan"]["expect"]["expr"] == 'gpu:memory_used:ratio{uuid="GPU-1"} > 0.95'
        assert [row["kind"] for row in world.rows(tables.reservations)] == ["replace"]
        assert world.messages() == [("decided", "policy_matched")]


def test_twenty_parallel_copies_of_one_body_are_one_remediation(tmp_path: Path) -> None:
    """HA members, routes with `continue`, retries: copies differ in nothing that counts."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        body = json.dumps({"version": "4", "alerts": [pressure(world)]}).encode()
        threads = [threading.Thread(target=world.deliver, kwargs={"body": body, "look": False}) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        world.look()

        assert [row["state"] for row in world.rows(tables.deliveries)] == ["done"] * 20
        [episode] = world.rows(tables.episodes)
        assert (len(world.remediations()), episode["repeats"]) == (1, 19)


def test_two_dispatchers_take_one_delivery_once(tmp_path: Path) -> None:
    """The second one's part is undone: the delivery has moved on."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        world.deliver(pressure(world), look=False)

        async def both() -> None:
            await asyncio.gather(world.dispatcher.look(), world.dispatcher.look())

        world.run(both())

        assert (len(world.remediations()), len(world.decisions())) == (1, 1)
        assert [row["repeats"] for row in world.rows(tables.episodes)] == [0]


def test_firing_resolved_firing_is_one_episode(tmp_path: Path) -> None:
    """Flapping within a minute: the resolved takes back what was not begun, and the cooldown holds the next one."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        world.deliver(pressure(world))
        world.pass_time(10)
        world.deliver(pressure(world, status="resolved"))
        world.pass_time(10)
        world.deliver(pressure(world))

        assert len(world.rows(tables.episodes)) == 1
        assert [row["state"] for row in world.remediations()] == ["cancelled"]
        assert [row["state"] for row in world.rows(tables.orders)] == ["withdrawn"]
        assert world.decisions() == [("act", "policy_matched"), ("cancel", "resolved"), ("wait", "cooldown")]


def test_a_firing_is_a_new_episode_once_the_old_one_has_closed(tmp_path: Path) -> None:
    """Five minutes after resolved."""
    with World(tmp_path) as world:
        world.job("j1")
        world.deliver(pressure(world))
        world.deliver(pressure(world, status="resolved", starts=1))
        world.pass_time(300)

        world.deliver(pressure(world))

        assert [row["closed_at"] is None for row in world.rows(tables.episodes)] == [False, True]


@pytest.mark.parametrize(("listed", "episodes"), [(True, 2), (False, 1)])
def test_a_late_copy_counts_only_if_alertmanager_lists_it(tmp_path: Path, listed: bool, episodes: int) -> None:
    """The same startsAt after the episode has closed: a re-send of what is over, unless it still fires."""
    alertmanager = SaidAlertmanager()
    with World(tmp_path, alertmanager=alertmanager) as world:
        world.job("j1")
        firing = pressure(world) | {"fingerprint": "00000000000000aa"}
        world.deliver(firing)
        world.deliver(pressure(world, status="resolved", starts=1) | {"fingerprint": "00000000000000aa"})
        world.pass_time(301)
        alertmanager.listed = frozenset({"00000000000000aa"} if listed else ())

        world.deliver(firing)

        assert len(world.rows(tables.episodes)) == episodes


def test_copies_that_come_out_of_order_keep_the_newest_start(tmp_path: Path) -> None:
    """Two Prometheus replicas: the slower one's copy must not make the next resolved look like an old one, or late."""
    with World(tmp_path) as world:
        world.deliver(pressure(world))
        world.deliver(pressure(world, starts=-3))

        assert [row["starts_at"] for row in world.rows(tables.episodes)] == [world.now]


@pytest.mark.parametrize("measured_on_the_host", [True, False])
def test_an_expectation_that_no_card_can_fill_is_left_to_the_host_or_unknown(
    tmp_path: Path, measured_on_the_host: bool
) -> None:
    """A job of two cards died: `$uuid` is neither of them, and an empty expectation would call anything recovered."""
    shipped = {item.name: item for item in load_policies([shipped_dir("rules") / "policies"])}
    expect = shipped["job-oom"].expect
    policy = replace(shipped["job-oom"], expect=expect if measured_on_the_host else replace(expect, host=None))
    cards = (Gpu(uuid="GPU-1", index=0), Gpu(uuid="GPU-2", index=1))
    with World(tmp_path, policies=(policy,)) as world:
        world.job("j1", state=JobState.WAITING, gpus=cards, host_gpus=cards)
        world.deliver(
            world.alert("TrainingJobEnded", training_job_id="j1", cause="cuda_oom", generation="1", node="gpu-node-1")
        )

        [remediation] = world.remediations()
        assert remediation["plan"]["expect"]["expr"] == ("" if measured_on_the_host else expect.expr)


def test_a_resolved_of_an_earlier_firing_changes_nothing(tmp_path: Path) -> None:
    """The second HA member's copy arrives after the alert fired again."""
    with World(tmp_path) as world:
        world.job("j1")
        world.deliver(pressure(world))
        old = pressure(world, status="resolved", starts=1)
        world.deliver(old)
        world.pass_time(20)
        world.deliver(pressure(world))

        world.deliver(old)

        assert [row["resolved_at"] for row in world.rows(tables.episodes)] == [None]


def four_gpus(world: World, count: int, **changes: Any) -> list[dict[str, Any]]:
    return [world.alert(FULL, uuid=f"GPU-{at}", node="gpu-node-1", **changes) for at in range(1, count + 1)]


def big_job(world: World) -> None:
    cards = tuple(Gpu(uuid=f"GPU-{at}", index=at - 1) for at in range(1, 5))
    world.job("j1", gpus=cards, host_gpus=cards)
    world.heartbeat("j1", oom_lines=1)


def test_three_of_four_then_four_is_one_remediation(tmp_path: Path) -> None:
    """One evaluation of four cards arrives as three, then four: all mean the same job."""
    with World(tmp_path, enforce=True, prometheus=SaidPrometheus({"> 0.95": True})) as world:
        big_job(world)
        world.deliver(*four_gpus(world, 3))
        world.pass_time(1)

        world.deliver(*four_gpus(world, 4))

        assert len(world.remediations()) == 1
        assert [reason for _, reason in world.decisions()] == ["policy_matched", "joined", "joined", "joined"]


def test_one_resolved_inside_a_mixed_group_cancels_nothing_while_others_fire(tmp_path: Path) -> None:
    """The root status says firing; each alert says its own. The last one to resolve takes the remediation back."""
    with World(tmp_path, enforce=True, prometheus=SaidPrometheus({"> 0.95": True})) as world:
        big_job(world)
        alerts = four_gpus(world, 4)
        world.deliver(*alerts)
        gone = four_gpus(world, 4, status="resolved", starts=1)

        world.deliver(gone[0], *alerts[1:])
        states = [row["state"] for row in world.remediations()]
        world.deliver(*gone)

        assert (states, [row["state"] for row in world.remediations()]) == (["ordered"], ["cancelled"])


def test_resolved_after_the_stop_is_evidence_only(tmp_path: Path) -> None:
    """Stopping frees the card, so resolved comes two seconds later."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        world.deliver(pressure(world))
        end(world, Event.STOPPED, through=TO_VERIFYING[:3])

        world.deliver(pressure(world, status="resolved", starts=2))

        assert [row["state"] for row in world.remediations()] == ["halted"]
        assert world.decisions()[-1] == ("ignore", "resolved")


def test_ten_rounds_of_pressure_stop_at_the_budget_with_one_escalation(tmp_path: Path) -> None:
    """The action itself may raise the next alert; the message names all attempts."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        for _ in range(10):
            world.deliver(pressure(world))
            if world.store.read_now(lambda conn: remediations.open_of_job(conn, "j1")):
                end(world, Event.STILL_FULL, through=TO_VERIFYING)
            world.pass_time(30)
            world.deliver(pressure(world, status="resolved"))
            world.pass_time(900)

        done = world.remediations()
        assert [row["state"] for row in done] == ["running_not_recovered"] * 3
        [escalation] = [row for row in world.rows(tables.outbox) if row["payload"]["reason"] == "job_budget_spent"]
        assert escalation["payload"]["mention"] is True
        assert all(row["remediation_id"] in escalation["payload"]["facts"]["detail"] for row in done)


def test_the_tenth_action_of_an_hour_opens_the_breaker(tmp_path: Path) -> None:
    """A cap is reached by the last one that it allows; a person hears of it once."""
    with World(tmp_path, enforce=True, prometheus=SaidPrometheus({"> 0.95": True})) as world:
        for at in range(1, 12):
            world.job(f"j{at}", uuid=f"GPU-{at}", node=f"n{at}", state=JobState.RUNNING)
            world.heartbeat(f"j{at}", oom_lines=1)
        world.write(lambda conn: conn.execute(update(tables.jobs).values(state="running")))
        few = replace(world.dispatcher.deciding.rules.caps, share_from_jobs=1000)
        world.dispatcher.deciding = replace(
            world.dispatcher.deciding, rules=replace(world.dispatcher.deciding.rules, caps=few)
        )

        world.deliver(*(world.alert(FULL, uuid=f"GPU-{at}", node=f"n{at}") for at in range(1, 12)))

        assert len(world.remediations()) == 10
        assert world.decisions()[-1] == ("wait", "breaker_open")
        assert world.messages().count(("self_alert", "hourly_budget_spent")) == 1


def test_an_open_breaker_still_tells_and_still_resolves(tmp_path: Path) -> None:
    """Only actions are held back."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        world.deliver(pressure(world))
        world.write(lambda conn: budgets.open_breaker(conn, reason=Reason.DIED_AGAIN, now=world.now))

        low = world.alert("GpuUtilizationLow", uuid="GPU-1", node="gpu-node-1")
        world.deliver(low, pressure(world, status="resolved", starts=1))

        assert world.decisions()[1:] == [("notify", "notify_only"), ("cancel", "resolved")]
        assert ("notice", "notify_only") in world.messages()


def test_flat_pressure_is_one_message_until_a_sign_comes(tmp_path: Path) -> None:
    """97 % with steady steps for ten minutes: no save, no stop; then the rate falls, and it acts."""
    with World(tmp_path, enforce=True, prometheus=SaidPrometheus(PRESSURE | {"predict_linear": False})) as world:
        world.job("j1")
        world.heartbeat("j1", step_rate=2.0, step_rate_median=2.0)
        world.deliver(pressure(world))
        for _ in range(40):
            world.pass_time(15)
        quiet = (world.remediations(), world.messages(), world.decisions())
        world.heartbeat("j1", step_rate=0.2, step_rate_median=2.0)
        world.pass_time(15)

        assert quiet == ([], [("notice", "no_second_sign")], [("wait", "no_second_sign")])
        assert world.decisions()[-1] == ("act", "policy_matched")
        assert world.remediations()[0]["facts"]["alertname"] == FULL


def test_no_fresh_data_is_no_action_until_there_is_some(tmp_path: Path) -> None:
    """Prometheus is away when it fires and back a minute later."""
    with World(tmp_path, enforce=True, prometheus=SaidPrometheus({})) as world:
        world.job("j1")
        world.heartbeat("j1", oom_lines=1)
        world.deliver(pressure(world))
        first = world.decisions()
        world.prometheus.holds = PRESSURE
        world.pass_time(60)

        assert (first, world.decisions()[-1]) == ([("wait", "unconfirmed")], ("act", "policy_matched"))


def test_in_observe_mode_a_job_is_saved_once_in_half_an_hour_and_never_stopped(tmp_path: Path) -> None:
    """As shipped: notify and save act, the rest is told."""
    with World(tmp_path) as world:
        world.job("j1")
        world.heartbeat("j1")
        world.deliver(pressure(world))
        end(world, Event.PLAN_DONE, through=(Event.ACCEPTED, Event.PLANNED, Event.SAVED))
        for _ in range(29):
            world.pass_time(60)
        after_29 = len(world.remediations())
        world.pass_time(60)

        assert (after_29, len(world.remediations())) == (1, 2)
        assert {row["kind"] for row in world.rows(tables.orders)} == {"save"}
        decided = world.rows(tables.outbox)[0]["payload"]
        assert (decided["reason"], decided["facts"]["action"]) == ("observe_mode", "save")


def test_a_job_that_died_of_oom_is_launched_again_without_enforce(tmp_path: Path) -> None:
    """Its event takes the road of alerts; the order says that the job is dead already."""
    with World(tmp_path) as world:
        world.job("j1", state=JobState.WAITING)
        world.deliver(
            world.alert("TrainingJobEnded", training_job_id="j1", cause="cuda_oom", generation="1", node="gpu-node-1")
        )

        [order] = world.rows(tables.orders)
        assert (order["kind"], order["body"]["after_oom"], order["body"]["confirm"]) == ("replace", True, [])


def test_an_oom_that_ends_an_open_order_is_decided_anew(tmp_path: Path) -> None:
    """The job died between decide and act: the order is superseded, and no cooldown keeps the job from coming back."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        world.deliver(pressure(world))
        world.write(lambda conn: conn.execute(update(tables.jobs).values(state="waiting")))
        world.deliver(
            world.alert("TrainingJobEnded", training_job_id="j1", cause="cuda_oom", generation="1", node="gpu-node-1")
        )
        end(world, Event.SUPERSEDED)

        world.pass_time(2)

        assert [row["state"] for row in world.remediations()] == ["superseded", "ordered"]
        assert world.remediations()[1]["policy"] == "job-oom"


@pytest.mark.parametrize(("how", "expected"), [(Event.SUPERSEDED, "act"), (Event.REFUSED, "wait")])
def test_only_what_lost_to_the_job_or_a_person_starts_no_cooldown(tmp_path: Path, how: Event, expected: str) -> None:
    """A new episode, five minutes after the end of the last remediation."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        world.deliver(pressure(world))
        end(world, how)
        world.deliver(pressure(world, status="resolved", starts=1))
        world.pass_time(301)

        world.deliver(pressure(world))

        assert world.decisions()[-1][0] == expected


def test_a_finished_job_is_told_with_its_end(tmp_path: Path) -> None:
    """The notice names the cause that the agent reported."""
    with World(tmp_path) as world:
        world.job("j1")
        world.write(lambda conn: jobs.end(conn, "j1", generation=1, cause="finished", at=world.now, waits_until=None))
        world.deliver(world.alert("TrainingJobEnded", training_job_id="j1", cause="finished", generation="1"))

        [row] = world.rows(tables.outbox)
        assert (row["payload"]["facts"]["ended"], row["payload"]["job_name"]) == ("finished", "lora-j1")


def _quotes_hold(expr: str) -> bool:
    """Each string of the expression ends where the policy ended it: the skeleton is the policy's own."""
    skeleton = re.sub(r'"(?:[^"\\\n]|\\.)*"', '"$uuid"', expr)
    policies = {item.name: item for item in load_policies([shipped_dir("rules") / "policies"])}
    pressure_policy = policies["vram-pressure"]
    return skeleton in (pressure_policy.signs[0].expr, pressure_policy.confirm[0].expr)


HOSTILE = [
    "$(touch /tmp/x)",
    "; rm -rf /",
    "a\nb",
    "../../etc/passwd",
    "**bold** [link](http://x) <img src=x>",
    '"} or vector(1) or x{a="',
    "\\",
    "'",
    "中文 ☃ \U0001f4a5",
    "x" * 5000,
    "{{ 7*7 }}",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_label_values_are_only_text(tmp_path: Path, value: str) -> None:
    """They reach neither PromQL outside its quotes nor a key, and nothing breaks."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1", name=value[:100], uuid=value)
        world.heartbeat("j1", oom_lines=1)

        world.deliver(world.alert(FULL, uuid=value, node="gpu-node-1", instance=value))

        assert [row["state"] for row in world.rows(tables.deliveries)] == ["done"]
        assert len(world.prometheus.asked) == 2
        assert all(_quotes_hold(asked) for asked in world.prometheus.asked)
        assert world.decisions() == [("wait", "unconfirmed")]


BAD_BODIES = [b"", b"{", b"[]", b"{}", b'{"version": "3", "alerts": []}', b'{"version": "4", "alerts": [1]}']


@pytest.mark.parametrize("body", BAD_BODIES)
def test_a_bad_body_is_set_aside_and_holds_up_nothing(tmp_path: Path, body: bytes) -> None:
    """It says why, and the delivery behind it is decided."""
    with World(tmp_path) as world:
        world.deliver(body=body, look=False)
        world.deliver(world.alert("Watchdog"))

        bad, good = world.rows(tables.deliveries)
        assert (bad["state"], bool(bad["error"]), good["state"]) == ("bad", True, "done")


def test_an_alert_that_can_not_be_decided_is_skipped_alone(tmp_path: Path) -> None:
    """A fault of ours in one alert must not stop the others, nor make the delivery come again for ever."""
    with World(tmp_path, node_aliases=Poisoned({})) as world:
        world.deliver(*(world.alert(name, node=name) for name in ("First", "poison", "Third")))

        assert [row["alertname"] for row in world.rows(tables.episodes)] == ["First", "Third"]
        [delivery] = world.rows(tables.deliveries)
        assert (delivery["state"], "alert 1" in delivery["error"]) == ("done", True)


class Poisoned(dict[str, str]):
    """Fails for one node."""

    def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
        if key == "poison":
            raise RuntimeError("a fault of ours")
        return default


def test_a_large_body_is_decided_in_parts(tmp_path: Path) -> None:
    """Others' writes come between two parts; each alert is one episode, and a twin within a part a repeat."""
    with World(tmp_path) as world:
        alerts = [world.alert("Watchdog", n=str(at)) for at in range(500)]
        world.deliver(*alerts, *alerts[-3:], alerts[-1])

        [delivery] = world.rows(tables.deliveries)
        assert (delivery["state"], delivery["next_alert"]) == ("done", 504)
        assert [row["repeats"] for row in world.rows(tables.episodes)] == [0] * 497 + [1, 1, 2]


def test_episodes_that_nobody_mentions_any_more_expire(tmp_path: Path) -> None:
    """A silenced alert never sends resolved: a day without a word ends it."""
    with World(tmp_path) as world:
        world.deliver(world.alert("Watchdog"))
        world.pass_time(23 * 3600)
        before = [row["closed_at"] for row in world.rows(tables.episodes)]
        world.pass_time(3700)

        assert (before, [row["closed_at"] is None for row in world.rows(tables.episodes)]) == ([None], [False])


def test_an_episode_that_alertmanager_lists_never_expires(tmp_path: Path) -> None:
    """And one that it no longer lists ends after the repeat interval."""
    alertmanager = SaidAlertmanager()
    with World(tmp_path, alertmanager=alertmanager) as world:
        world.deliver(world.alert("Watchdog", n="1"), world.alert("Watchdog", n="2"))
        kept = world.rows(tables.episodes)[0]["fingerprint"]
        alertmanager.listed = frozenset({kept})

        world.pass_time(4 * 3600 + 60)

        assert [row["closed_at"] is None for row in world.rows(tables.episodes)] == [True, False]


def test_a_running_dispatcher_decides_when_a_delivery_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the commit, not for its poll, which is a minute here."""
    monkeypatch.setattr(dispatcher, "POLL_S", 60.0)
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        idle = asyncio.Event()

        async def say_idle(real: Callable[[], Coroutine[Any, Any, float]]) -> float:
            idle.set()
            return await real()

        monkeypatch.setattr(world.dispatcher, "_pause_s", partial(say_idle, world.dispatcher._pause_s))

        async def play() -> bool:
            stopping = asyncio.Event()
            running = asyncio.create_task(world.dispatcher.run(stopping))
            async with asyncio.timeout(20):
                await idle.wait()
            body = json.dumps({"version": "4", "alerts": [pressure(world)]}).encode()
            row = deliveries.row(source="alertmanager", received_at=world.now, body=body)
            with world.store.subscribe("orders:j1") as ordered:
                await world.store.append(deliveries.INSERT, row, topic=deliveries.TOPIC)
                came = await ordered.wait(20.0)
            stopping.set()
            await world.store.append(deliveries.INSERT, row, topic=deliveries.TOPIC)
            await running
            return came

        assert world.run(play())


def test_a_remediation_keeps_the_policy_that_it_began_with(tmp_path: Path) -> None:
    """Policies reloaded midway change what comes after, not what is open."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")
        world.deliver(pressure(world))
        [before] = world.remediations()
        world.dispatcher.deciding = replace(world.dispatcher.deciding, policies=())

        world.deliver(pressure(world))

        [after] = world.remediations()
        policies = {item.name: item for item in load_policies([shipped_dir("rules") / "policies"])}
        assert after["policy_digest"] == before["policy_digest"] == policies["vram-pressure"].digest
        assert State(after["state"]) is State.ORDERED


def test_low_utilisation_is_told_with_its_cause(tmp_path: Path) -> None:
    """The numbers that decided are in the message; nothing is done to the job."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.prometheus.values = {
            "max(avg_over_time(gpu:utilization:ratio": 0.2,
            "max(avg_over_time(tunewarden_host_cpu_busy_ratio": 0.3,
            "max(avg_over_time(tunewarden_host_cpu_iowait_ratio": 0.0,
            "max(avg_over_time(tunewarden_host_disk_busy_ratio": 0.0,
            "max(avg_over_time(tunewarden_job_cpu_cores": 0.1,
            "sum(rate(tunewarden_job_read_bytes_total": 0.0,
            "sum(rate(pytorch_step_duration_seconds_count": 2.0,
            "sum(rate(pytorch_step_duration_seconds_sum": 0.5,
            "sum(rate(tunewarden_job_data_wait_seconds_total": 0.9,
        }

        world.deliver(world.alert("GpuUtilizationLow", uuid="GPU-1", node="gpu-node-1"))

        [row] = world.rows(tables.outbox)
        assert (row["payload"]["facts"]["cause"], row["payload"]["numbers"]["data_wait_share"]) == ("loader", 0.9)
        assert world.remediations() == []


def test_low_utilisation_without_its_inputs_is_unknown(tmp_path: Path) -> None:
    """And the message names what could not be measured."""
    with World(tmp_path) as world:
        world.job("j1")

        world.deliver(world.alert("GpuUtilizationLow", uuid="GPU-1", node="gpu-node-1"))

        [row] = world.rows(tables.outbox)
        assert row["payload"]["facts"]["cause"] == "unknown"
        assert "data_wait_share" in row["payload"]["facts"]["missing"]


def test_one_expression_is_asked_once_whoever_needs_it(tmp_path: Path) -> None:
    """Two alerts about one card in one body."""
    with World(tmp_path) as world:
        world.job("j1")

        world.deliver(pressure(world), pressure(world, instance="other"))

        assert len(world.prometheus.asked) == len(set(world.prometheus.asked)) == 2


def test_a_command_runs_when_a_job_has_ended(tmp_path: Path) -> None:
    """An upload or a bill needs no living job; an order would."""
    policy = tmp_path / "policies" / "upload.yaml"
    policy.parent.mkdir()
    policy.write_text(
        "name: upload\nmatch: ['alertname=\"TrainingJobEnded\"', 'cause=\"finished\"']\n"
        "steps:\n  - notify\n  - run_command: [/usr/bin/true]\n",
        encoding="utf-8",
    )
    with World(tmp_path, policies=load_policies([policy.parent])) as world:
        world.job("j1")
        ended = {"state": "ended", "ended_at": world.now}
        world.write(lambda conn: conn.execute(update(tables.jobs).values(**ended)))
        world.deliver(
            world.alert("TrainingJobEnded", training_job_id="j1", cause="finished", generation="1", node="gpu-node-1")
        )

        assert world.decisions() == [("act", "policy_matched")]
        assert [(row["policy"], row["state"]) for row in world.remediations()] == [("upload", "decided")]


def test_what_a_person_asked_for_starts_no_cooldown(tmp_path: Path) -> None:
    """A save by hand says nothing about the alerts of the job."""
    with World(tmp_path, enforce=True) as world:
        job = world.job("j1")
        world.heartbeat("j1")
        world.write(
            lambda conn: open_manual(conn, Moves(), job, StepKind.SAVE, stop_now=False, actor="li", now=world.now)
        )
        end(world, Event.PLAN_DONE, through=(Event.ACCEPTED, Event.PLANNED, Event.SAVED))

        world.deliver(pressure(world))

        assert world.decisions() == [("act", "policy_matched")]
