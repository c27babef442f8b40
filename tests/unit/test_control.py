"""The control directory as a job may leave it: nothing in it hangs the agent, ends it, or makes it raise an OSError."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_journal import room
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.control import ControlDirectory, Mode, Progress, State, TorchMemory
from tunewarden.supervisor.control_file import MOST_BYTES

READ_ALL = """
import sys
from pathlib import Path
from tunewarden.supervisor.control import ControlDirectory
control = ControlDirectory(Path(sys.argv[1]))
control.ranks()
control.last_receipt()
for read in (control.hello, control.progress, control.resumed, control.resume, control.crash, control.taken_request):
    assert read() is None, read
assert control.receipt("r-1") is None
assert not control.asked("r-1")
"""
NAMES = (
    *(f"{name}.json" for name in ("hello", "pid.0", "progress", "resumed", "resume", "crash", "receipt")),
    *("stop", "stop.taken", "stop.withdrawn"),
)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, endless])
def test_what_is_no_regular_file_reads_as_absent(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A FIFO, a folder or a link to an endless device under every name: reading returns, with nothing."""
    for name in NAMES:
        make(tmp_path / name)
    reader = [sys.executable, "-E", "-P", "-c", READ_ALL, str(tmp_path)]

    assert subprocess.run(reader, timeout=20, check=False).returncode == 0


@pytest.mark.parametrize(
    "value",
    [
        "1" + "0" * 400,
        "-1" + "0" * 400,
        "1" + "0" * 9000,
        "1e999",
        "true",
        '"7"',
        "[" * 5000 + "]" * 5000,
        '{"a":' * 5000,
    ],
)
def test_any_number_in_progress_is_read_or_passed_over(tmp_path: Path, value: str) -> None:
    """Huge, endless or nested: what is no usable number is None, or the file is none."""
    fields = ("loss", "total_steps", "step_seconds_sum", "step_seconds_count", "last_state")
    content = ", ".join(f'"{name}": {value}' for name in fields)
    (tmp_path / "progress.json").write_text(f'{{"step": 5, {content}}}')
    found = ControlDirectory(tmp_path).progress()

    assert found is None or {found.total_steps, found.step_seconds_sum, found.last_state} == {None}
    assert found is None or found.loss in (None, math.inf)  # what Python reads 1e999 as: a loss may be infinite


@pytest.mark.parametrize(
    ("written", "loss"),
    [("0.5", 0.5), ('"nan"', math.nan), ('"inf"', math.inf), ('"-inf"', -math.inf), ("NaN", math.nan), ('"1e5"', None)],
)
def test_a_loss_that_is_no_number_is_kept(tmp_path: Path, written: str, loss: float | None) -> None:
    """JSON has no NaN, so the hook writes a string; a trainer that writes Python's NaN is understood too."""
    (tmp_path / "progress.json").write_text(f'{{"step": 5, "loss": {written}}}')
    found = ControlDirectory(tmp_path).progress()

    assert found is not None
    assert repr(found.loss) == repr(loss)


def test_what_the_hook_says_is_read_and_absent_without_it(tmp_path: Path) -> None:
    """Micro-steps, torch's memory, who counted, the framework; a trainer of its own says none of them."""
    control = ControlDirectory(tmp_path)
    memory = {"allocated": 1, "reserved": 2, "peak": 3, "retries": 4, "ooms": "x"}
    said = {"step": 5, "micro_steps": 10, "source": "hook", "memory": memory}
    (tmp_path / "progress.json").write_text(json.dumps(said))
    (tmp_path / "hello.json").write_text('{"protocol": 1, "framework": "accelerate"}')
    found, hello = control.progress(), control.hello()
    (tmp_path / "progress.json").write_text('{"step": 5, "memory": 7}')

    assert found is not None and hello is not None
    assert (found.micro_steps, found.source, hello.framework) == (10, "hook", "accelerate")
    assert found.memory == TorchMemory(allocated=1, reserved=2, peak=3, retries=4, ooms=None)
    assert control.progress() == Progress(step=5, source="trainer", memory=TorchMemory())


@pytest.mark.parametrize("step", ["1" + "0" * 400, "-1", "1.5", "null"])
def test_a_step_that_is_no_count(tmp_path: Path, step: str) -> None:
    """Without a step there is no progress."""
    (tmp_path / "progress.json").write_text(f'{{"step": {step}}}')

    assert ControlDirectory(tmp_path).progress() is None


def test_a_file_that_is_too_large_is_none_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """More than 1 MiB is not read, and the log says so one time."""
    (tmp_path / "crash.json").write_text(json.dumps({"error": "x" * MOST_BYTES}))
    control = ControlDirectory(tmp_path)
    found = [control.crash() for _ in range(5)]

    assert found == [None] * 5
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/crash.json is passed over: more than 1 MiB"
    ]


def test_the_crash_text_is_cut(tmp_path: Path) -> None:
    """16 KiB of it are enough for what is searched in it."""
    (tmp_path / "crash.json").write_text(json.dumps({"error": "RuntimeError " * 70000}))
    found = ControlDirectory(tmp_path).crash()

    assert found is not None
    assert len(found) == 16 * 1024


def test_half_a_character_reaches_nobody(tmp_path: Path) -> None:
    """A lone surrogate can't be sent: texts lose it, a path with it is none."""
    content = {"step": 1, "phase": "tr\ud800", "last_state": {"step": 1, "path": "/a\ud800"}}
    (tmp_path / "progress.json").write_text(json.dumps(content))
    found = ControlDirectory(tmp_path).progress()

    assert found is not None
    assert (found.phase, found.last_state) == ("tr?", None)


@pytest.mark.parametrize("path", ["/" + "a" * 3000, "/proc", "/"])
def test_what_can_be_no_state_is_not_whole(path: str) -> None:
    """A name that no file can have, and the root of a mount."""
    assert not State(step=1, path=Path(path)).whole


def test_a_withdrawal_that_can_not_be_put_aside(tmp_path: Path) -> None:
    """The request is deleted, so that the job trains on, and the refusal names the path."""
    control = ControlDirectory(tmp_path)
    (tmp_path / "stop.withdrawn" / "x").mkdir(parents=True)
    control.ask("r-1", Mode.SAVE)
    with pytest.raises(Refused, match=r"stop\.withdrawn") as refused:
        control.withdraw("r-1")

    assert refused.value.reason is Reason.SAVE_FAILED
    assert not (tmp_path / "stop").exists()


def test_a_withdrawal_that_the_trainer_wins(tmp_path: Path) -> None:
    """Nothing is there to be withdrawn: the trainer took it, whatever lies under the other name."""
    (tmp_path / "stop.withdrawn" / "x").mkdir(parents=True)

    assert not ControlDirectory(tmp_path).withdraw("r-1")


def test_a_request_that_can_not_be_put(tmp_path: Path) -> None:
    """A folder where the request belongs: save_failed, and no temporary file stays."""
    (tmp_path / "stop" / "x").mkdir(parents=True)
    with pytest.raises(Refused, match=r"/stop can't be written") as refused:
        ControlDirectory(tmp_path).ask("r-1", Mode.SAVE)

    assert refused.value.reason is Reason.SAVE_FAILED
    assert [path.name for path in tmp_path.iterdir()] == ["stop"]


def test_room_that_was_set_aside_is_given_up_for_a_request(tmp_path: Path) -> None:
    """Where there is no room for a request, what was held for it is given back to the disk, and it is tried again."""
    control = ControlDirectory(tmp_path)
    control.set_room_aside()
    held = (tmp_path / ".room").stat().st_size
    with room(0), pytest.raises(Refused, match="can't be written") as refused:
        control.ask("r-1", Mode.SAVE)

    assert held == 64 << 10
    assert refused.value.reason is Reason.NO_DISK_SPACE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "by", "framework"),
    [
        ({"by": "hook", "framework": "accelerate", "versions": {"accelerate": "1.15.0"}}, "hook", "accelerate"),
        ({}, None, None),
        ({"by": 7, "framework": ["x"]}, None, None),
        ({"by": "h" * 5000}, "h" * 64, None),
    ],
)
def test_who_said_hello(tmp_path: Path, content: dict[str, Any], by: str | None, framework: str | None) -> None:
    """The hook says that it speaks, and for which library; anything else there is nothing."""
    (tmp_path / "hello.json").write_text(json.dumps({"protocol": 1, "can": ["save"], **content}), encoding="utf-8")
    hello = ControlDirectory(tmp_path).hello()

    assert hello is not None
    assert (hello.by, hello.framework) == (by, framework)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"peak_bytes": 4096, "consistent": True, "cause": "oom"}, (4096, True, "oom")),
        ({}, (None, True, "request")),
        ({"peak_bytes": -1, "consistent": False, "cause": 7}, (None, False, "request")),
        ({"peak_bytes": "much", "consistent": "yes", "cause": None}, (None, False, "request")),
    ],
)
def test_what_a_receipt_says_of_its_save(
    tmp_path: Path, content: dict[str, Any], expected: tuple[int | None, bool, str]
) -> None:
    """Torch's peak, whether an update was cut in two, and what made the trainer save. Only a plain yes is a yes."""
    receipt = {"request_id": "r-1", "ok": True, "step": 3, "path": "/s", **content}
    (tmp_path / "receipt.json").write_text(json.dumps(receipt), encoding="utf-8")
    control = ControlDirectory(tmp_path)
    found = control.receipt("r-1")

    assert found is not None and found == control.last_receipt()
    assert (found.peak_bytes, found.consistent, found.cause) == expected
