"""What the job printed, on disk, and the look-out for out-of-memory lines. Standard library only."""

import os
import re

SAID_BY_US = "tunewarden: "  # begins each line that is not the job's, on the terminal and in the log
ROTATE_BYTES = 64 << 20
_OOM = re.compile(rb"out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
_LINE_END = re.compile(rb"[\r\n]")
_LINE_BYTES = 2048  # of a line that looks like out-of-memory; what is longer is cut at the front


class OutputLog:
    """`output.log`, appended; at 64 MiB it becomes `output.log.1`, which replaces an older one."""

    def __init__(self, path: str, *, rotate_bytes: int = ROTATE_BYTES) -> None:
        self._path = path
        self._rotate_bytes = rotate_bytes
        self._fd, self._size = -1, 0
        self.trouble: str | None = None  # why something was lost to the log
        self.write(b"")

    def write(self, data: bytes) -> None:
        """Append. A full disk must not end the job: what can't be written is lost to the log."""
        try:
            if self._fd < 0:
                self._open()
            if self._size + len(data) > self._rotate_bytes:
                self._rotate()
            self._size += os.write(self._fd, data)
        except OSError as error:
            self.trouble = error.strerror or str(error)

    def _open(self) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:  # only now: where no new file can be made, the number must not become another file's
            os.close(self._fd)
        self._fd, self._size = fd, os.fstat(fd).st_size

    def _rotate(self) -> None:
        os.replace(self._path, f"{self._path}.1")  # noqa: PTH105 - the keeper stays small
        self._open()


class OomWatch:
    """Looks for out-of-memory lines in one stream that comes in pieces."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> str | None:
        """The last line in what has come so far that looks like out-of-memory; each is told once, when it is whole."""
        text = self._tail + data
        *lines, tail = _LINE_END.split(text)
        self._tail = tail[-_LINE_BYTES:]
        if not _OOM.search(text):  # nearly always
            return None
        found = [line for line in lines if _OOM.search(line)]
        return found[-1][-_LINE_BYTES:].decode("utf-8", "replace").strip() if found else None
