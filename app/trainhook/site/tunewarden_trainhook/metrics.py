"""progress.json: a daemon thread writes it at most twice a second; `flush` writes it at once."""


def start(session):
    """Called once a process, on rank 0, when the session begins."""


def flush(session):
    """Write progress.json now: around saves and at the end."""
    counters = session.counters
    report = {"step": counters.step, "phase": counters.phase, "source": "hook", "micro_steps": counters.micro_steps}
    if counters.total_steps is not None:
        report["total_steps"] = counters.total_steps
    if counters.last_state is not None:
        report["last_state"] = counters.last_state
    session.control.write("progress.json", report)


def memory(session):
    """{"allocated", "reserved", "peak", "retries", "ooms"} in bytes and counts, or None without CUDA.

    `session.peak_floor` is the peak before the last save, which resets torch's own.
    """
    return
