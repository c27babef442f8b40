"""What is done about one alert, and why."""

from dataclasses import dataclass, field
from enum import StrEnum

from tunewarden.domain.policy import Step
from tunewarden.domain.reason import Reason


class Verdict(StrEnum):
    """The kinds of decision."""

    ACT = "act"  # a remediation is opened with `steps`
    NOTIFY = "notify"  # a message, nothing else
    OBSERVE = "observe"  # a message: "would have ..."
    WAIT = "wait"  # nothing yet: asked again while the episode lasts
    IGNORE = "ignore"  # nothing
    CANCEL = "cancel"  # an open remediation that has not begun to save or stop is cancelled


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer of decide(): verdict, reason, and the steps that are (or would be) carried out.

    `facts` are the numbers and names that the reason rests on, for the message and the audit.
    """

    verdict: Verdict
    reason: Reason
    policy: str = ""
    job_id: str = ""
    steps: tuple[Step, ...] = ()
    message: bool = False  # a person hears of it now
    recheck_s: float | None = None
    facts: dict[str, str | float | int | list[str]] = field(default_factory=dict)
