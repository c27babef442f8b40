"""Drains the job's output into the log when the keeper is dead, so that the job never blocks on a full pipe."""

import os
import select
import threading
from collections.abc import Iterable
from pathlib import Path

from tunewarden.supervisor.keeper_log import OutputLog

_READ_BYTES = 1 << 16


class Drain:
    """A thread that copies `descriptors` (pipe ends or a pty master) to the log, until all are closed."""

    def __init__(self, descriptors: Iterable[int], log_file: Path) -> None:
        self._open = set(descriptors)
        self._log = OutputLog(str(log_file))
        self._thread = threading.Thread(target=self._run, name="drain", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the end of the output, at most `timeout` seconds."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while self._open:
            ready, _, _ = select.select(list(self._open), [], [])
            for descriptor in ready:
                self._copy(descriptor)

    def _copy(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last process has closed the pty
            data = b""
        if data:
            self._log.write(data)
        else:
            self._open.discard(descriptor)
