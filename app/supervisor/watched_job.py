"""One job under `tunewarden watch` or `adopt`: processes that somebody else started, and an agent for them.

Standard library only. The watcher is to this agent what the keeper is to the agent of a `run`
(docs/reference/keeper-protocol.md), only that it can't launch anything and owns no output.
"""

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tunewarden.processes.identity import ProcessId, alive
from tunewarden.supervisor.control_file import read_object, whole_number
from tunewarden.supervisor.keeper_agent import Agent, Inherited
from tunewarden.supervisor.keeper_log import SAID_BY_US
from tunewarden.supervisor.run_folder import RunFolder, write_json

_ALONE_S = 10.0  # after the job's end, how long an agent may take to come back before the job is given up
_LEAVE_S = 3.0  # for the agent to end after `finish`
_NOT_OURS = "this run was started by somebody else: tunewarden watch launches nothing"


class WatchedJob:
    """The processes of one training, its agent, and how it ended. Times are of a monotonic clock, in seconds."""

    def __init__(
        self,
        folder: RunFolder,
        spec: Mapping[str, Any],
        env: Mapping[bytes, bytes],
        ignored: frozenset[int],
        now: float,
    ) -> None:
        self.name = str(spec["name"])
        self.folder = folder
        self.ended = False
        self.over = False  # nothing is left to do for it
        self._in_a_cell = bool(spec.get("ends_with_cell"))
        self._roots: list[ProcessId] = []
        self._exit_status: int | None = None
        self._ended_at = 0.0
        self._finished_at: float | None = None
        write_json(folder.spec_file, spec)
        argv = [sys.executable, "-E", "-P", "-m", "tunewarden.supervisor.agent", str(folder.path)]
        inherited = Inherited(argv=argv, env=env, drains={}, lock_fd=None, ignored=ignored)
        self.agent = Agent(folder, inherited, now)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(root.pid for root in self._roots)

    def join(self, process: ProcessId) -> None:
        """Another process of this job: a rank."""
        if process not in self._roots:
            self._roots.append(process)
            self.agent.send({"type": "joined", "roots": _listed(self._roots)})

    def reaped(self, pid: int, exit_status: int) -> None:
        """The kernel gave us the exit status of one of its processes, an orphan of its launcher."""
        if pid in self.pids:
            self._exit_status = self._exit_status or exit_status

    def advance(self, now: float) -> list[str]:
        """What is due by now; returns what is to be said on the terminal."""
        said = []
        if not self.ended and self._has_ended():
            self.ended, self._ended_at = True, now
            self._exit_status = self._status_by_the_hook() if self._exit_status is None else self._exit_status
            self.agent.send({"type": "ended", "generation": 1, "exit_status": self._exit_status})
        self.agent.end_if_deaf(now)
        if self.agent.silent(now):
            said += self.listen(now)
            if self.agent.silent(now):
                self.agent.give_up()
        if self._finished_at is not None and now >= self._finished_at + _LEAVE_S:
            self.agent.kill()
        self._keep_an_agent(now)
        return said

    def _keep_an_agent(self, now: float) -> None:
        if self.agent.pid is not None:
            if self.ended and self._finished_at is None and self.agent.fd is not None and now >= self.agent.ping_at:
                self.agent.ask({"type": "ping"}, now)
            return
        given_up = self.ended and now >= max(self._ended_at, self.agent.lost_at) + _ALONE_S
        if self._finished_at is not None or given_up:
            self.over = True
        elif now >= self.agent.next_start:
            self.agent.start(self._state(), now)

    def listen(self, now: float) -> list[str]:
        """Take in what the agent has said; returns the lines for the terminal."""
        return [line for message in self.agent.receive(now) for line in self._take(message, now)]

    def agent_ended(self, now: float) -> list[str]:
        """The agent was reaped; returns its last lines."""
        return [line for message in self.agent.ended(now) for line in self._take(message, now)]

    def _take(self, message: Mapping[str, Any], now: float) -> list[str]:
        match message:
            case {"type": "heard"}:
                self.agent.heard(now)
            case {"type": "say", "text": str(text)}:
                return [f"{SAID_BY_US}{self.name}: {line}" for line in text.splitlines()]
            case {"type": "finish"}:
                self._finished_at = now
            case {"type": "launch", "generation": int(generation)}:
                refused = {"id": message.get("id"), "generation": generation, "error": _NOT_OURS}
                self.agent.send({"type": "launch_failed", **refused})
        return []

    def _has_ended(self) -> bool:
        if self._in_a_cell and (self.folder.control_dir(1) / "ended.json").exists():
            return True
        return not any(alive(root) for root in self._roots)

    def _status_by_the_hook(self) -> int | None:
        """How the trainer said that it ended: it is not our child. None: it said nothing, as one that is killed."""
        return whole_number((read_object(self.folder.control_dir(1) / "ended.json") or {}).get("exit_status"))

    def _state(self) -> dict[str, Any]:
        first = self._roots[0]
        return {
            "generation": 1,
            "pid": first.pid,
            "start_ticks": first.start_ticks,
            "roots": _listed(self._roots),
            "ended": self._exit_status,
            "gone": self.ended,
            "interrupts": 0,
        }


def _listed(processes: Collection[ProcessId]) -> list[list[int]]:
    return [[process.pid, process.start_ticks] for process in processes]


def own_folder(watch_dir: Path, job_id: str) -> RunFolder:
    """Make the run folder of a job that no hook has made. Raises OSError."""
    folder = RunFolder(watch_dir / job_id)
    folder.path.mkdir(mode=0o700)
    folder.control_dir(1).mkdir(mode=0o700)
    return folder


def spec_of(
    template: Mapping[str, Any], job_id: str, *, argv: Collection[str], cwd: Path, started_by: str, in_a_cell: bool
) -> dict[str, Any]:
    """What `spec.json` says of such a job. `template`: what the person asked `watch` or `adopt` for."""
    name = template.get("name")
    stem = name if isinstance(name, str) and name else _short(cwd.name)
    return {
        **template,
        "job_id": job_id,
        "name": f"{stem}-{job_id[:6]}",
        "argv": list(argv),
        "cwd": str(cwd),
        "started_by": started_by,
        "ends_with_cell": in_a_cell,
    }


def _short(name: str) -> str:
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    return kept.strip("-.")[:40] or "job"
