"""The message of a broken remediation names what a person needs to go on: the checkpoint, the config, the key."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tunewarden.adapters.dingtalk import LIMIT_BYTES, body_of
from tunewarden.domain.job import Job, JobState
from tunewarden.domain.plan import Plan
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Remediation, State
from tunewarden.domain.target import Language, Secret, Target
from tunewarden.messages.render import Renderer, Shape, Thread
from tunewarden.pipeline.outcome import outcome_notice

NOW = datetime(2026, 11, 30, tzinfo=UTC)
CONFIG = {
    "changes": [{"knob": "batch_size", "from": "4", "to": "2"}],
    "new_config_path": "/data/my_style_lora.tunewarden-g2.yaml",
}
SAVED = {
    "receipt_step": 120,
    "checkpoint": "/data/out/state-120",
    "resume_step": 120,
    "resume_path": "/data/out/state-120",
}


def remediation(facts: dict[str, Any], state: State = State.BROKEN) -> Remediation:
    return Remediation(
        remediation_id="R-9",
        policy="vram-pressure",
        job_id="j" * 32,
        generation=1,
        plan=Plan(steps=()),
        state=state,
        opened_at=0.0,
        state_since=0.0,
        reason=Reason.DIED_OF_OOM_AGAIN,
        facts={"alertname": "GpuMemoryNearlyFull", **facts},
    )


def job(trainer: str = "lora-yaml") -> Job:
    return Job(
        job_id="j" * 32,
        name="cat-lora",
        host_id="h",
        node="gpu-1",
        generation=2,
        state=JobState.ENDED,
        trainer=trainer,
        registered_at=NOW,
        seen_at=NOW,
    )


def lines(facts: dict[str, Any], *, trainer: str = "lora-yaml", language: Language = Language.EN) -> list[str]:
    """The paragraphs of the message, without its heading."""
    thread = Thread(notices=(outcome_notice(remediation(facts), job(trainer)),))
    target = Target(name="ops", robot_url=Secret("x"), language=language)
    rendered = Renderer().render([thread], target, Shape(limit_bytes=LIMIT_BYTES), lambda said: len(body_of(said)))
    return rendered.message.text.split("\n\n")[1:]


def test_broken_names_the_checkpoint_the_config_and_the_key():
    """All that is needed at 3 a.m., in four lines below the name."""
    assert lines(CONFIG | SAVED) == [
        "**R-9** · GpuMemoryNearlyFull · gpu-1",
        "Result: the restarted job ran out of GPU memory again",
        "Changed: batch\\_size 4 → 2 · in /data/my\\_style\\_lora.tunewarden-g2.yaml",
        "Checkpoint: step 120 · /data/out/state-120",
        "Please look: nothing more is done automatically. To go on: write resume\\_from\\_checkpoint: that path into "
        "the new config, then tunewarden run --name cat-lora -- COMMAND",
    ]


def test_broken_says_the_same_in_chinese():
    """The last two lines, which hold what to do."""
    assert lines(CONFIG | SAVED, language=Language.ZH)[-2:] == [
        "检查点：第 120 步 · /data/out/state-120",
        "请人工查看：不会再自动处理。继续训练：先在新配置里写上 resume\\_from\\_checkpoint: 上面的路径，再运行 "
        "tunewarden run --name cat-lora -- COMMAND",
    ]


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (SAVED | {"newest_step": 300, "newest_checkpoint": "/o/300"}, "Checkpoint: step 300 · /o/300"),
        (SAVED | {"newest_step": 10, "newest_checkpoint": "/o/10"}, "Checkpoint: step 120 · /data/out/state-120"),
        ({"resume_step": 100, "resume_path": "/o/100"}, "Checkpoint: step 100 · /o/100"),
        ({"resume_step": 100}, "Checkpoint: step 100 (in the trainer's output folder)"),
    ],
    ids=["the new generation saved", "it began anew", "after a death", "an older agent"],
)
def test_the_farthest_checkpoint_is_named(facts: dict[str, Any], line: str):
    """Wherever it came from; and the step alone where no path was told."""
    assert line in lines(facts)


def test_a_trainer_of_another_kind_gets_no_key():
    """How it resumes is its own affair."""
    assert lines(SAVED, trainer="unknown")[-1].endswith("To go on: tunewarden run --name cat-lora -- COMMAND")


def test_a_config_without_a_change_is_named_too():
    """After going back, for instance."""
    assert "Config: /data/back.yaml" in lines({"new_config_path": "/data/back.yaml"})


def test_a_recovery_names_what_was_saved():
    """Nobody needs to act: the checkpoint is the one of the order."""
    facts = SAVED | {"newest_step": 300, "newest_checkpoint": "/o/300"}
    notice = outcome_notice(remediation(facts, State.RECOVERED), job())

    assert (notice.facts["step"], notice.facts["checkpoint"]) == (120, "/data/out/state-120")
