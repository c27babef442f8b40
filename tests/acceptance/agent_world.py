"""A real run for the agent's tests: the real keeper, agent and example trainer, against a stand-in service."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.stand_in_service import TOKEN, StandIn
from tunewarden.processes.ending import end_generation
from tunewarden.processes.identity import ProcessId, alive, identify
from tunewarden.processes.tree import members
from tunewarden.shipped import hook_dir

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "docs" / "examples" / "train.py"
_BEGIN = """
import json, sys
from pathlib import Path
from tunewarden.supervisor.start import exec_keeper, prepare
wish = json.loads(sys.argv[1])
agent_argv = wish.pop("agent_argv")
wish["state_dir"], wish["token_file"] = Path(wish["state_dir"]), Path(wish["token_file"])
wish["hook"] = wish["hook"] and Path(wish["hook"])
prepared = prepare(wish.pop("argv"), **wish)
if agent_argv:
    agent_argv = [*agent_argv, str(prepared.folder.path)]
exec_keeper(prepared, agent_argv=agent_argv)
"""
CONFIG: Mapping[str, Any] = {
    "train_data_dir": "./data",
    "base_model": "./base.safetensors",
    "lora_rank": 2,
    "batch_size": 4,
    "gradient_accumulation_steps": 1,
    "epochs": 100,
    "learning_rate": 1e-4,
    "output_dir": "./output/lora",
    "save_steps": 1000,
    "train_samples": 100,
    "step_seconds": 0.02,
}


def eventually(done: Callable[[], Any], timeout: float = 15.0, what: str = "") -> Any:
    """Poll until true; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := done()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)
    return found


@dataclass
class World:
    """One run in a folder of its own."""

    folder: Path
    service: StandIn = field(default_factory=StandIn)
    process: subprocess.Popen[bytes] | None = None
    job_id: str = ""

    @property
    def config(self) -> Path:
        return self.folder / "lora.yaml"

    @property
    def run_dir(self) -> Path:
        return self.folder / "state" / "runs" / self.job_id

    def write_config(self, **changes: Any) -> None:
        lines = [f"{key}: {json.dumps(value)}  # set by hand" for key, value in {**CONFIG, **changes}.items()]
        self.config.write_text("# a comment that stays\n" + "\n".join(lines) + "\n", encoding="utf-8")

    def start(
        self,
        argv: Sequence[str] | None = None,
        *,
        agent_argv: Sequence[str] = (),
        grace_s: float = 20.0,
        simulate_gpu: str | None = None,
        heartbeat_s: float = 0.3,
        env: Mapping[str, str] | None = None,
        suspendable: bool = False,
        pushgateway: str | None = None,
        hook: bool = False,
    ) -> None:
        token_file = self.folder / "token"
        token_file.write_text(TOKEN + "\n", encoding="utf-8")
        wish = {
            "argv": list(argv or [sys.executable, str(TRAINER), "--config", "lora.yaml"]),
            "agent_argv": list(agent_argv),
            "name": None,
            "labels": {"owner": "li"},
            "enforce": False,
            "grace_s": grace_s,
            "url": self.service.url,
            "token_file": str(token_file),
            "simulate_gpu": simulate_gpu,
            "heartbeat_s": heartbeat_s,
            "state_dir": str(self.folder / "state"),
            "node": "node-1",
            "pushgateway": pushgateway,
            "hook": str(hook_dir()) if hook else None,
        }
        with (self.folder / "stdout").open("wb") as stdout, (self.folder / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-E", "-P", "-c", _BEGIN, json.dumps(wish)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, **(env or {})},
                # SIGTSTP stops nobody in a session of its own: there would be no shell to continue it.
                start_new_session=not suspendable,
                process_group=0 if suspendable else None,
            )
        runs = self.folder / "state" / "runs"
        eventually(lambda: runs.is_dir() and list(runs.iterdir()), what="the run folder")
        self.job_id = next(runs.iterdir()).name

    def control(self, generation: int = 1) -> Path:
        return self.run_dir / f"g{generation}"

    def read(self, name: str, generation: int = 1) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.control(generation) / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def step(self, generation: int = 1) -> int:
        return int(self.read("progress.json", generation).get("step", 0))

    def until_step(self, step: int, generation: int = 1) -> None:
        eventually(lambda: self.step(generation) >= step, what=f"step {step} of generation {generation}: {self.log()}")

    def issue(self, order_id: str, kind: str, **more: Any) -> None:
        self.service.issue(order_id, kind, job_id=self.job_id, **more)

    def members(self) -> list[int]:
        """The living processes of the job, by its marker."""
        return [member.id.pid for member in members((), self.job_id)]

    def identity(self, name: str) -> ProcessId:
        raw = json.loads((self.run_dir / f"{name}.json").read_text(encoding="utf-8"))
        return ProcessId(raw["pid"], raw["start_ticks"])

    def trainer(self, generation: int = 1) -> ProcessId:
        eventually(lambda: self.read("hello.json", generation), what=f"hello: {self.log()}")
        found = identify(self.read("hello.json", generation)["pid"])
        assert found is not None
        return found

    def interrupt(self, signum: int = signal.SIGINT) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signum)

    def exit_code(self, timeout: float = 30.0) -> int:
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"`run` did not end: {self.log()}") from error

    def journal(self) -> list[dict[str, Any]]:
        lines = (self.run_dir / "journal.jsonl").read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def log(self) -> str:
        """What to look at when a test fails."""
        texts = [self.folder / "stderr", self.run_dir / "agent.log"]
        return "\n".join(path.read_text("utf-8", "replace")[-3000:] for path in texts if path.exists())

    def close(self) -> None:
        """Leave nothing behind."""
        self.service.stop()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        agent = self.run_dir / "agent.json"
        if self.job_id and agent.exists():
            found = self.identity("agent")
            if alive(found):
                os.kill(found.pid, signal.SIGKILL)
        if self.job_id:
            end_generation(None, (), self.job_id, wait_term_s=0.1)


@contextmanager
def world(folder: Path, **config: Any) -> Iterator[World]:
    """A world with a served stand-in and a config; `start` begins the run."""
    made = World(folder)
    made.service.start()
    made.write_config(**config)
    try:
        yield made
    finally:
        made.close()
