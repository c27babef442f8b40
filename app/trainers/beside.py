"""Write an adjusted config as a new file beside the original. The original is never opened for writing."""

import errno
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.recipe import FileCopy

_OURS = re.compile(r"(?P<stem>.+)\.tunewarden-g\d+")
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


def write_beside(copy: FileCopy, generation_hint: int) -> Path:
    """Write `copy.new_bytes` to `<stem>.tunewarden-g<N><suffix>`, N the next free number from `generation_hint`.

    The new file appears whole or not at all, never replaces another, has the original's mode bits and is read back.
    Raises Refused: config_not_found, config_changed, config_not_writable, no_disk_space. Then nothing is left behind.
    """
    mode = _checked_mode(copy)
    try:
        path = _publish(copy, generation_hint, mode)
    except OSError as error:
        raise _refusal(copy.config_path, error) from error
    return path


def write_all(copies: Sequence[FileCopy], generation_hint: int) -> dict[Path, Path]:
    """Write copies that belong together, in their order; the new path of each original.

    A copy that names an earlier one names its new file. All are written or none: raises what `write_beside` raises.
    """
    written: dict[Path, Path] = {}
    try:
        for copy in copies:
            written[copy.config_path] = write_beside(with_references(copy, written), generation_hint)
    except Refused:
        for path in written.values():
            path.unlink(missing_ok=True)
        raise
    return written


def with_references(copy: FileCopy, names: Mapping[Path, Path]) -> FileCopy:
    """`copy` with the originals that it names replaced by their copies; those not in `names` stay."""
    new = copy.new_bytes
    for place in sorted(copy.references, key=lambda place: place.start, reverse=True):
        if place.path in names:
            new = new[: place.start] + names[place.path].name.encode() + new[place.end :]
    return replace(copy, new_bytes=new, references=())


def name_beside(config: Path, generation: int | str) -> Path:
    """`my.yaml` → `my.tunewarden-g2.yaml`; our own `my.tunewarden-g2.yaml` → `my.tunewarden-g3.yaml`."""
    ours = _OURS.fullmatch(config.stem)
    stem = ours["stem"] if ours else config.stem
    return config.with_name(f"{stem}.tunewarden-g{generation}{config.suffix}")


def original_of(config: Path) -> Path | None:
    """The file that a copy of ours was made from; None for a file that is no copy of ours."""
    ours = _OURS.fullmatch(config.stem)
    return config.with_name(f"{ours['stem']}{config.suffix}") if ours else None


def _checked_mode(copy: FileCopy) -> int:
    """The original's mode bits, after making sure that it still is what was planned on."""
    config = copy.config_path
    try:
        now = hashlib.sha256(config.read_bytes()).hexdigest()
        mode = stat.S_IMODE(config.stat().st_mode)
    except OSError as error:
        raise Refused(
            Reason.CONFIG_NOT_FOUND, f"{config}: can't be read any more ({error.strerror}); put it back and try again"
        ) from error
    if now != copy.config_sha256:
        raise Refused(Reason.CONFIG_CHANGED, f"{config}: was edited while the change was planned; try again")
    return mode


def _publish(copy: FileCopy, first: int, mode: int) -> Path:
    folder = copy.config_path.parent
    descriptor, temp_name = tempfile.mkstemp(
        prefix=f".{copy.config_path.stem[:60]}.", suffix=".tunewarden-new", dir=folder
    )
    temp = Path(temp_name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(copy.new_bytes)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        path = _claim_name(temp, copy.config_path, first)
    finally:
        temp.unlink(missing_ok=True)
    try:
        _sync_folder(folder)
        if path.read_bytes() != copy.new_bytes:
            raise OSError(errno.EIO, "what was read back differs from what was written")
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path


def _claim_name(temp: Path, config: Path, first: int) -> Path:
    """Give `temp` its final name. link() fails where the name exists, so nothing is ever replaced, unlike rename()."""
    number = first
    while True:
        path = name_beside(config, number)
        try:
            os.link(temp, path)
        except FileExistsError:
            number += 1
            continue
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            if not _claim_without_links(temp, path):
                number += 1
                continue
        return path


def _claim_without_links(temp: Path, path: Path) -> bool:
    """For exFAT, CIFS and the like: create the name exclusively, then rename over our own empty file."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    try:
        temp.replace(path)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems can't sync a folder
            raise
    finally:
        os.close(descriptor)


def _refusal(config: Path, error: OSError) -> Refused:
    if error.errno in _NO_SPACE:
        return Refused(
            Reason.NO_DISK_SPACE,
            f"{config.parent}: no room for the adjusted config ({error.strerror}); free some space",
        )
    return Refused(
        Reason.CONFIG_NOT_WRITABLE,
        f"{config.parent}: the adjusted config can't be written beside {config.name} ({error.strerror}); "
        "let the job's user write there",
    )
