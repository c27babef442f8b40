"""The messages of docs/reference/jobs-api.md. Unknown fields are ignored: agents of other weeks are understood."""

import math
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from tunewarden.domain.job import Gpu, Job, JobState
from tunewarden.domain.job_event import JobEvent
from tunewarden.domain.order import Phase, Report
from tunewarden.domain.reason import Reason

PROTOCOL = 1
_DETAIL_LIMIT = 256 * 1024  # characters of one text in a report's detail
_MOST_LABELS = 64
_MOST_KNOBS = 64
_LONGEST_NAME = 256
_MOST_CPUS = 65536
_MOST_FACTS = 32
_LONGEST_FACT = 1024
_MOST_WHOLE = 1 << 53

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Short = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Label = Annotated[str, StringConstraints(max_length=256)]
Generation = Annotated[int, Field(ge=1, le=1_000_000)]


def _empty_is_default(value: Any) -> Any:
    return {} if value is None else value


def _name(value: Any) -> str:
    """A file name. A registration is never refused for what only describes the job."""
    return value.replace("\\", "/").rpartition("/")[2][:_LONGEST_NAME] if isinstance(value, str) else ""


def _word(value: Any) -> str:
    return value[:64] if isinstance(value, str) else ""


def _sentence(value: Any) -> str:
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""


def _words(value: Any) -> list[str]:
    found = value[:_MOST_KNOBS] if isinstance(value, list) else []
    return [word for word in found if isinstance(word, str) and 0 < len(word) <= 64]


def _knobs(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    pairs = [(name, text) for name, text in value.items() if isinstance(name, str) and isinstance(text, str)]
    return {name: text[:_LONGEST_NAME] for name, text in pairs[:_MOST_KNOBS] if 0 < len(name) <= 64}


def _object(value: Any) -> Any:
    return value if isinstance(value, dict) else {}


def _cpus(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_CPUS else None


def _facts(value: Any) -> dict[str, str | int | float]:
    """What an agent found out about a death: few names, short texts, finite numbers; the rest is left out."""
    found = list(value.items())[:_MOST_FACTS] if isinstance(value, dict) else []
    return {name: _fact(fact) for name, fact in found if _is_fact(name, fact)}


def _is_fact(name: Any, fact: Any) -> bool:
    named = isinstance(name, str) and 0 < len(name) <= 64
    whole = isinstance(fact, int) and not isinstance(fact, bool) and abs(fact) <= _MOST_WHOLE
    return named and (isinstance(fact, str) or whole or (isinstance(fact, float) and math.isfinite(fact)))


def _fact(fact: str | float) -> str | int | float:
    return fact[:_LONGEST_FACT] if isinstance(fact, str) else fact


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True, allow_inf_nan=False)

    protocol: Annotated[int, Field(ge=1)]


class WireGpu(BaseModel):
    """A card by uuid and NVML index."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    uuid: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    index: Annotated[int, Field(ge=0, le=4096)]

    def gpu(self) -> Gpu:
        return Gpu(uuid=self.uuid, index=self.index)


class Registration(_Message):
    """PUT /api/v1/jobs/{job_id}."""

    host_id: Short
    boot_id: Annotated[str, StringConstraints(max_length=64)] = ""
    node: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    generation: Generation
    state: str = "running"
    enforce: bool = False
    labels: Annotated[
        dict[Annotated[str, StringConstraints(max_length=128)], Label],
        Field(max_length=_MOST_LABELS, default_factory=dict),
        BeforeValidator(_empty_is_default),
    ]
    trainer: Annotated[str, StringConstraints(max_length=64)] = "unknown"
    config_name: Annotated[str, BeforeValidator(_name)] = ""
    model_type: Annotated[str, BeforeValidator(_word)] = ""
    knobs: Annotated[dict[str, str] | None, BeforeValidator(_knobs)] = None
    changeable: Annotated[list[str], BeforeValidator(_words)] = Field(default_factory=list)
    no_hook: Annotated[str, BeforeValidator(_sentence)] = ""
    host: Annotated[dict[str, Any], Field(default_factory=dict), BeforeValidator(_object)]
    can: Annotated[list[Short], Field(max_length=16, default_factory=list)]
    ranks: Annotated[int, Field(ge=1, le=100_000)] = 1
    multi_node: bool = False
    gpus: Annotated[list[WireGpu], Field(max_length=64)] | None = None
    host_gpus: Annotated[list[WireGpu], Field(max_length=64, default_factory=list)]
    wall: float | None = None

    def job(self, job_id: str, now: datetime) -> Job:
        """The record. A state that we don't know counts as running: the agent speaks, so it lives."""
        known = self.state in {state.value for state in JobState}
        return Job(
            job_id=job_id,
            name=self.name,
            host_id=self.host_id,
            node=self.node,
            generation=self.generation,
            state=JobState(self.state) if known else JobState.RUNNING,
            enforce=self.enforce,
            trainer=self.trainer,
            config_name=self.config_name,
            model_type=self.model_type,
            knobs=self.knobs,
            changeable=frozenset(self.changeable),
            cpus=_cpus(self.host.get("cpus")),
            no_hook=self.no_hook,
            labels=self.labels,
            gpus=None if self.gpus is None else tuple(gpu.gpu() for gpu in self.gpus),
            host_gpus=tuple(gpu.gpu() for gpu in self.host_gpus),
            can=frozenset(self.can),
            ranks=self.ranks,
            multi_node=self.multi_node,
            registered_at=now,
            seen_at=now,
            clock_skew_s=0.0 if self.wall is None else self.wall - now.timestamp(),
        )


class ReportBody(_Message):
    """PUT …/orders/{order_id}/reports/{phase}."""

    generation: Generation
    reason: str | None = None
    detail: Annotated[dict[str, Any], Field(default_factory=dict), BeforeValidator(_empty_is_default)]

    def report(self, order_id: str, phase: Phase) -> Report:
        return Report(order_id=order_id, phase=phase, reason=_reason(self.reason), detail=_bounded(self.detail))


class EventBody(_Message):
    """POST …/events."""

    event_id: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    generation: Generation
    kind: Short = "ended"
    cause: Short = "unknown"
    exit_status: int | None = None
    step: int | None = None
    last_state_step: int | None = None
    waits_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    evidence: str | None = None
    facts: Annotated[dict[str, Any], BeforeValidator(_facts)] = Field(default_factory=dict)

    def event(self) -> JobEvent:
        values = self.model_dump(exclude={"protocol", "evidence"})
        return JobEvent(**values, evidence=(self.evidence or "")[:2000])


class StopBody(BaseModel):
    """POST …/stop: `now` stops without a save."""

    now: bool = False


class TestBody(BaseModel):
    """POST /api/v1/messages/test."""

    target: Annotated[str, StringConstraints(max_length=64)] | None = None


def actor_of(header: str | None) -> str:
    """Who asks, as the command line says it: for the audit, so only printable and short. It grants nothing."""
    name = "".join(char for char in (header or "") if char.isprintable()).strip()
    return name[:64] or "person"


def _reason(name: str | None) -> Reason | None:
    """A reason of a newer agent that we don't know is `uncertain`: its text still says what it is."""
    if name is None:
        return None
    return Reason(name) if name in {reason.value for reason in Reason} else Reason.UNCERTAIN


def _bounded(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:_DETAIL_LIMIT] if isinstance(value, str) else value for name, value in detail.items()}
