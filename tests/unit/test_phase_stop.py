"""When a job is not called stopped, and not even begun on: the clock and the looks at the host are given."""

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.processes.identity import ProcessId
from tunewarden.processes.tree import Beyond, Member
from tunewarden.supervisor import phase_stop
from tunewarden.supervisor.execution import Execution
from tunewarden.supervisor.started_by import StartedBy

STRANGER = Member(
    id=ProcessId(4712, 99),
    ppid=1,
    uid=65534,
    cmdline=("train", "--token=secret"),
    rss_bytes=1,
    cpu_ticks=1,
    state="S",
    beyond=Beyond.USER,
)
GONE = ProcessId(2**22 + 1, 1)


def execution(*looks: tuple[Member, ...], ended: bool = False, keeper_lost: bool = False) -> Execution:
    """An order to stop a job of which nothing of ours lives; `looks` at its strangers, the last one for ever."""
    seen = itertools.chain(looks, itertools.repeat(looks[-1] if looks else ()))
    seconds = itertools.count()
    situation = SimpleNamespace(ended=ended, keeper_lost=keeper_lost, endings={1: None})
    run: dict[str, Any] = {
        "monotonic": lambda: next(seconds) * 0.5,
        "pump": lambda _seconds: None,
        "situation": situation,
        "host": SimpleNamespace(strangers=lambda: next(seen), subreaper=None, roots=()),
        "spec": SimpleNamespace(job_id="no-such-job", started_by=StartedBy.RUN, ends_with_cell=False),
    }
    order = SimpleNamespace(generation=1, lose_unsaved=True)
    parts = SimpleNamespace(
        run=SimpleNamespace(**run),
        order=order,
        record=SimpleNamespace(fact=lambda _phase, _name: None),
        breathe=lambda _seconds: None,
    )
    return cast(Execution, parts)


def test_a_part_of_the_job_that_is_never_signalled_is_named() -> None:
    """The refusal says which process and why, without its command line."""
    with pytest.raises(Refused) as refusal:
        phase_stop.check_reach(execution((STRANGER,)))

    assert refusal.value.reason is Reason.STILL_ALIVE
    assert "pid 4712 runs as another user (uid 65534)" in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_what_passes_by_is_waited_for() -> None:
    """A script's short `sudo` is no reason to leave the job alone."""
    phase_stop.check_reach(execution((STRANGER,), (STRANGER,), ()))


@pytest.mark.parametrize(("ended", "keeper_lost"), [(True, False), (False, True)])
def test_a_launcher_that_is_gone_is_stopped(ended: bool, keeper_lost: bool) -> None:
    """Reaped by the keeper, or gone where no keeper is left to tell it: only then something could have hidden."""
    ex = execution(ended=ended, keeper_lost=keeper_lost)

    done = phase_stop.act(ex, {"launcher": [*_listed(GONE)], "trainers": [], "members": [], "unsaved_steps": 0})

    assert done.detail.get("keeper_lost", False) is keeper_lost


def test_a_launcher_that_nobody_saw_end_is_not_stopped() -> None:
    """It is in no look at /proc, but its keeper lives and has not reaped it: /proc may hide it."""
    intent = {"launcher": [*_listed(GONE)], "trainers": [], "members": [], "unsaved_steps": 0}
    with pytest.raises(Refused) as refusal:
        phase_stop.act(execution(), intent)

    assert refusal.value.reason is Reason.STILL_ALIVE


def _listed(process: ProcessId) -> tuple[int, int]:
    return process.pid, process.start_ticks
