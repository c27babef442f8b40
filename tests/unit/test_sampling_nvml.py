"""The real nvidia-ml-py against a driver library built from fifty lines of C: the faults that a driver answers with."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
SHIM = Path(__file__).with_name("nvml_shim.c")
# The library is loaded once in a process, so each test reads in a process of its own. Each line of stdin is a read.
READER = """
import dataclasses, json, pathlib, os, sys
from tunewarden.sampling.gpu import open_gpu_source
source = open_gpu_source(None, lambda: [])
source._deadline_s = 0.3 if "hang" in sys.argv else 5.0
for state in sys.stdin:
    pathlib.Path(os.environ["NVML_SHIM"]).write_text(state.replace(";", "\\n"))
    print(json.dumps(dataclasses.asdict(source.read())), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with libnvidia-ml.so.1: of today, and of a driver before 510."""
    folders = {"new": tmp_path_factory.mktemp("new"), "old": tmp_path_factory.mktemp("old")}
    for which, folder in folders.items():
        old = ["-DOLD"] if which == "old" else []
        out = str(folder / "libnvidia-ml.so.1")
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *old, "-o", out, str(SHIM)], check=True)
    return folders


def read(library: Path, tmp_path: Path, *states: str, hang: bool = False) -> list[dict[str, Any]]:
    """What `read` gave after each state of the driver was set."""
    done = subprocess.run(
        [sys.executable, "-c", READER, *(["hang"] if hang else [])],
        input="".join(f"{state}\n" for state in states),
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_SHIM": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_card_is_read_whole(libraries: dict[str, Path], tmp_path: Path) -> None:
    """Memory v2 leaves the driver's reserve out of `used`; a process whose memory is not told has None."""
    (readings,) = read(libraries["new"], tmp_path, "")
    card = readings["gpus"][1]
    processes = {process["memory"] for process in card.pop("processes")}
    card.pop("age_s")

    assert (readings["errors"], processes) == ([], {1024 * MIB, None})
    assert card == {
        "uuid": "GPU-00000001",
        "index": 1,
        "name": "Shim 1",
        "memory_used": 5744 * MIB,
        "memory_free": 2048 * MIB,
        "memory_total": 8192 * MIB,
        "utilization": 97.0,
        "temperature": 65.0,
        "power_watts": 300.5,
    }


def test_an_old_driver_is_read_by_its_old_calls(libraries: dict[str, Path], tmp_path: Path) -> None:
    """Before 510 there is neither memory v2 nor processes v3."""
    (readings,) = read(libraries["old"], tmp_path, "")
    card = readings["gpus"][0]

    assert readings["errors"] == []
    assert (card["memory_used"], [process["memory"] for process in card["processes"]]) == (6144 * MIB, [2048 * MIB])
    assert card["processes"][0]["name"].startswith("python")


@pytest.mark.parametrize(
    ("state", "field", "said"),
    [
        ("utilization 0 3", "utilization", False),  # not supported: MIG
        ("temperature 0 3", "temperature", False),  # a vGPU guest
        ("power 0 4", "power_watts", True),  # no permission
        ("memory 0 10", "memory_used", True),  # timeout
        ("processes 0 4", "processes", True),
    ],
)
def test_a_value_that_is_missing_is_none_and_the_rest_stays(
    libraries: dict[str, Path], tmp_path: Path, state: str, field: str, said: bool
) -> None:
    """What a card does not have is silent; what went wrong is said."""
    (readings,) = read(libraries["new"], tmp_path, state)
    first, second = readings["gpus"]

    assert (first[field], first["name"], second[field] is None) == (None, "Shim 0", False)
    assert [error.startswith("GPU 0: ") for error in readings["errors"]] == [True] * said


@pytest.mark.parametrize("state", ["handle 0 15", "uuid 0 15", "memory 0 15", "utilization 0 16", "name 0 999"])
def test_a_lost_card_does_not_hide_the_other(libraries: dict[str, Path], tmp_path: Path, state: str) -> None:
    """One card off the bus: the other is read, and the loss is one line."""
    (readings,) = read(libraries["new"], tmp_path, state)

    assert [card["index"] for card in readings["gpus"]] == [1]
    assert len(readings["errors"]) == 1 and readings["errors"][0].startswith("GPU 0: ")


@pytest.mark.parametrize("state", ["init -1 9", "count -1 1", "utilization 0 1"])
def test_a_driver_that_comes_back_is_read_again(libraries: dict[str, Path], tmp_path: Path, state: str) -> None:
    """Not loaded, or not initialised any more: an error now, both cards at the next read."""
    first, second = read(libraries["new"], tmp_path, state, "")

    assert (first["gpus"], len(first["errors"]), len(second["gpus"])) == ([], 1, 2)


def test_a_driver_upgrade_asks_for_a_new_agent(libraries: dict[str, Path], tmp_path: Path) -> None:
    """The library of a running process can't be exchanged."""
    (readings,) = read(libraries["new"], tmp_path, "init -1 18")

    assert "start the agent again" in readings["errors"][0]


def test_a_driver_that_hangs_leaves_the_last_values_with_their_age(libraries: dict[str, Path], tmp_path: Path) -> None:
    """The read returns at its deadline, says so, and what it shows grows old."""
    good, late, later = read(libraries["new"], tmp_path, "", "count -1 9999", "", hang=True)
    ages = [readings["gpus"][0]["age_s"] for readings in (good, late, later)]

    assert ages[0] < 0.3 <= ages[1] < ages[2]
    assert [len(readings["errors"]) for readings in (good, late, later)] == [0, 1, 1]
    assert late["gpus"][0]["memory_used"] == good["gpus"][0]["memory_used"]
