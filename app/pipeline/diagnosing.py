"""Why a card is idle: the inputs of the diagnosis, asked of Prometheus in the moment of the alert."""

from collections.abc import Mapping
from typing import Any

from tunewarden.domain.alert import Alert
from tunewarden.domain.diagnosis import diagnose, queries
from tunewarden.domain.evidence import Answer
from tunewarden.domain.job import Job
from tunewarden.pipeline.gathering import AsksPrometheus

WINDOW = "10m"


class Diagnosing:
    """Implements the port Diagnoses. `window` is the span that the numbers are taken over."""

    def __init__(self, prometheus: AsksPrometheus, *, window: str = WINDOW) -> None:
        self._prometheus = prometheus
        self._window = window

    async def __call__(
        self,
        alert: Alert,  # noqa: ARG002 - the port's
        job: Job | None,
        uuid: str | None,
    ) -> Mapping[str, Any]:
        """`cause` and the numbers by name; without a job or a card nothing can be asked, so the cause is unknown."""
        if job is None or uuid is None:
            return {"cause": "unknown"}
        asked = queries(uuid=uuid, node=job.node, training_job_id=job.job_id, window=self._window)
        answers = await self._prometheus.ask_all(asked.values())
        found = diagnose({name: _value(answers.get(expr)) for name, expr in asked.items()})
        facts: dict[str, Any] = {"cause": found.cause.value, **found.numbers}
        if found.missing:
            facts["missing"] = list(found.missing)
        return facts


def _value(answer: Answer | None) -> float | None:
    return None if answer is None else answer.value
