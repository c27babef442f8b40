"""What the training hook costs the training thread, in a accelerate loop. Needs what `make test-trainers` makes."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from tests.bench.rows import Row
from tunewarden.shipped import hook_dir

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-trainers" / "bin" / "python"
RUNS = 3


def step() -> list[Row]:
    """Hooked less bare, medians of the CPU time of the training thread; the median of three runs."""
    assert PYTHON.exists(), f"{PYTHON} is missing: run `make test-trainers`, which makes it"
    runs = sorted((_run() for _ in range(RUNS)), key=lambda run: run["hooked"] - run["bare"])
    middle = runs[RUNS // 2]
    note = f"a step of {middle['bare']:.0f} µs becomes one of {middle['hooked']:.0f} µs"
    return [Row(name="hook: cost of a step", goal=30, value=middle["hooked"] - middle["bare"], unit="µs", note=note)]


def _run() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="tunewarden-bench-") as control:
        done = subprocess.run(
            [str(PYTHON), str(Path(__file__).with_name("hook_loop.py"))],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(hook_dir()), "TUNEWARDEN_CONTROL_DIR": control},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (Path(control) / "progress.json").exists()
        assert not (Path(control) / "hook.log").exists(), (Path(control) / "hook.log").read_text(encoding="utf-8")
    result: dict[str, float] = json.loads(done.stdout)
    assert result["patches"] >= 8, result
    return result


MEASURES = (step,)
