"""decide(): each reason has a case, and each case one reason."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.deciding_values import (
    NOW,
    SHIPPED,
    a_heartbeat,
    a_job,
    an_alert,
    an_oom,
    an_open,
    decided,
    evidence,
    policy,
)
from tunewarden.domain.budget import Caps, Spent
from tunewarden.domain.choice import Rules
from tunewarden.domain.decision import Decision, Verdict
from tunewarden.domain.episode import EpisodeEvent
from tunewarden.domain.history import History
from tunewarden.domain.job import JobState
from tunewarden.domain.matcher import parse_matcher
from tunewarden.domain.policy import JobCondition, Mode, Policy, Step, StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import State
from tunewarden.domain.resolution import Meant

OBSERVED = Rules(enforce=False)
OTHERS = [
    {"pid": 7, "memory": 20, "ours": False, "name": "webui"},
    {"pid": 8, "memory": 3, "ours": True, "name": "python"},
]


def changed(**changes: Any) -> tuple[Policy, ...]:
    return (replace(policy(), **changes),)


CASES: list[tuple[str, dict[str, Any], Verdict, Reason]] = [
    ("all is there", {}, Verdict.ACT, Reason.POLICY_MATCHED),
    ("only tells", {"alert": an_alert("GpuUtilizationLow")}, Verdict.NOTIFY, Reason.NOTIFY_ONLY),
    ("finished", {"alert": an_alert("TrainingJobEnded", cause="finished")}, Verdict.NOTIFY, Reason.NOTIFY_ONLY),
    ("observes but saves", {"rules": OBSERVED}, Verdict.ACT, Reason.OBSERVE_MODE),
    ("observes", {"rules": OBSERVED, "job": a_job(can=frozenset())}, Verdict.OBSERVE, Reason.OBSERVE_MODE),
    ("switched off", {"policies": changed(mode=Mode.OFF)}, Verdict.IGNORE, Reason.POLICY_OFF),
    ("not enabled", {"policies": (policy("vram-95-stop"),)}, Verdict.IGNORE, Reason.POLICY_OFF),
    ("no policy", {"alert": an_alert("Watchdog")}, Verdict.IGNORE, Reason.NO_POLICY),
    ("no job", {"meant": Meant(reason=Reason.NO_TARGET)}, Verdict.NOTIFY, Reason.NO_TARGET),
    (
        "two jobs",
        {"meant": Meant(reason=Reason.AMBIGUOUS_TARGET, names=("a (1)", "b (2)"))},
        Verdict.NOTIFY,
        Reason.AMBIGUOUS_TARGET,
    ),
    (
        "another holds more",
        {"evidence": evidence(heartbeat=a_heartbeat(processes=OTHERS, oom_lines=1))},
        Verdict.WAIT,
        Reason.OTHER_PROCESS_HOLDS_MEMORY,
    ),
    (
        "another trainer",
        {"policies": changed(job=JobCondition(trainers=("kohya",)))},
        Verdict.NOTIFY,
        Reason.CONDITION_NOT_MET,
    ),
    (
        "another label",
        {"policies": changed(job=JobCondition(labels=(parse_matcher("team=a"),)))},
        Verdict.NOTIFY,
        Reason.CONDITION_NOT_MET,
    ),
    (
        "too many ranks",
        {"policies": changed(job=JobCondition(max_ranks=2)), "job": a_job(ranks=8)},
        Verdict.NOTIFY,
        Reason.CONDITION_NOT_MET,
    ),
    (
        "too young",
        {"policies": changed(job=JobCondition(min_age=timedelta(hours=2)))},
        Verdict.WAIT,
        Reason.CONDITION_NOT_MET,
    ),
    (
        "clocks differ",
        {"policies": changed(job=JobCondition(min_age=timedelta(minutes=1))), "job": a_job(clock_skew_s=-61.0)},
        Verdict.NOTIFY,
        Reason.CLOCK_SKEW,
    ),
    (
        "every remedy was tried",
        {"alert": an_oom(), "job": a_job(state=JobState.WAITING, knobs={}, changeable=frozenset())},
        Verdict.NOTIFY,
        Reason.NO_RUNG_LEFT,
    ),
    (
        "no step is due",
        {"alert": an_alert("TrainingStalled"), "evidence": evidence(heartbeat=a_heartbeat(phase="eval"))},
        Verdict.WAIT,
        Reason.STEPS_NOT_DUE,
    ),
    (
        "it stands still in training",
        {"alert": an_alert("TrainingStalled"), "evidence": evidence(heartbeat=a_heartbeat(phase="train"))},
        Verdict.NOTIFY,
        Reason.NOTIFY_ONLY,
    ),
    ("a late copy", {"event": EpisodeEvent.STALE_DUPLICATE}, Verdict.IGNORE, Reason.STALE_DUPLICATE),
    ("a repeat", {"event": EpisodeEvent.REPEATED}, Verdict.IGNORE, Reason.REPEAT),
    ("resolved", {"event": EpisodeEvent.RESOLVED}, Verdict.IGNORE, Reason.RESOLVED),
    ("nothing fired", {"event": EpisodeEvent.NOTHING}, Verdict.IGNORE, Reason.RESOLVED),
    (
        "resolved in time",
        {"event": EpisodeEvent.RESOLVED, "history": History(open=an_open(linked=True))},
        Verdict.CANCEL,
        Reason.RESOLVED,
    ),
    (
        "resolved too late",
        {"event": EpisodeEvent.RESOLVED, "history": History(open=an_open(linked=True, cancellable=False))},
        Verdict.IGNORE,
        Reason.RESOLVED,
    ),
    (
        "resolved, but seven others fire",
        {"event": EpisodeEvent.RESOLVED, "history": History(open=an_open(linked=True, others_fire=True))},
        Verdict.IGNORE,
        Reason.RESOLVED,
    ),
    (
        "resolved, and it is another's",
        {"event": EpisodeEvent.RESOLVED, "history": History(open=an_open())},
        Verdict.IGNORE,
        Reason.RESOLVED,
    ),
    ("flat at 97 %", {"evidence": evidence(sign=False)}, Verdict.WAIT, Reason.NO_SECOND_SIGN),
    ("an old heartbeat", {"evidence": evidence(heartbeat_age_s=16.0)}, Verdict.WAIT, Reason.NO_SECOND_SIGN),
    ("not confirmed", {"evidence": evidence(confirmed=False)}, Verdict.WAIT, Reason.UNCONFIRMED),
    ("no data", {"evidence": evidence(confirmed=None)}, Verdict.WAIT, Reason.UNCONFIRMED),
    ("old data", {"evidence": evidence(age_s=31.0)}, Verdict.WAIT, Reason.UNCONFIRMED),
    ("nothing could confirm", {"policies": changed(confirm=())}, Verdict.WAIT, Reason.UNCONFIRMED),
    ("one is open", {"history": History(open=an_open())}, Verdict.WAIT, Reason.JOINED),
    ("one ended", {"history": History(ended_at=NOW - timedelta(minutes=9))}, Verdict.WAIT, Reason.COOLDOWN),
    (
        "one ended long ago",
        {"history": History(ended_at=NOW - timedelta(minutes=10))},
        Verdict.ACT,
        Reason.POLICY_MATCHED,
    ),
    (
        "its own has ended for good",
        {"event": EpisodeEvent.RECHECKED, "history": History(settled=True)},
        Verdict.IGNORE,
        Reason.REPEAT,
    ),
    (
        "it fires anew after one that ended for good",
        {"event": EpisodeEvent.REOPENED, "history": History(settled=True)},
        Verdict.ACT,
        Reason.POLICY_MATCHED,
    ),
    (
        "saved a while ago",
        {"rules": OBSERVED, "history": History(saved_at=NOW - timedelta(minutes=29))},
        Verdict.WAIT,
        Reason.SAVED_RECENTLY,
    ),
    (
        "saved a while ago, and a command beside the save",
        {
            "policies": changed(steps=(Step(kind=StepKind.SAVE), Step(kind=StepKind.RUN_COMMAND, command=("x",)))),
            "history": History(saved_at=NOW - timedelta(minutes=29)),
        },
        Verdict.WAIT,
        Reason.SAVED_RECENTLY,
    ),
    (
        "saved a while ago, but it replaces",
        {"history": History(saved_at=NOW - timedelta(minutes=29))},
        Verdict.ACT,
        Reason.POLICY_MATCHED,
    ),
    (
        "three replacements",
        {"history": History(spent=Spent(replacements=3), attempts=("R-AAAAAA broken (died_again)",))},
        Verdict.NOTIFY,
        Reason.JOB_BUDGET_SPENT,
    ),
    ("ten actions", {"history": History(spent=Spent(actions_last_hour=10))}, Verdict.WAIT, Reason.HOURLY_BUDGET_SPENT),
    (
        "two of four jobs",
        {"history": History(spent=Spent(running_jobs=4, jobs_acted_on=2))},
        Verdict.WAIT,
        Reason.FLEET_SHARE_SPENT,
    ),
    (
        "a small fleet",
        {"history": History(spent=Spent(running_jobs=3, jobs_acted_on=2))},
        Verdict.ACT,
        Reason.POLICY_MATCHED,
    ),
    ("the breaker is open", {"history": History(breaker_open=True)}, Verdict.WAIT, Reason.BREAKER_OPEN),
    ("held", {"job": a_job(held=True)}, Verdict.WAIT, Reason.ON_HOLD),
    ("opted out", {"job": a_job(labels={"remediation": "off"})}, Verdict.NOTIFY, Reason.OPTED_OUT),
    ("ended", {"job": a_job(state=JobState.ENDED)}, Verdict.IGNORE, Reason.JOB_ENDED),
    ("dead and waiting", {"job": a_job(state=JobState.WAITING)}, Verdict.IGNORE, Reason.JOB_ENDED),
    ("lost", {"job": a_job(state=JobState.LOST)}, Verdict.NOTIFY, Reason.JOB_LOST),
    ("several nodes", {"job": a_job(multi_node=True)}, Verdict.ACT, Reason.MULTI_NODE),
    (
        "several nodes that can't save",
        {"job": a_job(multi_node=True, can=frozenset())},
        Verdict.NOTIFY,
        Reason.MULTI_NODE,
    ),
    ("a full disk", {"history": History(low_on_space=True)}, Verdict.ACT, Reason.STORE_LOW_ON_SPACE),
    (
        "died of OOM, nothing is enforced",
        {
            "alert": an_oom(),
            "rules": OBSERVED,
            "job": a_job(state=JobState.WAITING),
            "evidence": evidence(confirmed=None),
        },
        Verdict.ACT,
        Reason.POLICY_MATCHED,
    ),
    ("the event is early", {"alert": an_oom()}, Verdict.WAIT, Reason.UNCONFIRMED),
    (
        "died, and waits no more",
        {"alert": an_oom(), "job": a_job(state=JobState.ENDED)},
        Verdict.NOTIFY,
        Reason.JOB_ENDED,
    ),
    (
        "died, and the verifier says so",
        {"alert": an_oom(), "job": a_job(state=JobState.ENDED), "history": History(open=an_open())},
        Verdict.IGNORE,
        Reason.JOB_ENDED,
    ),
    (
        "an older generation",
        {"alert": an_oom(), "job": a_job(state=JobState.WAITING, generation=2)},
        Verdict.IGNORE,
        Reason.WRONG_GENERATION,
    ),
    (
        "died while watched",
        {
            "alert": an_oom(),
            "job": a_job(state=JobState.WAITING),
            "history": History(open=an_open(state=State.VERIFYING)),
        },
        Verdict.WAIT,
        Reason.JOINED,
    ),
    (
        "died of OOM soon after a save",
        {
            "alert": an_oom(),
            "job": a_job(state=JobState.WAITING),
            "history": History(ended_at=NOW - timedelta(minutes=1)),
        },
        Verdict.ACT,
        Reason.POLICY_MATCHED,
    ),
]

# Reasons of agents and outcomes; MANUAL is a person's.
NOT_DECIDED = set(tuple(Reason)[tuple(Reason).index(Reason.MANUAL) :]) - {Reason.WRONG_GENERATION}


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_case_has_one_verdict_and_one_reason(changes: dict[str, Any], verdict: Verdict, reason: Reason) -> None:
    """The table of decisions."""
    decision = decided(**changes)

    assert (decision.verdict, decision.reason) == (verdict, reason)


def test_every_reason_of_a_decision_has_a_case() -> None:
    """A new reason without a case fails here."""
    assert {case[3] for case in CASES} == set(Reason) - NOT_DECIDED


def kinds(decision: Decision) -> list[str]:
    return [step.kind.value for step in decision.steps]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["notify", "replace"]),  # the replacement saves by itself
        ({"rules": OBSERVED}, ["notify", "save"]),
        ({"job": a_job(multi_node=True)}, ["notify", "save"]),
        ({"alert": an_oom(), "job": a_job(state=JobState.WAITING)}, ["notify", "replace"]),
        ({"policies": (replace(policy("vram-95-stop"), enabled=True),)}, ["notify", "stop"]),
        ({"rules": OBSERVED, "job": a_job(can=frozenset())}, ["notify", "save", "replace"]),  # what it would have done
    ],
)
def test_the_steps_that_are_carried_out(changes: dict[str, Any], expected: list[str]) -> None:
    """One save, not two; and only what may be done now."""
    assert kinds(decided(**changes)) == expected


@pytest.mark.parametrize(
    ("mode", "settings", "job", "state", "acts"),
    [
        (Mode.INHERIT, False, False, JobState.RUNNING, False),
        (Mode.INHERIT, True, False, JobState.RUNNING, True),
        (Mode.INHERIT, False, True, JobState.RUNNING, True),
        (Mode.OBSERVE, True, True, JobState.RUNNING, False),
        (Mode.ENFORCE, False, False, JobState.RUNNING, True),
    ],
)
def test_a_policy_s_mode_wins_over_the_settings_and_the_job(
    mode: Mode, settings: bool, job: bool, state: JobState, acts: bool
) -> None:
    """off > observe > enforce over the settings; `run --enforce` lifts only their default."""
    decision = decided(policies=changed(mode=mode), rules=Rules(enforce=settings), job=a_job(enforce=job, state=state))

    assert ("replace" in kinds(decision)) is acts


def test_a_dead_job_is_not_launched_by_a_policy_that_observes() -> None:
    """Only the settings' default is lifted by death."""
    policies = (replace(policy("job-oom"), mode=Mode.OBSERVE),)

    decision = decided(an_oom(), policies=policies, job=a_job(state=JobState.WAITING))

    assert (decision.verdict, decision.facts["would_have"]) == (Verdict.OBSERVE, ["replace"])


def test_the_first_policy_that_fits_the_job_decides() -> None:
    """One whose condition does not hold leaves the alert to the next."""
    strange = replace(policy(), name="strange", job=JobCondition(trainers=("other",)))

    decision = decided(policies=(strange, policy()))

    assert decision.policy == "vram-pressure"


def test_flat_pressure_is_told_once_and_looked_at_again() -> None:
    """97 % with steady steps: one message per episode, and a recheck each 15 seconds."""
    first = decided(evidence=evidence(sign=False))
    again = decided(evidence=evidence(sign=False), messaged=True, event=EpisodeEvent.RECHECKED)

    assert (first.message, first.recheck_s, again.message, again.recheck_s) == (True, 15.0, False, 15.0)


def test_an_escalation_is_said_although_the_episode_had_its_message() -> None:
    """Silence after "flat" would hide that the budget is spent."""
    history = History(spent=Spent(replacements=3), attempts=("R-AAAAAA broken (died_again)",))

    decision = decided(messaged=True, history=history)

    assert (decision.message, decision.facts["attempts"]) == (True, ["R-AAAAAA broken (died_again)"])


def test_a_policy_without_a_notify_step_says_nothing() -> None:
    """Not even what it could not do."""
    quiet = replace(policy(), steps=(Step(kind=StepKind.SAVE),))

    assert decided(policies=(quiet,), evidence=evidence(sign=False)).message is False


@pytest.mark.parametrize(
    ("job", "sign"),
    [
        ({"step_rate": 0.49, "step_rate_median": 2.0}, "step_rate"),
        ({"step_rate": 0.5, "step_rate_median": 2.0}, None),
        ({"step_rate": None, "step_rate_median": 2.0}, None),
        ({"step_rate": 0.0, "step_rate_median": 0.0}, None),
        ({"oom_lines": 1}, "oom_line"),
        ({"oom_lines": 0}, None),
        ({}, None),
    ],
)
def test_second_signs_of_a_heartbeat(job: dict[str, Any], sign: str | None) -> None:
    """Less than a quarter of the job's own median, or an OOM line; what isn't measured is no sign."""
    decision = decided(evidence=evidence(heartbeat=a_heartbeat(**job)))

    assert decision.facts.get("second_sign") == sign


def test_caps_come_from_the_settings() -> None:
    """A cap of one action an hour stops the second."""
    rules = Rules(enforce=True, caps=Caps(actions_per_hour=1))

    assert decided(rules=rules, history=History(spent=Spent(actions_last_hour=1))).reason is Reason.HOURLY_BUDGET_SPENT


def test_the_shipped_plain_form_comes_first_when_it_is_switched_on() -> None:
    """It needs no second sign, so it must not wait behind the one that does."""
    policies = tuple(replace(item, enabled=True) for item in SHIPPED.values())

    decision = decided(policies=policies, evidence=evidence(sign=False))

    assert (decision.policy, decision.verdict) == ("vram-95-stop", Verdict.ACT)
