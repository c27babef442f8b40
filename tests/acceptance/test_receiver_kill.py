"""SIGKILL under load: what was answered 202 is in the store."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.real_process import eventually
from tests.acceptance.receiver_process import REPOSITORY, ReceiverProcess
from tests.bench.load import template

ROUNDS = 3


@pytest.mark.parametrize("after_s", [0.3, 0.6, 1.1])
def test_every_202_survives_a_kill(tmp_path: Path, after_s: float) -> None:
    """16 connections, SIGKILL between two commits; then the store opens and has each acknowledged body once."""
    process = ReceiverProcess(tmp_path)
    process.start()
    acked = tmp_path / "acked"
    argv = [sys.executable, "-m", "tests.bench.load", str(process.port), process.token, "16", "20", str(acked)]
    load = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: acked.exists() and acked.stat().st_size > 0)
    time.sleep(after_s)  # the moment of the kill, not a wait for something

    subprocess.run(["kill", f"-{signal.SIGKILL}", str(process.pid)], check=True)
    load.wait(timeout=30)
    process.stop()
    process.start()
    numbers = acked.read_text().split()
    before, _after = template().split(b"%016d")
    stored = [body[len(before) : len(before) + 16].decode() for body in process.stored()]
    process.stop()

    assert len(numbers) > 50
    assert sorted(set(numbers) - set(stored)) == []
    assert len(stored) == len(set(stored))
