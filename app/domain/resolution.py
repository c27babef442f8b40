"""Which job an alert means. Never by the label `job`, and never "the only one there is"."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tunewarden.domain.alert import Alert
from tunewarden.domain.evidence import NODE_LABELS, UUID_LABELS, first_label
from tunewarden.domain.job import Job, JobState, same_uuid
from tunewarden.domain.reason import Reason
from tunewarden.domain.sample import GpuSample

T = TypeVar("T")
JOB_LABEL = "training_job_id"
INDEX_LABELS = ("gpu", "index", "gpu_index", "device")  # `device="nvidia0"` is a minor number, not an NVML index
_PRESENT = frozenset({JobState.RUNNING, JobState.WAITING, JobState.LOST})


@dataclass(frozen=True, kw_only=True)
class Meant:
    """What an alert means: a job, or none and the reason. `names` are the jobs that it could mean.

    `uuid` is the card's, as the host registered it; None when the alert names no card of the job.
    """

    job: Job | None = None
    reason: Reason | None = None
    names: tuple[str, ...] = ()
    uuid: str | None = None


def resolve(alert: Alert, jobs: Sequence[Job], node_aliases: Mapping[str, str]) -> Meant:
    """The job that `alert` means: by `training_job_id`, else by GPU uuid, else by index and node.

    `jobs` are all that are known; a GPU can only mean one that has not ended. A node that the alert names must be the
    job's. `node_aliases` maps names in alerts to the agents' names.
    """
    node = first_label(alert.labels, NODE_LABELS)
    node = node_aliases.get(node, node)
    job_id = alert.labels.get(JOB_LABEL)
    if job_id:
        found = [job for job in jobs if job.job_id == job_id]
        return _one([(job, _card_of(alert, job)) for job in found])
    present = [job for job in jobs if job.state in _PRESENT and job.gpus]
    uuid = first_label(alert.labels, UUID_LABELS)
    if uuid:
        near = [job for job in present if not node or job.node == node]
        return _one([(job, card) for job in near if (card := _own_card(job, uuid))])
    index = _index(alert.labels)
    if index is None or not node:
        return Meant(reason=Reason.NO_TARGET)
    near = [job for job in present if job.node == node]
    return _one([(job, card) for job in near if (card := _own_card(job, _uuid_at(job, index)))])


def others_holding_more(card: GpuSample | None) -> tuple[str, ...]:
    """The processes that hold more of the card than the job, as "name (pid)"; none when that isn't so, or unknown."""
    if card is None or any(process.memory is None for process in card.processes):
        return ()
    others = [process for process in card.processes if not process.ours]
    ours = sum(process.memory or 0 for process in card.processes if process.ours)
    if sum(process.memory or 0 for process in others) <= ours:
        return ()
    largest = sorted(others, key=lambda process: -(process.memory or 0))
    return tuple(f"{process.name or '?'} ({process.pid})" for process in largest[:5])


def _one(found: Sequence[tuple[Job, str | None]]) -> Meant:
    """Living jobs win over lost ones: a lost agent's job may have been started again under another id."""
    living = [pair for pair in found if pair[0].living] or list(found)
    if not living:
        return Meant(reason=Reason.NO_TARGET)
    if len(living) > 1:
        return Meant(reason=Reason.AMBIGUOUS_TARGET, names=tuple(sorted(_name(job) for job, _ in living)))
    job, uuid = living[0]
    return Meant(job=job, uuid=uuid)


def _name(job: Job) -> str:
    return f"{job.name} ({job.job_id})"


def _card_of(alert: Alert, job: Job) -> str | None:
    """For an alert that names the job: its card by uuid, by index, or the only one."""
    uuid = first_label(alert.labels, UUID_LABELS)
    if uuid:
        return _own_card(job, uuid)
    index = _index(alert.labels)
    if index is not None:
        return _own_card(job, _uuid_at(job, index))
    return job.gpus[0].uuid if job.gpus and len(job.gpus) == 1 else None


def _own_card(job: Job, uuid: str | None) -> str | None:
    return _first(gpu.uuid for gpu in job.gpus or () if uuid and same_uuid(gpu.uuid, uuid))


def _uuid_at(job: Job, index: int) -> str | None:
    """By the host's own map: NVML's order, which CUDA's need not be."""
    return _first(gpu.uuid for gpu in job.host_gpus if gpu.index == index)


def _index(labels: Mapping[str, str]) -> int | None:
    texts = (labels.get(name, "") for name in INDEX_LABELS)
    return _first(int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 5)


def _first(items: Iterable[T]) -> T | None:
    return next(iter(items), None)
