"""Policy files: the shipped ones, and every fault at once with its line."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunewarden.adapters.policy_file import load_policies, parse_policy, policy_faults
from tunewarden.domain.ladder import Ladder
from tunewarden.domain.order import HostCheck
from tunewarden.domain.policy import Limits, Mode, Policy, StepKind
from tunewarden.errors import FaultsFound
from tunewarden.shipped import shipped_dir

SHIPPED = shipped_dir("rules") / "policies"
GOOD = """\
name: mine
match:
  - alertname="A"
steps:
  - notify
"""


@dataclass(frozen=True, kw_only=True)
class Change:
    mode: Mode | None = None
    enabled: bool | None = None


def faults_of(text: str) -> list[str]:
    faults: list[str] = []
    parse_policy(text, Path("p.yaml"), faults)
    return faults


def one(text: str) -> Policy:
    faults: list[str] = []
    policy = parse_policy(text, Path("p.yaml"), faults)
    assert faults == []
    assert policy is not None
    return policy


def test_the_shipped_policies_are_those_that_the_documentation_names() -> None:
    """vram-95-stop is off until the settings switch it on."""
    policies = load_policies([SHIPPED])

    assert [(policy.name, policy.enabled) for policy in policies] == [
        ("gpu-underutilised", True),
        ("job-finished", True),
        ("job-host-oom", True),
        ("job-nan", True),
        ("job-oom", True),
        ("job-stalled", True),
        ("vram-95-stop", False),
        ("vram-pressure", True),
    ]


def test_a_whole_file_is_read() -> None:
    """Every key once."""
    policy = one(
        """\
name: all
description: everything
enabled: false
mode: enforce
match: ['alertname=~"Gpu.*"', severity!="info"]
job:
  trainers: [lora-yaml]
  labels: [team="a"]
  min_age: 10m
  single_node: true
  max_ranks: 4
signs:
  - {name: soon, promql: 'x{uuid="$uuid"} > 1'}
  - {name: slow, step_rate_below: 0.25}
  - {name: oom, oom_line: true}
recheck: 30s
confirm:
  - promql: avg_over_time(x{node="$node"}[$window]) > 1
  - nvml: memory_ratio > 0.9
limits: {replacements: 2, window: 12h, save_interval: 1h, cooldown: 5m, group: g}
steps:
  - notify
  - save
  - run_command: [/usr/bin/true, "$x", "a b"]
    environment: [PATH]
    timeout: 5s
  - replace: {batch_size: /2, gradient_checkpointing: true}
    allow_effective_batch_change: true
    lose_unsaved: true
expect: {promql: x > 1, nvml: memory_ratio > 0.9, verify_for: 1m, steps: 10, deadline: 3m}
diagnose: true
"""
    )

    assert [step.kind.value for step in policy.steps] == ["notify", "save", "run_command", "replace"]
    assert policy.steps[2].command == ("/usr/bin/true", "$x", "a b")
    assert dict(policy.steps[3].knobs) == {"batch_size": "/2", "gradient_checkpointing": "true"}
    assert policy.confirm[1].host == HostCheck(metric="memory_ratio", op=">", value=0.9)
    assert (policy.limits.replacements, policy.limits.window) == (2, timedelta(hours=12))
    assert (policy.mode, policy.enabled, policy.job.max_ranks, policy.recheck) == (
        Mode.ENFORCE,
        False,
        4,
        timedelta(seconds=30),
    )


def test_a_ladder_is_read_with_the_users_consent() -> None:
    """The knobs are chosen later; what may be given up is said here."""
    policy = one(
        GOOD + "  - replace: {ladder: memory}\n    allow_resolution_change: true\nafter_oom: true\n",
    )
    (step,) = [step for step in policy.steps if step.ladder is not None]

    assert (step.ladder, dict(step.knobs), step.allow_resolution_change) == (Ladder.MEMORY, {}, True)


def test_the_phases_of_a_silent_policy_are_read() -> None:
    """Those in which no step is due."""
    assert one(GOOD + "silent_in: [eval, sample]\n").silent_in == ("eval", "sample")


FAULTS = [
    ("", "p.yaml:1: p.yaml must hold a mapping"),
    ("- a", "p.yaml:1: p.yaml must hold a mapping"),
    ("name: [", "p.yaml:1: no YAML"),
    ("name: a\nname: b\n", "p.yaml:2: no YAML"),
    ("a: &x [*x]\n", "`name` is missing"),
    (GOOD.replace("name: mine\n", ""), "p.yaml:1: `name` is missing"),
    (GOOD.replace("mine", "two words"), "p.yaml:1: `name` must be one printable word"),
    (GOOD.replace('- alertname="A"', "- alertname"), "p.yaml:3: 'alertname': no operator"),
    (GOOD.replace('- alertname="A"', '- alertname=~"(?=x)"'), "p.yaml:3: "),
    (GOOD.replace('  - alertname="A"\n', ""), "`match` is missing"),
    (GOOD.replace("  - notify\n", ""), "`steps` is missing"),
    (GOOD + "wrong: 1\n", "p.yaml:6: a policy has no key `wrong`"),
    (GOOD + "limits: {cooldwon: 1m}\n", "p.yaml:6: `limits` has no key `cooldwon`"),
    (GOOD + "mode: maybe\n", "p.yaml:6: `mode`: must be one of off, observe, enforce, inherit"),
    (GOOD + "recheck: 1.5h\n", "p.yaml:6: `recheck`: '1.5h' is no duration"),
    (GOOD + "recheck: 0\n", "p.yaml:6: `recheck`: must be at least 1s"),
    (GOOD + "enabled: perhaps\n", "p.yaml:6: `enabled`: must be true or false"),
    (GOOD + "  - stop\n", "p.yaml:4: a step that stops a living job needs `confirm`"),
    (GOOD + "  - replace: {batch_size: /2}\n", "needs `confirm`"),
    (GOOD + "  - replace: {batch: 2}\n", "p.yaml:6: `batch`: no knob is called `batch`"),
    (GOOD + "  - replace: {batch_size: half}\n", "p.yaml:6: `batch_size`: batch_size must be a whole number"),
    (GOOD + "  - replace: {}\n", "p.yaml:6: `replace` must name at least one knob"),
    (GOOD + "  - replace: {ladder: stairs}\n", "p.yaml:6: `ladder`: must be one of memory, loader, host_memory"),
    (GOOD + "  - replace: {ladder: memory, batch_size: /2}\n", "p.yaml:6: `ladder` chooses the knobs itself"),
    (GOOD + "silent_in: [lunch]\n", "p.yaml:6: `silent_in`: has no phase `lunch`"),
    (GOOD + "  - save\nsilent_in: [eval]\n", "p.yaml:7: `silent_in` is for a policy that only notifies"),
    (GOOD + "  - run_command: rm -rf /\n", "p.yaml:6: a command is a list, for no shell reads it"),
    (GOOD + "  - run_command: []\n", "p.yaml:6: `run_command` must name a program"),
    (GOOD + "  - explode\n", "p.yaml:6: a step"),
    (GOOD + "confirm: [nvml: temperature > 3]\n", "p.yaml:6: `nvml`: must compare memory_ratio or utilization"),
    (GOOD + "confirm: [nvml: memory_ratio]\n", "p.yaml:6: `nvml`: must be like"),
    (GOOD + "confirm: [promql: 'up{']\n", "p.yaml:6: `promql`: `{` is not closed"),
    (GOOD + "confirm: [promql: ' ']\n", "p.yaml:6: `promql`: must be a text"),
    (GOOD + "confirm: [promql: 'up{a=\"$gpu\"}']\n", "p.yaml:6: `promql`: `$gpu` is no variable"),
    (GOOD + "confirm: [promql: 'up > $uuid']\n", "p.yaml:6: `promql`: `$uuid` must stand in quotes"),
    (
        GOOD + "confirm: [promql: 'up{a=~\"$uuid\"}']\n",
        "p.yaml:6: `promql`: `$uuid` can't stand in backquotes or after =~",
    ),
    (GOOD + "signs: [{name: a, oom_line: true}]\n", "p.yaml:6: `signs` hold back steps that act"),
    (GOOD + "  - save\nsigns: [{name: a, oom_line: false}]\n", "`oom_line` can only be true"),
    (GOOD + "  - save\nsigns: [{name: a}]\n", "a sign needs `name` and one of"),
    (GOOD + "  - save\nafter_oom: true\n", "p.yaml:7: `after_oom` is for a job that is dead"),
    (
        GOOD + "  - replace: {batch_size: /2}\n  - save\nconfirm: [nvml: memory_ratio > 0.9]\n",
        "`replace` must be the last step",
    ),
]


@pytest.mark.parametrize(("text", "expected"), FAULTS)
def test_a_fault_says_where_what_and_why(text: str, expected: str) -> None:
    """file:line first."""
    assert any(expected in fault for fault in faults_of(text)), faults_of(text)


def test_all_faults_come_at_once_in_the_order_of_lines() -> None:
    """Nobody mends a file one error a run."""
    faults = faults_of("name: a b\nmatch: [x]\nmode: no\nsteps: [stop, {run_command: ls}]\nextra: 1\n")

    assert [int(fault.split(":")[1]) for fault in faults] == [1, 2, 3, 4, 4, 5]


def test_faults_of_all_files_and_double_names_come_together(tmp_path: Path) -> None:
    """And a folder that is not there, and an override for nothing."""
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(GOOD)
    (tmp_path / "c.yaml").write_text("steps: [explode]\n")

    faults = policy_faults([tmp_path, tmp_path / "nowhere"])

    assert [any(part in fault for fault in faults) for part in ("nowhere", "`mine` is used by", "c.yaml:1")] == [
        True
    ] * 3


def test_an_override_for_no_policy_is_a_fault(tmp_path: Path) -> None:
    """A misspelt name in the settings would otherwise change nothing, silently."""
    (tmp_path / "a.yaml").write_text(GOOD)

    with pytest.raises(FaultsFound) as caught:
        load_policies([tmp_path], {"mein": Change(enabled=False)})

    assert caught.value.faults == ["settings: `policies.mein`: there is no such policy; there are: mine"]


def test_the_settings_change_mode_and_enabled_and_give_defaults(tmp_path: Path) -> None:
    """What a file says itself stays."""
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(GOOD.replace("mine", "other") + "limits: {replacements: 7}\n")

    first, second = load_policies([tmp_path], {"mine": Change(mode=Mode.OFF)}, Limits(replacements=1))

    assert (first.mode, first.limits.replacements, second.limits.replacements) == (Mode.OFF, 1, 7)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"name: \xe4"])
def test_an_empty_or_undecodable_file_is_a_fault(tmp_path: Path, content: bytes) -> None:
    """Not a policy that does nothing."""
    (tmp_path / "a.yaml").write_bytes(content)

    assert len(policy_faults([tmp_path])) == 1


def test_an_empty_folder_is_a_fault(tmp_path: Path) -> None:
    """A user's folder that holds nothing is a mistake in its path."""
    assert "holds no policy" in policy_faults([tmp_path])[0]


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    """Editors write them."""
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())

    assert load_policies([tmp_path])[0].steps[0].kind is StepKind.NOTIFY


def test_off_as_yaml_1_1_reads_it_is_off() -> None:
    """`%YAML 1.1` makes a false of it."""
    assert one("%YAML 1.1\n---\n" + GOOD + "mode: off\n").mode is Mode.OFF


_KEYS = "name match mode job signs recheck confirm limits steps expect promql nvml replace run_command stop notify"
_words = st.sampled_from(_KEYS.split(" "))
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _words
_trees = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words, inner, max_size=5), max_leaves=20
)


def _flow(tree: object) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {_flow(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(_flow, tree)) + "]"
    return "'" + tree.replace("'", "''") + "'" if isinstance(tree, str) else str(tree).lower()


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_trees)
def test_no_tree_crashes_the_reader(tree: object) -> None:
    """Right keys with wrong values: a policy or faults."""
    faults: list[str] = []
    policy = parse_policy(_flow(tree), Path("p.yaml"), faults)

    assert (policy is None) is bool(faults)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.text(alphabet="abn:-&*!|>%@`'\"[]{}#,? \n\t\\0123.eE~<=", max_size=60) | st.text(max_size=40))
def test_no_text_crashes_the_reader(text: str) -> None:
    """Anchors, tags, tabs, directives: a policy or faults, with a line."""
    faults = faults_of(text)

    assert all(fault.startswith("p.yaml:") for fault in faults)


@settings(max_examples=100, deadline=None)
@given(st.integers(min_value=0, max_value=len(GOOD)), st.text(max_size=6))
def test_no_edit_of_a_good_file_crashes_the_reader(at: int, text: str) -> None:
    """What a person does to a file."""
    assert isinstance(faults_of(GOOD[:at] + text + GOOD[at:]), list)
