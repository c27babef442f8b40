"""Recognising never fails: whatever a command or a script says, the answer is a recipe or None."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.trainer_case import case
from tunewarden.errors import Refused
from tunewarden.trainers.command import find_commands
from tunewarden.trainers.table import recognise

SCRIPT = "from library import train_util\nargs = train_util.read_config_from_file(args, parser)\n"
PIECES = ["python t.py ", "if ", "fi\n", "done\n", "for i in ", "case ", "esac", "\0", *"abc =$\"'`\\\n;&|()<>{}#@-/0x"]
SHELLY = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
WORD = st.one_of(
    st.sampled_from(
        ["python", "accelerate", "launch", "-m", "train_network.py", "--config_file", "c.toml", "-c", "bash", "uv",
         "--directory", "--", "axolotl", "train", "a.yml", "x" * 300, "--resume", "=", "--=", "-"]
    ),
    st.text(max_size=8),
)  # fmt: skip
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(text=SHELLY)
def test_any_shell_text(text: str, tmp_path: Path) -> None:
    """A text is understood or given up, and the words of what is found are given back as they were."""
    argv = ["bash", "-c", text]

    for found in find_commands(argv, tmp_path):
        assert found.argv_with(found.words) == argv


@SETTINGS
@given(words=st.lists(WORD, max_size=8))
def test_any_command(words: list[str], tmp_path: Path) -> None:
    """No word makes it raise; what is recognised can be explained."""
    case(tmp_path, "true", {"train_network.py": SCRIPT, "c.toml": "train_batch_size = 4\n", "a.yml": "base_model: x\n"})

    recipe = recognise(words, tmp_path)

    if recipe is not None:
        recipe.explain()
        recipe.states()
        recipe.hook_settings()


@pytest.mark.parametrize(
    "config",
    [
        b"\xff\xfe", b"train_batch_size = = 4", b"", b"[a]\ntrain_batch_size=4\n[a]\n", b"\0" * 10,
        b"output_dir = 3\nresume = []\n", b"output_name = \"a{b}c\"\noutput_dir = \"" + b"x" * 300 + b"\"\n",
    ],
)  # fmt: skip
def test_any_config(tmp_path: Path, config: bytes) -> None:
    """A config that can't be read leaves the trainer recognised, and says so when it is asked to change."""
    found = case(tmp_path, "python train_network.py --config_file c.toml", {"train_network.py": SCRIPT})
    (tmp_path / "c.toml").write_bytes(config)
    recipe = found.recipe

    recipe.states()
    recipe.hook_settings()

    assert recipe.explain().saves != ""
    try:
        recipe.plan({"batch_size": "/2"}, allow_effective_batch_change=False)
    except Refused as refused:
        assert "\n" not in str(refused)


def test_a_folder_that_is_closed(tmp_path: Path) -> None:
    """What can't be looked at is not there."""
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0)

    found = recognise(["python", str(closed / "train.py"), "--config", str(closed / "c.yaml")], tmp_path)

    assert found is None or os.geteuid() == 0
    closed.chmod(0o700)
