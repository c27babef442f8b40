"""The lock beside the database, and the space kept back for the day the disk is full."""

import fcntl
import os
import shutil
from pathlib import Path

from tunewarden.errors import StoreLocked, StoreUnavailable

RESERVE_BYTES = 16 * 1024 * 1024
# Below this much free space an I/O error of SQLite is taken for a full disk (its -shm file reports one so).
FULL_BELOW_BYTES = 1024 * 1024


class StoreLock:
    """An flock on `<database>.lock`, held as long as the store is open. SQLite has one service process."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".lock")
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"{self.path} can't be opened: {error.strerror}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreLocked(
                f"another tunewarden service (pid {pid}) uses {database}; stop it, or give this one its own state_dir"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._fd)


class Reserve:
    """16 MiB beside the database, freed when the disk is full so that open remediations can be ended."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".reserve")
        self._folder = database.parent

    def is_full(self) -> bool:
        """True when next to nothing is free."""
        return shutil.disk_usage(self._folder).free < FULL_BELOW_BYTES

    def free(self) -> None:
        """Give the space back to the disk."""
        self.path.unlink(missing_ok=True)

    def restore(self) -> bool:
        """Take the space again if as much is left besides. True when the reserve stands."""
        if self.path.exists() and self.path.stat().st_size >= RESERVE_BYTES:
            return True
        if shutil.disk_usage(self._folder).free < 2 * RESERVE_BYTES:
            return False
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
        except OSError:  # the disk filled up meanwhile
            self.free()
            return False
        return True
