"""`tunewarden watch` or `adopt` as a person types it, against a stand-in service; /proc and files are the witnesses."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.agent_world import eventually
from tests.acceptance.keeper_run import Terminal
from tests.acceptance.stand_in_service import TOKEN, StandIn
from tunewarden.processes.ending import signal_one
from tunewarden.processes.identity import ProcessId, alive, identify, read_proc

COMMAND = str(Path(sys.executable).parent / "tunewarden")
GUI = [sys.executable, str(Path(__file__).with_name("fake_gui.py"))]
TRAINER = [sys.executable, str(Path(__file__).with_name("announcing_trainer.py"))]


@dataclass
class WatchedWorld:
    """One watch in a folder of its own. `job_id` is that of the newest job."""

    folder: Path
    service: StandIn = field(default_factory=StandIn)
    process: subprocess.Popen[bytes] | None = None
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        ours = {
            "TUNEWARDEN_URL": self.service.url,
            "TUNEWARDEN_STATE_DIR": str(self.folder / "state"),
            "TUNEWARDEN_AGENT_TOKEN_FILE": str(self.folder / "token"),
            "TUNEWARDEN_HEARTBEAT": "1s",
        }
        return {**os.environ, **ours}

    def start(self, *words: str, terminal: Terminal | None = None) -> None:
        """Type `tunewarden WORDS…`."""
        (self.folder / "token").write_text(TOKEN + "\n", encoding="utf-8")
        if terminal is not None:
            argv = [sys.executable, str(Path(__file__).with_name("on_terminal.py")), COMMAND, *words]
            side = {"stdin": terminal.slave, "stdout": terminal.slave, "stderr": terminal.slave}
            self.process = subprocess.Popen(argv, cwd=self.folder, env=self.env, start_new_session=True, **side)
            return
        with (self.folder / "stdout").open("wb") as stdout, (self.folder / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                [COMMAND, *words], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=self.env
            )

    def start_gui(self, *words: str) -> None:
        self.start("watch", *words, "--", *GUI)
        eventually(lambda: self.gui(), what=f"the GUI: {self.said()}")

    def beside(self, argv: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a program that no watch is the parent of."""
        started = subprocess.Popen(argv, cwd=self.folder, env={**os.environ, **env})
        self.others.append(started)
        return started

    def command(self, line: str) -> None:
        """Press a button of the GUI."""
        with (self.folder / "commands").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def gui(self) -> dict[str, Any]:
        file = self.folder / "gui.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def train(self, *words: str) -> str:
        """Start a training in the GUI; returns the id of the job that it becomes, once it has made a step."""
        before = set(self.runs())
        self.command(" ".join(["start", *words]))
        return self.new_job(before)

    def launch(self, argv: Sequence[str]) -> str:
        """Start another trainer in the GUI than its own; returns the id of its job."""
        before = set(self.runs())
        self.command(f"launch {json.dumps(list(argv))}")
        return self.new_job(before, timeout=240.0)  # two imports of torch, on a machine that does much else

    def new_job(self, before: set[Path], timeout: float = 15.0) -> str:
        found = eventually(lambda: set(self.runs()) - before, timeout, f"a job: {self.said()}")
        job_id = found.pop().name
        eventually(lambda: self.registration(job_id), timeout, f"a registration: {self.said()}")
        eventually(lambda: "save" in self.read(job_id, "hello.json").get("can", ()), timeout, "its first step")
        return str(job_id)

    def runs(self) -> list[Path]:
        return [path.parent for path in (self.folder / "state" / "watch").glob("*/*/spec.json")]

    def run_folder(self, job_id: str) -> Path:
        return next(path for path in self.runs() if path.name == job_id)

    def read(self, job_id: str, name: str) -> dict[str, Any]:
        file = self.run_folder(job_id) / "g1" / name
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}

    def registration(self, job_id: str) -> dict[str, Any] | None:
        run_id = f"{job_id}-g1"
        return next((each for each in self.service.seen.registrations if each["run_id"] == run_id), None)

    def event(self, job_id: str) -> dict[str, Any]:
        """The event of the job's end, once it has come."""
        wanted = f"{job_id}-g1-ended"
        return eventually(
            lambda: next((each for each in self.service.seen.events if each["event_id"] == wanted), None),
            what=f"the end of {job_id}: {self.said()}",
        )

    def process_of(self, pid: int) -> ProcessId:
        found = identify(pid)
        assert found is not None
        return found

    def said(self) -> str:
        texts = [self.folder / "stderr", *self.folder.glob("state/watch/*/*/agent.log")]
        return "\n".join(path.read_text("utf-8", "replace")[-3000:] for path in texts if path.exists())

    def exit_code(self, within_s: float = 20.0) -> int:
        assert self.process is not None
        return self.process.wait(within_s)

    def close(self) -> None:
        """Leave nothing behind: what this folder's processes are is told by their working directory."""
        self.service.stop()
        for _ in range(3):
            for process in self._left():
                signal_one(process, signal.SIGKILL)
        for each in [self.process, *self.others]:
            if each is not None:
                each.wait(10)

    def _left(self) -> list[ProcessId]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                process, place = identify(int(entry.name)), cwd(int(entry.name))
                if process is not None and place is not None and self.folder in (place, *place.parents):
                    found.append(process)
        return found


def cwd(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None


def children(pid: int) -> list[ProcessId]:
    """The living children of a process."""
    pids = read_proc(pid, f"task/{pid}/children").split()
    return [each for each in (identify(int(pid)) for pid in pids) if each is not None and alive(each)]


@contextmanager
def watched(folder: Path) -> Iterator[WatchedWorld]:
    """A world with a served stand-in."""
    made = WatchedWorld(folder)
    made.service.start()
    try:
        yield made
    finally:
        made.close()
