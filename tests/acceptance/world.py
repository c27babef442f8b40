"""The whole product on this machine, for one test: every part real, and each in a process of its own.

    with World(tmp_path, settings={"enforce": True}) as world:
        job = world.run("cat-lora", config={"leak_mb_per_step": 0.02})
        world.until(lambda: job.receipt(1), within_s=30)
        world.robots["phone"].posts()

The built command serves and runs; the rules and policies are the shipped ones with shorter times; a real Prometheus
scrapes the service and a real Alertmanager calls it; the robots are strict DingTalk stand-ins. What a test believes is
/proc, files, Prometheus and the robots' logs. Everything is stopped by pid when the block ends.
"""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.acceptance.alertmanager_process import AlertmanagerProcess
from tests.acceptance.prometheus_process import PrometheusProcess
from tests.acceptance.real_process import RealProcess, eventually, free_port
from tunewarden.adapters.rule_files import shortened_rules
from tunewarden.demo.evidence import generation_pids, posts, read_json, sha256
from tunewarden.processes.ending import end_generation
from tunewarden.sampling.simulated import SimulatedCard
from tunewarden.shipped import shipped_dir

T = TypeVar("T")

COMMAND = str(Path(sys.executable).parent / "tunewarden")
EXAMPLES = shipped_dir("examples")
TRAINER = EXAMPLES / "train.py"
GRUMBLING_TRAINER = Path(__file__).with_name("grumbling_trainer.py")
MOBILE = "13800000000"  # mentioned when a person must act
CONFIG = "my_style_lora.yaml"
CARD = "24GiB/256MiB"  # 256 MiB of a job's real memory count as the whole card
SHORTER_RULES: Mapping[str, str] = {"for: 3m": "for: 2s"}
IDLE_TOO: Mapping[str, str] = {**SHORTER_RULES, "for: 10m": "for: 2s", "[10m]": "[5s]"}  # GpuUtilizationLow as well
SHORTER_POLICIES: Mapping[str, str] = {
    "[15m], 1800)": "[8s], 30)",
    "[5m]": "[3s]",
    "offset 10m": "offset 5s",
    "recheck: 15s": "recheck: 1s",
    "verify_for: 5m": "verify_for: 3s",
    "deadline: 15m": "deadline: 60s",
}


class ServiceProcess(RealProcess):
    """`tunewarden serve` as a person starts it; its log is its stderr."""

    name = "service"

    def __init__(self, folder: Path, settings: Path) -> None:
        super().__init__(folder)
        self._settings = settings

    def argv(self) -> list[str]:
        return [COMMAND, "serve", "--config", str(self._settings)]

    def kill(self) -> None:
        """SIGKILL: no moment to tidy up. `start` brings it back on the same port and store."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class RobotProcess(RealProcess):
    """A DingTalk robot that verifies what the real one verifies."""

    ready_path = "/healthy"

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        super().__init__(folder)
        self.port = free_port()
        self.log = folder / f"{name}.jsonl"
        self.secret_file, self.url_file = folder / f"{name}.secret", folder / f"{name}.url"
        self.secret, self.token = f"SEC{name}{os.urandom(16).hex()}", os.urandom(16).hex()
        self.secret_file.write_text(self.secret, encoding="ascii")
        self.url_file.write_text(f"{self.url}/robot/send?access_token={self.token}", encoding="ascii")

    def argv(self) -> list[str]:
        stand_in = [sys.executable, "-E", "-P", "-m", "tunewarden.demo.dingtalk_stand_in"]
        return [*stand_in, "--port", str(self.port), "--log", str(self.log), "--secret-file", str(self.secret_file)]

    def posts(self) -> list[dict[str, Any]]:
        """Every post, in order, with the stand-in's verdict."""
        return posts(self.log)

    def about(self, job: str, alert: str = "") -> list[dict[str, Any]]:
        """The posts about this job, or of them those about this alert."""
        texts = [(post, post["text"].replace("\\", "")) for post in self.posts()]
        return [post for post, text in texts if f" · {job}\n" in text and alert in text]


@dataclass(kw_only=True)
class Job:
    """One training job under `tunewarden run`, seen from outside."""

    name: str
    folder: Path
    runs: Path
    process: "subprocess.Popen[bytes]"
    config_sha256: str
    card: int
    seen: dict[int, set[int]] = field(default_factory=dict)  # generation -> every pid of it that was in /proc

    @property
    def config(self) -> Path:
        return self.folder / CONFIG

    @property
    def uuid(self) -> str:
        return SimulatedCard.parse(f"{CARD}@{self.card}").uuid

    @property
    def run_dir(self) -> Path | None:
        """The run folder, as soon as there is one."""
        specs = (spec for spec in self.runs.glob("*/spec.json") if read_json(spec).get("name") == self.name)
        return max((spec.parent for spec in specs), key=lambda path: path.stat().st_mtime, default=None)

    @property
    def job_id(self) -> str:
        return self.run_dir.name if self.run_dir else ""

    def file(self, generation: int, name: str) -> dict[str, Any]:
        """A file of a control directory, {} while it isn't there."""
        return read_json(self.run_dir / f"g{generation}" / name) if self.run_dir else {}

    def receipt(self, generation: int) -> dict[str, Any]:
        return self.file(generation, "receipt.json")

    def step(self, generation: int = 1) -> int:
        return int(self.file(generation, "progress.json").get("step", 0))

    def pids(self, generation: int) -> set[int]:
        """The living processes of a generation."""
        return generation_pids(self.job_id, generation) if self.job_id else set()

    def look(self) -> None:
        """Note who is alive now."""
        for generation in (1, 2, 3):
            self.seen.setdefault(generation, set()).update(self.pids(generation))

    def beside(self, generation: int = 2) -> Path:
        return self.folder / f"my_style_lora.tunewarden-g{generation}.yaml"

    @property
    def result(self) -> dict[str, Any]:
        """What the trainer wrote at its end."""
        return read_json(self.folder / "output" / "my_style_lora" / "my_style_lora.json")

    def output(self) -> str:
        """What the person saw, and what the agent printed."""
        logs = [self.folder / "terminal.log", *([self.run_dir / "agent.log"] if self.run_dir else [])]
        return "\n".join(log.read_text("utf-8", "replace")[-2000:] for log in logs if log.exists())

    def end(self) -> None:
        """Leave nothing of it behind."""
        keeper = read_json(self.run_dir / "keeper.json").get("pid") if self.run_dir else None
        agent = read_json(self.run_dir / "agent.json").get("pid") if self.run_dir else None
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            for pid in (keeper, agent):
                if pid:
                    _kill(pid, self.job_id)
        if self.job_id:
            end_generation(None, (), self.job_id, wait_term_s=0.1)


def _kill(pid: int, job_id: str) -> None:
    """A keeper or agent of this job, and no other process that took its pid."""
    with contextlib.suppress(OSError):
        if job_id.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def command_lines() -> set[bytes]:
    """What `ps` would show of every process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.add(path.read_bytes())
    return found


def training_config(changes: Mapping[str, object]) -> str:
    """The shipped example with these values; every other byte as shipped."""
    text = (EXAMPLES / CONFIG).read_text(encoding="utf-8")
    for key, value in changes.items():
        shown = json.dumps(value) if not isinstance(value, str) else value
        text, count = re.subn(rf"(?m)^({key}:\s*)[^\s#]+", rf"\g<1>{shown}", text)
        assert count == 1, f"the example config has {count} lines for {key}"
    return text


def shortened_policies(target: Path, shorter: Mapping[str, str]) -> Path:
    """The shipped policies with the shorter times; an entry that changes nothing is an error."""
    target.mkdir(parents=True)
    unused = set(shorter)
    for path in sorted((shipped_dir("rules") / "policies").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        for old, new in shorter.items():
            unused -= {old} if old in text else set()
            text = text.replace(old, new)
        (target / path.name).write_text(text, encoding="utf-8")
    assert not unused, f"no shipped policy has {sorted(unused)}"
    return target


class World:
    """A service, a Prometheus, an Alertmanager and robots; jobs are added by `run`."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, Any] | None = None,
        rules: Mapping[str, str] = SHORTER_RULES,
        policies: Mapping[str, str] = SHORTER_POLICIES,
        verbose_robots: Mapping[str, bool] | None = None,
        watched: bool = True,
    ) -> None:
        """`watched`: with Prometheus and Alertmanager. `verbose_robots` names the robots, the default one first."""
        self.folder = folder
        self.state = folder / "state"
        self.settings_file = folder / "settings.yaml"
        self.robots = {
            name: RobotProcess(folder / "robots", name) for name in (verbose_robots or {"phone": False, "desk": True})
        }
        self.service = ServiceProcess(folder / "service", self.settings_file)
        self.service.port = free_port()
        self.prometheus = PrometheusProcess(
            folder / "prometheus",
            scrape={"tunewarden": [f"127.0.0.1:{self.service.port}"]},
            rules=shortened_rules(folder / "rules", rules),
            alertmanagers=[f"127.0.0.1:{(port := free_port())}"],
        )
        self.alertmanager = AlertmanagerProcess(
            folder / "alertmanager",
            webhook_url=f"{self.service.url}/api/v1/alertmanager",
            credentials_file=self.state / "webhook.token",
        )
        self.parts = [self.prometheus, self.alertmanager] if watched else []
        self.prometheus.port, self.alertmanager.port = free_port(), port
        self.jobs: dict[str, Job] = {}
        self.command_lines: set[bytes] = set()  # of every process on the machine that `until` saw
        self._write_settings(settings or {}, shortened_policies(folder / "policies", policies), verbose_robots)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TUNEWARDEN_")},
            "TUNEWARDEN_CONFIG": str(self.settings_file),
        }

    def _write_settings(
        self, settings: Mapping[str, Any], policies: Path, verbose_robots: Mapping[str, bool] | None
    ) -> None:
        verbose = verbose_robots or {"phone": False, "desk": True}
        robots = [
            {
                "name": name,
                "url_file": str(robot.url_file),
                "secret_file": str(robot.secret_file),
                "language": "both",
                "verbose": verbose[name],
                "at_mobiles": [MOBILE],
                "allowed_hosts": ["127.0.0.1"],
            }
            for name, robot in self.robots.items()
        ]
        whole = {
            "port": self.service.port,
            "state_dir": str(self.state),
            **(
                {"prometheus_url": self.prometheus.url, "alertmanager_url": self.alertmanager.url} if self.parts else {}
            ),
            "heartbeat": "1s",
            "shipped_policies": False,
            "policy_dirs": [str(policies)],
            "dingtalk": robots,
            **settings,
        }
        self.settings_file.write_text(json.dumps(whole, indent=1), encoding="utf-8")  # JSON is YAML too

    def __enter__(self) -> Self:
        try:
            self.service.start(attempts=1)  # first: it makes the token that Alertmanager reads
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda part: part.start(attempts=1), (*self.parts, *self.robots.values())))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for job in self.jobs.values():
            job.end()
        for part in (*self.parts, self.service, *self.robots.values()):
            part.stop()

    def run(
        self,
        name: str,
        *,
        config: Mapping[str, object],
        options: Sequence[str] = (),
        command: Sequence[str] | None = None,
        card: int = 0,
        env: Mapping[str, str] | None = None,
        shell: str = "{run}",
        simulated: bool = True,
    ) -> Job:
        """Start `tunewarden run` on a simulated card. `shell`, such as "{run} && touch done", is run by sh -c."""
        folder = self.folder / "jobs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(training_config(config), encoding="utf-8")
        command = command or [sys.executable, str(TRAINER), "--config", CONFIG]
        simulation = ["--simulate-gpu", f"{CARD}@{card}"] if simulated else []
        words = [COMMAND, "run", "--name", name, *simulation, *options, "--", *command]
        argv = words if shell == "{run}" else ["sh", "-c", shell.format(run='"$@"'), "sh", *words]
        with (folder / "terminal.log").open("ab") as log:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **(env or {})},
                start_new_session=True,
            )
        self.jobs[name] = Job(
            name=name,
            folder=folder,
            runs=self.state / "runs",
            process=process,
            config_sha256=sha256(folder / CONFIG),
            card=card,
        )
        return self.jobs[name]

    def command(self, *words: str, within_s: float = 60.0, **env: str) -> "subprocess.CompletedProcess[str]":
        """A `tunewarden` command in a pipe."""
        return subprocess.run(
            [COMMAND, *words],
            cwd=self.folder,
            env={**self.environment, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )

    def until(self, read: Callable[[], T], *, within_s: float = 90.0) -> T:
        """The first truthy value of `read`, with every job looked at meanwhile; the logs when it comes too late."""

        def looking() -> T:
            for job in self.jobs.values():
                job.look()
            self.command_lines |= command_lines()
            return read()

        try:
            return eventually(looking, within_s=within_s, every_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def job_has_ended(self, name: str) -> bool:
        return self.jobs[name].process.poll() is not None

    def titles(self, name: str, alert: str = "", robot: str = "phone") -> list[str]:
        """The English half of what a phone previewed about this job (and this alert), in order."""
        return [post["title"].split(" / ")[-1] for post in self.robots[robot].about(name, alert)]

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What the service's store holds now."""
        with contextlib.closing(sqlite3.connect(f"file:{self.state}/tunewarden.db?mode=ro", uri=True)) as store:
            return store.execute(query, values).fetchall()

    def told(self) -> str:
        """What to read when a test fails."""
        found = [f"{name}: {[post['title'] for post in robot.posts()]}" for name, robot in self.robots.items()]
        jobs = [f"== {job.name}\n{job.output()}" for job in self.jobs.values()]
        return "\n".join([*found, *jobs, "== service", self.service.log_path.read_text("utf-8", "replace")[-6000:]])
