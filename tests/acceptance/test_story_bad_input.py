"""Bad input through the whole product: each gets a named reason, and the job is left as it was.

One world without Prometheus: policies of the test's own are set off by posting to the webhook, and confirmed on the
host. The jobs run side by side.
"""

import json
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.world import CONFIG, GRUMBLING_TRAINER, Job, World
from tunewarden.demo.evidence import gone, sha256

LONG = {"train_samples": 40000, "step_seconds": 0.05, "activation_mb_per_sample": 4}
COMMAND = [sys.executable, str(GRUMBLING_TRAINER), "--config", CONFIG]
POLICY = """\
name: {name}
match:
  - alertname="{name}"
confirm:
  - nvml: memory_ratio > 0.01
steps:
  - notify
  - {step}
"""
EXPECT = "expect: {nvml: memory_ratio > 0.95, verify_for: 3s, steps: 10, deadline: 60s}\n"
POLICIES = {
    "Halve": POLICY.format(name="Halve", step="replace: {batch_size: /2}") + EXPECT,
    "Shrink": POLICY.format(name="Shrink", step="replace: {resolution: /2}") + EXPECT,
    "Halt": POLICY.format(name="Halt", step="stop"),
    "Storm": 'name: Storm\nmatch:\n  - alertname="Storm"\nsteps:\n  - notify\n',
}
# job -> what fires, and the reason that its remediation ends with
REFUSED = {
    "missing": ("Halve", "config_not_found"),
    "edited": ("Halve", "config_changed"),
    "twice": ("Halve", "config_malformed"),
    "keyless": ("Shrink", "knob_not_found"),
    "deaf": ("Halt", "no_step_boundary"),
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "own").mkdir()
    for name, text in POLICIES.items():
        (folder / "own" / f"{name}.yaml").write_text(text, encoding="utf-8")
    limits = {"share_from_jobs": 100, "actions_per_hour": 100}
    settings = {"enforce": True, "policy_dirs": [str(folder / "own")], "limits": limits}
    with World(folder, settings=settings, watched=False, verbose_robots={"phone": False}) as world:
        start_jobs(world)
        world.until(lambda: all(job.step() > 2 and known(world, job) for job in world.jobs.values()), within_s=60)
        spoil(world)
        names = {name: alertname for name, (alertname, _) in REFUSED.items()} | {"dying": "Halt", "forking": "Halt"}
        send(world, [alert(alertname, world.jobs[name]) for name, alertname in names.items()])
        world.until(lambda: all(over(world, world.jobs[name]) for name in names), within_s=60)
        yield world


def start_jobs(world: World) -> None:
    cards = iter(range(10))
    for name in REFUSED:
        # A second `batch_size` is read by the trainer, and nobody can say which of the two rules.
        changes = {**LONG, **({"logging_dir": '"x"\nbatch_size: 4'} if name == "twice" else {})}
        changes |= {"ignore_stop": True} if name == "deaf" else {}
        world.run(name, config=changes, card=next(cards), options=["--grace", "3"])
    saving = {**LONG, "save_seconds": 2}
    world.run("dying", config=saving, command=COMMAND, env={"DIE_IN_SAVE": "1"}, card=next(cards))
    world.run("forking", config=LONG, command=COMMAND, env={"FORK_AWAY": "1"}, card=next(cards))


def spoil(world: World) -> None:
    world.jobs["missing"].config.unlink()
    with world.jobs["edited"].config.open("a", encoding="utf-8") as config:
        config.write("# a note that somebody adds meanwhile\n")
    world.jobs["edited"].config_sha256 = sha256(world.jobs["edited"].config)


def known(world: World, job: Job) -> bool:
    """The service has seen what the trainer can do."""
    return bool(world.rows("select 1 from jobs where job_id = ? and can like '%save%'", job.job_id))


def over(world: World, job: Job) -> list[tuple[Any, ...]]:
    return world.rows("select state, reason from remediations where job_id = ? and open = 0", job.job_id)


def alert(alertname: str, job: Job | None = None, **labels: str) -> dict[str, Any]:
    named = {"training_job_id": job.job_id} if job else {}
    whole = {"alertname": alertname, "severity": "warning", **named, **labels}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"status": "firing", "labels": whole, "annotations": {}, "startsAt": now, "endsAt": "0001-01-01T00:00:00Z"}


def payload(alerts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"version": "4", "groupKey": "{}:{}", "status": "firing", "receiver": "tunewarden", "alerts": list(alerts)}


def post(world: World, body: object) -> httpx.Response:
    token = (world.state / "webhook.token").read_text("ascii").strip()
    url, headers = f"{world.service.url}/api/v1/alertmanager", {"Authorization": f"Bearer {token}"}
    return httpx.post(url, content=json.dumps(body), headers=headers, timeout=10, trust_env=False)


def send(world: World, alerts: Sequence[Mapping[str, Any]]) -> None:
    assert post(world, payload(alerts)).status_code == 202


def litter(job: Job) -> list[str]:
    """Files that a half-done remediation would leave beside the config or the states."""
    return [path.name for path in job.folder.rglob("*") if "tunewarden" in path.name or path.name.endswith(".partial")]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_it_is_refused_with_a_reason_and_the_job_trains_on(bad: World, name: str) -> None:
    """Generation 1 goes on, nothing is written, the user's config is as the user left it, and a person is told."""
    job, (_, reason) = bad.jobs[name], REFUSED[name]
    step = job.step()

    assert [found for _, found in over(bad, job)] == [reason]
    assert bad.until(lambda: job.step() > step)
    assert len(job.pids(1)) == 1
    assert not job.seen[2]
    assert litter(job) == []
    assert not job.config.exists() if name == "missing" else sha256(job.config) == job.config_sha256
    assert len(bad.robots["phone"].about(name)) == 2


def test_a_trainer_that_dies_while_saving_is_not_called_stopped(bad: World) -> None:
    """It ended by itself: `run` ends with its code, and nothing says that we saved or stopped it."""
    job = bad.jobs["dying"]
    bad.until(lambda: bad.job_has_ended("dying"))
    titles = " ".join(bad.titles("dying"))

    assert job.process.returncode == 3
    assert job.receipt(1) == {}
    assert over(bad, job)[0][1] == "job_ended"
    assert not job.seen[2]
    assert "Stopped" not in titles
    assert "Saved" not in titles


def test_children_that_were_forked_away_are_ended_too(bad: World) -> None:
    """A grandchild in a session of its own carries the job's mark: stopped means that it is gone as well."""
    job = bad.jobs["forking"]
    bad.until(lambda: bad.job_has_ended("forking"))

    assert over(bad, job) == [("done", "stopped")]
    assert len(job.seen[1]) >= 2
    assert gone(job.seen[1], job.job_id)


def test_a_body_in_dingtalks_shape_is_refused_and_not_stored(bad: World) -> None:
    """Somebody has put the robot's address and ours the wrong way round."""
    before = bad.rows("select count(*) from deliveries")
    answer = post(bad, {"msgtype": "markdown", "markdown": {"title": "GPU", "text": "### GPU"}})

    assert answer.status_code == 422
    assert len(answer.text) < 200
    assert bad.rows("select count(*) from deliveries") == before


def test_a_store_that_can_not_grow_gives_503_and_heals(bad: World) -> None:
    """As on a full disk; Alertmanager tries again, and the delivery is stored when there is room."""
    limit = resource.prlimit(bad.service.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(bad.service.pid, resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        full = [post(bad, payload([alert("Nothing", note="x" * 20_000)])).status_code for _ in range(3)]
    finally:
        resource.prlimit(bad.service.pid, resource.RLIMIT_FSIZE, limit)
    healed = bad.until(lambda: post(bad, payload([alert("Nothing", note="healed")])).status_code == 202)

    assert full == [503, 503, 503]
    assert healed
    assert bad.until(lambda: bad.rows("select 1 from episodes where json_extract(labels, '$.note') = 'healed'"))


def test_500_alerts_with_labels_like_shell_are_kept_and_told(bad: World, tmp_path: Path) -> None:
    """All in the store, none run as a command, and the robot took every message: few, small, in good markdown."""
    trap = tmp_path / "trap"
    nasty = [f"$(touch {trap})", f"; touch {trap}", f"`touch {trap}`", "../../etc/passwd", "**bold** [a](x) | <img>"]
    storm = [alert("Storm", number=str(i), LD_PRELOAD=nasty[i % 5], summary="显存" * 150) for i in range(500)]
    before = len(bad.robots["phone"].posts())
    began = time.monotonic()
    send(bad, storm)
    answered = time.monotonic() - began
    bad.until(lambda: bad.rows("select count(*) from episodes where alertname = 'Storm'") == [(500,)])
    bad.until(lambda: not bad.rows("select 1 from outbox where state in ('pending', 'sending')"))
    posts = bad.robots["phone"].posts()[before:]

    assert answered < 2
    assert {post["errcode"] for post in posts} == {0}
    assert len(posts) <= 20
    assert max(post["bytes"] for post in posts) <= 20_000
    assert not trap.exists()


def test_the_service_ends_well_after_all_that(bad: World) -> None:
    """Nothing of it was logged as a fault of ours but the store that could not grow, and SIGTERM ends it with 0."""
    process = bad.service._process
    assert process is not None
    process.send_signal(signal.SIGTERM)

    assert process.wait(20) == 0
