"""README.md, taken at its word: its commands and its files, as printed, by somebody who has nothing else."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.readme_walk import ROOT, block_with, blocks
from tests.acceptance.world import COMMAND

LANGUAGES = ("README.md", "README.zh-CN.md")


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """In a network namespace of its own where the machine lets us make one, for the README's ports are fixed."""
    apart = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0
    walk = [sys.executable, "-m", "tests.acceptance.readme_walk", str(tmp_path_factory.mktemp("readme") / "walk")]
    done = subprocess.run(
        [*(["unshare", "--net"] if apart else []), *walk],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_alert_posted_to_alertmanager_is_in_the_store(walked: dict[str, Any]) -> None:
    """Through a real Alertmanager with the printed block and the token that `serve` made."""
    assert walked["episodes"] == [["GpuMemoryNearlyFull", "gpu-1"]]


def test_prometheus_scrapes_the_service_and_loads_the_rules(walked: dict[str, Any]) -> None:
    """With the printed block, after the printed copy of the rules."""
    assert len(walked["scraped"]) == 1
    assert walked["rules"] >= 3


def test_the_printed_settings_are_good(walked: dict[str, Any]) -> None:
    """`tunewarden check`, as printed, after the printed lines that make the robot's files."""
    assert "policies are good" in walked["checked"]


def test_the_printed_run_trains_to_its_end(walked: dict[str, Any]) -> None:
    """And the service that is served as printed has heard of it."""
    assert "model saved" in walked["trained"]
    assert "cat-lora" in walked["jobs"]


def test_the_printed_installation_leaves_the_trainer_its_own_python(walked: dict[str, Any]) -> None:
    """`python` is not the one of our environment, which lacks what a trainer needs."""
    python = walked["trained"].splitlines()[0]

    assert python.endswith("/trainer/bin/python")


def test_serve_prints_what_the_readme_prints(walked: dict[str, Any]) -> None:
    """The receiver and the line that copies the token: one of the two must not go out of date."""
    receiver = block_with("yaml", "webhook_configs").partition("receivers:")[2]
    copy = block_with("sh", "webhook.token").strip()

    assert receiver in walked["printed"]
    assert re.search(re.escape(copy).replace(re.escape("~/"), r"\S+/"), walked["printed"])


def test_the_token_is_not_printed(walked: dict[str, Any]) -> None:
    """Only where it is."""
    words = re.findall(r"[\w-]{40,}", walked["printed"])

    assert words == []


def commands(readme: Path) -> list[str]:
    """Every line of the sh blocks that calls our command."""
    return [line for text in blocks(readme, "sh") for line in text.splitlines() if line.startswith("tunewarden ")]


@pytest.mark.parametrize("word", sorted({line.split()[1] for line in commands(ROOT / "README.md")}))
def test_each_command_of_the_readme_exists(word: str) -> None:
    """Its help ends with 0."""
    done = subprocess.run([COMMAND, word, "--help"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_both_languages_show_the_same_commands_and_files() -> None:
    """Comments may be translated; nothing else of a block."""
    bare = [
        [re.sub(r"\s*#.*", "", text) for language in ("sh", "yaml") for text in blocks(ROOT / name, language)]
        for name in LANGUAGES
    ]

    assert bare[0]
    assert bare[0] == bare[1]
