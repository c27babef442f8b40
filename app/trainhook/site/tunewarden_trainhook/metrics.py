"""progress.json: a daemon thread writes it at most twice a second; `flush` writes it at once.

The training thread pays for its counters only. The thread is none of a forked worker's, and ends with the session.
"""

import atexit
import math
import os
import sys
import threading
import time

EVERY_S = 0.5
UNCHANGED_S = 5.0  # the same again, so that a reader sees that the process lives


class Progress(threading.Thread):
    """Writes the session's progress. A lock, since a save has it written at once by the training thread."""

    def __init__(self, session):
        super().__init__(name="tunewarden-progress", daemon=True)
        self._session = session
        self._lock = threading.Lock()
        self._last, self._written = None, 0.0

    def run(self):
        try:
            while self._session.alive:
                self.write(always=False)
                time.sleep(EVERY_S)
        except Exception as error:  # the trainer's output must not show it
            self._session.log.say(f"progress.json is no longer written: {error!r}")

    def write(self, always):
        with self._lock:
            report = report_of(self._session)
            now = time.monotonic()
            if always or report != self._last or now - self._written >= UNCHANGED_S:
                self._last, self._written = report, now
                self._session.control.write("progress.json", dict(report, updated=time.time()))


def start(session):
    """Called once a process, on rank 0, when the session begins."""
    session.progress = Progress(session)
    session.progress.start()
    atexit.register(_at_exit, session)


def _at_exit(session):
    if session.alive and session.pid == os.getpid():
        flush(session)


def flush(session):
    """Write progress.json now: around saves and at the end. On rank 0's training thread."""
    if session.progress is not None:
        session.progress.write(always=True)


def report_of(session):
    """What progress.json holds, without `updated`."""
    counters = session.counters
    report = {
        "step": counters.step,
        "micro_steps": counters.micro_steps,
        "phase": counters.phase,
        "source": "hook",
        "step_seconds_sum": round(counters.step_seconds_sum, 6),
        "step_seconds_count": counters.step_seconds_count,
    }
    if counters.data_wait_seconds_sum is not None:
        report["data_wait_seconds_sum"] = round(counters.data_wait_seconds_sum, 6)
    optional = {"total_steps": counters.total_steps, "loss": _loss(counters.loss), "last_state": counters.last_state}
    optional["memory"] = memory(session)
    report.update((name, value) for name, value in optional.items() if value is not None)
    return report


def _loss(probe):
    """As the trainer shows it; a loss that is no number is told even where the trainer hides it (transformers does)."""
    value = probe.value
    if probe.shown is not None and (value is None or math.isfinite(value)):
        value = probe.shown
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def memory(session):
    """{"allocated", "reserved", "peak", "retries", "ooms"} in bytes and counts, or None without CUDA.

    Host-side numbers of torch's allocator: nothing waits for the device. `session.peak_floor` is the peak before the
    last save, which resets torch's own.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    stats = torch.cuda.memory_stats(_device(session))
    peak = stats.get("allocated_bytes.all.peak", 0)
    return {
        "allocated": stats.get("allocated_bytes.all.current", 0),
        "reserved": stats.get("reserved_bytes.all.current", 0),
        "peak": max(session.peak_floor, peak),
        "retries": stats.get("num_alloc_retries", 0),
        "ooms": stats.get("num_ooms", 0),
    }


def _device(session):
    """The index of this rank's card: the current device is a thread's own, so the daemon thread can't ask for it."""
    device = getattr(getattr(session.adapter, "accelerator", None), "device", None)
    return getattr(device, "index", None) or 0
