"""What a person is told: the content of one message, before it has a language or a channel."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from tunewarden.domain.reason import Reason

Fact = str | int | float
_E = TypeVar("_E", bound=StrEnum)


class NoticeKind(StrEnum):
    """The moments at which a person hears of something. The facts of each are in docs/reference/messages.md."""

    DECIDED = "decided"  # a remediation begins: why, and what will be done
    RESTARTED = "restarted"  # its new generation is started; only for verbose targets
    OUTCOME = "outcome"  # it is over: what changed, and whether the job recovered
    NOTICE = "notice"  # a single message: a diagnosis, "would have ...", a job that ended
    SELF_ALERT = "self_alert"  # tunewarden itself needs a person
    TEST = "test"  # `tunewarden message test`


class Severity(StrEnum):
    """How much it matters; the more severe is kept when a digest must be cut."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the most severe."""
        return tuple(Severity).index(self)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One knob that was, or will be, changed: its canonical name and both values as the config spells them."""

    knob: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Notice:
    """The content of one message.

    `short_id` ties the messages of one remediation (or episode) together; those that still wait are sent as one.
    `numbers` are the measurements that decided, by name. `mention` is true when a person must act.
    """

    kind: NoticeKind
    reason: Reason
    short_id: str = ""
    job_name: str = ""
    node: str = ""
    alert_name: str = ""
    severity: Severity = Severity.WARNING
    mention: bool = False
    changes: tuple[Change, ...] = ()
    numbers: Mapping[str, Fact] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The payload of an outbox row."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Message:
    """A rendered message. `title` is what a phone previews, `text` is DingTalk markdown and holds every `@`."""

    title: str
    text: str
    at_mobiles: tuple[str, ...] = ()
    at_user_ids: tuple[str, ...] = ()


def notice_from_json(payload: Mapping[str, Any]) -> Notice:
    """The notice of an outbox row. Never raises: a row that another version wrote must not block those behind it.

    An unknown kind is read as `notice`, an unknown reason as `uncertain`, an unknown severity as `warning`.
    """
    return Notice(
        kind=_member(NoticeKind, payload.get("kind"), NoticeKind.NOTICE),
        reason=_member(Reason, payload.get("reason"), Reason.UNCERTAIN),
        short_id=str(payload.get("short_id") or ""),
        job_name=str(payload.get("job_name") or ""),
        node=str(payload.get("node") or ""),
        alert_name=str(payload.get("alert_name") or ""),
        severity=_member(Severity, payload.get("severity"), Severity.WARNING),
        mention=bool(payload.get("mention")),
        changes=tuple(_change(item) for item in _items(payload.get("changes"))),
        numbers=_facts(payload.get("numbers")),
        facts=_facts(payload.get("facts")),
    )


def _member(kind: type[_E], value: object, default: _E) -> _E:
    return next((member for member in kind if member.value == value), default)


def _items(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _change(item: Mapping[str, Any]) -> Change:
    return Change(knob=str(item.get("knob", "")), before=str(item.get("before", "")), after=str(item.get("after", "")))


def _facts(value: object) -> dict[str, Fact]:
    pairs = value.items() if isinstance(value, Mapping) else ()
    return {str(name): _fact(fact) for name, fact in pairs}


def _fact(value: object) -> Fact:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return value if isinstance(value, str | int | float) else str(value)
