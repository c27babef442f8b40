"""Which commands keep the training hook out of their trainer."""

from pathlib import Path

import pytest

from tunewarden.trainers.interpreter import why_unhooked


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python train.py --batch_size 4", None),
        ("python -u -X dev -W error train.py -I -E", None),  # the trainer's own words
        ("python -I train.py", "python -I ignores PYTHONPATH"),
        ("python3.11 -uE train.py", "python -E ignores PYTHONPATH"),
        ("/opt/venv/bin/python -u -S train.py", "python -S runs no sitecustomize"),
        ("python -XIES train.py", None),
        ("python -s -B train.py", None),
        ("python -E -m trainer.cli", "python -E ignores PYTHONPATH"),
        ("nice -n 5 env A=b python -I train.py", "python -I ignores PYTHONPATH"),
        ("bash -c 'cd x && exec python -I train.py'", "python -I ignores PYTHONPATH"),
        # The launcher's interpreter ignores it; it starts the trainer's with its environment.
        ("python -I -m accelerate.commands.launch train.py", None),
        ("accelerate launch train.py", None),
        ("sleep 5", None),
    ],
)
def test_an_isolated_interpreter_is_seen_in_the_command(tmp_path: Path, command: str, says: str | None) -> None:
    """Of the options between python and the trainer, -E, -I and -S count."""
    words = ["bash", "-c", command.split("'")[1]] if "'" in command else command.split()
    said = why_unhooked(words, tmp_path)

    assert (said or "").startswith(says or "") and (said is None) == (says is None)


@pytest.mark.parametrize(
    ("line", "blind"),
    [("#!/usr/bin/python3 -I", True), ("#!/usr/bin/env -S python3 -E", True), ("#!/usr/bin/env python3", False)],
)
def test_an_isolated_interpreter_is_seen_in_a_scripts_first_line(tmp_path: Path, line: str, blind: bool) -> None:
    """A script that is started by its own name says in its first line who runs it."""
    (tmp_path / "train.py").write_text(line + "\npass\n", encoding="utf-8")

    assert (why_unhooked(["./train.py", "--lr", "1"], tmp_path) is not None) == blind
