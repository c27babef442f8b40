"""Whether a path is there, for paths that a user wrote: too long, unreadable or odd ones are simply not there."""

from collections.abc import Iterator
from pathlib import Path


def is_file(path: Path | None) -> bool:
    """A regular file that can be looked at. `Path.is_file` raises for a name that is too long or a closed folder."""
    try:
        return path is not None and path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path | None) -> bool:
    """A folder that can be looked at."""
    try:
        return path is not None and path.is_dir()
    except (OSError, ValueError):
        return False


def folders_in(path: Path) -> Iterator[Path]:
    """The folders in a folder; none where it can't be read."""
    try:
        entries = sorted(path.iterdir())
    except (OSError, ValueError):
        return
    yield from (entry for entry in entries if is_folder(entry))
