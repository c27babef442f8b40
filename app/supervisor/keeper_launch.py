"""Starts a process: fork, its own session, its descriptors, exec. Standard library only.

By hand and not by subprocess: a controlling terminal, exact descriptors and the signals that the person had ignored are
needed, and the keeper stays small. The keeper has one thread, so that what runs between fork and exec is safe.
"""

import contextlib
import errno
import fcntl
import os
import signal
import termios
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

_ABOVE_ALL_TARGETS = 64  # copies go up here first: a source may have the number of a target
_ERRNO_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start. `fds` maps the new process' descriptors to ours; 0, 1 and 2 are inherited where they aren't named.

    `only_these`: every other descriptor above 2 is closed; else those that the person passed on to us stay open.
    `ignored`: signals that the process must ignore from its start; all others get their default.
    """

    argv: Sequence[str]
    env: Mapping[bytes, bytes]
    cwd: str
    fds: Mapping[int, int]
    terminal: int | None = None
    only_these: bool = False
    ignored: Collection[int] = ()


def environment_at_start() -> dict[bytes, bytes]:
    """The environment that this process was started with.

    Not os.environ: where the locale is C, Python sets LC_CTYPE for itself (PEP 538), and a job must not see that.
    """
    with open("/proc/self/environ", "rb") as file:
        words = file.read().split(b"\0")
    return {name: value for name, _, value in (word.partition(b"=") for word in words) if name}


def start(launch: Launch) -> int:
    """Start it in a session of its own; returns the pid. Raises OSError as chdir or exec did in the new process."""
    error_read, error_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(launch, error_write)
    os.close(error_write)
    with open(error_read, "rb") as pipe:
        failed = pipe.read(_ERRNO_BYTES)  # the end of file says that exec has closed the other end
    if failed:
        os.waitpid(pid, 0)
        code = int(failed)
        raise OSError(code, os.strerror(code), launch.argv[0])
    return pid


def _become(launch: Launch, error_write: int) -> NoReturn:
    """In the new process: never returns and never raises."""
    code = errno.EIO
    try:
        error_write = fcntl.fcntl(error_write, fcntl.F_DUPFD_CLOEXEC, _ABOVE_ALL_TARGETS)
        os.setsid()
        if launch.terminal is not None:
            fcntl.ioctl(launch.terminal, termios.TIOCSCTTY, 0)
        _place(launch)
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            wanted = signal.SIG_IGN if signum in launch.ignored else signal.SIG_DFL
            if signal.getsignal(signum) is not wanted:
                signal.signal(signum, wanted)
        os.chdir(launch.cwd)
        os.execvpe(launch.argv[0], list(launch.argv), dict(launch.env))  # noqa: S606 - a command, no shell
    except OSError as error:
        code = error.errno or code
    finally:
        os.write(error_write, str(code).encode())
        os._exit(127)


def _place(launch: Launch) -> None:
    copies = {
        target: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _ABOVE_ALL_TARGETS) for target, source in launch.fds.items()
    }
    for target, copy in copies.items():
        os.dup2(copy, target, inheritable=True)
    if launch.only_these:
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the keeper stays small
            if int(name) > 2 and int(name) not in copies:
                with contextlib.suppress(OSError):  # the descriptor of the listing itself
                    os.set_inheritable(int(name), False)
