"""Read a config without being held up or flooded by what is no config, and show what changes in it."""

import difflib
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.document import MAX_BYTES, malformed


def read(path: Path) -> bytes:
    """The bytes of a config. Raises Refused: config_not_found; config_malformed for a pipe, a device, a huge file."""
    try:
        # A pipe without a writer would hold an ordinary open() for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise malformed(str(path), 1, "is a folder, a pipe or a device, no file; give the path of the config")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Refused(
            Reason.CONFIG_NOT_FOUND, f"{path}: can't be read ({error.strerror}); give the path of the job's config"
        ) from error
    if len(data) > MAX_BYTES:
        raise malformed(
            str(path), 1, f"is larger than {MAX_BYTES // 1024} KiB, which no config is; give the right file"
        )
    return data


def sha256(data: bytes) -> str:
    """The hash that tells whether a config was edited, in hex."""
    return hashlib.sha256(data).hexdigest()


def hash_of(files: Sequence[Path]) -> str:
    """The hash over ruling files, in hex; of one file its own sha256. Raises what `read` raises."""
    hashes = [sha256(read(path)) for path in files]
    return hashes[0] if len(hashes) == 1 else sha256("\n".join(hashes).encode())


def difference(path: Path, old: bytes, new: bytes) -> str:
    """A unified diff of a config and its adjusted copy."""
    before, after = ([line.rstrip("\r") for line in each.decode("utf-8-sig").split("\n")] for each in (old, new))
    lines = difflib.unified_diff(before, after, str(path), f"{path.name} (adjusted copy)", n=2, lineterm="")
    return "\n".join(lines)
