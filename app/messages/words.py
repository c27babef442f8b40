"""What a language must say: the tables that both languages fill in."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tunewarden.domain.message import Notice, NoticeKind
from tunewarden.domain.reason import Reason


class Status(StrEnum):
    """The first word of a title: what a person must see at a glance."""

    ACTING = "acting"
    RESTARTED = "restarted"
    RECOVERED = "recovered"
    NOT_RECOVERED = "not_recovered"  # it runs, the condition still holds
    BROKEN = "broken"
    UNKNOWN = "unknown"
    SAVED = "saved"
    STOPPED = "stopped"
    DONE = "done"
    NOT_DONE = "not_done"  # refused, superseded, cancelled: the job is as it was, or a person took over
    WOULD_ACT = "would_act"
    FINISHED = "finished"
    ENDED = "ended"
    LOST = "lost"
    RESOLVED = "resolved"
    NOTICE = "notice"
    SELF_ALERT = "self_alert"
    TEST = "test"


@dataclass(frozen=True, kw_only=True)
class Words:
    """One language. A table has a word for each member of its enum, or for each name of docs/reference/messages.md."""

    language: str
    statuses: Mapping[Status, str]
    reasons: Mapping[Reason, str]
    actions: Mapping[str, str]
    causes: Mapping[str, str]  # why a GPU idles
    ends: Mapping[str, str]  # how a job ended
    advice: Mapping[str, str]  # what a person can do after it
    prices: Mapping[str, str]  # what a rung of a ladder costs
    phases: Mapping[str, str]  # what a job is at
    signs: Mapping[str, str]  # the second sign beside a full card
    numbers: Mapping[str, str]
    separator: str  # between the items of a list
    memory: str  # {tried} {free} {total}: of a card that had no room
    unused: str  # {unused}: beside it
    digest_title: str  # {count}
    digest_intro: str
    more: str  # {count}
    repeated: str


_KINDS: Mapping[NoticeKind, Status] = {
    NoticeKind.DECIDED: Status.ACTING,
    NoticeKind.RESTARTED: Status.RESTARTED,
    NoticeKind.SELF_ALERT: Status.SELF_ALERT,
    NoticeKind.TEST: Status.TEST,
}
_OUTCOMES: Mapping[Reason, Status] = {
    Reason.RECOVERED: Status.RECOVERED,
    Reason.STILL_FULL: Status.NOT_RECOVERED,
    Reason.DIED_AGAIN: Status.BROKEN,
    Reason.DIED_OF_OOM_AGAIN: Status.BROKEN,
    Reason.DIED_OF_HOST_OOM_AGAIN: Status.BROKEN,
    Reason.LOSS_NOT_FINITE: Status.BROKEN,
    Reason.NO_STEP: Status.BROKEN,
    Reason.NOT_RESUMED: Status.BROKEN,
    Reason.LAUNCH_FAILED: Status.BROKEN,
    Reason.GPU_BUSY: Status.BROKEN,
    Reason.NO_DATA: Status.UNKNOWN,
    Reason.UNCERTAIN: Status.UNKNOWN,
    Reason.AGENT_RESTARTED: Status.UNKNOWN,
    Reason.JOB_LOST: Status.UNKNOWN,
    Reason.HOST_REBOOTED: Status.UNKNOWN,
    Reason.SAVED: Status.SAVED,
    Reason.STOPPED: Status.STOPPED,
    Reason.COMMAND_DONE: Status.DONE,
}
_NOTICES: Mapping[Reason, Status] = {
    Reason.OBSERVE_MODE: Status.WOULD_ACT,
    Reason.RESOLVED: Status.RESOLVED,
    Reason.JOB_LOST: Status.LOST,
    Reason.HOST_REBOOTED: Status.LOST,
}


def status_of(notice: Notice) -> Status:
    """The status word of a notice."""
    if notice.kind is NoticeKind.OUTCOME:
        return _OUTCOMES.get(notice.reason, Status.NOT_DONE)
    if notice.kind is NoticeKind.NOTICE:
        ended = notice.facts.get("ended")
        if ended:
            return Status.FINISHED if ended == "finished" else Status.ENDED
        return _NOTICES.get(notice.reason, Status.NOTICE)
    return _KINDS[notice.kind]
