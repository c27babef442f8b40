"""What one generation printed: its part of output.log, read as it grows, across the log's one rotation."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunewarden.supervisor.cause import is_oom_line, lines_of
from tunewarden.supervisor.log_progress import LogProgress

TAIL_BYTES = 64 * 1024
_CHUNK = 1 << 20
_HINT = re.compile(rb"out of memory|_STATUS_", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LogStart:
    """Where a generation's output begins. The inode tells whether output.log was rotated since."""

    inode: int
    offset: int

    @classmethod
    def now(cls, path: Path) -> "LogStart":
        """The present end of the log; the beginning of a log that isn't there yet."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return cls(inode=0, offset=0)
        return cls(inode=found.st_ino, offset=found.st_size)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "LogStart":
        return cls(inode=int(raw["inode"]), offset=int(raw["offset"]))


class GenerationLog:
    """Reads on from `start` at each `read()`; keeps the last 64 KiB and counts lines that look like out-of-memory.

    `progress` is what the bars in it say; `base_step` is the step at which the generation began.
    """

    def __init__(self, path: Path, start: LogStart, base_step: int = 0) -> None:
        self._path = path
        self._inode, self._offset = start.inode, start.offset
        self._tail = b""
        self._unfinished = b""
        self.oom_lines = 0
        self.progress = LogProgress(base_step)

    def read(self) -> None:
        """Take in what was printed since the last call."""
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            return
        if self._inode not in (0, inode):  # rotated: first the rest of the old file, then the new one from its start
            self._read_from(self._path.with_name(self._path.name + ".1"), self._inode)
            self._offset = 0
        self._inode = inode
        self._read_from(self._path, inode)

    def tail(self) -> str:
        """The last 64 KiB."""
        return self._tail.decode("utf-8", "replace")

    def idle_s(self, now: float) -> float | None:
        """Seconds since something was printed; `now` is the wall clock, as the file's time is."""
        try:
            return max(0.0, now - self._path.stat().st_mtime)
        except FileNotFoundError:
            return None

    def _read_from(self, path: Path, inode: int) -> None:
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_ino != inode:
                    return
                file.seek(self._offset)
                while chunk := file.read(_CHUNK):
                    self._offset += len(chunk)
                    self._take(chunk)
        except FileNotFoundError:
            return

    def _take(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk)[-TAIL_BYTES:]
        text = self._unfinished + chunk
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._unfinished = text[end:][-TAIL_BYTES:]
        self.progress.take(text[:end])
        self.progress.take_unfinished(self._unfinished)
        if _HINT.search(text) is None:  # nearly always
            return
        self.oom_lines += sum(is_oom_line(line) for line in lines_of(text[:end].decode("utf-8", "replace")))
