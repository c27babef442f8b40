"""A run of the real keeper with a scripted agent, in pipes or under a real pty; /proc is the only witness."""

import fcntl
import json
import os
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from tests.acceptance.real_process import eventually
from tunewarden.processes.identity import ProcessId, alive, identify
from tunewarden.processes.tree import members

_HERE = Path(__file__).parent


def alive_pid(pid: int) -> bool:
    """Whether /proc knows a process of this pid that is not a zombie."""
    process = identify(pid)
    return process is not None and alive(process)


class Terminal:
    """The person's side of a pty: what it shows, what is typed, its size and modes."""

    def __init__(self, rows: int = 31, columns: int = 97) -> None:
        self.master, self.slave = os.openpty()
        self.resize(rows, columns)
        self.shown = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def shows(self, text: bytes, within_s: float = 10.0) -> bytes:
        """Everything shown so far, as soon as `text` is in it."""
        deadline = time.monotonic() + within_s
        while text not in self.shown:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self.master], [], [], max(0.0, left_s))
            assert ready, f"{text!r} is not shown within {within_s} s; shown was {self.shown!r}"
            self.shown += os.read(self.master, 65536)
        return self.shown

    def forget(self) -> None:
        """Only what comes from now on is looked at."""
        self.shown = b""

    def close(self) -> None:
        """Hang up, as a dropped SSH connection does."""
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)
        self.master = self.slave = -1


class KeeperRun:
    """One `run` of a command in `folder`. Use it with `with`: what it left behind is ended by the job's marker."""

    def __init__(self, folder: Path, *, name: str = "job", agent: list[str] | None = None) -> None:
        self.state = folder / "state"
        self.talk_file = folder / f"talk-{name}.jsonl"
        self._script_file = folder / f"script-{name}.json"
        self._name = name
        self._agent = agent or [
            sys.executable,
            str(_HERE / "keeper_agent_stand_in.py"),
            str(self._script_file),
            str(self.talk_file),
        ]
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.terminal: Terminal | None = None
        self.answer({})

    def __enter__(self) -> "KeeperRun":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()
            self.process.wait()
        for folder in self.run_folders():
            for left in members((), folder.name):
                os.kill(left.id.pid, 9)
            self._end_agent(folder)
        if self.terminal is not None:
            self.terminal.close()

    def _end_agent(self, folder: Path) -> None:
        if (folder / "agent.json").exists():
            known = json.loads((folder / "agent.json").read_text())
            process = ProcessId(known["pid"], known["start_ticks"])
            if alive(process):
                os.kill(process.pid, 9)

    def answer(self, script: dict[str, Any]) -> None:
        """How the scripted agent answers."""
        self._script_file.write_text(json.dumps(script))

    def command(self, *words: str) -> list[str]:
        """The command line of the run."""
        start = [sys.executable, str(_HERE / "keeper_start.py"), str(self.state), self._name, json.dumps(self._agent)]
        return [*start, "--", *words]

    def in_pipes(self, *words: str, env: dict[str, str] | None = None, stdin: int = subprocess.DEVNULL) -> "KeeperRun":
        """Start with standard output and error in two pipes."""
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            self.command(*words), cwd=self._folder, env=env, stdin=stdin, stdout=pipe, stderr=pipe
        )
        return self

    def on_terminal(self, *words: str, shell: bool = False, redirect: str = "") -> "KeeperRun":
        """Start under a pty; `shell`: from an interactive bash with job control, `redirect` added to its line."""
        self.terminal = terminal = Terminal()
        command = ["bash", "--norc", "--noprofile", "-i"] if shell else self.command(*words)
        if redirect:
            command = ["bash", "-c", f"exec {shlex.join(self.command(*words))} {redirect}"]
        self.process = subprocess.Popen(
            [sys.executable, str(_HERE / "on_terminal.py"), *command],
            cwd=self._folder,
            stdin=terminal.slave,
            stdout=terminal.slave,
            stderr=terminal.slave,
            start_new_session=True,
        )
        if shell:
            terminal.type(f"PS1='rea''dy> '; {shlex.join(self.command(*words))}\n".encode())
        return self

    @property
    def keeper_pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def ends(self, within_s: float = 20.0) -> int:
        """The exit code of `run`."""
        assert self.process is not None
        return self.process.wait(within_s)

    def run_folders(self) -> list[Path]:
        return sorted((self.state / "runs").glob("*"))

    def folder(self) -> Path:
        return eventually(self.run_folders)[0]

    def log(self) -> bytes:
        return (self.folder() / "output.log").read_bytes()

    def said(self, kind: str) -> list[dict[str, Any]]:
        """The messages of this type that the agent has got."""
        if not self.talk_file.exists():
            return []
        lines = self.talk_file.read_text().splitlines()
        return [message for message in map(json.loads, lines) if message["type"] == kind]

    def hello(self, count: int = 1) -> dict[str, Any]:
        """The greeting of the agent that was started as the `count`th."""
        return eventually(lambda: self.said("hello")[count - 1 : count])[0]
