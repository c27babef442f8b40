"""The interpreter of .venv-trainers, and a real trainer under the hook, looked at from outside."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trainers.hooked import Hooked

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def trainer_python() -> Path:
    """Python with torch, accelerate, transformers and peft. `make test-trainers` makes it."""
    python = ROOT / ".venv-trainers" / "bin" / "python"
    assert python.exists(), f"{python} is missing: run `make test-trainers`, which makes it"
    return python


@pytest.fixture
def hooked(trainer_python: Path, tmp_path: Path) -> Iterator[Callable[..., Hooked]]:
    """Start trainers under the hook: hooked(script, *args, generation=1, hook={...}, resume={...})."""
    started: list[Hooked] = []

    def start(script: str, *args: str, generation: int = 1, **more: object) -> Hooked:
        job = Hooked(trainer_python, tmp_path, generation)
        started.append(job)
        return job.start(script, *args, **more)  # type: ignore[arg-type]

    yield start
    for job in started:
        job.end()
