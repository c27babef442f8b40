"""What comes at the wrong moment: SIGKILL of the service, Ctrl-C, `resolved`, and pressure that comes again.

One world with `enforce` on; the second sign is an out-of-memory line in the jobs' logs, for it comes at once.
"""

import signal
import sys
from collections.abc import Iterator

import pytest

from tests.acceptance.world import CONFIG, GRUMBLING_TRAINER, MOBILE, SHORTER_POLICIES, Job, World
from tunewarden.demo.evidence import gone, sha256

LIMITS = {"replacements: 3": "replacements: 1", "cooldown: 10m": "cooldown: 8s"}
SETTINGS = {"enforce": True, "episode_close_after": "1s", "limits": {"share_from_jobs": 100}}
FULL_ALERT = "GpuMemoryNearlyFull"
COMMAND = [sys.executable, str(GRUMBLING_TRAINER), "--config", CONFIG]
FULL = {"train_samples": 400, "epochs": 4, "step_seconds": 0.06, "activation_mb_per_sample": 58, "save_seconds": 3}
LIGHT = {"train_samples": 4000, "step_seconds": 0.04, "activation_mb_per_sample": 4}
BALLAST = {"GRUMBLE_AT_S": "1", "BALLAST_MB": "216", "BALLAST_AT_S": "6"}


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("awkward"), settings=SETTINGS, policies={**SHORTER_POLICIES, **LIMITS}) as world:
        survivor = world.run("survivor", config=FULL, command=COMMAND, env={"GRUMBLE_AT_S": "1"}, card=1)
        world.until(lambda: survivor.file(1, "stop.taken"))
        world.service.kill()
        world.service.start()
        mine = world.run("mine", config=FULL, command=COMMAND, env={"GRUMBLE_AT_S": "1"}, card=2)
        world.until(lambda: mine.file(1, "stop.taken"))
        mine.process.send_signal(signal.SIGINT)
        world.until(lambda: mine.process.poll() is not None and survivor.process.poll() is not None)
        # After the kill: an order of this job that the dead service could not answer for would be withdrawn.
        again = world.run("again", config=LIGHT, command=COMMAND, env=BALLAST, card=0)
        world.until(lambda: "Notice" in [title.split()[0] for title in world.titles("again", FULL_ALERT)][1:])
        world.until(lambda: len(world.titles("mine", "GpuMemoryNearlyFull")) > 1)
        world.until(lambda: again.step(2) > again.step(1))
        yield world


def said_once(world: World, name: str, robot: str) -> list[str]:
    """The first words of the titles of the remediation's messages; what is marked as a possible repeat is left out."""
    posts = world.robots[robot].about(name, "GpuMemoryNearlyFull")
    return [p["title"].split(" / ")[-1].split()[0] for p in posts if "possibly repeated" not in p["text"]]


def generations(job: Job) -> list[str]:
    assert job.run_dir is not None
    return sorted(path.name for path in job.run_dir.glob("g*"))


def test_a_service_killed_midway_finishes_what_it_began(awkward: World) -> None:
    """SIGKILL while the checkpoint was written: the job was saved, stopped, adjusted and ran to its end."""
    job = awkward.jobs["survivor"]

    assert job.receipt(1)["step"] == job.file(2, "resumed.json")["step"]
    assert gone(job.seen[1], job.job_id)
    assert job.result["steps"] == 400
    assert job.process.returncode == 0


def test_a_killed_service_does_nothing_twice(awkward: World) -> None:
    """One request, one receipt for it, one new config, one new generation, each message once."""
    job = awkward.jobs["survivor"]

    assert job.receipt(1)["request_id"] == job.file(1, "stop.taken")["request_id"]
    assert generations(job) == ["g1", "g2"]
    assert [path.name for path in job.folder.glob("*.tunewarden-*")] == [job.beside(2).name]
    assert said_once(awkward, "survivor", "phone") == ["Acting", "Recovered"]
    assert said_once(awkward, "survivor", "desk") == ["Acting", "Restarted", "Recovered"]
    assert awkward.rows("select count(*) from remediations where job_id = ?", job.job_id) == [(1,)]


def test_resolved_after_the_stop_is_only_evidence(awkward: World) -> None:
    """The stop frees the memory, so Alertmanager says `resolved` at once; the remediation goes on to its end."""
    job = awkward.jobs["survivor"]
    between = awkward.rows(
        "select verdict, reason from decisions natural join (select job_id, opened_at, ended_at from remediations)"
        " where job_id = ? and decided_at between opened_at and ended_at and reason = 'resolved'",
        job.job_id,
    )

    assert between
    assert set(between) == {("ignore", "resolved")}
    assert awkward.rows("select state, reason from remediations where job_id = ?", job.job_id) == [
        ("recovered", "recovered")
    ]


def test_ctrl_c_during_a_remediation_wins(awkward: World) -> None:
    """The save that was under way is kept, nothing is launched again, and `run` ends with 130."""
    job = awkward.jobs["mine"]

    assert job.process.returncode == 130
    assert job.receipt(1)["ok"] is True
    assert gone(job.seen[1], job.job_id)
    assert not job.seen[2]
    assert awkward.rows("select reason from remediations where job_id = ?", job.job_id) == [("user_stop",)]


def test_pressure_that_comes_again_stops_at_the_budget(awkward: World) -> None:
    """One replacement is allowed: the second pressure is told once, to a person, and the job trains on."""
    job = awkward.jobs["again"]
    words = [title.split()[0] for title in awkward.titles("again", "GpuMemoryNearlyFull")]
    last = awkward.robots["phone"].about("again", "GpuMemoryNearlyFull")[-1]
    first_id = awkward.rows("select remediation_id from remediations where job_id = ?", job.job_id)[0][0]

    assert generations(job) == ["g1", "g2"]
    assert len(job.pids(2)) == 1
    assert words[-3:] == ["Acting", "Recovered", "Notice"]
    assert words[:-3] in ([], ["Notice"])  # full before the second sign was there
    assert "had all its automatic replacements for 24 hours" in last["text"]
    assert first_id in last["text"]
    assert last["mentions"] == [MOBILE]


def test_the_configs_are_as_they_were(awkward: World) -> None:
    """Whatever came when."""
    changed = [job.name for job in awkward.jobs.values() if sha256(job.config) != job.config_sha256]

    assert changed == []
