"""The real `tunewarden serve` and `tunewarden run`, each in processes of their own, for the benches."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.acceptance.real_process import RealProcess, eventually, free_port
from tunewarden.supervisor.run_folder import RunFolder, read_identity

COMMAND = Path(sys.executable).with_name("tunewarden")


class ServiceProcess(RealProcess):
    """`tunewarden serve` with the settings `lines`; its state is in `state`."""

    name = "service"
    ready_within_s = 60.0

    def __init__(self, folder: Path, lines: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.state = folder / "state"
        self.settings = folder / "settings.yaml"
        self._lines = [f"port: {self.port}", f"state_dir: {self.state}", *lines]

    def argv(self) -> list[str]:
        self.settings.write_text("\n".join(self._lines) + "\n", encoding="utf-8")
        return [str(COMMAND), "serve", "--config", str(self.settings)]

    def launch(self) -> None:
        """Start it without waiting."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(self.argv(), cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)

    def add(self, lines: Sequence[str]) -> None:
        """More settings, before it starts."""
        self._lines += lines

    def token(self, name: str) -> str:
        return (self.state / f"{name}.token").read_text(encoding="ascii").strip()

    def get(self, path: str) -> Any:
        """A GET of the API; the JSON."""
        headers = {"Authorization": f"Bearer {self.token('agent')}"}
        answer = httpx.get(f"{self.url}/api/v1{path}", headers=headers, timeout=10, trust_env=False)
        answer.raise_for_status()
        return answer.json()


class RunProcess:
    """`tunewarden run WORDS -- ARGV` against a service, in `folder`; ended by Ctrl-C twice, then killed."""

    def __init__(self, service: ServiceProcess, folder: Path, words: Sequence[str], argv: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / "run.log").open("wb")
        self._process = subprocess.Popen(
            [str(COMMAND), "run", *words, "--", *argv],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TUNEWARDEN_CONFIG": str(service.settings)},
            start_new_session=True,
        )
        runs = service.state / "runs"
        (self.run_dir,) = eventually(lambda: [*runs.iterdir()] if runs.is_dir() else [], within_s=60)

    @property
    def pids(self) -> tuple[int, int]:
        """The keeper's and the agent's."""
        folder = RunFolder(self.run_dir)
        eventually(lambda: read_identity(folder.agent_file), within_s=30)
        agent = read_identity(folder.agent_file)
        assert agent is not None
        return self._process.pid, agent.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in range(3):
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                try:
                    self._process.wait(5)
                except subprocess.TimeoutExpired:
                    continue
        self._log.close()
