"""Bodies that a real Alertmanager 0.25 posted, decided on a real store."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.acceptance.deciding_world import SaidPrometheus, World
from tunewarden.adapters.policy_file import load_policies
from tunewarden.adapters.store import tables
from tunewarden.domain.job import Gpu
from tunewarden.domain.matcher import parse_matchers
from tunewarden.domain.policy import Policy
from tunewarden.shipped import shipped_dir

SAMPLES = Path(__file__).parents[1] / "golden" / "alertmanager-0.25"
CARDS = tuple(Gpu(uuid=f"GPU-00000000-0000-0000-0000-00000000000{at}", index=at) for at in range(4))


def policies() -> tuple[Policy, ...]:
    """vram-pressure for the samples' alert names."""
    shipped = {policy.name: policy for policy in load_policies([shipped_dir("rules") / "policies"])}
    return (replace(shipped["vram-pressure"], matchers=parse_matchers('alertname=~"GpuMemory.*", severity!="none"')),)


def world(folder: Path) -> World:
    return World(folder, enforce=True, policies=policies(), prometheus=SaidPrometheus({"> 0.95": True}))


def deliver(world: World, name: str) -> None:
    world.deliver(body=(SAMPLES / f"{name}.json").read_bytes())


def test_three_of_four_then_all_four_of_one_job_is_one_remediation(tmp_path: Path) -> None:
    """The second flush repeats all; only the fourth alert is new, and it joins."""
    with world(tmp_path) as here:
        here.job("j1", gpus=CARDS, host_gpus=CARDS)
        here.heartbeat("j1", oom_lines=1)

        deliver(here, "firing-first-flush-3-of-4")
        here.pass_time(1)
        deliver(here, "firing-second-flush-repeats-all-4")

        assert len(here.remediations()) == 1
        assert Counter(reason for _, reason in here.decisions()) == {"policy_matched": 1, "joined": 3}
        assert [row["repeats"] for row in here.rows(tables.episodes)] == [1, 1, 1, 0]


def test_four_cards_of_four_jobs_are_four_remediations(tmp_path: Path) -> None:
    """Each card means its own job; dcgm's label `job` means none."""
    with world(tmp_path) as here:
        for card in CARDS[:3]:
            here.job(f"j{card.index}", uuid=card.uuid, index=card.index)
            here.heartbeat(f"j{card.index}", oom_lines=1)

        deliver(here, "firing-four-gpus-grouped")

        assert {row["job_id"] for row in here.remediations()} == {"j0", "j1", "j2"}
        assert here.decisions()[-1] == ("notify", "no_target")


def test_a_resolved_alert_inside_a_firing_group_is_resolved(tmp_path: Path) -> None:
    """The root status is firing; the one that is over takes back its own remediation and no other."""
    with world(tmp_path) as here:
        for card in CARDS[:3]:
            here.job(f"j{card.index}", uuid=card.uuid, index=card.index)
            here.heartbeat(f"j{card.index}", oom_lines=1)
        deliver(here, "firing-four-gpus-grouped")
        here.pass_time(10)

        deliver(here, "firing-status-mixed-one-resolved")

        assert {row["job_id"]: row["state"] for row in here.remediations()} == {
            "j0": "ordered",
            "j1": "cancelled",
            "j2": "ordered",
        }


def test_alerts_that_a_truncated_body_leaves_out_are_not_over(tmp_path: Path) -> None:
    """truncatedAlerts is 2: what is not listed still fires."""
    with world(tmp_path) as here:
        deliver(here, "firing-four-gpus-grouped")
        deliver(here, "firing-max_alerts-2-truncated")

        assert [row["resolved_at"] for row in here.rows(tables.episodes)] == [None] * 4


def test_one_firing_and_its_resolved(tmp_path: Path) -> None:
    """Matched by fingerprint alone."""
    with world(tmp_path) as here:
        deliver(here, "firing-one-gpu")
        deliver(here, "resolved-one-gpu")

        [episode] = here.rows(tables.episodes)
        assert (episode["resolved_at"] is not None, here.decisions()) == (
            True,
            [("notify", "no_target"), ("ignore", "resolved")],
        )


def test_a_label_called_status_means_nothing(tmp_path: Path) -> None:
    """Only the alert's own status counts."""
    with World(tmp_path) as here:
        here.deliver(here.alert("A") | {"labels": {"alertname": "A", "status": "resolved"}})

        assert [row["resolved_at"] for row in here.rows(tables.episodes)] == [None]
