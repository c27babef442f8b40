"""Ladders: which remedy comes next, from the knobs that the job has and those that were tried."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.deciding_values import a_heartbeat, a_job, an_alert, an_oom, decided, evidence, policy
from tunewarden.domain.decision import Verdict
from tunewarden.domain.footing import suggestion
from tunewarden.domain.history import History
from tunewarden.domain.job import JobState
from tunewarden.domain.ladder import Footing, Ladder, next_rung, rungs_left
from tunewarden.domain.reason import Reason
from tunewarden.domain.sample import Heartbeat, HostSample
from tunewarden.domain.tuning import fault_of

GIB = 1 << 30
KNOBS = {
    "batch_size": "4",
    "gradient_accumulation": "1",
    "expandable_segments": "false",
    "gradient_checkpointing": "false",
    "cache_latents": "false",
    "resolution": "1024",
    "data_workers": "0",
    "persistent_workers": "false",
    "pin_memory": "false",
}


def footing(knobs: Mapping[str, str] | None = None, **more: Any) -> Footing:
    """All knobs of KNOBS can change, but for those that are None in `knobs`."""
    held = {name: value for name, value in {**KNOBS, **(knobs or {})}.items() if value is not None}
    values: dict[str, Any] = {"knobs": held, "changeable": frozenset(held), "cpus": 8, "host_memory_short": False}
    return Footing(**(values | more))


def asked(ladder: Ladder, at: Footing) -> dict[str, str] | None:
    rung = next_rung(ladder, at)
    return None if rung is None else dict(rung.knobs)


def names(ladder: Ladder, at: Footing) -> list[str]:
    return [rung.name.value for rung in rungs_left(ladder, at)]


def test_the_memory_ladder_from_its_first_rung() -> None:
    """The cheapest first; smaller images only with consent."""
    first = ["expandable_segments", "batch_size", "gradient_checkpointing", "cache_latents"]

    assert names(Ladder.MEMORY, footing(fragmented=True)) == first
    assert names(Ladder.MEMORY, footing(fragmented=True, resolution_allowed=True)) == [*first, "resolution"]


@pytest.mark.parametrize(
    ("at", "knobs"),
    [
        (footing(fragmented=True), {"expandable_segments": "true"}),
        (footing(), {"batch_size": "/2"}),
        (footing({"expandable_segments": "true"}, fragmented=True), {"batch_size": "/2"}),
        (footing(fragmented=True, taken=frozenset({"expandable_segments"})), {"batch_size": "/2"}),
        (footing(taken=frozenset({"batch_size"})), {"batch_size": "/2"}),
        (footing(refused=frozenset({"batch_size"})), {"gradient_checkpointing": "true"}),
        (footing({"batch_size": "1"}), {"gradient_checkpointing": "true"}),
        (footing({"batch_size": "[4, 2]"}), {"gradient_checkpointing": "true"}),
        (footing({"gradient_accumulation": None}), {"gradient_checkpointing": "true"}),
        (footing({"gradient_accumulation": None}, effective_batch_allowed=True), {"batch_size": "/2"}),
        (footing({"batch_size": "1", "gradient_checkpointing": "True"}), {"cache_latents": "true"}),
        (footing({"batch_size": "1", "gradient_checkpointing": None}), {"cache_latents": "true"}),
        (footing(changeable=frozenset({"cache_latents"})), {"cache_latents": "true"}),
        (footing(changeable=frozenset()), None),
        (footing(changeable=frozenset({"resolution"})), None),
        (footing(changeable=frozenset({"resolution"}), resolution_allowed=True), {"resolution": "768"}),
        (footing({"resolution": "768,512"}, changeable=frozenset({"resolution"}), resolution_allowed=True),
         {"resolution": "576,384"}),
        (footing({"resolution": "320"}, changeable=frozenset({"resolution"}), resolution_allowed=True), None),
        (footing({"resolution": "auto"}, changeable=frozenset({"resolution"}), resolution_allowed=True), None),
        (Footing(), {"batch_size": "/2"}),
        (Footing(refused=frozenset({"batch_size"})), None),
    ],
)  # fmt: skip
def test_the_next_remedy_for_the_cards_memory(at: Footing, knobs: dict[str, str] | None) -> None:
    """None: there is nothing left but to stop and tell."""
    assert asked(Ladder.MEMORY, at) == knobs


@pytest.mark.parametrize(
    ("at", "left"),
    [
        (footing(), ["more_workers", "persistent_workers", "pin_memory", "cache_latents"]),
        (footing(host_memory_short=True), ["cache_latents"]),
        (footing(host_memory_short=None), ["cache_latents"]),
        (footing({"data_workers": "2"}, host_memory_short=True), ["persistent_workers", "cache_latents"]),
        (footing({"data_workers": "4"}), ["persistent_workers", "pin_memory", "cache_latents"]),
        (footing({"data_workers": "8"}), ["persistent_workers", "pin_memory", "cache_latents"]),
        (footing(cpus=1), ["pin_memory", "cache_latents"]),
        (footing(cpus=None), ["pin_memory", "cache_latents"]),
        (Footing(), []),
    ],
)
def test_the_loader_ladder(at: Footing, left: list[str]) -> None:
    """Never more workers, nor pinned memory, where the host's memory is short or unknown."""
    assert names(Ladder.LOADER, at) == left


@pytest.mark.parametrize(("cpus", "workers"), [(2, "1"), (4, "3"), (5, "4"), (64, "4")])
def test_workers_leave_a_cpu_free(cpus: int, workers: str) -> None:
    """min(cpus - 1, 4)."""
    assert asked(Ladder.LOADER, footing(cpus=cpus)) == {"data_workers": workers}


@pytest.mark.parametrize(
    ("at", "knobs"),
    [
        (footing({"data_workers": "8"}), {"data_workers": "4"}),
        (footing({"data_workers": "1"}, taken=frozenset({"fewer_workers"})), {"data_workers": "0"}),
        (footing({"pin_memory": "true"}), {"pin_memory": "false"}),
        (footing(), None),
        (Footing(), {"data_workers": "/2"}),
    ],
)
def test_the_ladder_of_the_hosts_memory(at: Footing, knobs: dict[str, str] | None) -> None:
    """Fewer workers, and never a smaller batch."""
    assert asked(Ladder.HOST_MEMORY, at) == knobs


@pytest.mark.parametrize("ladder", list(Ladder))
def test_every_rung_is_an_order_that_an_agent_understands(ladder: Ladder) -> None:
    """Canonical knobs, with values that they take."""
    at = footing({"data_workers": "2", "pin_memory": "true"}, fragmented=True, resolution_allowed=True)
    rungs = [*rungs_left(ladder, at), *rungs_left(ladder, footing()), *rungs_left(ladder, Footing())]

    assert [
        fault_of(knob, value) for rung in rungs for knob, value in rung.knobs.items() if fault_of(knob, value)
    ] == []


def died(job: dict[str, Any] | None = None, facts: dict[str, str] | None = None, **changes: Any) -> Any:
    """The decision about a job that died of out-of-memory and waits."""
    alert = replace(an_oom(), annotations={f"fact_{name}": value for name, value in (facts or {}).items()})
    knobs = {"knobs": KNOBS, "changeable": frozenset(KNOBS)} if job is None else job
    return decided(alert, job=a_job(state=JobState.WAITING, **knobs), **changes)


def planned(decision: Any) -> dict[str, str]:
    return {knob: value for step in decision.steps for knob, value in step.knobs.items()}


def test_the_service_chooses_the_rung() -> None:
    """By the registered knobs, the numbers of the death and the past; the decision names it."""
    decisions = [
        died(),
        died(facts={"fragmented": "yes"}),
        died(facts={"fragmented": "yes"}, history=History(rungs_taken=frozenset({"expandable_segments"}))),
        died(history=History(rungs_refused=frozenset({"batch_size"}))),
        died(job={}),
    ]

    assert [planned(decision) for decision in decisions] == [
        {"batch_size": "/2"},
        {"expandable_segments": "true"},
        {"batch_size": "/2"},
        {"gradient_checkpointing": "true"},
        {"batch_size": "/2"},
    ]
    assert [decision.facts["rung"] for decision in decisions[:2]] == ["batch_size", "expandable_segments"]


ONLY_SIZE = {"knobs": {"resolution": "1024"}, "changeable": frozenset({"resolution"})}


@pytest.mark.parametrize(
    ("labels", "allowed", "knobs"),
    [
        ({}, False, {}),
        ({}, True, {"resolution": "768"}),
        ({"remediation_allow": "resolution"}, False, {"resolution": "768"}),
        ({"remediation_allow": "more, resolution"}, False, {"resolution": "768"}),
        ({"remediation_allow": "resolutions"}, False, {}),
    ],
)
def test_smaller_images_take_consent(labels: dict[str, str], allowed: bool, knobs: dict[str, str]) -> None:
    """The policy's, or the job's own label."""
    shipped = policy("job-oom")
    steps = tuple(replace(step, allow_resolution_change=allowed) for step in shipped.steps)
    decision = died(job={**ONLY_SIZE, "labels": labels}, policies=(replace(shipped, steps=steps),))

    assert planned(decision) == knobs


def test_a_ladder_without_a_rung_left_is_told_with_what_was_tried() -> None:
    """A person decides what may be given up."""
    past = History(rungs_taken=frozenset({"batch_size"}), rungs_refused=frozenset({"cache_latents"}))
    decision = died(job=ONLY_SIZE, history=past)

    assert (decision.verdict, decision.reason) == (Verdict.NOTIFY, Reason.NO_RUNG_LEFT)
    assert (decision.message, decision.facts["tried"]) == (True, "batch_size, cache_latents")


@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        ("oom_at_load", Verdict.NOTIFY),
        ("oom_in_sampling", Verdict.NOTIFY),
        ("killed", Verdict.NOTIFY),
        ("gpu_lost", Verdict.NOTIFY),
        ("nan", Verdict.NOTIFY),
        ("finished_without_steps", Verdict.NOTIFY),
        ("user_stop", Verdict.IGNORE),
        ("host_oom", Verdict.ACT),
        ("cuda_oom", Verdict.ACT),
    ],
)
def test_what_is_started_again(cause: str, verdict: Verdict) -> None:
    """Only what other knobs can answer; never what a person or a GUI stopped."""
    alert = an_alert("TrainingJobEnded", training_job_id="j1", cause=cause, generation="1")
    knobs = {**KNOBS, "data_workers": "8"}
    decision = decided(alert, job=a_job(state=JobState.WAITING, knobs=knobs, changeable=frozenset(knobs)))

    assert decision.verdict is verdict
    assert planned(decision) == {"host_oom": {"data_workers": "4"}, "cuda_oom": {"batch_size": "/2"}}.get(cause, {})


def on_host(**memory: int) -> Heartbeat:
    return replace(a_heartbeat(), host=HostSample(**memory))


def test_a_slow_loader_gets_a_suggestion_and_nothing_is_done() -> None:
    """The next rung with its knobs, and those that would follow; without knobs, or for another cause, none."""
    job = a_job(knobs=KNOBS, changeable=frozenset(KNOBS), cpus=8)
    heartbeat = replace(
        a_heartbeat(), host=replace(a_heartbeat().host, memory_total=10 * GIB, memory_available=5 * GIB)
    )

    assert suggestion({"cause": "loader"}, job, heartbeat) == {
        "suggested": "data_workers 0 → 4",
        "rung": "more_workers",
        "suggested_then": "persistent_workers false → true, pin_memory false → true, cache_latents false → true",
    }
    assert suggestion({"cause": "disk"}, job, heartbeat) == {}
    assert suggestion({"cause": "loader"}, a_job(), heartbeat) == {}


def test_a_full_host_gets_no_more_workers_suggested() -> None:
    """85 % of its memory is in use."""
    job = a_job(knobs=KNOBS, changeable=frozenset(KNOBS), cpus=8)
    heartbeat = on_host(memory_total=100, memory_available=14)

    assert suggestion({"cause": "loader"}, job, heartbeat)["suggested"] == "cache_latents false → true"


def test_the_stalled_job_is_told_with_what_it_is_at() -> None:
    """Phase, silence and pace go into the message."""
    heartbeat = a_heartbeat(phase="train", step_idle_s=640.0, log_idle_s=700.0, step_seconds_median=1.5)
    decision = decided(an_alert("TrainingStalled"), evidence=evidence(heartbeat=heartbeat))

    assert {name: decision.facts[name] for name in ("phase", "step_idle_s", "log_idle_s", "step_seconds_median")} == {
        "phase": "train",
        "step_idle_s": 640.0,
        "log_idle_s": 700.0,
        "step_seconds_median": 1.5,
    }
