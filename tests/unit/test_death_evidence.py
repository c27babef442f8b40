"""What the control group and the kernel's log say of a death, read from files as the kernel writes them."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunewarden.processes.identity import ProcessId, boot_id
from tunewarden.supervisor.cgroup import memory_group
from tunewarden.supervisor.death_evidence import DeathWatch, read_crash
from tunewarden.supervisor.journal import Journal
from tunewarden.supervisor.keeper_link import Situation
from tunewarden.supervisor.kernel_log import kernel_says

GIB = 1 << 30
V2, V1 = "0::/job.slice/train", "7:cpu:/\n4:memory:/docker/1f2e\n0::/docker/1f2e"
MEMINFO = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: {} kB\n"


def group_v2(root: Path, *, kills: int = 0, limit: str = "max", peak: int | None = GIB) -> Path:
    folder = root / "job.slice" / "train"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    if peak is not None:
        (folder / "memory.peak").write_text(f"{peak}\n")
    return folder


def group_v1(root: Path, *, kills: int = 0, limit: int = 4 * GIB, peak: int = GIB) -> Path:
    folder = root / "memory" / "docker" / "1f2e"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.max_usage_in_bytes").write_text(f"{peak}\n")
    return folder


@pytest.mark.parametrize(
    ("lines", "make", "limit"),
    [
        (V2, group_v2, None),
        (V1, group_v1, 4 * GIB),
        (V1, lambda root, **more: group_v1(root, limit=1 << 63, **more), None),
    ],
)
def test_both_versions_of_control_groups_are_read(
    tmp_path: Path, lines: str, make: Callable[..., Path], limit: int | None
) -> None:
    """Kills, limit and the most that was held; a limit near 2^63 is none."""
    make(tmp_path, kills=2)
    group = memory_group(1, tmp_path, lines)

    assert group is not None
    assert (group.oom_kills(), group.limit(), group.peak()) == (2, limit, GIB)


def test_a_container_that_sees_its_hosts_paths(tmp_path: Path) -> None:
    """/proc/PID/cgroup names a folder that is not mounted there: the mount's root is the container's group."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill 5\n")
    group = memory_group(1, tmp_path, V1)

    assert group is not None
    assert group.oom_kills() == 5


@pytest.mark.parametrize("lines", ["", "0::/", "0::/../../etc", "nonsense"])
def test_where_nothing_is_counted_there_is_no_group(tmp_path: Path, lines: str) -> None:
    """The root group of a host has no counter, and a path that leaves the tree is not followed."""
    assert memory_group(1, tmp_path, lines) is None


def kmsg(path: Path, *lines: str) -> Path:
    """Records as /dev/kmsg gives them, a second apart from the 100th second on, with one that goes on."""
    records = [f"6,{900 + at},{(100 + at) * 1000000},-;{line}\n SUBSYSTEM=x\n" for at, line in enumerate(lines)]
    path.write_text("".join(records))
    return path


def test_the_kernels_log_is_read_since_a_moment(tmp_path: Path) -> None:
    """Kills with their control group, Xids with their process, and nothing older."""
    log = kmsg(
        tmp_path / "kmsg",
        "Out of memory: Killed process 1 (old) total-vm:1kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,task_memcg=/docker/1f2e,task=python,pid=42,uid=0",
        "Memory cgroup out of memory: Killed process 42 (python) total-vm:1kB",
        "NVRM: Xid (PCI:0000:65:00): 31, pid=42, name=python, Ch 00000008",
        "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "usb 1-1: new device",
    )
    says = kernel_says(100.5, log)

    assert says.read
    assert [(kill.pid, kill.group) for kill in says.kills] == [(42, "/docker/1f2e"), (42, "")]
    assert [(xid.number, xid.card, xid.pid) for xid in says.xids] == [(31, "0000:65:00", 42), (79, "0000:65:00", None)]


def test_a_log_that_may_not_be_read_is_no_evidence(tmp_path: Path) -> None:
    """As a user without the right to, or in a container."""
    assert not kernel_says(0.0, tmp_path / "absent").read


def a_run(tmp_path: Path) -> SimpleNamespace:
    """The parts of a run that are read: its launcher, which is this very process, and a journal."""
    journal = Journal(tmp_path / "journal", boot_id=boot_id(), monotonic=lambda: 100.0)
    return SimpleNamespace(situation=Situation(launcher=ProcessId(os.getpid(), 1)), journal=journal)


def a_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, available: int = 500, lines: str = V2) -> DeathWatch:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO.format(available))
    monkeypatch.setattr("tunewarden.supervisor.cgroup.read_proc", lambda _pid, _name: lines.encode())
    return DeathWatch(group_root=tmp_path, meminfo=meminfo, kmsg=tmp_path / "kmsg")


def test_only_kills_since_the_launch_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's count at the launch is journaled, so that an agent that is started again has it too."""
    group_v2(tmp_path, kills=7)
    run, watch = a_run(tmp_path), a_watch(tmp_path, monkeypatch)
    watch.look(run)
    before = watch.outside(run, [])
    group_v2(tmp_path, kills=8)
    after = DeathWatch(group_root=tmp_path, kmsg=tmp_path / "kmsg").outside(run, [])

    assert (before.kills, before.memory, after.kills, after.memory) == (0, "fine", 1, "short")


@pytest.mark.parametrize(
    ("group", "available", "memory"),
    [
        ({"limit": "max"}, 500, "fine"),
        ({"limit": str(2 * GIB)}, 500, "fine"),
        ({"limit": str(GIB)}, 500, "short"),
        ({"limit": str(2 * GIB), "peak": None}, 500, "unknown"),
        ({"limit": "max"}, 50, "short"),
    ],
)
def test_memory_is_fine_only_where_host_and_group_are_seen_to_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: dict[str, str], available: int, memory: str
) -> None:
    """What can't be measured is unknown, never fine."""
    group_v2(tmp_path, **group)  # type: ignore[arg-type]
    run, watch = a_run(tmp_path), a_watch(tmp_path, monkeypatch, available=available)
    watch.look(run)

    assert watch.outside(run, []).memory == memory


def test_the_kernels_victims_are_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pid, or by a control group of the job's own; another's death is none."""
    group_v2(tmp_path)
    kmsg(
        tmp_path / "kmsg",
        "a line at the launch",
        "Out of memory: Killed process 41 (python)",
        "Out of memory: Killed process 42 (python)",
        "oom-kill:constraint=C,task_memcg=/job.slice/train,task=python,pid=43,uid=0",
        "oom-kill:constraint=C,task_memcg=/other,task=python,pid=44,uid=0",
    )
    run, watch = a_run(tmp_path), a_watch(tmp_path, monkeypatch)
    watch.look(run)

    assert sorted(watch.outside(run, [42]).victims) == [42, 43]


def test_the_trainers_own_word_of_its_death(tmp_path: Path) -> None:
    """crash.json with all that the hook writes; of another form it is as if it weren't there."""
    (tmp_path / "crash.json").write_text(
        '{"error": "E", "phase": "sample", "at_load": false, "where": "sampling", "traceback_tail": " a\\n  b\\n"}'
    )
    crash = read_crash(tmp_path)
    (tmp_path / "crash.json").write_text('{"error": 3}')

    assert crash is not None
    assert (crash.phase, crash.where, crash.at_load, crash.frames) == ("sample", "sampling", False, ("a", "b"))
    assert read_crash(tmp_path) is None
