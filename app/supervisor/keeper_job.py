"""The job that the keeper is the parent of, generation by generation. Standard library only."""

import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tunewarden.processes.ending import signal_one
from tunewarden.processes.identity import ProcessId, identify
from tunewarden.processes.tree import Member, members
from tunewarden.supervisor.keeper_launch import Launch, start
from tunewarden.supervisor.keeper_streams import Wiring
from tunewarden.supervisor.run_folder import RunFolder


def with_hook(env: Mapping[bytes, bytes], hook: str | None) -> Mapping[bytes, bytes]:
    """The environment with the hook's folder first on PYTHONPATH, and what stood there behind it, to the byte.

    Python takes an empty PYTHONPATH for none, but an empty part of one for the current directory: so nothing stands
    behind the folder where nothing was given.
    """
    if hook is None:
        return env
    before = env.get(b"PYTHONPATH", b"")
    return {**env, b"PYTHONPATH": os.fsencode(hook) + (b":" + before if before else b"")}


class Job:
    """The newest generation: its launcher, and how that ended."""

    def __init__(
        self,
        folder: RunFolder,
        spec: Mapping[str, Any],
        wiring: Wiring,
        env: Mapping[bytes, bytes],
        ignored: Collection[int],
    ) -> None:
        self.generation = 0
        self.launcher: ProcessId | None = None
        self.exit_status: int | None = None  # negative: the signal
        self.ended_at = 0.0  # on the monotonic clock
        self._folder = folder
        self._id: str = spec["job_id"]
        self._wiring = wiring
        self._env = with_hook(env, spec.get("hook"))
        # With a pty the launcher leads a session, and its death would hang up on a trainer that lives on.
        self._ignored = {*ignored, *(() if wiring.slave is None else (signal.SIGHUP,))}

    def launch(self, generation: int, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        """Start a generation. Raises OSError where the command or the directory can't be used."""
        control = self._folder.control_dir(generation)
        control.mkdir(mode=0o700, exist_ok=True)
        ours = {
            "TUNEWARDEN_JOB": self._id,
            "TUNEWARDEN_CONTROL_DIR": str(control),
            "TUNEWARDEN_GENERATION": str(generation),
            **env,
        }
        pid = start(
            Launch(
                argv=argv,
                env={**self._env, **{os.fsencode(name): os.fsencode(value) for name, value in ours.items()}},
                cwd=cwd,
                fds=self._wiring.job_fds,
                terminal=self._wiring.slave,
                ignored=self._ignored,
            )
        )
        self.generation, self.launcher, self.exit_status = generation, identify(pid), None

    def relaunch(self, request: Mapping[str, Any]) -> str | None:
        """Start the next generation as the agent asks. Returns what is wrong where it did not start, else None."""
        generation, argv = request["generation"], [str(word) for word in request["argv"]]
        expires_at = request.get("expires_at")
        if expires_at is not None and time.monotonic() >= expires_at:  # we were stopped: nobody waits for it any more
            return "expired"
        if self.exit_status is None:
            return f"generation {self.generation} has not ended"
        if not argv or generation <= self.generation:
            return f"generation {generation} can't follow {self.generation}, or has no command"
        try:
            self.launch(generation, argv, request["env"], request["cwd"])
        except (OSError, ValueError, TypeError) as error:  # ValueError: a NUL in a word
            return str(error)
        return None

    def reaped(self, pid: int, exit_status: int) -> bool:
        """A child has ended; whether it was the launcher."""
        if self.launcher is None or pid != self.launcher.pid or self.exit_status is not None:
            return False
        self.exit_status = exit_status
        self.ended_at = time.monotonic()
        return True

    @property
    def started(self) -> dict[str, Any]:
        """The newest generation as the messages tell it."""
        launcher = self.launcher
        return {
            "generation": self.generation,
            "pid": launcher.pid if launcher else None,
            "start_ticks": launcher.start_ticks if launcher else None,
        }

    @property
    def shell_code(self) -> int:
        """The exit code as a shell gives it: 128 and the signal where the launcher died of one."""
        status = self.exit_status or 0
        return 128 - status if status < 0 else status

    def members(self, agent_pid: int | None) -> tuple[Member, ...]:
        """All living processes of the job."""
        roots = () if self.launcher is None else (self.launcher,)
        spare = () if agent_pid is None else (agent_pid,)
        return members(roots, self._id, subreaper=os.getpid(), spare=spare)

    def signal_all(self, signum: int, agent_pid: int | None) -> None:
        """Signal each process of the job by itself, scripts before what they started."""
        for member in self.members(agent_pid):
            signal_one(member.id, signum)
