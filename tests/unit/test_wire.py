"""Alertmanager's payload: every version's gaps are taken, everything else is told apart by one status."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewarden.api.wire import NotJson, WrongShape, alerts_of, body_of, parse
from tunewarden.domain.alert import Alert, AlertStatus, fingerprint_of

BODIES = Path(__file__).resolve().parents[1] / "golden" / "alertmanager-0.25"
ALERT: dict[str, Any] = {
    "status": "firing",
    "labels": {"alertname": "GpuMemoryNearlyFull", "uuid": "GPU-1"},
    "annotations": {"summary": "full"},
    "startsAt": "2026-11-30T18:59:04.579123456Z",
    "endsAt": "0001-01-01T00:00:00Z",
    "generatorURL": "http://prometheus:9090/graph",
    "fingerprint": "1d2c3b4a59687766",
}


def _body(*alerts: dict[str, Any], **root: Any) -> bytes:
    return json.dumps({"version": "4", "alerts": list(alerts), **root}).encode()


def _without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ALERT.items() if name != key}


@pytest.mark.parametrize(
    ("name", "count", "firing"),
    [
        ("firing-one-gpu", 1, 1),
        ("firing-first-flush-3-of-4", 3, 3),
        ("firing-second-flush-repeats-all-4", 4, 4),
        ("firing-four-gpus-grouped", 4, 4),
        ("firing-status-mixed-one-resolved", 4, 3),
        ("firing-max_alerts-2-truncated", 2, 2),
        ("resolved-one-gpu", 1, 0),
    ],
)
def test_bodies_of_a_real_alertmanager_are_read(name: str, count: int, firing: int) -> None:
    """Alertmanager 0.25.0 posted these; each alert has the status of its own."""
    alerts = alerts_of((BODIES / f"{name}.json").read_bytes())

    assert len(alerts) == count
    assert sum(alert.status is AlertStatus.FIRING for alert in alerts) == firing
    assert all(alert.starts_at is not None for alert in alerts)
    assert all((alert.ends_at is None) == (alert.status is AlertStatus.FIRING) for alert in alerts)


@pytest.mark.parametrize(
    "body",
    [
        _body(ALERT, groupKey=123456789),  # a number before version 4, and harmless
        _body(ALERT, groupKey='{}/{a="b"}:{c="d"}', truncatedAlerts=2, receiver="max\\.2-team"),
        _body(ALERT, notification_reason="repeat interval elapsed", routeLabels={"a": "b"}),
        _body(ALERT, commonLabels=None, orgId=1, title="[FIRING:1]", state="alerting"),  # Grafana's extra fields
        _body({**ALERT, "silenceURL": "http://x", "values": {"A": 1}, "annotations": None}),
        _body(_without("annotations")),
        _body(_without("startsAt")),
        _body(_without("endsAt")),
        _body(_without("generatorURL")),
        _body({**ALERT, "endsAt": ""}),
        _body({**ALERT, "endsAt": "0001-01-01T00:00:00+08:00", "startsAt": "2026-11-30T18:59:04+08:00"}),
        _body({**ALERT, "labels": {"a.b": "c", "标签": "值", "status": "resolved"}}),
        _body(),
    ],
)
def test_gaps_and_extras_are_taken(body: bytes) -> None:
    """What a version leaves out, or another sender adds, does not lose the alert."""
    alerts = alerts_of(body)

    assert [alert.status for alert in alerts] == [AlertStatus.FIRING] * len(alerts)
    assert all(alert.ends_at is None for alert in alerts)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"not json", b'{"version": "4", "alerts": [', b"\xff\xfe{}", b"[" * 100_000]
)
def test_what_is_not_json_is_told(body: bytes) -> None:
    """400: it will not get better."""
    with pytest.raises(NotJson):
        parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"null",
        b'"text"',
        b'{"alerts": []}',
        b'{"version": "4"}',
        b'{"version": "4", "alerts": {}}',
        b'{"version": "4", "alerts": [1]}',
        b'{"version": "4", "alerts": null}',
        b'{"version": "3", "alerts": []}',
        b'{"version": 4, "alerts": []}',
        _body({**ALERT, "status": "suppressed"}),
        _body({**ALERT, "labels": {"a": 1}}),
        _body({**ALERT, "labels": None}),
        _body(_without("labels")),
        _body(_without("status")),
        _body({**ALERT, "startsAt": "yesterday"}),
        b'{"msgtype": "markdown", "markdown": {"title": "t", "text": "x"}, "at": {"isAtAll": false}}',
    ],
)
def test_other_json_is_the_wrong_shape(body: bytes) -> None:
    """422: a DingTalk-shaped body too."""
    with pytest.raises(WrongShape):
        parse(body)


def test_errors_do_not_quote_the_body() -> None:
    """Alertmanager and our log never see what was in it."""
    with pytest.raises(WrongShape) as error:
        parse(_body({**ALERT, "startsAt": "SECRETX"}))

    assert "SECRETX" not in str(error.value)


@pytest.mark.parametrize("fingerprint", [None, ""])
def test_a_missing_fingerprint_is_computed(fingerprint: str | None) -> None:
    """Two cards of one alert name stay two alerts (Alertmanager before 0.19 sends none)."""
    first = {**ALERT, "fingerprint": fingerprint}
    second = {**first, "labels": {**ALERT["labels"], "uuid": "GPU-2"}}

    alerts = alerts_of(_body(first, second))

    assert [alert.fingerprint for alert in alerts] == [fingerprint_of(alert.labels) for alert in alerts]
    assert len({alert.fingerprint for alert in alerts}) == 2


def test_nine_digits_of_a_second_are_read() -> None:
    """Alertmanager writes up to nanoseconds; microseconds are kept."""
    (alert,) = alerts_of(_body(ALERT))

    assert alert.starts_at == datetime(2026, 11, 30, 18, 59, 4, 579123, tzinfo=UTC)


_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
_MOMENT = st.datetimes(min_value=datetime(2, 1, 2), max_value=datetime(9998, 1, 1), timezones=st.just(UTC))


@given(
    labels=st.dictionaries(_TEXT, _TEXT, max_size=5), annotations=st.dictionaries(_TEXT, _TEXT, max_size=3), at=_MOMENT
)
def test_an_agents_event_reads_back_as_it_was(
    labels: dict[str, str], annotations: dict[str, str], at: datetime
) -> None:
    """body_of and alerts_of are inverse, for any text."""
    alert = Alert(
        fingerprint=fingerprint_of(labels),
        status=AlertStatus.RESOLVED,
        labels=labels,
        annotations=annotations,
        starts_at=at,
        ends_at=at,
    )

    assert alerts_of(body_of([alert])) == [alert]
