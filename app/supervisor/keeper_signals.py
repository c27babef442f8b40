"""The keeper's signals, as bytes to read in its loop. Standard library only."""

import os
import signal
from types import FrameType

# Handled even where the person had them ignored: without SIGCHLD the kernel reaps the job and its exit code is lost.
_ALWAYS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT, signal.SIGWINCH)
# What nohup or a shell's `&` in a script has ignored stays ignored, here and in the job.
_UNLESS_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP)
# In the background a read or a change of modes fails then, and does not stop the keeper and with it the job's output.
_IGNORED = (signal.SIGTTIN, signal.SIGTTOU)
_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})  # ignored by the interpreter, not by the person


class Signals:
    """Installed once, by the main thread. `fd` becomes readable when a signal has come."""

    def __init__(self) -> None:
        self.ignored = frozenset(
            signum
            for signum in signal.valid_signals() - _BY_PYTHON
            if signal.getsignal(signum) is signal.SIG_IGN and signum not in _ALWAYS
        )
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for signum in (*_ALWAYS, *(signum for signum in _UNLESS_IGNORED if signum not in self.ignored)):
            signal.signal(signum, _noted)
        for signum in _IGNORED:
            signal.signal(signum, signal.SIG_IGN)

    def take(self) -> bytes:
        """The numbers of the signals that have come, one byte each, in order."""
        try:
            return os.read(self.fd, 4096)
        except BlockingIOError:
            return b""


def stop_ourselves() -> None:
    """Stop as Ctrl-Z does; returns after SIGCONT, or at once where no shell could continue us (an orphaned group)."""
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, _noted)


def _noted(_signum: int, _frame: FrameType | None) -> None:
    """The byte in the wake-up pipe says it all."""
