"""The folder of one `tunewarden run` (docs/reference/keeper-protocol.md), and the state directory that holds it."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunewarden.processes.identity import ProcessId, boot_id

NAME_CHARACTERS = 64
NAME_BYTES = 240  # a file name holds 255 bytes, and Chinese characters take three each


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run. Everything in it is of mode 0600, the folders 0700."""

    path: Path

    @property
    def spec_file(self) -> Path:
        return self.path / "spec.json"

    @property
    def keeper_file(self) -> Path:
        return self.path / "keeper.json"

    @property
    def agent_file(self) -> Path:
        return self.path / "agent.json"

    @property
    def journal_file(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def log_file(self) -> Path:
        return self.path / "output.log"

    @property
    def agent_log_file(self) -> Path:
        """What the agent prints: its log, and the traceback it dies with."""
        return self.path / "agent.log"

    def control_dir(self, generation: int) -> Path:
        """The control directory of a generation (docs/reference/control-directory.md)."""
        return self.path / f"g{generation}"

    def read_spec(self) -> dict[str, Any]:
        """What `run` was asked for, as written. Raises OSError or ValueError where the file is missing or broken."""
        spec: dict[str, Any] = json.loads(self.spec_file.read_text(encoding="utf-8"))
        return spec


def name_fits(name: str) -> bool:
    """Whether a job may be called this: the name is a part of a path, so it holds no separator."""
    fits = 1 <= len(name) <= NAME_CHARACTERS and len(name.encode("utf-8", "replace")) <= NAME_BYTES
    return fits and all(letter.isalnum() or letter in "._-" for letter in name)


def lock_file(state_dir: Path, name: str) -> Path:
    """Where the lock on a job's name is: one living run of a name on a host."""
    return state_dir / "jobs" / f"{name}.lock"


def unlock(path: Path, lock_fd: int) -> None:
    """Delete the lock file that `lock_fd` holds; another file of that name is left alone."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == os.fstat(lock_fd).st_ino:
            path.unlink()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file (0600) so that a reader sees the old one or the new one, never half."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            # Escaped: an argument that is not UTF-8 is a lone surrogate, and only its escape survives the file.
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_identity(path: Path, process: ProcessId) -> None:
    """Say which process is the keeper or the agent, for one who comes later, perhaps after a reboot."""
    write_json(path, {"pid": process.pid, "start_ticks": process.start_ticks, "boot_id": boot_id()})


def read_identity(path: Path) -> ProcessId | None:
    """The process that `write_identity` named; None where there is no such file or it is from an earlier boot."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["boot_id"] != boot_id():
            return None
        return ProcessId(int(stored["pid"]), int(stored["start_ticks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
