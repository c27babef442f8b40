"""The files of a control directory as the job may leave them: anything at all, read without harm and within bounds."""

import errno
import functools
import json
import logging
import math
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20  # the job writes these files: a reader takes no more than this
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ROOM = ".room"
_ROOM_BYTES = 64 << 10  # for a request, the trainer's receipt, and what is printed meanwhile
_MOST_WHOLE = 1 << 53  # JSON's safe integers: what is larger is no count of anything
_LONGEST_PATH = 4095  # PATH_MAX
log = logging.getLogger(__name__)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a regular file of at most 1 MiB; None for all else, which is logged once. Never blocks."""
    try:
        data = _bytes_of(path)
        raw = json.loads(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, an integer of 5000 digits
        _tell(path, str(error)[:200] or type(error).__name__)
        return None
    if not isinstance(raw, dict):
        _tell(path, "not a JSON object")
        return None
    return raw


def _bytes_of(path: Path) -> bytes:
    # O_NONBLOCK: opening a FIFO would wait for a writer for ever. O_NOFOLLOW: a link leads out of the directory.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a regular file")
        data = b""
        while chunk := file.read(MOST_BYTES + 1 - len(data)):
            data += chunk
    if len(data) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES >> 20} MiB")
    return data


@functools.lru_cache(maxsize=64)  # the same is looked at twenty times a second
def _tell(path: Path, why: str) -> None:
    log.warning("%s is passed over: %s", path, why)


def set_room_aside(folder: Path) -> None:
    """Hold some of the disk while there is some, so that a job can be asked to save when it is full."""
    room = folder / _ROOM
    try:
        if not room.exists():
            room.write_bytes(os.urandom(_ROOM_BYTES))  # zeros may take no room at all
    except OSError as error:
        _tell(room, str(error))


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file so that a reader sees all of it or nothing. Raises OSError and leaves nothing behind.

    On a full disk it takes the room that was set aside.
    """
    try:
        _write_whole(path, content)
    except OSError as error:
        if error.errno not in NO_ROOM or not (path.parent / _ROOM).exists():
            raise
        (path.parent / _ROOM).unlink()
        _write_whole(path, content)


def _write_whole(path: Path, content: Mapping[str, Any]) -> None:
    descriptor, temp = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        Path(temp).replace(path)
    except OSError:
        Path(temp).unlink(missing_ok=True)
        raise


def whole_number(value: object) -> int | None:
    """A count: an integer from 0 to 2**53."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_WHOLE else None


def number(value: object) -> float | None:
    """A finite number. NaN and infinity are no JSON, and the service would refuse the whole message."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer of 400 digits
        return None
    return found if abs(found) < float("inf") else None


def loss_of(value: object) -> float | None:
    """A loss: a finite number, or one of "nan", "inf", "-inf", for JSON has no such numbers; a bare NaN counts too."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return number(value)


def text(value: object, most: int) -> str | None:
    """A string cut to `most` characters; a lone surrogate, which no message can carry, becomes a question mark."""
    return value[:most].encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else None


def absolute_path(value: object) -> Path | None:
    """An absolute path that can be used and told."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        return None
    if text(value, _LONGEST_PATH) != value:
        return None
    return Path(value)
