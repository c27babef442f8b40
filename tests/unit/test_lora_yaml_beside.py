"""The adjusted config is a new file beside the original, whole or not there."""

import errno
import hashlib
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import beside
from tunewarden.trainers.adjusting import adjust_file
from tunewarden.trainers.beside import name_beside, write_beside
from tunewarden.trainers.recipe import FileCopy

TEXT = b"base_model: x\nbatch_size: 4  # \xe6\x89\xb9\r\ngradient_accumulation_steps: 1\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config with mode 0640."""
    path = tmp_path / "my_lora.yaml"
    path.write_bytes(TEXT)
    path.chmod(0o640)
    return path


def plan_of(config: Path) -> FileCopy:
    return adjust_file(config, {"batch_size": "/2"}).copies[0]


def refusal_of(plan: FileCopy) -> Refused:
    with pytest.raises(Refused) as caught:
        write_beside(plan, 2)
    return caught.value


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("my_lora.yaml", "my_lora.tunewarden-g2.yaml"),
        ("my.v1.yml", "my.v1.tunewarden-g2.yml"),
        ("my_lora.tunewarden-g1.yaml", "my_lora.tunewarden-g2.yaml"),
        ("my_lora.tunewarden-g10.yaml", "my_lora.tunewarden-g2.yaml"),
        ("config", "config.tunewarden-g2"),
    ],
)
def test_the_name_says_the_generation(name: str, wanted: str) -> None:
    """Our own names don't pile up: the number is replaced."""
    assert name_beside(Path("/x", name), 2) == Path("/x", wanted)


def test_the_new_file_has_the_planned_bytes_and_the_old_mode(config: Path) -> None:
    """The original is as it was, and nothing else is left in the folder."""
    plan = plan_of(config)

    path = write_beside(plan, 2)

    assert path == config.with_name("my_lora.tunewarden-g2.yaml")
    assert path.read_bytes() == plan.new_bytes == TEXT.replace(b": 4", b": 2").replace(b"steps: 1", b"steps: 2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert config.read_bytes() == TEXT
    assert sorted(each.name for each in config.parent.iterdir()) == ["my_lora.tunewarden-g2.yaml", "my_lora.yaml"]


def test_a_name_that_is_taken_is_passed_over(config: Path) -> None:
    """A user's file or a broken link of that name is never replaced: the next free number is taken."""
    taken = config.with_name("my_lora.tunewarden-g2.yaml")
    taken.write_bytes(b"mine")
    config.with_name("my_lora.tunewarden-g3.yaml").symlink_to("nowhere")

    path = write_beside(plan_of(config), 2)

    assert path.name == "my_lora.tunewarden-g4.yaml"
    assert taken.read_bytes() == b"mine"


def test_an_adjusted_config_is_adjusted_into_the_next(config: Path) -> None:
    """`-g2` becomes `-g3`, not `-g2.tunewarden-g3`."""
    second = write_beside(plan_of(config), 2)

    assert write_beside(plan_of(second), 3).name == "my_lora.tunewarden-g3.yaml"


def test_without_hard_links_the_name_is_still_claimed_and_never_replaced(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On exFAT or CIFS link() fails: the file is written all the same, past a name that is taken."""

    def no_link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(beside.os, "link", no_link)
    taken = config.with_name("my_lora.tunewarden-g2.yaml")
    taken.write_bytes(b"mine")
    plan = plan_of(config)

    path = write_beside(plan, 2)

    assert (path.name, path.read_bytes(), taken.read_bytes()) == ("my_lora.tunewarden-g3.yaml", plan.new_bytes, b"mine")
    assert len(list(config.parent.iterdir())) == 3


def test_a_config_edited_since_the_plan_is_refused(config: Path) -> None:
    """What was planned on must still stand there when the copy is written."""
    plan = plan_of(config)
    config.write_bytes(TEXT + b"# more\n")

    assert refusal_of(plan).reason is Reason.CONFIG_CHANGED
    assert len(list(config.parent.iterdir())) == 1


def test_a_config_that_is_gone_is_refused(config: Path) -> None:
    """Nothing is written beside a file that is no longer there."""
    plan = plan_of(config)
    config.unlink()

    assert refusal_of(plan).reason is Reason.CONFIG_NOT_FOUND
    assert list(config.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, Reason.NO_DISK_SPACE),
        (errno.EDQUOT, Reason.NO_DISK_SPACE),
        (errno.EIO, Reason.CONFIG_NOT_WRITABLE),
        (errno.EROFS, Reason.CONFIG_NOT_WRITABLE),
    ],
)
@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_disk_that_fails_leaves_nothing_behind(
    config: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: Reason, call: str
) -> None:
    """Whichever step fails, no half-written file and no temporary one stays."""

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(beside.os, call, fail)
    refused = refusal_of(plan_of(config))

    assert refused.reason is reason
    assert str(config.parent) in str(refused)
    assert [each.name for each in config.parent.iterdir()] == ["my_lora.yaml"]


def test_a_write_that_breaks_off_leaves_nothing_behind(config: Path) -> None:
    """In a real process that may write 16 bytes a file, the copy breaks off in the middle and is taken away."""
    script = """
import resource, signal, sys
from pathlib import Path
from tunewarden.errors import Refused
from tunewarden.trainers.beside import write_beside
from tunewarden.trainers.adjusting import adjust_file
plan = adjust_file(Path(sys.argv[1]), {"batch_size": "/2"})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
try:
    write_beside(plan.copies[0], 2)
except Refused as refused:
    sys.exit(0 if refused.reason == "config_not_writable" else 3)
sys.exit(4)
"""

    ended = subprocess.run([sys.executable, "-B", "-c", script, str(config)], timeout=60, check=False)

    assert ended.returncode == 0
    assert [each.name for each in config.parent.iterdir()] == ["my_lora.yaml"]


def test_what_reads_back_differently_is_taken_away(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that lies about what it wrote is found out before anything is launched with the file."""
    link = os.link

    def lying_link(source: Path, target: Path) -> None:
        link(source, target)
        target.write_bytes(b"batch_size: 3\n")

    monkeypatch.setattr(beside.os, "link", lying_link)

    assert refusal_of(plan_of(config)).reason is Reason.CONFIG_NOT_WRITABLE
    assert [each.name for each in config.parent.iterdir()] == ["my_lora.yaml"]


def test_a_long_name_is_refused(tmp_path: Path) -> None:
    """A name that grows past the file system's limit is `config_not_writable`."""
    config = tmp_path / f"{'n' * 245}.yaml"
    config.write_bytes(TEXT)

    assert refusal_of(plan_of(config)).reason is Reason.CONFIG_NOT_WRITABLE
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_takes_no_files_is_refused(config: Path) -> None:
    """No file can be made in /proc, not even by root."""
    readable = Path("/proc/version")
    plan = replace(
        plan_of(config), config_path=readable, config_sha256=hashlib.sha256(readable.read_bytes()).hexdigest()
    )

    assert refusal_of(plan).reason is Reason.CONFIG_NOT_WRITABLE
