"""SIGKILL under load: what was answered 202 is in the store."""

import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.real_process import eventually
from tests.acceptance.receiver_process import REPOSITORY, ReceiverProcess
from tests.bench.load import template
from tests.bench.service import ServiceProcess


def _stored_numbers(database: Path) -> list[str]:
    conn = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    before, _after = template().split(b"%016d")
    query = "SELECT substr(body, ?, 16) FROM deliveries WHERE source = 'alertmanager'"
    numbers = [bytes(row[0]).decode() for row in conn.execute(query, (len(before) + 1,))]
    conn.close()
    return numbers


@pytest.mark.parametrize(("whole", "after_s"), [(False, 0.3), (False, 0.7), (True, 1.1)])
def test_every_202_survives_a_kill(tmp_path: Path, whole: bool, after_s: float) -> None:
    """16 connections, SIGKILL between two commits; then it starts again and has each acknowledged body once.

    `whole`: the real `tunewarden serve`, deciding meanwhile; else the receiver and its store alone, which are faster.
    """
    process = ServiceProcess(tmp_path) if whole else ReceiverProcess(tmp_path)
    process.start()
    state = tmp_path / "state"
    acked = tmp_path / "acked"
    token = (state / "webhook.token").read_text().strip()
    argv = [sys.executable, "-m", "tests.bench.load", str(process.port), token, "16", "20", str(acked)]
    load = subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: acked.exists() and acked.stat().st_size > 0)
    time.sleep(after_s)  # the moment of the kill, not a wait for something

    subprocess.run(["kill", f"-{signal.SIGKILL}", str(process.pid)], check=True)
    load.wait(timeout=30)
    process.stop()
    process.start()  # the log of what was not checkpointed is read back
    process.stop()
    numbers, stored = acked.read_text().split(), _stored_numbers(state / "tunewarden.db")

    assert len(numbers) > 50
    assert sorted(set(numbers) - set(stored)) == []
    assert len(stored) == len(set(stored))
