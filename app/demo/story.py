"""Plays the story: starts the real parts, lets three jobs run into trouble, and shows what happens to them."""

import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

from tunewarden.adapters.rule_files import shortened_rules
from tunewarden.demo import files
from tunewarden.demo.binaries import find_or_install
from tunewarden.demo.check import CONFIG, Actor, Stage, check
from tunewarden.demo.evidence import sha256
from tunewarden.demo.parts import Parts, free_port
from tunewarden.demo.screen import News, board, findings_table, urls
from tunewarden.shipped import shipped_dir

LIMIT_S = 170.0
REFRESH_S = 0.5
SETTLE_S = 12.0  # the last messages and the last resolved are on their way
PARTS = ("service", "prometheus", "alertmanager", "dingtalk")
TUNEWARDEN = (sys.executable, "-E", "-P", "-m", "tunewarden")


@dataclass(kw_only=True)
class Play:
    """One performance."""

    folder: Path
    parts: Parts
    ports: dict[str, int]
    robot_log: Path
    actors: dict[str, Actor] = field(default_factory=dict)

    def url(self, part: str) -> str:
        return f"http://127.0.0.1:{self.ports[part]}"


def start_services(play: Play, programs: Mapping[str, str], robot: files.Robot) -> None:
    """The stand-in, our service, Prometheus, Alertmanager: each waited for."""
    folder, ports = play.folder, play.ports
    _start_robot(play, robot)
    _write_configs(play, robot)
    service = play.parts.start("service", [*TUNEWARDEN, "serve"])
    play.parts.wait_ready(service, f"{play.url('service')}/-/ready")
    alertmanager = play.parts.start(
        "alertmanager",
        [
            programs["alertmanager"],
            f"--config.file={folder}/alertmanager.yml",
            f"--storage.path={folder}/alertmanager",
            f"--web.listen-address=127.0.0.1:{ports['alertmanager']}",
            "--cluster.listen-address=",
        ],
    )
    prometheus = play.parts.start(
        "prometheus",
        [
            programs["prometheus"],
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/prometheus",
            f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
        ],
    )
    play.parts.wait_ready(alertmanager, f"{play.url('alertmanager')}/-/ready")
    play.parts.wait_ready(prometheus, f"{play.url('prometheus')}/-/ready")


def _start_robot(play: Play, robot: files.Robot) -> None:
    port = play.ports["dingtalk"]
    command = [sys.executable, "-E", "-P", "-m", "tunewarden.demo.dingtalk_stand_in", "--port", str(port)]
    part = play.parts.start(
        "dingtalk", [*command, "--log", str(play.robot_log), "--secret-file", str(robot.secret_file)]
    )
    robot.url_file.write_text(f"{play.url('dingtalk')}/robot/send?access_token=demo", encoding="ascii")
    play.parts.wait_ready(part, f"{play.url('dingtalk')}/healthy")


def _write_configs(play: Play, robot: files.Robot) -> None:
    folder, ports = play.folder, {f"{name}_port": port for name, port in play.ports.items()}
    rules, policies = folder / "rules", folder / "policies"
    shortened_rules(rules, files.SHORTER_RULES)
    files.shortened_policies(shipped_dir("rules") / "policies", policies)
    (folder / "prometheus.yml").write_text(files.PROMETHEUS.format(rules=rules, **ports), encoding="utf-8")
    token = folder / "state" / "webhook.token"
    (folder / "alertmanager.yml").write_text(files.ALERTMANAGER.format(token_file=token, **ports), encoding="utf-8")
    settings = files.SETTINGS.format(policies=policies, url_file=robot.url_file, secret_file=robot.secret_file, **ports)
    (folder / "settings.yaml").write_text(settings, encoding="utf-8")


def start_jobs(play: Play) -> None:
    """The three jobs, each in a folder of its own, each on a simulated card of its own."""
    examples = shipped_dir("examples")
    for scene in files.SCENES:
        folder = play.folder / "jobs" / scene.name
        folder.mkdir(parents=True)
        config = folder / CONFIG
        config.write_text(
            files.training_config((examples / CONFIG).read_text(encoding="utf-8"), scene), encoding="utf-8"
        )
        play.actors[scene.name] = Actor(
            name=scene.name, folder=folder, config_sha256=sha256(config), runs=play.folder / "state" / "runs"
        )
        command = [sys.executable, str(examples / "train.py"), "--config", CONFIG]
        options = ["--name", scene.name, "--simulate-gpu", f"{files.CARD}@{scene.card}"]
        play.parts.start(scene.name, [*TUNEWARDEN, "run", *options, "--", *command], cwd=folder)


def play(environment: Mapping[str, str], console: Console) -> int:
    """Play it all; 0 when every finding of the final check holds.

    `DEMO_EXIT=1` in the environment ends the demo after the check; else it stays up until Ctrl-C.
    """
    programs = find_or_install(console.print, environment)
    folder = Path(tempfile.mkdtemp(prefix="tunewarden-demo-"))
    inherited = {name: value for name, value in environment.items() if not name.startswith("TUNEWARDEN_")}
    ours = {"TUNEWARDEN_STATE_DIR": str(folder / "state"), "TUNEWARDEN_CONFIG": str(folder / "settings.yaml")}
    parts = Parts(folder=folder, environment={**inherited, **ours})
    performance = Play(
        folder=folder, parts=parts, ports={name: free_port() for name in PARTS}, robot_log=folder / "dingtalk.jsonl"
    )
    signal.signal(signal.SIGTERM, _interrupt)  # what was started must not outlive us
    try:
        return _perform(performance, programs, console, stay=environment.get("DEMO_EXIT") != "1")
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    finally:
        parts.stop_all()


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _perform(performance: Play, programs: Mapping[str, str], console: Console, *, stay: bool) -> int:
    began = time.monotonic()
    _introduce(console)
    start_services(performance, programs, files.Robot.make(performance.folder))
    start_jobs(performance)
    _watch(performance, console)
    findings = check(_stage(performance))
    console.print(findings_table(findings))
    good = all(finding.holds for finding in findings)
    verdict = "[green]everything holds[/]" if good else "[bold red]something does not hold[/]"
    console.print(
        f"{verdict} after {time.monotonic() - began:.0f} s; logs and files: {performance.folder}", markup=True
    )
    if stay:
        console.print(urls((name, performance.url(name)) for name in PARTS))
        console.print("It stays up; Ctrl-C ends it.")
        while True:
            time.sleep(3600)
    return 0 if good else 1


def _introduce(console: Console) -> None:
    console.print("[bold]tunewarden demo[/]: real Prometheus, Alertmanager, service and training jobs", markup=True)
    console.print("The card is simulated: a job's real memory, scaled. DingTalk is a strict stand-in.")
    console.print("Rules and policies are the shipped ones with shorter times:")
    for shorter in (files.SHORTER_RULES, files.SHORTER_POLICIES):
        console.print("  " + ", ".join(f"{old} → {new}" for old, new in shorter.items()))
    console.print("`enforce: true` is set, so that jobs may be stopped.")
    for scene in files.SCENES:
        console.print(f"  {scene.name:10} {scene.title}")


def _watch(performance: Play, console: Console) -> None:
    """Show the story until all three jobs have ended and the messages are out, or the time is over."""
    news = News(console, performance.robot_log)
    jobs = [part for part in performance.parts.started if part.name in performance.actors]
    end, settled = time.monotonic() + LIMIT_S, None
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while time.monotonic() < end and (settled is None or time.monotonic() < settled):
            for actor in performance.actors.values():
                actor.look()
            news.tell()
            if console.is_terminal:
                live.update(board(performance.url("prometheus")))
            if settled is None and all(part.process.poll() is not None for part in jobs):
                settled = time.monotonic() + SETTLE_S
            time.sleep(REFRESH_S)
    news.tell()


def _stage(performance: Play) -> Stage:
    creeping, flat, oom = (performance.actors[scene.name] for scene in files.SCENES)
    return Stage(
        prometheus=performance.url("prometheus"),
        alertmanager=performance.url("alertmanager"),
        robot_log=performance.robot_log,
        creeping=creeping,
        flat=flat,
        oom=oom,
    )
