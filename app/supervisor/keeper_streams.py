"""The job's output on its way to us, our own output, and keys on their way to the job. Standard library only."""

import fcntl
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from tunewarden.supervisor.terminal import Terminal, copy_size, open_pty

_QUEUE_BYTES = 256 << 10  # of one output; when it is full the job waits, as it would without us
_READ_BYTES = 64 << 10
_DRAIN_BYTES = 1 << 20  # a pipe of the largest size holds so much
# Where a descriptor can't be made non-blocking, poll promises that this much can be written (PIPE_BUF).
_CAREFUL_BYTES = 4096


class Sink:
    """Our own standard output or error: written to as fast as it takes, never waited for."""

    def __init__(self, fd: int) -> None:
        self.terminal = os.isatty(fd)
        self.gone = False
        self._queue = bytearray()
        self._at_line_start = True
        self.fd, self._chunk = _nonblocking(fd)

    @property
    def full(self) -> bool:
        return len(self._queue) >= _QUEUE_BYTES

    @property
    def waiting(self) -> bool:
        return bool(self._queue)

    def put(self, data: bytes) -> None:
        """Take this to be written; thrown away where the reader is gone."""
        if not self.gone and data:
            self._queue += data
            self._at_line_start = data.endswith(b"\n")

    def put_line(self, text: str, *, raw: bool) -> None:
        """A line of our own, not in the middle of a line of the job's."""
        end = "\r\n" if raw else "\n"
        self.put(("" if self._at_line_start else end).encode() + text.encode("utf-8", "replace") + end.encode())

    def flush(self) -> None:
        """Write what it takes now. Call when poll says that it is writable."""
        try:
            while self._queue:
                written = os.write(self.fd, self._queue[: self._chunk])
                del self._queue[:written]
                if self._chunk == _CAREFUL_BYTES:
                    return
        except BlockingIOError:
            return
        except OSError:  # EPIPE, EIO after a hang-up, ENOSPC: the job goes on, the log has its output
            self.lose()

    def lose(self) -> None:
        """The reader is gone: write no more."""
        self.gone = True
        self._queue.clear()


def _nonblocking(fd: int) -> tuple[int, int]:
    """A non-blocking descriptor for the same output, and how much to write at once.

    O_NONBLOCK belongs to the open file, which we share with the person's shell, so it may not be set: a terminal or
    pipe is opened anew. Regular files are not, for their offset is shared, nor sockets, which can't be.
    """
    mode = os.fstat(fd).st_mode
    if os.isatty(fd) or stat.S_ISFIFO(mode):
        try:
            own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # after su the terminal belongs to another user
            return fd, _CAREFUL_BYTES
        return own, _READ_BYTES
    return fd, _CAREFUL_BYTES


@dataclass(frozen=True)
class Source:
    """An end from which the job's output comes (non-blocking), and the sink that it goes to."""

    fd: int
    sink: Sink

    def read(self) -> bytes:
        """What is there, at most 64 KiB; nothing where nothing is."""
        try:
            return os.read(self.fd, _READ_BYTES)
        except OSError:
            return b""

    def drain(self) -> list[bytes]:
        """All that is there now, bounded: something may be left behind that prints for ever."""
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < _DRAIN_BYTES:
            piece = self.read()
            if not piece:
                break
            pieces.append(piece)
        return pieces


class Keys:
    """What the person types, on its way to the job's pty."""

    def __init__(self, terminal: Terminal, master: int) -> None:
        self.terminal = terminal
        self.fd = os.dup(master)
        self._queue = b""

    @property
    def waiting(self) -> bool:
        return bool(self._queue)

    def take(self) -> None:
        self._queue += self.terminal.read()

    def flush(self) -> None:
        try:
            self._queue = self._queue[os.write(self.fd, self._queue) :]
        except BlockingIOError:
            return
        except OSError:
            self._queue = b""


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """How the job is connected, the same for all its generations.

    `job_fds`: the job's 0, 1 and 2 by our descriptors. `drains`: by name, the ends that the agent inherits. The ends
    that the job gets stay open here too, so that the next generation gets the same and a drain sees no end in between.
    `said`: where lines of our own go, the person's terminal if there is one.
    """

    job_fds: Mapping[int, int]
    sources: tuple[Source, ...]
    drains: Mapping[str, int]
    sinks: tuple[Sink, ...]
    said: Sink
    slave: int | None
    master: int | None
    like: int  # the terminal whose size the pty has
    keys: Keys | None

    @property
    def waiting(self) -> bool:
        """Whether some output is still to be written."""
        return any(sink.waiting for sink in self.sinks)

    def take_terminal(self) -> None:
        """Make the person's terminal raw where it is ours to read, and give its size to the job."""
        if self.keys is not None:
            self.keys.terminal.take()
        if self.master is not None:
            copy_size(self.like, self.master)

    def give_back_terminal(self) -> None:
        """Restore the modes of the person's terminal."""
        if self.keys is not None:
            self.keys.terminal.give_back()

    def hang_up(self) -> None:
        """The terminal is gone: nothing is written to it or read from it any more."""
        for sink in self.sinks:
            if sink.terminal:
                sink.lose()
        if self.keys is not None:
            self.keys.terminal.gone = True

    def say(self, line: str) -> None:
        """A line of our own for the person."""
        self.said.put_line(line, raw=self.said.terminal and self.keys is not None and self.keys.terminal.raw)


def wire() -> Wiring:
    """Per stream: a terminal becomes a pty, a pipe or file a pipe. A stdin that isn't forwarded is inherited."""
    sinks = {"stdout": Sink(1), "stderr": Sink(2)}
    terminals = [name for name, sink in sinks.items() if sink.terminal]
    master = slave = keys = None
    job_fds: dict[int, int] = {}
    sources: list[Source] = []
    drains: dict[str, int] = {}
    like = 1 if "stdout" in terminals else 2
    if terminals:
        typing = os.isatty(0)
        master, slave = open_pty(like, translate=typing)
        sources.append(Source(master, sinks[terminals[0]]))
        if typing:
            keys = Keys(Terminal(0), master)
            job_fds[0] = slave
    shared_pipe: tuple[int, int] | None = None
    for fd, name in ((1, "stdout"), (2, "stderr")):
        if name in terminals and master is not None and slave is not None:
            job_fds[fd], drains[name] = slave, master
            continue
        if shared_pipe is None or not _same_file(1, 2):
            shared_pipe = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(shared_pipe[0], False)
            sources.append(Source(shared_pipe[0], sinks[name]))
        drains[name], job_fds[fd] = shared_pipe
    return Wiring(
        job_fds=job_fds,
        sources=tuple(sources),
        drains=drains,
        sinks=tuple(sinks.values()),
        # On a terminal by the way that the job's own output takes, so that lines don't mix.
        said=sinks[terminals[0]] if "stderr" in terminals else sinks["stderr"],
        slave=slave,
        master=master,
        like=like,
        keys=keys,
    )


def _same_file(one: int, other: int) -> bool:
    """Whether both are one pipe or file (`2>&1`): then one pipe keeps the order of what is printed."""
    return os.path.sameopenfile(one, other)


def stay_open() -> None:
    """Open /dev/null for each of 0, 1 and 2 that the person has closed: no descriptor of ours may get its number."""
    for fd in (0, 1, 2):
        try:
            fcntl.fcntl(fd, fcntl.F_GETFD)
        except OSError:
            os.open("/dev/null", os.O_RDWR)
