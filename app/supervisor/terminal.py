"""The person's terminal and the job's pty. Standard library only.

While the keeper is in the foreground the person's terminal is raw except for ISIG: keys go to the job's pty, which
echoes them, and Ctrl-C, Ctrl-Z and Ctrl-\\ still reach the keeper as signals. Every end of the keeper gives the modes
back.
"""

import errno
import fcntl
import os
import pty
import termios
from typing import Any

_NO_SIZE = bytes(8)  # struct winsize: rows, columns and two sizes in pixels, 16 bits each
_IFLAG, _OFLAG, _CFLAG, _LFLAG, _CC = 0, 1, 2, 3, 6  # places in what tcgetattr returns


class Terminal:
    """The terminal that the keeper was started on; `fd` is our standard input."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.gone = False
        self._before = termios.tcgetattr(fd)
        self._raw = False

    @property
    def raw(self) -> bool:
        """True while we have it."""
        return self._raw

    @property
    def foreground(self) -> bool:
        """True while the shell lets us read keys and change modes."""
        if self.gone:
            return False
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError as error:
            # ENOTTY: not our controlling terminal, so there is no job control on it either.
            return error.errno == errno.ENOTTY

    def take(self) -> None:
        """Make it raw except for the signal keys, where we are in the foreground. The modes before are remembered."""
        if self._raw or not self.foreground:
            return
        try:
            self._before = termios.tcgetattr(self.fd)
            termios.tcsetattr(self.fd, termios.TCSANOW, _raw_with_signals(self._before))
            self._raw = True
        except termios.error:
            self.gone = True

    def give_back(self) -> None:
        """Restore the modes that the person had. Twice does nothing."""
        if not self._raw:
            return
        self._raw = False
        try:
            termios.tcsetattr(self.fd, termios.TCSANOW, self._before)
        except termios.error:
            self.gone = True

    def read(self) -> bytes:
        """Keys that were typed. Nothing: the terminal has hung up, or another job has it now."""
        try:
            data = os.read(self.fd, 4096)
        except OSError:
            data = b""
        if not data and self.foreground:
            self.gone = True
        return data


def _raw_with_signals(modes: list[Any]) -> list[Any]:
    """cfmakeraw(3), but ISIG stays."""
    raw = [*modes[:_CC], list(modes[_CC])]
    raw[_IFLAG] &= ~(
        termios.IGNBRK
        | termios.BRKINT
        | termios.PARMRK
        | termios.ISTRIP
        | termios.INLCR
        | termios.IGNCR
        | termios.ICRNL
        | termios.IXON
    )
    raw[_OFLAG] &= ~termios.OPOST
    raw[_CFLAG] = raw[_CFLAG] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
    raw[_LFLAG] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.IEXTEN)
    raw[_LFLAG] |= termios.ISIG
    raw[_CC][termios.VMIN], raw[_CC][termios.VTIME] = 1, 0
    return raw


def open_pty(like: int, *, translate: bool) -> tuple[int, int]:
    """A pty with the modes and size of the terminal `like`: (master, slave), the master non-blocking.

    `translate` False: newlines stay as they are, for the outer terminal is not raw and makes CR LF of them itself.
    """
    master, slave = pty.openpty()
    modes = termios.tcgetattr(like)
    if not translate:
        modes[_OFLAG] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    copy_size(like, master)
    os.set_blocking(master, False)
    return master, slave


def copy_size(source: int, master: int) -> None:
    """Give the pty the window size of the terminal; the kernel tells the job's foreground processes (SIGWINCH)."""
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(source, termios.TIOCGWINSZ, _NO_SIZE))
    except OSError:
        return  # hung up: the job keeps the last size
