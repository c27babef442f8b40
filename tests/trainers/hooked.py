"""A real trainer with the training hook in it, and its control directory as the agent sees it."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunewarden.shipped import hook_dir

HERE = Path(__file__).resolve().parent
BOUND = 240.0  # seconds, for a machine that does much else


class Hooked:
    """One generation: `control` is its control directory, `out` where the trainer writes."""

    def __init__(self, python: Path, folder: Path, generation: int) -> None:
        self.python, self.folder, self.generation = python, folder, generation
        self.control = folder / f"g{generation}"
        self.out = folder / "out"
        self.control.mkdir(mode=0o700)
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        script: str,
        *args: str,
        hook: Mapping[str, Any] | None = None,
        resume: Mapping[str, Any] | None = None,
        request: str | None = None,
        flags: tuple[str, ...] = (),
        site: Path | None = None,
        env: Mapping[str, str] | None = None,
        launcher: tuple[str, ...] = (),
        preexec: Callable[[], None] | None = None,
    ) -> "Hooked":
        """`request`: a mode; the stop file is there before the first step. `site`: another folder of the hook's."""
        if hook is not None:
            self.write("hook.json", {"protocol": 1, **hook})
        if resume is not None:
            self.write("resume.json", {"protocol": 1, "from_generation": self.generation - 1, **resume})
        if request is not None:
            self.ask(request)
        paths = [str(site or hook_dir()), *filter(None, [(env or {}).get("PYTHONPATH")])]
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "TUNEWARDEN_CONTROL_DIR": str(self.control),
            "TUNEWARDEN_JOB": "job-1",
            "TUNEWARDEN_GENERATION": str(self.generation),
        }
        with (self.control / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [str(self.python), *flags, *launcher, str(HERE / script), str(self.out), *args],
                env={**own, **(env or {}), "PYTHONPATH": os.pathsep.join(paths)},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=preexec,
                start_new_session=True,
            )
        return self

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        temporary = self.control / f"{name}.agent"
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self.control / name)

    def ask(self, mode: str, request_id: str = "r-1") -> None:
        self.write("stop", {"request_id": request_id, "mode": mode})

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self.control / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return content

    def wait_for(self, name: str, when: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The file, as soon as it is there and as `when` wants it; fails when the trainer ends before."""
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            ended = self.running.poll() is not None
            content = self.read(name)
            if content is not None and when(content):
                return content
            assert not ended, f"the trainer ended with {self.running.poll()} before {name}: {self.output}"
            time.sleep(0.02)
        raise AssertionError(f"no {name} within {BOUND} s: {self.output}")

    @property
    def running(self) -> "subprocess.Popen[bytes]":
        assert self.process is not None
        return self.process

    @property
    def output(self) -> str:
        return (self.control / "output").read_text(encoding="utf-8", errors="replace")

    @property
    def log(self) -> str:
        """The hook's own log; "" when it had nothing to say."""
        path = self.control / "hook.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def ends(self) -> int:
        """Wait for its end; gives the exit status."""
        return self.running.wait(timeout=BOUND)

    def result(self) -> dict[str, Any]:
        """What the trainer wrote at its own end."""
        status = self.ends()
        assert status == 0, self.output
        content: dict[str, Any] = json.loads((self.out / "result.json").read_text(encoding="utf-8"))
        return content

    def end(self) -> None:
        """Whatever is left of it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=BOUND)
