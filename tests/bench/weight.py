"""What the programs weigh: the service's memory and start, and the keeper's and agent's memory beside a job."""

import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.acceptance.real_process import eventually
from tests.bench.rows import Row
from tests.bench.service import RunProcess, ServiceProcess

STARTS = 5
SETTLE_S = 5.0
RUN_S = 20.0  # a few heartbeats, and the long poll
ROOT = Path(__file__).resolve().parents[2]
_READY = b"GET /-/ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def service() -> list[Row]:
    """Seconds from exec to the first 200 of /-/ready, the first start with a new store; then the memory of the last."""
    starts = []
    with tempfile.TemporaryDirectory(prefix="tunewarden-bench-") as folder:
        for _ in range(STARTS):
            process = ServiceProcess(Path(folder))
            starts.append(_start(process))
            time.sleep(SETTLE_S if len(starts) == STARTS else 0)
            rss = psutil.Process(process.pid).memory_info().rss
            process.stop()
    note = f"median of {STARTS} starts; the first, with a new store, {starts[0]:.2f} s; slowest {max(starts):.2f} s"
    return [
        Row(name="service: ready", goal=2.5, value=statistics.median(starts), unit="s", note=note),
        Row(name="service: idle RSS", goal=130, value=rss / 1e6, unit="MB"),
    ]


def _start(process: ServiceProcess) -> float:
    begun = time.perf_counter()
    process.launch()
    while not _ready(process.port):
        assert time.perf_counter() - begun < process.ready_within_s, process.log_path.read_text()[-2000:]
        time.sleep(0.005)
    return time.perf_counter() - begun


def _ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(_READY)
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


def run() -> list[Row]:
    """Keeper and agent, while the job trains and the service is there. Shared pages count in both."""
    with tempfile.TemporaryDirectory(prefix="tunewarden-bench-") as folder, ServiceProcess(Path(folder)) as process:
        trainer = [sys.executable, "-c", "import time; time.sleep(600)"]
        with RunProcess(process, Path(folder) / "job", ["--simulate-gpu", "24GiB/256MiB"], trainer) as job:
            keeper, agent = (psutil.Process(pid) for pid in job.pids)
            eventually(lambda: process.get("/jobs")["jobs"], within_s=60)
            time.sleep(RUN_S)
            weights = [each.memory_full_info() for each in (keeper, agent)]
    rss = [each.rss / 1e6 for each in weights]
    note = f"keeper {rss[0]:.1f}, agent {rss[1]:.1f}; PSS together {sum(each.pss for each in weights) / 1e6:.1f}"
    return [Row(name="keeper + agent: RSS", goal=60, value=sum(rss), unit="MB", note=note)]


MEASURES = (service, run)
