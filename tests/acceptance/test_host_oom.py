"""A job that the kernel kills for want of memory: a real control group, where this host lets one be made."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.agent_world import eventually, world
from tunewarden.supervisor.death_evidence import NOTE

TINY = str(Path(__file__).with_name("tiny_trainer.py"))
LIMIT = 64 << 20
# The folder of the hierarchy, the limit, and what keeps it from being evaded through swap: cgroup v1, then v2.
HIERARCHIES = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", str(LIMIT))),
    (Path("/sys/fs/cgroup"), "memory.max", ("memory.swap.max", "0")),
)


def a_group() -> Path | None:
    """A group of 64 MiB; None where this host has none to give."""
    for root, limit, (swap, most) in HIERARCHIES:
        group = root / f"tunewarden-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT))
        except OSError:
            group.rmdir()
            continue
        with contextlib.suppress(OSError):
            (group / swap).write_text(most)
        return group
    return None


@pytest.fixture
def group() -> Iterator[Path | None]:
    made = a_group()
    yield made
    if made is not None:
        made.rmdir()


def test_a_job_that_the_kernel_kills(tmp_path: Path, group: Path | None) -> None:
    """host_oom by the kernel's own word, and `run` waits; where there is no such group, a bare SIGKILL stays killed."""
    with world(tmp_path) as run:
        enter = f"echo $$ > {group}/cgroup.procs; " if group else ""
        run.start(["sh", "-c", f"{enter}exec {sys.executable} {TINY} {'hungry' if group else 'good'}"])
        run.until_step(2)
        if group is None:
            os.kill(run.trainer().pid, signal.SIGKILL)
        else:
            journal = run.run_dir / "journal.jsonl"
            eventually(lambda: journal.exists() and NOTE in journal.read_text(), what="the agent looks")
            (run.folder / "eat").touch()
        event_id = f"{run.job_id}-g1-ended"
        (event,) = run.service.until(
            lambda: [event for event in run.service.seen.events if event["event_id"] == event_id], 20, event_id
        )
        if group is not None:
            run.interrupt()
        code = run.exit_code()

    told = (event["cause"], event["waits_s"], event["facts"]["memory"], code)
    assert told[:2] == (("host_oom", 60.0) if group else ("killed", 0.0))
    assert told[2:] == (("short", 130) if group else (told[2], 137))
