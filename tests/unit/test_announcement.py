"""What is taken of a watch folder into which anybody of this user may write, with real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunewarden.processes.identity import ProcessId, identify
from tunewarden.shipped import hook_dir
from tunewarden.supervisor.announcement import WATCH_VARIABLE, take_announcements

JOB = "0123456789ab"


@pytest.fixture
def watch_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "watch"
    (folder / JOB / "g1").mkdir(parents=True)
    return folder


@pytest.fixture
def trainer(watch_dir: Path) -> Iterator[ProcessId]:
    """A process whose environment names the watch folder."""
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, WATCH_VARIABLE: str(watch_dir)})
    found = identify(process.pid)
    assert found is not None
    while WATCH_VARIABLE.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes():  # the last that exec sets
        pass
    yield found
    process.kill()
    process.wait()


def announce(watch_dir: Path, process: ProcessId, **other: Any) -> None:
    said = {"protocol": 1, "pid": process.pid, "start_ticks": process.start_ticks, "job": JOB, "ends_with": "process"}
    (watch_dir / f"announce.{process.pid}.json").write_text(json.dumps({**said, **other}))


def test_a_trainer_is_taken_once(watch_dir: Path, trainer: ProcessId) -> None:
    """The announcement is deleted."""
    announce(watch_dir, trainer)

    found, refused = take_announcements(watch_dir)
    again, _ = take_announcements(watch_dir)

    assert [(each.process, each.job_id, each.ends_with_cell) for each in found] == [(trainer, JOB, False)]
    assert refused == []
    assert again == []


def test_a_folder_of_that_name_stops_nothing(watch_dir: Path, trainer: ProcessId) -> None:
    """However many there are: the trainer behind them is taken."""
    for number in range(70):
        (watch_dir / f"announce.0{number}.json").mkdir()
    announce(watch_dir, trainer)

    found, refused = take_announcements(watch_dir)

    assert ([each.process for each in found], refused) == ([trainer], [])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"protocol": 2}, "no announcement of protocol 1"),
        ({"pid": 1}, "pid 1 has ended"),
        ({"pid": "4711"}, "no announcement of protocol 1"),
        ({"pid": 2**22 + 1}, "has ended"),
        ({"start_ticks": 1}, "has ended"),
        ({"job": "../../etc"}, "is no job id"),
        ({"job": "ffffffffffff"}, "is no folder of ours"),
        ({"job": 7}, "no announcement of protocol 1"),
    ],
)
def test_what_does_not_fit_is_passed_over(watch_dir: Path, trainer: ProcessId, other: dict[str, Any], why: str) -> None:
    """With the reason, and without a second look."""
    announce(watch_dir, trainer, **other)

    found, refused = take_announcements(watch_dir)

    assert found == []
    assert len(refused) == 1 and why in refused[0]
    assert list(watch_dir.glob("announce*")) == []


def test_a_process_that_did_not_ask_is_passed_over(watch_dir: Path) -> None:
    """Its environment does not name this folder."""
    process = subprocess.Popen(["sleep", "60"])
    found = identify(process.pid)
    assert found is not None
    announce(watch_dir, found)

    taken, refused = take_announcements(watch_dir)
    process.kill()
    process.wait()

    assert taken == []
    assert "was not started with" in refused[0]


def test_a_link_is_no_control_directory(watch_dir: Path, trainer: ProcessId, tmp_path: Path) -> None:
    """What would lead out of the watch folder."""
    (watch_dir / JOB / "g1").rmdir()
    (watch_dir / JOB / "g1").symlink_to(tmp_path)
    announce(watch_dir, trainer)

    found, refused = take_announcements(watch_dir)

    assert found == []
    assert "is no folder of ours" in refused[0]


def test_what_goes_on_after_its_training_is_never_taken_for_a_process(watch_dir: Path, trainer: ProcessId) -> None:
    """Whatever an unknown word says, the careful way is taken."""
    announce(watch_dir, trainer, ends_with="something new")

    (found,), _ = take_announcements(watch_dir)

    assert found.ends_with_cell


def test_rubbish_is_deleted(watch_dir: Path) -> None:
    """No JSON, and a FIFO that nobody writes to."""
    (watch_dir / "announce.1.json").write_text("{")
    os.mkfifo(watch_dir / "announce.2.json")

    found, refused = take_announcements(watch_dir)

    assert (found, len(refused)) == ([], 2)
    assert list(watch_dir.glob("announce*")) == []


# The hook's side, in a Python with the hook on its path and neither torch nor accelerate.
HOOKED = """
import json, os, sys, threading
from tunewarden_trainhook import watching
{body}
"""


def hooked(watch_dir: Path, body: str, **env: str) -> subprocess.CompletedProcess[str]:
    ours = {WATCH_VARIABLE: str(watch_dir), "PYTHONPATH": str(hook_dir())}
    return subprocess.run(
        [sys.executable, "-c", HOOKED.format(body=body)],
        env={**os.environ, **ours, **env},
        capture_output=True,
        text=True,
    )


def test_the_hook_announces_what_the_watch_reads(watch_dir: Path) -> None:
    """Both sides of the contract, in one: the process, its job, and how it ended."""
    body = "print(watching.watched_folder('accelerate', 0, 1)); print(os.environ['TUNEWARDEN_JOB']); sys.exit(0)"

    done = hooked(watch_dir, body)

    folder, job = done.stdout.split()
    said = json.loads(next(watch_dir.glob("announce.*.json")).read_text())
    assert folder == str(watch_dir / job / "g1")
    assert (said["job"], said["ends_with"]) == (job, "process")
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert json.loads((Path(folder) / "ended.json").read_text()) == {"exit_status": 0}


@pytest.mark.parametrize(("end", "status"), [("1 / 0", 1), ("raise KeyboardInterrupt", 130)])
def test_the_hook_says_how_it_ended(watch_dir: Path, end: str, status: int) -> None:
    """Nobody of ours is its parent."""
    hooked(watch_dir, f"watching.watched_folder('accelerate', 0, 1)\n{end}")

    ended = [json.loads(file.read_text()) for file in watch_dir.glob("*/g1/ended.json")]
    assert ended == [{"exit_status": status}]


def test_ranks_of_one_launcher_share_a_job_and_other_launches_don_t(watch_dir: Path) -> None:
    """They have the same parent; the next launch of the same parent has another port."""
    body = "print(watching._job_of(2))"

    jobs = [hooked(watch_dir, body, MASTER_PORT=port).stdout for port in ("29500", "29500", "29501")]

    assert jobs[0] == jobs[1] != jobs[2]


def test_a_training_in_a_thread_ends_its_thread_only(watch_dir: Path) -> None:
    """And never by SystemExit, with which an event loop that awaits the thread would end."""
    body = """
from types import SimpleNamespace
from tunewarden_trainhook.control import Control
def work():
    folder = watching.watched_folder("accelerate", 0, 1)
    try:
        watching.end(SimpleNamespace(control=Control(folder)), "saved")
    except SystemExit:
        print("wrong")
    except BaseException as error:
        print(type(error).__name__)
thread = threading.Thread(target=work)
thread.start(); thread.join()
print("goes on")
"""

    done = hooked(watch_dir, body)

    said = json.loads(next(watch_dir.glob("announce.*.json")).read_text())
    assert done.stdout.split("\n")[:2] == ["TrainingEnded", "goes on"]
    assert said["ends_with"] == "cell"
    assert len(list(watch_dir.glob("*/g1/ended.json"))) == 1
