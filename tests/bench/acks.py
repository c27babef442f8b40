"""Durable acknowledgements against the baseline, and a body of 10,000 alerts."""

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.acceptance.receiver_process import REPOSITORY, ReceiverProcess
from tests.bench.load import ALERT
from tests.bench.rows import Row

CONNECTIONS = 16
SECONDS = 4.0
ROUNDS = 3


def load(process: ReceiverProcess, *, core: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Drive `process` from a client of its own; the client's JSON."""
    argv = ["taskset", "-c", str(core), sys.executable, "-m", "tests.bench.load"]
    words = [str(process.port), process.token, str(CONNECTIONS), str(seconds)]
    done = subprocess.run([*argv, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    assert set(result["statuses"]) == {"202"}, result
    return result


@contextmanager
def running(folder: Path, *, state: str, core: int) -> Iterator[ReceiverProcess]:
    process = ReceiverProcess(folder, state=state, core=core)
    process.start()
    try:
        yield process
    finally:
        process.stop()


def cores() -> tuple[int, int]:
    """One core for the server, another for the client; the same one where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def many_alerts(count: int) -> bytes:
    """A body with `count` alerts of different cards."""
    alerts = []
    for number in range(count):
        alert = copy.deepcopy(ALERT)
        alert["labels"]["uuid"] = f"GPU-{number:08d}"  # type: ignore[index]
        alert["fingerprint"] = f"{number:016d}"
        alerts.append(alert)
    return json.dumps({"version": "4", "status": "firing", "groupKey": "{}:{}", "alerts": alerts}).encode()


def acks() -> list[Row]:
    """Both sides run in turn, so that a neighbour's load falls on both; the ratio is the median of the rounds."""
    server, client = cores()
    ratios, rates, late = [], [], []
    with tempfile.TemporaryDirectory(prefix="tunewarden-bench-") as folder:
        for number in range(ROUNDS):
            state = Path(folder) / f"state{number}"
            with running(Path(folder) / "baseline", state="baseline", core=server) as process:
                plain = load(process, core=client)
            with running(Path(folder) / "receiver", state=str(state), core=server) as process:
                durable = load(process, core=client)
            rates.append((durable["requests"] / durable["seconds"], plain["requests"] / plain["seconds"]))
            ratios.append(rates[-1][0] / rates[-1][1])
            late.append(durable["p99_ms"])
    ours, theirs = rates[ratios.index(statistics.median(ratios))]
    note = f"{ours:.0f}/s ÷ {theirs:.0f}/s; p99 {statistics.median(late):.1f} ms"
    return [
        Row(
            name=f"durable acks at {CONNECTIONS} connections ÷ baseline",
            goal=0.5,
            value=statistics.median(ratios),
            unit="",
            at_least=True,
            note=note,
        )
    ]


def large_body() -> list[Row]:
    """10,000 alerts in one body, and the memory that they cost."""
    body = many_alerts(10_000)
    with (
        tempfile.TemporaryDirectory(prefix="tunewarden-bench-") as folder,
        running(Path(folder), state=f"{folder}/state", core=cores()[0]) as process,
    ):
        idle = psutil.Process(process.pid).memory_info().rss
        headers = {"Authorization": f"Bearer {process.token}"}
        url = process.url + "/api/v1/alertmanager"
        begun = time.perf_counter()
        answer = httpx.post(url, content=body, headers=headers, timeout=30, trust_env=False)
        seconds = time.perf_counter() - begun
        peak = _peak_bytes(process.pid)
    assert answer.status_code == 202, answer.text
    note = f"{len(body) / 1e6:.1f} MB; peak RSS {peak / 1e6:.0f} MB, idle {idle / 1e6:.0f} MB"
    return [Row(name="10,000 alerts in one body: answered", goal=1.0, value=seconds, unit="s", note=note)]


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


MEASURES = (acks, large_body)
