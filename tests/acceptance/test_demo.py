"""`tunewarden demo`: green when all is well, red when one thing of what it checks is not so."""

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.outside_stand_in import Outside, outside
from tests.acceptance.real_process import eventually
from tests.acceptance.world import COMMAND
from tunewarden.demo.check import CONFIG, Actor, Stage, check
from tunewarden.demo.evidence import sha256
from tunewarden.demo.files import STEPS

GONE = 4194304  # no process has this pid: Linux counts to 4194303


@pytest.mark.slow
def test_the_demo_plays_and_ends_green() -> None:
    """The whole story with real parts; every finding holds."""
    done = subprocess.run(
        [COMMAND, "demo"],
        env={**os.environ, "DEMO_EXIT": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert done.stdout.count("✓") == 16
    assert "✗" not in done.stdout
    assert "\x1b" not in done.stdout


def _of_the_demo(mark: bytes) -> set[int]:
    """The live processes whose environment carries our mark: the demo, and all that it started."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found


def test_a_demo_that_is_told_to_end_leaves_nothing_behind() -> None:
    """SIGTERM, as `timeout` sends it, in the middle of the story."""
    mark = f"DEMO_TEST={secrets.token_hex(8)}"
    name, value = mark.split("=")
    demo = subprocess.Popen([COMMAND, "demo"], env={**os.environ, name: value}, stdout=subprocess.DEVNULL)
    eventually(lambda: len(_of_the_demo(mark.encode())) >= 8, within_s=90)
    demo.terminate()
    code = demo.wait(60)
    eventually(lambda: not _of_the_demo(mark.encode()), within_s=30)

    assert code == 130


@pytest.fixture
def world() -> Iterator[Outside]:
    with outside() as made:
        yield made


def good_stage(folder: Path, world: Outside) -> Stage:
    """The evidence of a story that went well."""
    actors = {name: actor(folder, name) for name in ("creeping", "flat", "oom")}
    for name in ("creeping", "oom"):
        (actors[name].folder / "my_style_lora.tunewarden-g2.yaml").write_text(
            "lora_rank: 8\nbatch_size: 2  # was 4\ngradient_accumulation_steps: 2  # was 1\n", encoding="utf-8"
        )
        actors[name].seen[2] = {GONE + 1}
    write(actors["creeping"], 1, "receipt.json", {"ok": True, "step": 100})
    write(actors["creeping"], 2, "resumed.json", {"step": 100})
    write(actors["oom"], 1, "crash.json", {"error": "torch.OutOfMemoryError: CUDA out of memory.", "step": 90})
    write(actors["oom"], 2, "resumed.json", {"step": 80})
    log = folder / "robot.jsonl"
    log.write_text(json.dumps({"errcode": 0}) + "\n" + 4 * (json.dumps({"errcode": 0}) + "\n"), encoding="utf-8")
    return Stage(
        prometheus=world.url,
        alertmanager=world.url,
        robot_log=log,
        creeping=actors["creeping"],
        flat=actors["flat"],
        oom=actors["oom"],
    )


def actor(folder: Path, name: str) -> Actor:
    job, run_folder = folder / "jobs" / name, folder / "runs" / f"id-{name}"
    (job / "output" / "lora").mkdir(parents=True)
    (job / "output" / "lora" / "lora.json").write_text(json.dumps({"steps": STEPS}), encoding="utf-8")
    (job / CONFIG).write_text("batch_size: 4\n", encoding="utf-8")
    for generation in (1, 2):
        (run_folder / f"g{generation}").mkdir(parents=True)
    (run_folder / "spec.json").write_text(json.dumps({"name": name}), encoding="utf-8")
    return Actor(name=name, folder=job, config_sha256=sha256(job / CONFIG), runs=folder / "runs", seen={1: {GONE}})


def write(of: Actor, generation: int, name: str, content: dict[str, object]) -> None:
    folder = of.run_folder
    assert folder is not None
    (folder / f"g{generation}" / name).write_text(json.dumps(content), encoding="utf-8")


def test_good_evidence_is_found_good(tmp_path: Path, world: Outside) -> None:
    """All findings of the doctored story, which the next test breaks one by one."""
    findings = check(good_stage(tmp_path, world))

    assert [finding.what for finding in findings if not finding.holds] == []
    assert len(findings) == 16


def result(of: Actor, steps: int) -> None:
    (of.folder / "output" / "lora" / "lora.json").write_text(json.dumps({"steps": steps}), encoding="utf-8")


def edit(of: Actor, text: str) -> None:
    """As an editor that was open all night would, or a program that thinks that it may."""
    (of.folder / CONFIG).write_text(text, encoding="utf-8")


def alive(of: Actor) -> None:
    """One of the pids that were seen lives on, with the job's mark in its environment."""
    assert of.run_folder is not None
    environment = {**os.environ, "TUNEWARDEN_JOB": of.run_folder.name}
    process = subprocess.Popen(["sleep", "60"], env=environment)  # Popen returns after the exec: its mark is there
    LIVING.append(process)
    of.seen[1] = {process.pid}


LIVING: list["subprocess.Popen[bytes]"] = []


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    while LIVING:
        process = LIVING.pop()
        process.kill()
        process.wait()


def posts(stage: Stage, *codes: int) -> None:
    stage.robot_log.write_text("".join(json.dumps({"errcode": code}) + "\n" for code in codes), encoding="utf-8")


BREAKS: dict[str, Callable[[Stage, Outside], object]] = {
    "GpuMemoryNearlyFull fired for two cards": lambda stage, world: world.fired.pop(),
    "Alertmanager delivered to the webhook, none failed": lambda stage, world: world.fail_one(),
    "creeping: saved before it was stopped": lambda stage, world: write(
        stage.creeping, 1, "receipt.json", {"ok": False, "step": 100}
    ),
    "creeping: nothing of generation 1 is alive": lambda stage, world: alive(stage.creeping),
    "creeping: a new config beside": lambda stage, world: (
        stage.creeping.folder / "my_style_lora.tunewarden-g2.yaml"
    ).unlink(),
    "creeping: trained the planned": lambda stage, world: result(stage.creeping, STEPS - 1),
    "flat: one process from start to end": lambda stage, world: write(stage.flat, 1, "stop.taken", {"mode": "save"}),
    "flat: trained the planned": lambda stage, world: result(stage.flat, STEPS + 1),
    "oom: died of CUDA out of memory": lambda stage, world: write(
        stage.oom, 1, "crash.json", {"error": "KeyError", "step": 90}
    ),
    "oom: nothing of generation 1 is alive": lambda stage, world: stage.oom.seen.pop(1),
    "oom: a new config beside": lambda stage, world: (stage.oom.folder / "my_style_lora.tunewarden-g2.yaml").write_text(
        "\nbatch_size: 2 \ngradient_accumulation_steps: 1 \n", encoding="utf-8"
    ),
    "oom: trained the planned": lambda stage, world: result(stage.oom, 0),
    "creeping: the config that you wrote is unchanged": lambda stage, world: (
        stage.creeping.folder / CONFIG
    ).write_text("batch_size: 2\n", encoding="utf-8"),
    "flat: the config that you wrote is unchanged": lambda stage, world: edit(stage.flat, ""),
    "oom: the config that you wrote is unchanged": lambda stage, world: edit(stage.oom, "batch_size: 4"),
    "every message passed DingTalk's checks": lambda stage, world: posts(stage, 0, 0, 310000, 0, 0),
}


@pytest.mark.parametrize("what", sorted(BREAKS))
def test_each_finding_fails_when_its_evidence_is_broken(tmp_path: Path, world: Outside, what: str) -> None:
    """That one, and no other: a check that can't fail would prove nothing."""
    stage = good_stage(tmp_path, world)
    BREAKS[what](stage, world)
    failed = [finding.what for finding in check(stage) if not finding.holds]

    assert len(failed) == 1
    assert failed[0].startswith(what)


def test_every_finding_has_a_break(tmp_path: Path, world: Outside) -> None:
    """A finding that is added later needs its own."""
    unbroken = [
        finding.what
        for finding in check(good_stage(tmp_path, world))
        if not any(finding.what.startswith(what) for what in BREAKS)
    ]

    assert unbroken == []
