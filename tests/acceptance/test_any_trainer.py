"""The loop in docs/howto/any-trainer.md, run as it stands: saved, stopped and gone on with by its control files."""

import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"en": DOCS / "howto" / "any-trainer.md", "zh": DOCS / "zh" / "howto" / "any-trainer.md"}
DEADLINE_S = 30.0


def program(language: str = "en") -> str:
    """The page's only Python block."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGES[language].read_text(encoding="utf-8"), re.S)
    return str(block)


class Loop:
    """The page's program in a folder; each start is a generation with a control directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "mine.py"
        self.script.write_text(program(), encoding="utf-8")
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, generation: int, resume: dict[str, Any] | None = None) -> subprocess.Popen[bytes]:
        control = self.control(generation)
        control.mkdir()
        if resume is not None:
            (control / "resume.json").write_text(json.dumps(resume))
        process = subprocess.Popen(
            [sys.executable, "mine.py"],
            cwd=self.folder,
            env={**os.environ, "TUNEWARDEN_CONTROL_DIR": str(control)},
        )
        self.started.append(process)
        return process

    def control(self, generation: int) -> Path:
        return self.folder / f"g{generation}"

    def read(self, generation: int, name: str) -> dict[str, Any]:
        """The file, as soon as it is there."""
        path, deadline = self.control(generation) / name, time.monotonic() + DEADLINE_S
        while not path.exists():
            assert time.monotonic() < deadline, f"{name} was not written"
            time.sleep(0.01)
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    def ask(self, generation: int, mode: str) -> dict[str, Any]:
        """What it answers to a request."""
        self.read(generation, "hello.json")
        (self.control(generation) / "asked").write_text(json.dumps({"request_id": f"r-{mode}", "mode": mode}))
        (self.control(generation) / "asked").replace(self.control(generation) / "stop")
        receipt = self.read(generation, "receipt.json")
        assert receipt["request_id"] == f"r-{mode}"
        return receipt


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    """The page's program; what still runs at the end is killed."""
    loop = Loop(tmp_path)
    yield loop
    for process in loop.started:
        process.kill()
        process.wait(DEADLINE_S)


def test_the_loop_is_stopped_and_goes_on_to_its_end(loop: Loop) -> None:
    """It saves whole, makes no step after the receipt, goes on from there, and tells its last step."""
    first = loop.start(1)
    receipt = loop.ask(1, "save_and_stop")
    step, weights = pickle.loads(Path(receipt["path"]).read_bytes())
    parked = first.poll()
    first.kill()

    second = loop.start(2, {"protocol": 1, "step": receipt["step"], "path": receipt["path"], "from_generation": 1})

    assert loop.read(1, "hello.json")["can"] == ["save", "stop", "resume"]
    assert (parked, step, weights) == (None, receipt["step"], receipt["step"] * 0.5)
    assert loop.read(2, "resumed.json") == {"step": step, "path": receipt["path"]}
    assert second.wait(DEADLINE_S) == 0
    assert loop.read(2, "progress.json") == {"step": 200, "total_steps": 200, "phase": "train"}


def test_the_loop_trains_on_after_a_save(loop: Loop) -> None:
    """A plain save leaves the training running."""
    process = loop.start(1)

    receipt = loop.ask(1, "save")

    assert Path(receipt["path"]).is_file()
    assert process.wait(DEADLINE_S) == 0


def test_the_loop_needs_no_tunewarden(tmp_path: Path) -> None:
    """Without the variable it is a plain program that leaves nothing behind here."""
    (tmp_path / "mine.py").write_text(program().replace("TOTAL, step, weights = 200", "TOTAL, step, weights = 5"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TUNEWARDEN_")}

    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, env=environment, timeout=DEADLINE_S, check=False)

    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (0, ["mine.py"])


def test_the_chinese_page_has_the_same_program() -> None:
    """What runs here is what both pages show."""
    assert program("zh") == program("en")


def test_twenty_lines_make_a_loop_controllable() -> None:
    """The page says 20: all but the imports, the loop's own lines and its `save`."""
    own = r"import |TOTAL, |def save|    (path = pathlib|path\.with|return |weights, |time\.sleep\(0)|while "
    lines = [line for line in program().splitlines() if line.strip() and not re.match(own, line)]

    assert len(lines) <= 20
