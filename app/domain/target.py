"""Where messages go: one DingTalk robot, with what it needs to be spoken to."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tunewarden.domain.message import Notice, NoticeKind

_STARS = "**********"


class Secret:
    """A string that never prints itself. `reveal()` gives it to the one line that needs it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({_STARS!r})"

    def __str__(self) -> str:
        return _STARS

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class Language(StrEnum):
    """The language of a target's messages."""

    ZH = "zh"
    EN = "en"
    BOTH = "both"  # Chinese first, then English


@dataclass(frozen=True, kw_only=True)
class Target:
    """One DingTalk robot.

    `robot_url` holds the access token and nothing else in its query; `secret` is the SEC… string of the signature mode.
    `proxy` is a URL (it may hold a password); `ca_bundle` a PEM file that is trusted besides the system's authorities.
    `allowed_hosts` adds to oapi.dingtalk.com; only such a host may be spoken to by plain http.
    """

    name: str
    robot_url: Secret
    secret: Secret | None = None
    keyword: str = ""
    language: Language = Language.ZH
    at_mobiles: tuple[str, ...] = ()  # digits, or +852-12345678 for a foreign number
    at_user_ids: tuple[str, ...] = ()
    verbose: bool = False
    proxy: Secret | None = None
    ca_bundle: str = ""
    allowed_hosts: tuple[str, ...] = ()


def recipients(notice: Notice, targets: Sequence[Target]) -> list[Target]:
    """The targets that hear of this notice: `restarted` goes only to verbose ones."""
    return [target for target in targets if target.verbose or notice.kind is not NoticeKind.RESTARTED]
