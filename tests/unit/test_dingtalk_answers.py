"""What each answer of a robot means for the rows that were posted."""

import json
from datetime import UTC, datetime

import pytest

from tunewarden.adapters.dingtalk_answers import Answer, classify
from tunewarden.domain.outbox import Outcome, SendResult

NOW = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)


def answered(body: object, status: int = 200, date: str = "") -> SendResult:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return classify(Answer(status=status, body=raw, date=date), proxy="proxy:3128", now=NOW)


@pytest.mark.parametrize(
    ("code", "outcome", "whole_target"),
    [
        (0, Outcome.SENT, False),
        (-1, Outcome.RETRY, False),
        (130101, Outcome.THROTTLED, False),
        (130102, Outcome.THROTTLED, False),
        (130103, Outcome.THROTTLED, False),
        (410100, Outcome.THROTTLED, False),
        (90030, Outcome.THROTTLED, False),
        (310000, Outcome.PERMANENT, True),
        (300001, Outcome.PERMANENT, True),
        (300005, Outcome.PERMANENT, True),
        (400013, Outcome.PERMANENT, True),
        (400101, Outcome.PERMANENT, True),
        (400102, Outcome.PERMANENT, True),
        (400106, Outcome.PERMANENT, True),
        (400105, Outcome.PERMANENT, False),
        (40035, Outcome.PERMANENT, False),
        (400403, Outcome.PERMANENT, False),
        (43004, Outcome.PERMANENT, False),
        (460101, Outcome.SHRINK, False),
        (101002, Outcome.SHRINK, False),
        (430101, Outcome.DROP_LINKS, False),
        (430102, Outcome.DROP_LINKS, False),
        (430103, Outcome.DROP_LINKS, False),
        (430104, Outcome.DROP_LINKS, False),
        (302033, Outcome.UNKNOWN_CODE, False),
    ],
)
def test_errcode(code: int, outcome: Outcome, whole_target: bool):
    """The table of DingTalk's codes, decided by the code alone."""
    result = answered({"errcode": code, "errmsg": "any words"})

    assert (result.outcome, result.whole_target, result.lost) == (outcome, whole_target, False)


@pytest.mark.parametrize(
    ("errmsg", "said"),
    [
        ("keywords not in content, more: [https://open.dingtalk.com/]", "keyword"),
        ("description:关键词不匹配;solution:请联系群管理员查看此机器人的关键词", "keyword"),
        ("ip 1.2.3.4 not in whitelist", "IP list"),
        ("description:来源IP地址不在白名单内", "IP list"),
        ("sign not match", "signature"),
        ("description:机器人发送签名不匹配;solution:请确认签名和生成签名的时间戳必须都放在调用的网址中", "signature"),
        ("invalid timestamp", "clock"),
        ("description:机器人发送签名过期;solution:签名生成时间和发送时间请保持在timestampms以内", "clock"),
        ("description:机器人发送时间戳无效", "clock"),
        ("something new", "security check"),
    ],
)
def test_310000_is_told_apart_by_its_text(errmsg: str, said: str):
    """One code, four causes, two languages: a person reads what to change."""
    assert said in answered({"errcode": 310000, "errmsg": errmsg}).detail


@pytest.mark.parametrize(
    ("date", "said"),
    [
        ("Mon, 30 Nov 2026 01:55:00 GMT", "3900 s (65 min) ahead of DingTalk's"),
        ("Mon, 30 Nov 2026 04:10:00 GMT", "4200 s (70 min) behind DingTalk's"),
        ("", "set it by NTP"),
        ("nonsense", "set it by NTP"),
    ],
)
def test_a_wrong_clock_is_named_with_by_how_much(date: str, said: str):
    """The Date header of the answer says what time it really is."""
    assert said in answered({"errcode": 310000, "errmsg": "invalid timestamp"}, date=date).detail


@pytest.mark.parametrize(
    ("status", "body", "outcome", "lost"),
    [
        (500, b"", Outcome.RETRY, False),
        (503, b"{}", Outcome.RETRY, False),
        (502, b"<html>Bad Gateway</html>", Outcome.RETRY, True),
        (504, b"", Outcome.RETRY, True),
        (408, b"", Outcome.RETRY, False),
        (429, b"", Outcome.THROTTLED, False),
        (302, b"", Outcome.UNKNOWN_CODE, False),
        (403, b"", Outcome.UNKNOWN_CODE, False),
        (200, b"<html>log in</html>", Outcome.RETRY, False),
        (200, b"[]", Outcome.RETRY, False),
        (200, b"{}", Outcome.RETRY, False),
        (200, b'{"errcode": "0"}', Outcome.RETRY, False),
        (200, b'{"errcode": true}', Outcome.RETRY, False),
        (200, b"\xff\xfe", Outcome.RETRY, False),
    ],
)
def test_answers_that_are_not_dingtalks(status: int, body: bytes, outcome: Outcome, lost: bool):
    """Gateways, log-in pages and broken bodies are tried again; only an errcode 0 is a delivery."""
    result = answered(body, status)

    assert (result.outcome, result.lost) == (outcome, lost)


def test_a_proxy_that_wants_a_password_is_named():
    """407 comes from the proxy, so the person isn't sent to look at DingTalk."""
    result = answered(b"", 407)

    assert result.outcome is Outcome.PERMANENT
    assert "the proxy proxy:3128" in result.detail
