"""The end of the story: does everything that was promised hold, seen from outside?"""

from dataclasses import dataclass, field
from pathlib import Path

from tunewarden.demo.evidence import (
    PROC,
    Finding,
    counter,
    generation_pids,
    gone,
    posts,
    query,
    read_json,
    sha256,
)
from tunewarden.demo.files import STEPS

CONFIG = "my_style_lora.yaml"


@dataclass(kw_only=True)
class Actor:
    """One job of the story, and what was seen of it while it ran."""

    name: str
    folder: Path  # its working directory, with the config
    config_sha256: str
    runs: Path  # <state>/runs
    seen: dict[int, set[int]] = field(default_factory=dict)  # generation -> every pid of it that was ever in /proc

    @property
    def run_folder(self) -> Path | None:
        """The run folder whose spec carries this name."""
        return next(
            (spec.parent for spec in self.runs.glob("*/spec.json") if read_json(spec).get("name") == self.name), None
        )

    def look(self) -> None:
        """Note the pids that are alive now."""
        folder = self.run_folder
        if folder is not None:
            for generation in (1, 2, 3):
                self.seen.setdefault(generation, set()).update(generation_pids(folder.name, generation))

    def control(self, generation: int, name: str) -> dict[str, object]:
        """A file of the control directory, which the trainer writes."""
        folder = self.run_folder
        return read_json(folder / f"g{generation}" / name) if folder else {}

    @property
    def result(self) -> dict[str, object]:
        """The trainer's own result file."""
        return next((read_json(path) for path in self.folder.glob("output/*/*.json") if "state-" not in path.name), {})


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where the outside sources are."""

    prometheus: str
    alertmanager: str
    robot_log: Path
    creeping: Actor
    flat: Actor
    oom: Actor


def check(stage: Stage) -> list[Finding]:
    """Every finding, in the order of the story."""
    return [
        *_alerting(stage),
        *_rescued(stage.creeping),
        *_left_alone(stage.flat),
        *_brought_back(stage.oom),
        *(_unchanged(actor) for actor in (stage.creeping, stage.flat, stage.oom)),
        *_messages(stage),
    ]


def _alerting(stage: Stage) -> list[Finding]:
    fired = query(stage.prometheus, 'count_over_time(ALERTS{alertname="GpuMemoryNearlyFull",alertstate="firing"}[10m])')
    sent = counter(f"{stage.alertmanager}/metrics", "alertmanager_notifications_total", integration="webhook")
    failed = counter(f"{stage.alertmanager}/metrics", "alertmanager_notifications_failed_total", integration="webhook")
    return [
        Finding(
            what="GpuMemoryNearlyFull fired for two cards",
            source="ALERTS in Prometheus",
            found=f"{len(fired)} series",
            holds=len(fired) == 2,
        ),
        Finding(
            what="Alertmanager delivered to the webhook, none failed",
            source="Alertmanager's counters",
            found=f"{sent:.0f} sent, {failed:.0f} failed",
            holds=sent >= 1 and failed == 0,
        ),
    ]


def _whole_end(actor: Actor) -> Finding:
    steps = actor.result.get("steps")
    return Finding(
        what=f"{actor.name}: trained the planned {STEPS} steps to the end",
        source="the trainer's result file",
        found=f"{steps} steps",
        holds=steps == STEPS,
    )


def _generation_gone(actor: Actor) -> Finding:
    pids = actor.seen.get(1, set())
    job_id = actor.run_folder.name if actor.run_folder else ""
    return Finding(
        what=f"{actor.name}: nothing of generation 1 is alive",
        source=str(PROC),
        found=f"pids {', '.join(map(str, sorted(pids)))}",
        holds=bool(pids) and gone(pids, job_id),
    )


def _smaller_batch(actor: Actor) -> Finding:
    beside = actor.folder / "my_style_lora.tunewarden-g2.yaml"
    text = beside.read_text(encoding="utf-8") if beside.exists() else ""
    return Finding(
        what=f"{actor.name}: a new config beside: batch_size 4 → 2, accumulation 1 → 2",
        source="the files",
        found=beside.name if text else "no file",
        holds="\nbatch_size: 2 " in text and "\ngradient_accumulation_steps: 2 " in text,
    )


def _rescued(actor: Actor) -> list[Finding]:
    receipt, resumed = actor.control(1, "receipt.json"), actor.control(2, "resumed.json")
    saved, first = receipt.get("step"), resumed.get("step")
    return [
        Finding(
            what=f"{actor.name}: saved before it was stopped, and went on from there",
            source="the trainer's receipt",
            found=f"saved at {saved}, resumed at {first}",
            holds=isinstance(saved, int)
            and isinstance(first, int)
            and receipt.get("ok") is True
            and 0 < saved <= first,
        ),
        _generation_gone(actor),
        _smaller_batch(actor),
        _whole_end(actor),
    ]


def _left_alone(actor: Actor) -> list[Finding]:
    touched = [name for name in ("stop", "stop.taken", "receipt.json") if actor.control(1, name)]
    return [
        Finding(
            what=f"{actor.name}: one process from start to end, never asked to stop",
            source=f"{PROC}, the control directory",
            found=f"pids {', '.join(map(str, sorted(actor.seen.get(1, set()))))}, requests {touched or 'none'}",
            holds=len(actor.seen.get(1, set())) == 1 and not actor.seen.get(2) and not touched,
        ),
        _whole_end(actor),
    ]


def _brought_back(actor: Actor) -> list[Finding]:
    crash, resumed = actor.control(1, "crash.json"), actor.control(2, "resumed.json")
    return [
        Finding(
            what=f"{actor.name}: died of CUDA out of memory, came back from its last state",
            source="the trainer's crash file",
            found=f"died at {crash.get('step')}, resumed at {resumed.get('step')}",
            holds="out of memory" in str(crash.get("error")) and isinstance(resumed.get("step"), int),
        ),
        _generation_gone(actor),
        _smaller_batch(actor),
        _whole_end(actor),
    ]


def _unchanged(actor: Actor) -> Finding:
    now = sha256(actor.folder / CONFIG)
    return Finding(
        what=f"{actor.name}: the config that you wrote is unchanged",
        source="sha256",
        found=now[:12],
        holds=now == actor.config_sha256,
    )


def _messages(stage: Stage) -> list[Finding]:
    received = posts(stage.robot_log)
    good = [post for post in received if post.get("errcode") == 0]
    return [
        Finding(
            what="every message passed DingTalk's checks (signature, size, form)",
            source="the stand-in's log",
            found=f"{len(good)} of {len(received)}",
            holds=len(received) >= 5 and len(good) == len(received),
        )
    ]
