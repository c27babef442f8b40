"""A hold on single processes by pidfd: a signal reaches this very process or nobody, and its end wakes the waiter."""

import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tunewarden.processes.identity import ProcessId, alive

_BLIND_S = 0.02  # between two looks at a process where no pidfd can wake us


class Grip:
    """A hold on one process; `refused` where the kernel gives no pidfd and start ticks are compared instead."""

    def __init__(self, process: ProcessId) -> None:
        self.process = process
        self.fd: int | None = None
        self.refused = False
        try:
            self.fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return
        except OSError:  # ENOSYS before Linux 5.3, EPERM under an old seccomp filter, EMFILE
            self.refused = True
            return
        # The fd is opened first and the start ticks compared after: so it can't be another process that got the pid.
        if not alive(process):
            self.close()

    def send(self, signum: int) -> bool:
        """Signal the process. False where it is gone or the kernel forbids it."""
        try:
            if self.fd is not None:
                signal.pidfd_send_signal(self.fd, signum)
                return True
            if self.refused and alive(self.process):
                os.kill(self.process.pid, signum)
                return True
        except (ProcessLookupError, PermissionError):
            pass
        return False

    def close(self) -> None:
        """Let go. Closing twice does nothing."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


@contextmanager
def gripping(processes: Sequence[ProcessId]) -> Iterator[list[Grip]]:
    """Hold these processes for a while."""
    grips: list[Grip] = []
    try:
        for process in processes:
            grips.append(Grip(process))
        yield grips
    finally:
        for grip in grips:
            grip.close()


def wait_ended(grips: Sequence[Grip], limit_s: float) -> None:
    """Return when all of these have ended (a zombie has), or after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    held = {grip.fd for grip in grips if grip.fd is not None}
    poll = select.poll()
    for fd in held:
        poll.register(fd, select.POLLIN)
    blind = [grip for grip in grips if grip.refused]
    while held or blind:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        for fd, _ in poll.poll((min(left_s, _BLIND_S) if blind else left_s) * 1000):
            poll.unregister(fd)
            held.discard(fd)
        blind = [grip for grip in blind if alive(grip.process)]
