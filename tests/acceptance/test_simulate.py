"""What would be decided about a body: nothing is acted on, nothing is written."""

import json
from pathlib import Path

import pytest

from tests.acceptance.deciding_world import START, World
from tunewarden.adapters.policy_file import load_policies
from tunewarden.adapters.store import tables
from tunewarden.api.wire import WrongShape, alerts_of
from tunewarden.domain.choice import Rules
from tunewarden.domain.evidence import Answer
from tunewarden.pipeline.deciding import Deciding, Gathered
from tunewarden.pipeline.simulate import simulate
from tunewarden.shipped import shipped_dir

DECIDING = Deciding(policies=load_policies([shipped_dir("rules") / "policies"]), rules=Rules(enforce=True))
SAMPLE = {
    "receiver": "fast",
    "status": "firing",
    "version": "4",
    "alerts": [
        {
            "status": "firing",
            "labels": {
                "alertname": "GpuMemoryNearlyFull",
                "uuid": "GPU-1",
                "node": "gpu-node-1",
                "severity": "warning",
            },
            "annotations": {},
            "startsAt": "2026-11-30T18:59:54.579Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "fingerprint": "a69a8fcbad8af3fc",
        },
        {
            "status": "resolved",
            "labels": {"alertname": "GpuMemoryNearlyFull", "uuid": "GPU-2", "node": "gpu-node-1"},
            "startsAt": "2026-11-30T18:59:54.579Z",
            "endsAt": "2026-11-30T19:00:10.579Z",
        },
        {"status": "firing", "labels": {"alertname": "Watchdog"}, "startsAt": "2026-11-30T18:59:54.579Z"},
    ],
}
BODY = json.dumps(SAMPLE).encode()


def test_without_a_store_no_alert_means_a_job(tmp_path: Path) -> None:
    """One entry an alert, in the body's order."""
    found = simulate(BODY, alerts_of, DECIDING, store=tmp_path / "none.db", now=START)

    assert [(entry["verdict"], entry["reason"], entry["policy"]) for entry in found] == [
        ("notify", "no_target", "vram-pressure"),
        ("ignore", "resolved", ""),
        ("ignore", "no_policy", ""),
    ]
    assert found[0]["fingerprint"] == "a69a8fcbad8af3fc"
    assert not (tmp_path / "none.db").exists()


def test_with_a_store_it_decides_about_its_jobs_while_the_service_has_it(tmp_path: Path) -> None:
    """The same answer that the service would give, and no row of it."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1", oom_lines=1)
        holds = {'gpu:memory_used:ratio{uuid="GPU-1"} > 0.95': Answer(holds=True, age_s=1.0)}

        found = simulate(
            BODY, alerts_of, DECIDING, store=world.store.path, now=world.clock.now(), gathered=Gathered(answers=holds)
        )

        assert (found[0]["verdict"], found[0]["job_id"], found[0]["steps"]) == ("act", "j1", ["notify", "replace"])
        assert [world.rows(table) for table in (tables.episodes, tables.decisions, tables.orders)] == [[], [], []]


def test_the_entries_are_json(tmp_path: Path) -> None:
    """`--json` prints them as they are."""
    found = simulate(BODY, alerts_of, DECIDING, store=None, now=START)

    assert json.loads(json.dumps(found)) == found


def test_a_body_that_is_no_payload_is_refused() -> None:
    """With a reason, not with an empty list."""
    with pytest.raises(WrongShape):
        simulate(b"{}", alerts_of, DECIDING, store=None, now=START)
