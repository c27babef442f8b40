"""A small training program for the diagnosis tests: `python provoked_job.py CAUSE FOLDER` runs until it is ended.

It holds memory, does steps or none, and writes FOLDER/progress.json as docs/reference/control-directory.md says.
What makes it slow is real: it sleeps, its workers burn CPU, its reads come slowly from a file, its steps are tiny.
Standard library only.
"""

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
BURN = """import time
while True:
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    print(flush=True)
"""


class Training:
    """The loop: wait for data, compute, count, write at most ten times a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held = bytearray(os.urandom(MIB)) * 24
        self.steps = 0
        self.step_seconds = self.data_wait = self.written = 0.0

    def step(self, load: Callable[[], None], compute: Callable[[], None]) -> None:
        began = time.monotonic()
        load()
        loaded = time.monotonic()
        compute()
        ended = time.monotonic()
        self.steps += 1
        self.data_wait += loaded - began
        self.step_seconds += ended - began
        if ended - self.written > 0.1:
            self.write()
            self.written = ended

    def write(self) -> None:
        progress = {
            "step": self.steps,
            "total_steps": 1_000_000,
            "phase": "train",
            "step_seconds_sum": self.step_seconds,
            "step_seconds_count": self.steps,
            "data_wait_seconds_sum": self.data_wait,
        }
        partial = self.folder / "progress.json.partial"
        partial.write_text(json.dumps(progress))
        partial.replace(self.folder / "progress.json")


def nothing() -> None:
    """No wait, or no work."""


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def loader(training: Training) -> None:
    """The loader sleeps, as one does that waits for a network."""
    while True:
        training.step(lambda: time.sleep(0.2), lambda: spin(0.005))


def cpu(training: Training) -> None:
    """As many data workers as there are CPUs, all busy; the step waits for one batch of each."""
    workers = [
        subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)
    ]

    def batch() -> None:
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()

    while True:
        training.step(batch, lambda: spin(0.002))


def disk(training: Training) -> None:
    """Reads of 64 KiB past the page cache, throttled to 640 KiB a second."""
    path = training.folder / "data"
    path.write_bytes(os.urandom(MIB) * 8)
    data = os.open(path, os.O_RDONLY | os.O_DIRECT)
    block = mmap.mmap(-1, 64 * 1024)  # O_DIRECT needs page-aligned memory

    def read() -> None:
        due = time.monotonic() + 0.1
        if os.readv(data, [block]) == 0:
            os.lseek(data, 0, os.SEEK_SET)
        time.sleep(max(0.0, due - time.monotonic()))

    while True:
        training.step(read, lambda: spin(0.002))


def small_kernels(training: Training) -> None:
    """Steps of a few milliseconds, of which most is the gap before the next launch."""
    while True:
        training.step(nothing, lambda: time.sleep(0.004))


def not_training(training: Training) -> None:
    """A few steps, then it only holds its memory."""
    for _ in range(3):
        training.step(nothing, lambda: spin(0.01))
    training.write()
    time.sleep(3600)


def unknown(_: Training) -> None:
    """It holds memory and writes no progress."""
    time.sleep(3600)


CAUSES = {each.__name__: each for each in (loader, cpu, disk, small_kernels, not_training, unknown)}

if __name__ == "__main__":
    CAUSES[sys.argv[1]](Training(Path(sys.argv[2])))
