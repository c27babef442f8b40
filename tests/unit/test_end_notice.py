"""What a person reads when a job has ended: the numbers, the path, and what can be done, in both languages."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.deciding_values import NOW, a_heartbeat, a_job, an_alert, decided, evidence
from tunewarden.adapters.dingtalk import LIMIT_BYTES, body_of
from tunewarden.domain.advice import advice_of
from tunewarden.domain.alert import Alert
from tunewarden.domain.cause import Cause
from tunewarden.domain.job import Job, JobState
from tunewarden.domain.job_event import JobEvent, alert_of, facts_of_event, should_wait
from tunewarden.domain.message import Notice
from tunewarden.domain.plan import Plan
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Remediation, State
from tunewarden.domain.target import Language, Secret, Target
from tunewarden.messages.render import Renderer, Shape, Thread
from tunewarden.messages.words_en import EN
from tunewarden.pipeline.notices import decision_notice
from tunewarden.pipeline.outcome import outcome_notice

GIB = 1 << 30
OOM = {"tried_bytes": 2 * GIB, "free_bytes": GIB, "total_bytes": 24 * GIB, "unused_bytes": 6 * GIB, "fragmented": "yes"}
KNOBS = {"batch_size": "4", "gradient_accumulation": "1", "expandable_segments": "false"}


def rendered(notice: Notice, language: Language = Language.EN) -> list[str]:
    """The paragraphs of a message, without its heading."""
    target = Target(name="ops", robot_url=Secret("x"), language=language)
    shape = Shape(limit_bytes=LIMIT_BYTES)
    made = Renderer().render([Thread(notices=(notice,))], target, shape, lambda said: len(body_of(said)))
    return made.message.text.split("\n\n")[1:]


def ended(cause: str, job: Job | None = None, **event: Any) -> Alert:
    values: dict[str, Any] = {"event_id": "e1", "generation": 1, "cause": cause, "exit_status": 1, "step": 42}
    return alert_of(JobEvent(**(values | event)), job or a_job(), NOW)


def told(cause: str, language: Language = Language.EN, job: Job | None = None, **event: Any) -> list[str]:
    job = job or a_job(state=JobState.ENDED)
    alert = ended(cause, job, **event)
    decision = decided(alert, job=job, evidence=evidence(heartbeat=None))
    return rendered(decision_notice(decision, alert, job, "E1"), language)


def test_a_model_that_does_not_fit() -> None:
    """No restart; what helps is a smaller base, fp8 or a bigger card."""
    assert told("oom_at_load", facts={**OOM, "fragmented": "no"}, evidence="torch.OutOfMemoryError: CUDA") == [
        "**E1** · TrainingJobEnded · gpu-node-1",
        "The job ran out of GPU memory before its first step at step 42 · exit code 1",
        "asked for 2.0 GiB, 1.0 GiB free of 24.0 GiB",
        "The model itself doesn't fit: it is not started again. Use a smaller base model, fp8 weights (fp8\\_base), "
        "block swapping, or a bigger card; a smaller batch helps only if it died in the first step itself",
        "torch.OutOfMemoryError: CUDA",
    ]


def test_a_full_disk_in_chinese() -> None:
    """Which path, how much is free, and what frees space."""
    facts = {"path": "/data/out/a.safetensors", "free_bytes": 3 << 20, "states_path": "/data/out", "states_bytes": GIB}

    assert told("disk_full", Language.ZH, facts=facts)[1:] == [
        "任务磁盘已满，第 42 步 · 退出码 1",
        "已满：/data/out/a.safetensors · 空闲 3 MiB · /data/out 中的状态占 1.0 GiB",
        "请删除那里的旧状态和检查点，或减少保留数量（save\\_last\\_n\\_steps\\_state）",
    ]


def test_a_card_that_is_lost_says_that_a_restart_is_useless() -> None:
    """Xid 79: only a restart of the host helps. The number is a label, so that a policy can tell."""
    alert = ended("gpu_lost", facts={"xid": 79, "xid_class": "node"})

    assert alert.labels["xid"] == "79"
    assert any(line.startswith("A restart is useless until") for line in told("gpu_lost", facts={"xid": 79}))


def test_nan_under_fp16_advises_bf16() -> None:
    """By the knobs of the job, for the alert while it trains as well."""
    job = a_job(knobs={"mixed_precision": "fp16"})
    alert = an_alert("TrainingLossNotFinite")
    notice = decision_notice(decided(alert, job=job), alert, job, "E2")

    assert "bf16" in told("nan", job=job)[2]
    assert notice.facts["advice"] == "nan_fp16"
    assert "bf16" not in told("nan")[2]


@pytest.mark.parametrize(
    ("cause", "facts", "knobs", "advice"),
    [
        ("killed", {"memory": "fine"}, None, "killed_memory_fine"),
        ("killed", {"memory": "short"}, None, "killed_memory_short"),
        ("unknown", {"memory": "unknown"}, None, "killed_memory_unknown"),
        ("unknown", {}, None, ""),
        ("killed", {}, None, ""),
        ("nan", {}, {"mixed_precision": "bf16"}, "nan"),
        ("gpu_lost", {"xid": "48", "xid_class": "gpu"}, None, "gpu_lost_useless"),
        ("gpu_lost", {"xid": "95", "xid_class": "gpu"}, None, "gpu_lost_useless"),
        ("gpu_lost", {"xid": "119", "xid_class": "gpu"}, None, "gpu_lost_useless"),
        ("gpu_lost", {"xid": "31", "xid_class": "application"}, None, "gpu_fault"),
        ("gpu_lost", {}, None, "gpu_lost"),
        ("oom_in_sampling", {"fragmented": "yes"}, None, "oom_in_sampling_fragmented"),
        ("oom_in_sampling", {"fragmented": "no"}, None, "oom_in_sampling"),
        ("finished", {}, None, ""),
        ("failed", {}, None, ""),
        ("a cause of next week", {}, None, ""),
    ],
)
def test_the_advice_fits_the_cause(
    cause: str, facts: Mapping[str, str], knobs: Mapping[str, str] | None, advice: str
) -> None:
    """And every advice has its words."""
    assert advice_of(cause, facts, knobs) == advice
    assert advice == "" or advice in EN.advice


@pytest.mark.parametrize("memory", ["fine", "short", "unknown"])
@pytest.mark.parametrize("language", [Language.EN, Language.ZH])
def test_after_a_kill_nobody_is_told_to_shrink_the_batch(memory: str, language: Language) -> None:
    """A bare SIGKILL says nothing of the card's memory."""
    text = " ".join(told("killed", language, facts={"memory": memory}))

    assert "smaller batch" not in text
    assert "减小批大小" not in text


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_its_words(cause: Cause) -> None:
    """None reaches a person as a code."""
    assert EN.ends[cause]


def test_a_remedy_is_told_with_its_price() -> None:
    """The decision about a fragmented card: what, and what it costs."""
    job = a_job(state=JobState.WAITING, knobs=KNOBS, changeable=frozenset(KNOBS))
    alert = ended("cuda_oom", job, facts=OOM)
    decision = decided(alert, job=job)
    lines = rendered(decision_notice(decision, alert, job, "R-1"))

    numbers = "asked for 2.0 GiB, 1.0 GiB free of 24.0 GiB, 6.0 GiB held but unused: fragmented"
    assert lines[1].startswith(f"The job ran out of GPU memory · {numbers}")
    assert lines[2] == (
        "Will: start the job again from its last checkpoint · expandable\\_segments true (costs no speed; Linux only)"
    )


def test_a_slow_loader_is_told_what_to_try_first() -> None:
    """The suggestion with its price, and what would follow."""
    alert = an_alert("GpuUtilizationLow")
    facts = {"cause": "loader", "suggested": "data_workers 0 → 4", "rung": "more_workers", "suggested_then": "b → c"}
    decision = replace(decided(alert), facts=facts)

    assert rendered(decision_notice(decision, alert, a_job(), "E3"))[2:] == [
        "Suggested: data\\_workers 0 → 4 (each worker takes host memory) · then b → c"
    ]


def test_a_stalled_job_is_told_with_its_phase_and_silence() -> None:
    """In Chinese."""
    alert = an_alert("TrainingStalled")
    heartbeat = a_heartbeat(phase="train", step_idle_s=640.0, log_idle_s=700.0)
    decision = decided(alert, evidence=evidence(heartbeat=heartbeat))
    lines = rendered(decision_notice(decision, alert, a_job(), "E4"), Language.ZH)

    assert lines[2] == "阶段：训练"
    assert "无新步秒数 640，无输出秒数 700" in lines[3]


def remediation(**facts: Any) -> Remediation:
    return Remediation(
        remediation_id="R-9",
        policy="job-oom",
        job_id="j1",
        generation=1,
        plan=Plan(steps=()),
        state=State.RECOVERED,
        opened_at=0.0,
        state_since=0.0,
        reason=Reason.RECOVERED,
        facts=facts,
    )


@pytest.mark.parametrize(
    ("language", "line"),
    [
        (Language.EN, "A step took 0.45 s, now 0.581 s (+29 %)"),
        (Language.ZH, "每步 0.45 秒，现在 0.581 秒（+29 %）"),
    ],
)
def test_the_outcome_tells_the_measured_price(language: Language, line: str) -> None:
    """The median time of a step before and after."""
    measured = remediation(step_seconds_before=0.45, step_seconds_after=0.581)

    assert line in rendered(outcome_notice(measured, a_job()), language)
    assert rendered(outcome_notice(remediation(step_seconds_before=0.45), a_job()))[-1].startswith("Result: ")


def test_the_facts_of_an_event_are_read_back_from_its_alert() -> None:
    """And an alert of Alertmanager's has none, whatever it is annotated with."""
    assert facts_of_event(ended("killed", facts={"memory": "fine"})) == {"memory": "fine"}
    assert facts_of_event(replace(an_alert(), annotations={"fact_memory": "fine"})) == {}


@pytest.mark.parametrize(
    ("cause", "verifying", "waits"),
    [
        ("cuda_oom", False, True),
        ("host_oom", False, True),
        ("host_oom", True, False),
        ("oom_at_load", False, False),
        ("oom_in_sampling", False, False),
        ("killed", False, False),
        ("unknown", False, False),
        ("user_stop", True, False),
        ("finished_without_steps", True, True),
        ("shm", True, True),
        ("nan", True, False),
        ("gpu_lost", True, False),
    ],
)
def test_what_run_waits_for(cause: str, verifying: bool, waits: bool) -> None:
    """An end that other knobs can answer; or one of a new generation whose old knobs can be brought back."""
    event = JobEvent(event_id="e", generation=1, cause=cause, waits_s=60.0)

    assert should_wait(event, a_job(), verifying=verifying, may_go_back=True) is waits
