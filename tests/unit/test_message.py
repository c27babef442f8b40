"""A notice keeps its content through the store, whoever wrote the row."""

import json

import pytest

from tunewarden.domain.message import Change, Notice, NoticeKind, Severity, notice_from_json
from tunewarden.domain.reason import Reason
from tunewarden.domain.target import Secret, Target, recipients

NOTICE = Notice(
    kind=NoticeKind.OUTCOME,
    reason=Reason.RECOVERED,
    short_id="R-7F3K2M",
    job_name="cat-lora",
    node="gpu-1",
    alert_name="GpuMemoryNearlyFull",
    severity=Severity.CRITICAL,
    mention=True,
    changes=(Change(knob="batch_size", before="4", after="2"),),
    numbers={"vram_ratio": 0.61},
    facts={"step": 120, "checkpoint": "/data/state-120"},
)


def test_a_notice_survives_the_outbox_row():
    """What is read back from JSON equals what was written."""
    again = notice_from_json(json.loads(json.dumps(NOTICE.to_json())))

    assert again == NOTICE


@pytest.mark.parametrize(
    ("payload", "kind", "reason"),
    [
        ({}, NoticeKind.NOTICE, Reason.UNCERTAIN),
        ({"kind": "of_next_year", "reason": "of_next_year"}, NoticeKind.NOTICE, Reason.UNCERTAIN),
        ({"kind": "test", "changes": "x", "facts": [1], "numbers": None}, NoticeKind.TEST, Reason.UNCERTAIN),
    ],
)
def test_a_row_of_another_version_is_read_all_the_same(payload, kind, reason):
    """A row that this version doesn't understand must not block those behind it."""
    notice = notice_from_json(payload)

    assert (notice.kind, notice.reason) == (kind, reason)


def test_restarted_goes_to_verbose_targets_only():
    """The third message of a remediation is for those who asked for it."""
    quiet = Target(name="quiet", robot_url=Secret("u"))
    verbose = Target(name="verbose", robot_url=Secret("u"), verbose=True)
    restarted = Notice(kind=NoticeKind.RESTARTED, reason=Reason.POLICY_MATCHED)

    assert [recipients(restarted, [quiet, verbose]), recipients(NOTICE, [quiet, verbose])] == [
        [verbose],
        [quiet, verbose],
    ]


def test_a_secret_never_prints_itself():
    """Neither the secret nor a record that holds it shows the value."""
    target = Target(name="t", robot_url=Secret("https://host/?access_token=tok"), secret=Secret("SECabc"))

    shown = f"{target} {target!r} {target.secret} {target.secret!r} {target.secret!s:>20}"
    assert [word for word in ("tok", "SECabc") if word in shown] == []


def test_severities_are_ranked():
    """The most severe has rank 0."""
    assert sorted(Severity, key=lambda severity: severity.rank)[0] is Severity.CRITICAL
