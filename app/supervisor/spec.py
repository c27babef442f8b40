"""What `tunewarden run` was asked for, as it lies in the run folder. See docs/reference/keeper-protocol.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tunewarden.errors import SettingsError
from tunewarden.supervisor.run_folder import RunFolder
from tunewarden.supervisor.started_by import StartedBy

DEFAULT_GRACE_S = 120.0
DEFAULT_HEARTBEAT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run. Seconds for `grace_s` (how long a stop may wait for the save) and `heartbeat_s`."""

    job_id: str
    name: str
    argv: tuple[str, ...]
    cwd: Path
    labels: Mapping[str, str]
    enforce: bool
    grace_s: float
    url: str
    token_file: Path | None
    simulate_gpu: str | None
    heartbeat_s: float
    node: str
    host_id: str
    hook: Path | None = None  # the training hook's folder, first on the job's PYTHONPATH; None: --no-hook
    states_before: Mapping[str, str] = field(default_factory=dict)  # states of earlier trainings: path -> mark
    started_by: StartedBy = StartedBy.RUN
    pushgateway: str | None = field(default=None, repr=False)  # may hold a password
    ends_with_cell: bool = False  # it is stopped by ending its cell or thread: its processes are never signalled

    @classmethod
    def read(cls, folder: RunFolder) -> "RunSpec":
        """Read `spec.json`. Raises SettingsError when it can't be used."""
        try:
            raw = folder.read_spec()
            token_file, hook = raw.get("token_file"), raw.get("hook")
            return cls(
                job_id=str(raw["job_id"]),
                name=str(raw["name"]),
                argv=tuple(str(each) for each in raw["argv"]),
                cwd=Path(raw["cwd"]),
                labels={str(key): str(value) for key, value in (raw.get("labels") or {}).items()},
                enforce=bool(raw.get("enforce")),
                grace_s=float(raw.get("grace_s") or DEFAULT_GRACE_S),
                url=str(raw["url"]),
                token_file=Path(token_file) if token_file else None,
                simulate_gpu=raw.get("simulate_gpu") or None,
                heartbeat_s=float(raw.get("heartbeat_s") or DEFAULT_HEARTBEAT_S),
                node=str(raw["node"]),
                host_id=str(raw["host_id"]),
                hook=Path(hook) if hook else None,
                states_before={str(key): str(value) for key, value in (raw.get("states_before") or {}).items()},
                started_by=StartedBy(raw.get("started_by") or StartedBy.RUN),
                pushgateway=raw.get("pushgateway") or None,
                ends_with_cell=bool(raw.get("ends_with_cell")),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            where = folder.spec_file
            raise SettingsError(f"{where}: can't be used ({error!r}); it is written by `tunewarden run`") from error
