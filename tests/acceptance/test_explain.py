"""`tunewarden explain -- CMD…` as a person runs it: on a terminal, in a pipe, and with what it can't tell."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = 'train_batch_size = 4\noutput_dir = "out"\noutput_name = "cat"\nmax_train_steps = 100\nsave_state = true\n'
SCRIPT = "from library import train_util\nargs = train_util.read_config_from_file(args, parser)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of sd-scripts with a fault."""
    (tmp_path / "train_network.py").write_text(SCRIPT)
    (tmp_path / "c.toml").write_text(CONFIG)
    (tmp_path / "web.py").write_text("import flask\n")
    return tmp_path


def explained(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tunewarden", "explain", "--", *argv],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def read_all(terminal: int) -> str:
    """All that is printed until the other side is closed."""
    parts = []
    with os.fdopen(terminal, "rb", buffering=0) as file:
        while True:
            try:
                part = file.read(4096)
            except OSError:  # Linux says so when nobody holds the other side any more
                break
            if not part:
                break
            parts.append(part)
    return b"".join(parts).decode()


def test_a_pipe_gets_plain_lines(folder: Path) -> None:
    """Trainer, ruling file, each knob with its place, the trial, and the warning; nothing is written."""
    before = sorted(folder.iterdir())

    done = explained(folder, "accelerate", "launch", "train_network.py", "--config_file", "c")
    rows = dict(line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)

    assert (done.returncode, done.stderr, sorted(folder.iterdir())) == (0, "", before)
    assert rows["trainer"] == "sd-scripts (proven by running)"
    assert rows["rules"] == str(folder / "c.toml")
    assert rows["batch_size"] == "4\tc.toml:1"
    assert rows["gradient_accumulation"] == "1\tnot set: the trainer's default"
    assert "batch_size 4 → 2" in rows["batch_size=/2"] and "effective batch 4 → 4" in rows["batch_size=/2"]
    assert "--initial_step" in rows["resumes"]
    assert f"warning: {folder}/c.toml:5: save_state saves with each checkpoint" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_terminal_gets_a_table(folder: Path) -> None:
    """Columns and colour, in the same words."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "tunewarden", "explain", "--", "python", "train_network.py", "--config_file", "c"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(argv, cwd=folder, stdout=theirs, env=environment)
    os.close(theirs)
    shown = read_all(ours)

    assert (process.wait(60), "\x1b[" in shown, "\t" in shown) == (0, True, False)
    assert "sd-scripts" in shown and "warning: " in shown


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (("python", "web.py"), 1, "web.py is no trainer that is known"),
        (("bash", "-c", "python train_network.py; python train_network.py"), 1, "more than one training may run"),
        (("tensorboard",), 1, "no Python program is found"),
        ((), 2, "no command"),
    ],
)
def test_what_is_not_recognised_is_told(folder: Path, argv: tuple[str, ...], code: int, told: str) -> None:
    """One line on stderr, and an exit code that a script can use."""
    done = explained(folder, *argv)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert told in done.stderr


def test_an_interpreter_that_keeps_the_hook_out(folder: Path) -> None:
    """python -I ignores PYTHONPATH."""
    done = explained(folder, "python", "-I", "train_network.py", "--config_file", "c.toml")

    assert "warning: python -I ignores PYTHONPATH" in done.stdout


def test_a_config_that_can_not_be_read(folder: Path) -> None:
    """The fault is a warning with file and line; the trainer is named all the same."""
    (folder / "c.toml").write_text("train_batch_size = = 4\n")

    done = explained(folder, "python", "train_network.py", "--config_file", "c.toml")

    assert done.returncode == 0
    assert f"warning: {folder}/c.toml:1:" in done.stdout
