"""Waits for the stop request by inotify: it is seen in the moment of its rename, even if it is taken at once."""

import ctypes
import os
import select
import struct
import time
from pathlib import Path

_IN_MOVED_TO = 0x80
_HEAD = struct.Struct("iIII")  # wd, mask, cookie, len: inotify(7)
_READ = 1 << 16


class StopWatch:
    """Watches one control directory."""

    def __init__(self, control: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_CLOEXEC)
        if self._descriptor < 0 or libc.inotify_add_watch(self._descriptor, os.fsencode(control), _IN_MOVED_TO) < 0:
            raise OSError(ctypes.get_errno(), "inotify", str(control))

    def wait(self, timeout_s: float) -> float | None:
        """The time (time.perf_counter) at which a file named `stop` came to be; None: none within `timeout_s`."""
        deadline = time.perf_counter() + timeout_s
        while (left := deadline - time.perf_counter()) > 0:
            if select.select([self._descriptor], [], [], left)[0]:
                seen = time.perf_counter()
                if b"stop" in self._names():
                    return seen
        return None

    def _names(self) -> list[bytes]:
        data, names = os.read(self._descriptor, _READ), []
        while data:
            *_, length = _HEAD.unpack_from(data)
            names.append(data[_HEAD.size : _HEAD.size + length].rstrip(b"\0"))
            data = data[_HEAD.size + length :]
        return names

    def close(self) -> None:
        os.close(self._descriptor)
