"""What a DingTalk robot's answer means: HTTP 200 with an `errcode`. The table here is all that knows the codes.

Three independent SDK copies of the official robot table agree on them; docs/reference/messages.md marks the weak ones.
Decided by `errcode` alone; `errmsg`, which DingTalk may reword, only splits 310000.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

from tunewarden.domain.outbox import Outcome, SendResult


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One code: what to do, and what to tell a person. `whole_target`: no other message would fare better."""

    outcome: Outcome
    meaning: str
    whole_target: bool = False


def _permanent(meaning: str) -> Rule:
    return Rule(outcome=Outcome.PERMANENT, meaning=meaning, whole_target=True)


def _our_fault(meaning: str) -> Rule:
    return Rule(outcome=Outcome.PERMANENT, meaning=meaning)


_BUSY = Rule(outcome=Outcome.RETRY, meaning="DingTalk is busy")
_TOO_FAST = Rule(
    outcome=Outcome.THROTTLED, meaning="more than 20 messages a minute: the robot is blocked for 10 minutes"
)
_TOO_LARGE = Rule(outcome=Outcome.SHRINK, meaning="the message is too large")
_SHAPE = "DingTalk could not read the message: this is a fault of tunewarden, please report it"

ERRCODES: Mapping[int, Rule] = {
    0: Rule(outcome=Outcome.SENT, meaning="ok"),
    -1: _BUSY,
    130101: _TOO_FAST,
    130102: _TOO_FAST,
    130103: _TOO_FAST,
    410100: _TOO_FAST,
    90030: _TOO_FAST,
    300001: _permanent("the access token does not exist: copy the robot's URL again"),
    300005: _permanent("the access token does not exist (robots of external groups): copy the robot's URL again"),
    400013: _permanent("the group was dissolved: make a robot in another group"),
    400101: _permanent("the access token is wrong: copy the robot's URL again"),
    400102: _permanent("the robot is switched off: switch it on in the group's settings"),
    400106: _permanent("the robot is not in the group any more: add it again"),
    400105: _our_fault(_SHAPE),
    40035: _our_fault(_SHAPE),
    400403: _our_fault(_SHAPE),
    43004: _our_fault(_SHAPE),
    460101: _TOO_LARGE,
    101002: _TOO_LARGE,
    430101: Rule(outcome=Outcome.DROP_LINKS, meaning="DingTalk calls a link of the message unsafe"),
    430102: Rule(outcome=Outcome.DROP_LINKS, meaning="DingTalk calls the text of the message unsafe"),
    430103: Rule(outcome=Outcome.DROP_LINKS, meaning="DingTalk calls a picture of the message unsafe"),
    430104: Rule(outcome=Outcome.DROP_LINKS, meaning="DingTalk calls the content of the message unsafe"),
}
SECURITY_CHECK = 310000

_KEYWORD = _permanent("the robot's keyword is not in the message: set `keyword` to one of the robot's keywords")
_NETWORK = _permanent("this host's address is not in the robot's IP list: add it, or use a signing secret instead")
_SIGNATURE = _permanent("the signature does not match: set `secret` to the robot's own SEC… string")
_CLOCK = _permanent("the timestamp is not accepted: this host's clock is wrong")
_SECURITY = _permanent("the security check failed: compare keyword, secret and IP list with the robot's settings")
# In this order: the Chinese text about a wrong signature also speaks of the timestamp.
_SECURITY_WORDS: tuple[tuple[str, Rule], ...] = (
    ("keyword", _KEYWORD),
    ("关键词", _KEYWORD),
    ("whitelist", _NETWORK),
    ("白名单", _NETWORK),
    ("sign not match", _SIGNATURE),
    ("签名不匹配", _SIGNATURE),
    ("timestamp", _CLOCK),
    ("过期", _CLOCK),
    ("时间戳", _CLOCK),
)
_GATEWAY_STATUSES = frozenset({502, 504})  # the server behind it may have taken the message
_RETRY_STATUSES = frozenset({408, 425})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An HTTP answer: what is needed of it. `date` is the Date header."""

    status: int
    body: bytes
    date: str = ""


def classify(answer: Answer, *, proxy: str, now: datetime) -> SendResult:
    """The meaning of an answer. `proxy` is host:port or empty; `now` is our clock, to set against the Date header."""
    if answer.status == 407:
        return proxy_refused(proxy)
    if answer.status == 429:
        return SendResult(outcome=Outcome.THROTTLED, detail=f"HTTP 429: {_TOO_FAST.meaning}")
    if answer.status >= 500 or answer.status in _RETRY_STATUSES:
        detail = f"DingTalk, or a gateway before it, answered HTTP {answer.status}"
        return SendResult(outcome=Outcome.RETRY, detail=detail, lost=answer.status in _GATEWAY_STATUSES)
    if answer.status >= 300:
        detail = f"unexpected answer HTTP {answer.status}: something between here and DingTalk answers in its place"
        return SendResult(outcome=Outcome.UNKNOWN_CODE, detail=detail)
    return _by_code(answer, now)


def proxy_refused(proxy: str) -> SendResult:
    """The proxy, not DingTalk, wants a name and a password."""
    detail = f"the proxy {proxy or '(unknown)'} asks for a name and password (407): write them into its URL in `proxy`"
    return SendResult(outcome=Outcome.PERMANENT, detail=detail, whole_target=True)


def _by_code(answer: Answer, now: datetime) -> SendResult:
    try:
        parsed = json.loads(answer.body)
        code = parsed["errcode"]
    except (ValueError, TypeError, KeyError):
        return SendResult(
            outcome=Outcome.RETRY, detail="the answer is not DingTalk's JSON (a log-in page of the network?)"
        )
    if not isinstance(code, int) or isinstance(code, bool):
        return SendResult(outcome=Outcome.RETRY, detail="the answer's errcode is no number")
    if code == 0:
        return SendResult(outcome=Outcome.SENT)
    if code == SECURITY_CHECK:
        return _security(str(parsed.get("errmsg", "")), answer.date, now)
    rule = ERRCODES.get(code)
    if rule is None:
        return SendResult(outcome=Outcome.UNKNOWN_CODE, detail=f"errcode {code}: not documented for robots")
    return SendResult(outcome=rule.outcome, detail=f"errcode {code}: {rule.meaning}", whole_target=rule.whole_target)


def _security(errmsg: str, date: str, now: datetime) -> SendResult:
    """310000 has several causes, told apart by the text only, which comes in English or in Chinese."""
    text = errmsg.lower()
    rule = next((rule for words, rule in _SECURITY_WORDS if words in text), _SECURITY)
    meaning = rule.meaning + (_skew(date, now) if rule is _CLOCK else "")
    return SendResult(outcome=rule.outcome, detail=f"errcode {SECURITY_CHECK}: {meaning}", whole_target=True)


def _skew(date: str, now: datetime) -> str:
    """How far our clock is from the one in the answer's Date header."""
    try:
        seconds = int((now - parsedate_to_datetime(date)).total_seconds())
    except (ValueError, TypeError):
        return "; set it by NTP"
    ahead = "ahead of" if seconds > 0 else "behind"
    return f", {abs(seconds)} s ({abs(seconds) // 60} min) {ahead} DingTalk's; set it by NTP"
