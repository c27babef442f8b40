"""A training job as the service knows it: what an agent registered and last said."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class JobState(StrEnum):
    """Where a job is. `waiting` and `running` are living states: an order can still be carried out."""

    RUNNING = "running"  # a generation is alive
    WAITING = "waiting"  # the last generation died of OOM and its `run` waits (60 s) for an order to launch the next
    ENDED = "ended"  # `run` is over, or about to be
    LOST = "lost"  # three heartbeats are missing


LIVING_STATES = frozenset({JobState.RUNNING, JobState.WAITING})


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A card of a host, from NVML: `uuid` with its `GPU-` prefix, `index` in NVML (PCI) order."""

    uuid: str
    index: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """One registered job. `job_id` is made by the agent and lives as long as one `tunewarden run`."""

    job_id: str
    name: str
    host_id: str
    node: str
    generation: int
    state: JobState
    enforce: bool = False
    held: bool = False
    trainer: str = "unknown"
    config_name: str = ""  # the file name of the config that rules; never a path
    model_type: str = ""  # sd15, sdxl, flux …, where it is known
    knobs: Mapping[str, str] | None = None  # canonical name -> value as the config sets it; None: unknown
    changeable: frozenset[str] = frozenset()  # the canonical knobs that an order may change
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] | None = None  # the cards that the job uses; None: unknown, so no alert can mean it by GPU
    host_gpus: tuple[Gpu, ...] = ()  # every card of its host: the registered index -> uuid map
    can: frozenset[str] = frozenset()  # of save, stop, resume: what hello.json or a trainer's recipe promises
    cpus: int | None = None  # of its host, as far as the job may use them; None: unknown
    no_hook: str = ""  # what keeps the training hook out, as its agent says it
    ranks: int = 1
    multi_node: bool = False
    registered_at: datetime
    seen_at: datetime  # our receipt of the last message
    clock_skew_s: float = 0.0  # the host's wall clock minus ours at the last message

    @property
    def living(self) -> bool:
        return self.state in LIVING_STATES


def same_uuid(a: str, b: str) -> bool:
    """GPU uuids are equal in any case, with or without the `GPU-` prefix (nvidia_gpu_exporter drops it)."""
    return bare_uuid(a) == bare_uuid(b)


def bare_uuid(uuid: str) -> str:
    """The uuid in lower case without `GPU-`: the form to compare."""
    return uuid.strip().lower().removeprefix("gpu-")
