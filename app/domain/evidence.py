"""What was measured: answers of Prometheus with their age, and the newest sample of a job's host."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tunewarden.domain.alert import Alert
from tunewarden.domain.duration import format_duration
from tunewarden.domain.job import Job, same_uuid
from tunewarden.domain.policy import Policy, Sign, SignKind
from tunewarden.domain.sample import GpuSample, Heartbeat

VARIABLES = ("uuid", "node", "training_job_id", "training_job", "window")
NODE_LABELS = ("node", "Hostname", "hostname")
UUID_LABELS = ("uuid", "UUID", "gpu_uuid")
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What Prometheus said to one expression.

    `holds`: the answer was not empty. `age_s`: of the oldest series read, by Prometheus's own clock; None: no data.
    """

    holds: bool
    age_s: float | None
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that was measured for one decision. `answers` by expression, as it was asked."""

    answers: Mapping[str, Answer] = field(default_factory=dict)
    heartbeat: Heartbeat | None = None  # the newest of the job's agent
    heartbeat_age_s: float = 0.0  # since our receipt
    max_age_s: float = 30.0  # two scrape intervals
    heartbeat_max_age_s: float = 15.0  # three heartbeats

    def answer(self, expr: str | None) -> Answer | None:
        """The answer, when there is one that is fresh."""
        found = self.answers.get(expr) if expr else None
        if found is None or found.age_s is None or found.age_s > self.max_age_s:
            return None
        return found

    @property
    def fresh_heartbeat(self) -> Heartbeat | None:
        return self.heartbeat if self.heartbeat_age_s <= self.heartbeat_max_age_s else None

    def card(self, uuid: str | None) -> GpuSample | None:
        """The card of that uuid in the fresh heartbeat."""
        cards = self.fresh_heartbeat.gpus if self.fresh_heartbeat and uuid else ()
        return next((card for card in cards if same_uuid(card.uuid, uuid or "")), None)


def first_label(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first of `names` that is set, or an empty string."""
    return next((labels[name] for name in names if labels.get(name)), "")


def variables_of(alert: Alert, job: Job, uuid: str | None, policy: Policy) -> dict[str, str]:
    """What `$uuid` and the others stand for; one without a value is left out."""
    found = {
        "uuid": uuid or "",
        "node": first_label(alert.labels, NODE_LABELS) or job.node,
        "training_job_id": job.job_id,
        "training_job": job.name,
        "window": format_duration(policy.expect.verify_for),
    }
    return {name: value for name, value in found.items() if value}


def substitute(expr: str, variables: Mapping[str, str]) -> str | None:
    """`expr` with its variables filled in and escaped for the quotes around them; None when one has no value."""
    if any(name not in variables for name in _VARIABLE.findall(expr)):
        return None
    return _VARIABLE.sub(lambda found: _escaped(variables[found[1]]), expr)


def questions(policy: Policy, variables: Mapping[str, str]) -> tuple[str, ...]:
    """The expressions that Prometheus must be asked before `policy` can be decided, each once."""
    wanted = [sign.expr for sign in policy.signs if sign.kind is SignKind.PROMQL]
    wanted += [confirmation.expr for confirmation in policy.confirm if confirmation.expr]
    filled = (substitute(expr, variables) for expr in wanted)
    return tuple(dict.fromkeys(expr for expr in filled if expr))


def sign_holds(sign: Sign, evidence: Evidence, variables: Mapping[str, str]) -> bool:
    """Whether this second sign is there; no fresh data is no sign."""
    if sign.kind is SignKind.PROMQL:
        answer = evidence.answer(substitute(sign.expr, variables))
        return answer is not None and answer.holds
    heartbeat = evidence.fresh_heartbeat
    if heartbeat is None:
        return False
    job = heartbeat.job
    if sign.kind is SignKind.OOM_LINE:
        return bool(job.oom_lines)
    return bool(
        job.step_rate is not None and job.step_rate_median and job.step_rate < sign.share * job.step_rate_median
    )


def _escaped(value: str) -> str:
    r"""For a PromQL string in either quotes: both are hex, for `\'` inside double quotes is a fault to Prometheus."""
    return "".join(_escaped_char(char) for char in value)


def _escaped_char(char: str) -> str:
    if char in "\\\"'" or ord(char) < 0x20:
        return f"\\x{ord(char):02x}"
    return char if char.isprintable() else f"\\U{ord(char):08x}"
