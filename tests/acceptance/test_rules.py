"""The shipped rules under the real promtool: they hold, and a test fails when any of their numbers is changed."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tunewarden.adapters.rule_files import shipped_rule_files, shorten, shortened_rules
from tunewarden.errors import SettingsError
from tunewarden.shipped import shipped_dir

RULES = shipped_dir("rules")
TESTS = sorted((RULES / "tests").glob("*.yaml"))
ALERT_FILES = sorted((RULES / "alerts").glob("*.yaml"))


def promtool(*words: str | Path, cwd: Path = RULES) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False)


def alerts() -> list[dict[str, Any]]:
    """Every alert rule that is shipped."""
    documents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in ALERT_FILES]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


def expectations() -> list[dict[str, Any]]:
    """Every alert_rule_test of every test file."""
    documents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in TESTS]
    return [
        expected for document in documents for test in document["tests"] for expected in test.get("alert_rule_test", [])
    ]


def test_the_rules_pass_promtool() -> None:
    """Syntax, templates and duplicates."""
    checked = promtool("check", "rules", "--lint-fatal", *shipped_rule_files())

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_rules_do_what_their_tests_say(path: Path) -> None:
    """promtool's own unit tests."""
    tested = promtool("test", "rules", path)

    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_positive_and_a_negative_test() -> None:
    """promtool lets a negative test with a misspelt name pass in silence, so the names are compared here."""
    shipped = {rule["alert"] for rule in alerts()}
    fires = {expected["alertname"] for expected in expectations() if expected["exp_alerts"]}
    silent = {expected["alertname"] for expected in expectations() if not expected["exp_alerts"]}

    assert (fires, silent) == (shipped, shipped)


def test_every_alert_is_told_like_the_others() -> None:
    """Severity, a text for a person, the page to read and the value."""
    for rule in alerts():
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "value"}, rule["alert"]
        assert rule["labels"] == {"severity": "warning"}, rule["alert"]


def test_every_alert_has_its_section_on_the_reference_page() -> None:
    """runbook_url leads to a heading that is there."""
    page = (RULES.parent / "docs" / "reference" / "alerts.md").read_text(encoding="utf-8")
    headings = {line.removeprefix("## ").lower() for line in page.splitlines() if line.startswith("## ")}

    assert {rule["annotations"]["runbook_url"].partition("#")[2] for rule in alerts()} <= headings


MUTANTS = [
    ("GpuMemoryNearlyFull", "> 0.95", "> 0.952"),
    ("GpuMemoryNearlyFull", "> 0.95", "> 0.948"),
    ("GpuMemoryNearlyFull", "> 0.95", "< 0.95"),
    ("GpuMemoryNearlyFull", "for: 3m", "for: 165s"),
    ("GpuMemoryNearlyFull", "for: 3m", "for: 195s"),
    ("GpuUtilizationLow", "< 0.30", "< 0.29"),
    ("GpuUtilizationLow", "< 0.30", "< 0.31"),
    ("GpuUtilizationLow", "> 0.10", "> 0.11"),
    ("GpuUtilizationLow", "> 0.10", "> 0.09"),
    ("GpuUtilizationLow", "for: 10m", "for: 585s"),
    ("GpuUtilizationLow", "for: 10m", "for: 615s"),
    ("GpuUtilizationLow", "[10m]", "[9m]"),
    ("GpuUtilizationLow", "[10m]", "[11m]"),
    ("GpuUtilizationLow", "and on (uuid) gpu:memory_used:ratio > 0.10", ""),
    ("TrainingStalled", "> training_job:stall", ">= training_job:stall"),
    ("TrainingStalled", "> training_job:stall", "< training_job:stall"),
    ("TrainingStalled", "for: 30s", "for: 15s"),
    ("TrainingStalled", "for: 30s", "for: 45s"),
    ("TrainingLossNotFinite", "!= tunewarden_job_loss", "== tunewarden_job_loss"),
    ("TrainingLossNotFinite", "== Inf", "> 1e29"),
    ("TrainingLossNotFinite", "abs(tunewarden_job_loss)", "(tunewarden_job_loss)"),
    ("TrainingLossNotFinite", "for: 1m", "for: 45s"),
    ("TrainingLossNotFinite", "for: 1m", "for: 75s"),
]
# What the alerts stand on: each number and condition of rules/recording/job.yaml.
JOB_MUTANTS = [
    ("[1m]", "[15s]"),
    ("5 * max", "4.9 * max"),
    ("5 * max", "5.1 * max"),
    (", 300)", ", 285)"),
    (", 300)", ", 316)"),
    ("* 0 + 900", "* 0 + 885"),
    ("* 0 + 900", "* 0 + 915"),
    ('phase="train"', 'phase!="train"'),
    ("} == 1", "}"),
    (
        "max by (node, training_job, training_job_id) (tunewarden_job_median_step_seconds)",
        "tunewarden_job_median_step_seconds",
    ),
    ("_sum[5m]) / (", "_sum[5m]) * ("),
]


@pytest.mark.parametrize(("alert", "what", "instead"), MUTANTS)
def test_a_changed_number_fails_a_test(alert: str, what: str, instead: str, tmp_path: Path) -> None:
    """Each threshold, window and `for` of each alert, changed a little in a copy, makes promtool fail."""
    copy = tmp_path / "rules"
    shutil.copytree(RULES, copy)
    path = next(
        file for file in sorted((copy / "alerts").glob("*.yaml")) if f"alert: {alert}\n" in file.read_text("utf-8")
    )
    before, name, rule = path.read_text(encoding="utf-8").partition(f"- alert: {alert}\n")
    end = rule.find("- alert: ")
    own, rest = (rule, "") if end < 0 else (rule[:end], rule[end:])
    assert name and what in own
    path.write_text(before + name + own.replace(what, instead) + rest, encoding="utf-8")
    about_it = [test for test in sorted((copy / "tests").glob("*.yaml")) if alert in test.read_text(encoding="utf-8")]
    tested = promtool("test", "rules", *about_it, cwd=copy)

    assert tested.returncode == 1, tested.stdout
    assert "FAILED" in tested.stderr + tested.stdout, tested.stderr


@pytest.mark.parametrize(("what", "instead"), JOB_MUTANTS)
def test_a_changed_recording_of_jobs_fails_a_test(what: str, instead: str, tmp_path: Path) -> None:
    """Windows, phases and the labels that are kept."""
    copy = tmp_path / "rules"
    shutil.copytree(RULES, copy)
    path = copy / "recording" / "job.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(what, instead), encoding="utf-8")
    tested = promtool("test", "rules", "tests/training.yaml", cwd=copy)

    assert what in text
    assert tested.returncode == 1, tested.stdout


def test_every_alert_has_mutants_of_its_threshold_and_its_for() -> None:
    """A new alert needs them too."""
    kinds = {(alert, what.split(":")[0] if what.startswith("for") else "threshold") for alert, what, _ in MUTANTS}

    assert kinds >= {(rule["alert"], kind) for rule in alerts() for kind in ("for", "threshold")}


def test_shortened_rules_differ_in_their_times_only(tmp_path: Path) -> None:
    """What the demo loads is what is shipped, line for line, but for the times that it names."""
    written = shortened_rules(tmp_path, {"for: 3m": "for: 5s", "[10m]": "[20s]"})
    changed = [
        (old.strip(), new.strip())
        for shipped, copy in zip(shipped_rule_files(), written, strict=True)
        for old, new in zip(lines(shipped), lines(copy), strict=True)
        if re.sub(r"\s", "", old) != re.sub(r"\s", "", new)
    ]

    assert {path.name for path in written} == {
        *("recording-gpu.yaml", "recording-host.yaml", "recording-job.yaml"),
        *("alerts-gpu.yaml", "alerts-training.yaml"),
    }
    assert [pair for pair in changed if pair[0].startswith("for")] == [("for: 3m", "for: 5s")]
    assert len(changed) == 3 and all(old.replace("[10m]", "[20s]") == new for old, new in changed[1:])
    assert promtool("check", "rules", "--lint-fatal", *written).returncode == 0


def lines(path: Path) -> list[str]:
    """The lines that mean something."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def test_a_time_that_no_rule_has_is_refused() -> None:
    """A shortening that changes nothing would make the demo say what it does not do."""
    with pytest.raises(SettingsError, match="for: 99m"):
        shorten(ALERT_FILES[0].read_text(encoding="utf-8"), {"for: 3m": "for: 1s", "for: 99m": "for: 1s"})
