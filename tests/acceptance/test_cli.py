"""The built command against a running service: what is printed into a pipe, what is done, and the exit codes."""

import getpass
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.world import CONFIG, EXAMPLES, Job, World
from tunewarden.demo.evidence import gone, read_json, sha256
from tunewarden.shipped import hook_dir

LONG = {"train_samples": 40000, "step_seconds": 0.05, "activation_mb_per_sample": 2}
ENDED = "select ended_cause from jobs where job_id = ? and ended_cause is not null"
HOOK = str(hook_dir())
PAYLOADS = Path(__file__).parents[1] / "golden" / "alertmanager-0.25"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service with a robot, and a job that trains on."""
    with World(tmp_path_factory.mktemp("desk"), watched=False, verbose_robots={"phone": False}) as world:
        cat = world.run("cat", config=LONG)
        world.until(lambda: cat.step() > 0 and known(world, "cat"))
        yield world


def known(world: World, name: str) -> list[tuple[object, ...]]:
    return world.rows("select job_id from jobs where name = ? and json_extract(sample, '$.job.step') > 0", name)


def start(world: World, name: str, **more: object) -> Job:
    job = world.run(name, config=LONG, **more)  # type: ignore[arg-type]
    world.until(lambda: job.step() > 0 and known(world, name))
    return job


def outcome(world: World, job: Job) -> tuple[str, str]:
    """State and reason of the job's newest remediation, once it is over."""
    query = "select state, reason from remediations where job_id = ? and open = 0 order by opened_at desc"
    return world.until(lambda: world.rows(query, job.job_id))[0]  # type: ignore[return-value]


def table(text: str) -> list[dict[str, str]]:
    """A plain table: a header line and a line a row, cells apart by a tab."""
    header, *rows = (line.split("\t") for line in text.splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_jobs_in_a_pipe_is_a_plain_table(desk: World) -> None:
    """Tab-separated, without colour or frames."""
    done = desk.command("jobs")
    row = next(row for row in table(done.stdout) if row["name"] == "cat")

    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert (row["job"], row["state"], row["generation"]) == (desk.jobs["cat"].job_id, "running", "1")
    assert (row["trainer"], row["mode"]) == ("lora-yaml", "inherit")
    assert int(row["step"].split("/")[0]) > 0


def test_save_writes_a_checkpoint_and_the_job_trains_on(desk: World) -> None:
    """Asked by its name; the audit knows who asked."""
    job = desk.jobs["cat"]
    done = desk.command("save", "cat")
    receipt = desk.until(lambda: job.receipt(1))
    people = "select distinct actor from audit where job_id = ? and actor not in ('service', 'agent')"
    actors = desk.rows(people, job.job_id)

    assert done.returncode == 0
    assert done.stdout.startswith("save asked of cat as R-")
    assert Path(receipt["path"]).exists()
    assert desk.until(lambda: job.step() > receipt["step"])
    assert outcome(desk, job) == ("done", "saved")
    assert actors == [(getpass.getuser(),)]


def test_stop_saves_first_and_run_ends_with_75(desk: World) -> None:
    """By the id, which is the job's whatever its name."""
    job = start(desk, "dog")
    done = desk.command("stop", job.job_id)
    desk.until(lambda: desk.job_has_ended("dog"))

    assert done.returncode == 0
    assert job.receipt(1)["ok"] is True
    assert job.process.returncode == 75
    assert gone(job.seen[1], job.job_id)
    assert outcome(desk, job) == ("done", "stopped")


def test_stop_now_does_not_save(desk: World) -> None:
    """No receipt: the person chose to lose what was unsaved."""
    job = start(desk, "bird")
    desk.command("hold", "bird")
    done = desk.command("stop", "bird", "--now")
    desk.until(lambda: desk.job_has_ended("bird"))
    states = [row["state"] for row in table(desk.command("jobs").stdout) if row["name"] == "bird"]

    assert done.returncode == 0
    assert job.receipt(1) == {}
    assert job.process.returncode == 75
    assert gone(job.seen[1], job.job_id)
    assert outcome(desk, job) == ("done", "stopped")
    assert states == ["ended"]  # though it was held


def test_hold_and_release_show_in_the_table(desk: World) -> None:
    """`(held)` stands beside the state of a living job."""
    states = []
    for word in ("hold", "release"):
        assert desk.command(word, "cat").stdout == f"cat: {word} done\n"
        states.append(next(row["state"] for row in table(desk.command("jobs").stdout) if row["name"] == "cat"))

    assert states == ["running (held)", "running"]


def test_a_remediation_that_has_not_begun_is_cancelled(desk: World) -> None:
    """The agent sleeps, so nothing is done yet; after the cancel nothing is done when it wakes."""
    job = start(desk, "snail")
    assert job.run_dir is not None
    agent = read_json(job.run_dir / "agent.json")["pid"]
    os.kill(agent, signal.SIGSTOP)
    try:
        remediation_id = desk.command("stop", "snail").stdout.split(" as ")[1].split(":")[0]
        done = desk.command("remediations", "cancel", remediation_id)
    finally:
        os.kill(agent, signal.SIGCONT)
    shown = {row["field"]: row["value"] for row in table(desk.command("remediations", remediation_id).stdout)}
    listed = [row["remediation"] for row in table(desk.command("remediations").stdout)]
    step = job.step()

    assert done.stdout == f"{remediation_id} is cancelled: the job is as it was\n"
    assert shown["state"] == "cancelled"
    assert remediation_id in listed
    assert desk.until(lambda: job.step() > step + 20)
    assert job.receipt(1) == {}


def test_a_cancel_that_comes_too_late_is_refused_in_one_line(desk: World) -> None:
    """The remediation is over, or there is none of that id."""
    over = desk.rows("select remediation_id from remediations where open = 0")[0][0]
    late, unknown = (desk.command("remediations", "cancel", each) for each in (over, "R-000000"))

    assert (late.returncode, unknown.returncode) == (1, 1)
    assert len(late.stderr.splitlines()) == 1
    assert unknown.stderr == "tunewarden: no such remediation\n"


def test_breaker_close_answers(desk: World) -> None:
    """Also when it is closed already: what the person wants holds."""
    done = desk.command("breaker", "close")

    assert (done.returncode, done.stdout) == (0, "the breaker is closed: policies act again\n")


def test_message_test_reaches_the_robot(desk: World) -> None:
    """Signed, and answered by the robot before the command ends."""
    done = desk.command("message", "test")
    titles = [post["title"] for post in desk.robots["phone"].posts() if "test message" in post["text"]]

    assert done.returncode == 0, done.stderr
    assert "phone" in done.stdout
    assert len(titles) == 1


def test_an_unknown_robot_names_those_that_there_are(desk: World) -> None:
    """In one line."""
    done = desk.command("message", "test", "nobody")

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "phone" in done.stderr


@pytest.mark.parametrize("word", ["save", "release"])
def test_an_unknown_job_names_those_that_there_are(desk: World, word: str) -> None:
    """A name mistyped at night: one line that shows the right one."""
    done = desk.command(word, "cta")

    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("tunewarden: no such job; living jobs: ")
    assert "cat" in done.stderr


def test_without_a_service_it_says_how_to_start_one(desk: World) -> None:
    """One line, and 1."""
    done = desk.command("jobs", TUNEWARDEN_URL="http://127.0.0.1:9")

    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "tunewarden serve" in done.stderr


def test_a_wrong_token_is_named_by_its_file_and_never_shown(desk: World) -> None:
    """One line, and 1."""
    token = desk.folder / "wrong.token"
    token.write_text("not-the-token-of-this-service\n", encoding="ascii")
    done = desk.command("jobs", TUNEWARDEN_AGENT_TOKEN_FILE=str(token))

    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(token) in done.stderr
    assert "not-the-token" not in done.stderr


def test_check_lists_what_is_good(desk: World) -> None:
    """Each policy with its mode and its file."""
    done = desk.command("check")
    names = {row["policy"] for row in table(done.stdout)}

    assert done.returncode == 0
    assert names == {
        *("gpu-underutilised", "vram-95-stop", "vram-pressure"),
        *("job-finished", "job-host-oom", "job-nan", "job-oom", "job-stalled"),
    }


def test_check_tells_every_fault_with_its_line(desk: World, tmp_path: Path) -> None:
    """Settings first; when they can be read, the policies too. Exit 2."""
    settings, policies = tmp_path / "settings.yaml", tmp_path / "policies"
    settings.write_text("port: 99999\nenforced: true\nheartbeat: soon\n", encoding="utf-8")
    first = desk.command("check", "--config", str(settings))
    policies.mkdir()
    (policies / "mine.yaml").write_text("name: mine\nmatch:\n  - alertname=\nsteps:\n  - reboot\n", encoding="utf-8")
    settings.write_text(f"policy_dirs: [{policies}]\n", encoding="utf-8")
    second = desk.command("check", "--config", str(settings))

    assert (first.returncode, second.returncode) == (2, 2)
    assert [f"{settings}:{line}:" in first.stderr for line in (1, 2, 3)] == [True, True, True]
    assert [f"{policies}/mine.yaml:{line}:" in second.stderr for line in (5,)] == [True]


def test_simulate_says_what_would_be_decided(desk: World, tmp_path: Path) -> None:
    """Against the store's jobs, one of which is held."""
    desk.command("hold", "cat")
    labels = {"alertname": "GpuMemoryNearlyFull", "training_job_id": desk.jobs["cat"].job_id}
    alert = {"status": "firing", "labels": labels, "annotations": {}, "startsAt": "2026-01-01T00:00:00Z"}
    body = {"version": "4", "groupKey": "g", "status": "firing", "receiver": "r", "alerts": [alert]}
    payload = tmp_path / "payload.json"
    payload.write_text(json.dumps(body), encoding="utf-8")
    as_json, plain = desk.command("simulate", str(payload), "--json"), desk.command("simulate", str(payload))
    desk.command("release", "cat")
    (entry,) = json.loads(as_json.stdout)

    assert (as_json.returncode, plain.returncode) == (0, 0), as_json.stderr
    assert {"fingerprint", "verdict", "reason", "policy", "steps"} <= entry.keys()
    assert (entry["reason"], entry["policy"]) == ("on_hold", "vram-pressure")
    assert table(plain.stdout)[0]["reason"] == "on_hold"


def test_simulate_needs_no_service_and_no_store(tmp_path: Path, desk: World) -> None:
    """A real Alertmanager's body on a machine that has never served: no target."""
    payload, state = PAYLOADS / "firing-one-gpu.json", str(tmp_path / "s")
    done = desk.command("simulate", str(payload), "--json", TUNEWARDEN_CONFIG="", TUNEWARDEN_STATE_DIR=state)

    assert done.returncode == 0, done.stderr
    assert {entry["reason"] for entry in json.loads(done.stdout)} == {"no_policy"}
    assert not (tmp_path / "s").exists()


def test_adjust_prints_a_diff_and_writes_only_when_told(desk: World, tmp_path: Path) -> None:
    """The original is never written; the second run takes the next free name."""
    config = tmp_path / CONFIG
    config.write_bytes((EXAMPLES / CONFIG).read_bytes())
    before = sha256(config)
    shown = desk.command("adjust", str(config), "batch_size=/2")
    only = [path.name for path in tmp_path.iterdir()]
    written = desk.command("adjust", str(config), "batch_size=/2", "--write")
    beside = tmp_path / "my_style_lora.tunewarden-g2.yaml"

    assert (shown.returncode, written.returncode) == (0, 0), shown.stderr
    assert "-batch_size: 4 " in shown.stdout
    assert "+batch_size: 2 " in shown.stdout
    assert "+gradient_accumulation_steps: 2 " in shown.stdout
    assert "\x1b" not in shown.stdout
    assert only == [CONFIG]
    assert "batch_size: 2 " in beside.read_text("utf-8")
    assert sha256(config) == before


def test_adjust_names_the_line_of_what_it_can_not_change(desk: World, tmp_path: Path) -> None:
    """Exit 2, file:line, and the file as it was."""
    config = tmp_path / "mine.yaml"
    config.write_text("lora_rank: 8\nbatch_size: [4, 8]\n", encoding="utf-8")
    done = desk.command("adjust", str(config), "batch_size=/2", "--write")

    assert done.returncode == 2
    assert f"{config}:2" in done.stderr
    assert config.read_text("utf-8") == "lora_rank: 8\nbatch_size: [4, 8]\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["no-such-command"], 127)],
)
def test_run_ends_with_the_commands_own_code(desk: World, command: list[str], code: int) -> None:
    """As the shell would: `run … && next` goes on or not, as without tunewarden."""
    done = desk.command("run", "--", *command)

    assert done.returncode == code


def test_a_job_without_the_hook_has_a_note(desk: World) -> None:
    """`tunewarden jobs` says what keeps the training hook out."""
    command = [sys.executable, "-I", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    job = desk.run("isolated", config=LONG, command=command)
    desk.until(lambda: desk.rows("select job_id from jobs where name = ?", "isolated"))
    row = next(row for row in table(desk.command("jobs").stdout) if row["name"] == "isolated")
    job.process.send_signal(signal.SIGINT)

    assert row["note"].startswith("python -I ignores PYTHONPATH")


def test_run_with_a_taken_name_names_the_holder(desk: World) -> None:
    """Exit 2, and the pid of the run that has the name."""
    done = desk.command("run", "--name", "cat", "--", "true")

    assert done.returncode == 2
    assert f"pid {desk.jobs['cat'].process.pid}" in done.stderr


def test_a_loop_of_runs_goes_on(desk: World) -> None:
    """A queue in a shell: each takes the name that the one before has left."""
    quick = {"train_samples": 40, "epochs": 1, "step_seconds": 0}
    loop = 'for i in 1 2; do {run} || exit 1; echo "$i" >> runs; done; touch went-on'
    job = desk.run("queue", config=quick, shell=loop)
    desk.until(lambda: desk.job_has_ended("queue"))

    assert job.process.returncode == 0
    assert (job.folder / "runs").read_text("ascii") == "1\n2\n"
    assert (job.folder / "went-on").exists()


def test_ctrl_c_saves_stops_and_ends_with_130(desk: World) -> None:
    """As a person at the terminal; the service sees a person's stop."""
    job = start(desk, "mine")
    job.process.send_signal(signal.SIGINT)
    desk.until(lambda: desk.job_has_ended("mine"))

    assert job.process.returncode == 130
    assert job.receipt(1)["ok"] is True
    assert gone(job.seen[1], job.job_id)
    assert desk.until(lambda: desk.rows(ENDED, job.job_id)) == [("user_stop",)]


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        ([], {}, HOOK),
        ([], {"PYTHONPATH": ""}, HOOK),  # Python takes it for none: no ":" behind the folder, which would mean "here"
        ([], {"PYTHONPATH": "/nowhere:"}, f"{HOOK}:/nowhere:"),
        (["--no-hook"], {"PYTHONPATH": "/nowhere:"}, "/nowhere:"),
        (["--no-hook"], {"PYTHONPATH": ""}, ""),
        (["--no-hook"], {}, None),
    ],
    ids=["none", "empty", "set", "no-hook", "no-hook-empty", "no-hook-none"],
)
def test_a_job_is_told_what_it_would_be_told_without_us(
    desk: World, options: list[str], given: dict[str, str], expected: str | None
) -> None:
    """Environment and arguments reach it unchanged but for our three variables, and the hook's folder on PYTHONPATH."""
    show = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    odd = {"ODD": "a b\n'c' $HOME", **given}
    done = desk.command("run", *options, "--", sys.executable, "-c", show, "--flag", "", "a b", "*", **odd)
    environment, argv = json.loads(done.stdout.splitlines()[0])
    added = {name for name in environment if name.startswith("TUNEWARDEN_")}

    assert argv == ["--flag", "", "a b", "*"]
    assert added - {"TUNEWARDEN_CONFIG"} == {"TUNEWARDEN_CONTROL_DIR", "TUNEWARDEN_JOB", "TUNEWARDEN_GENERATION"}
    assert environment.pop("PYTHONPATH", None) == expected
    assert {**desk.environment, **odd, "PYTHONPATH": ""} == {"PYTHONPATH": ""} | {
        name: value for name, value in environment.items() if name not in added
    } | {"TUNEWARDEN_CONFIG": desk.environment["TUNEWARDEN_CONFIG"]}
