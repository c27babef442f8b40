"""progress.json as the hook's own thread writes it, beside a real loop."""

import json
import time
from collections.abc import Callable
from typing import Any

from tests.trainers.hooked import BOUND, Hooked

UPDATES = 24


def watched(job: Hooked) -> list[tuple[float, dict[str, Any]]]:
    """Every progress.json until the end, each with the time at which it was seen first."""
    seen: list[tuple[float, dict[str, Any]]] = []
    deadline = time.monotonic() + BOUND
    while job.running.poll() is None and time.monotonic() < deadline:
        content = job.read("progress.json")
        if content is not None and (not seen or content != seen[-1][1]):
            seen.append((time.monotonic(), content))
        time.sleep(0.02)
    seen.append((time.monotonic(), job.read("progress.json") or {}))
    return seen


def test_what_progress_json_says_of_a_loop(hooked: Callable[..., Hooked]) -> None:
    """Steps, loss, phases, the wait for data; at most two a second; no worker has a part in it."""
    job = hooked("metrics_loop.py")
    seen = watched(job)
    reports = [report for _, report in seen]
    trained = [report for report in reports if report["step"] > 0]
    last = reports[-1]
    workers = [json.loads(path.read_text(encoding="utf-8")) for path in job.out.glob("worker-*")]

    assert job.running.returncode == 0, job.output
    assert [report["step"] for report in reports] == sorted(report["step"] for report in reports)
    assert (last["step"], last["micro_steps"], last["source"]) == (UPDATES, 2 * UPDATES, "hook")
    assert last["step_seconds_count"] == UPDATES
    # 48 batches, one every 0.1 s: 0.02 s of it is learning, and 1.2 s of evaluation is no part of it.
    assert 0.5 < last["data_wait_seconds_sum"] / last["step_seconds_sum"] < 0.98
    assert last["step_seconds_sum"] < seen[-1][0] - seen[0][0] - 0.5
    assert {report["loss"] for report in trained if "loss" in report} == {2.5, "nan"}
    assert last["loss"] == "nan"
    assert {report["phase"] for report in trained} == {"train", "eval"}
    assert {report["step"] for report in trained if report["phase"] == "eval"} == {8}
    assert "memory" not in last
    assert "total_steps" not in last
    # The thread's two a second, and the one at the end.
    assert len(trained) <= 2 * (seen[-1][0] - seen[0][0]) + 2
    assert abs(last["updated"] - time.time()) < BOUND
    assert len(workers) == 2
    assert not [name for names in workers for name in names if "tunewarden" in name]
    assert sorted(path.name for path in job.control.iterdir()) == [
        "hello.json",
        "output",
        "pid.0.json",
        "progress.json",
    ]
