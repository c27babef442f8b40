"""TensorBoard's event files, read as they grow: the scalars in them, without TensorBoard.

A file is a row of records (TFRecord): length (8 bytes, little endian), its checksum, the data, its checksum. The
checksum is CRC-32C, rotated and offset. The data is a protobuf message `Event`: 1 wall_time (double), 2 step (varint),
5 summary; a summary's values are: 1 tag, 2 simple_value (float), 8 tensor (1 dtype, 4 content, 5 floats). Source: the
.proto files of TensorBoard 2.x; a test reads what the real one wrote.
"""

import logging
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 2 << 20  # read at one look
_LARGEST_SCALARS = 64 << 10  # a larger record holds images: passed over unread
_LARGEST_RECORD = 1 << 30  # a larger length is damage
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_FLOAT, _DOUBLE = 1, 2  # DataType of a tensor
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One number: `wall` in seconds of the trainer's clock."""

    tag: str
    step: int
    value: float
    wall: float


class EventFile:
    """Reads on from where it was. What is damaged ends the reading of this file, and is logged once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._broken = False

    def read(self) -> list[Scalar]:
        """The scalars that were written since the last call, of at most 2 MiB. A file that is gone has none."""
        if self._broken:
            return []
        try:
            # O_NONBLOCK and O_NOFOLLOW: the folder is the job's, and a FIFO or a link may lie in it.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return []
            data = os.pread(descriptor, MOST_BYTES, self._offset)
        except OSError:
            return []
        finally:
            os.close(descriptor)
        return [scalar for event in self._records(data) for scalar in scalars_of(event)]

    def _records(self, data: bytes) -> Iterator[bytes]:
        """Whole records with good checksums; half a record at the end is read the next time."""
        at = 0
        while not self._broken and at + _HEADER.size <= len(data):
            (length, check) = _HEADER.unpack_from(data, at)
            if masked_crc(data[at : at + 8]) != check or length > _LARGEST_RECORD:
                self._give_up("a length is damaged")
                return
            size = _HEADER.size + length + _CRC.size
            if length > _LARGEST_SCALARS:
                at += size
                self._offset += size  # beyond what was read, perhaps: the next look begins there
                continue
            if at + size > len(data):
                return
            body = data[at + _HEADER.size : at + _HEADER.size + length]
            if masked_crc(body) == _CRC.unpack_from(data, at + size - _CRC.size)[0]:
                yield body
            else:
                log.warning("%s: a record with a wrong checksum is passed over", self._path)
            at += size
            self._offset += size

    def _give_up(self, why: str) -> None:
        self._broken = True
        log.warning("%s is read no further: %s", self._path, why)


def scalars_of(event: bytes) -> list[Scalar]:
    """The scalars of one `Event`; none where the message is not understood."""
    wall, step, found = 0.0, 0, []
    try:
        for field, value in _fields(event):
            if field == 1 and isinstance(value, bytes):
                wall = struct.unpack("<d", value)[0]
            elif field == 2 and isinstance(value, int):
                step = value if value < 1 << 63 else 0
            elif field == 5 and isinstance(value, bytes):
                found = [pair for number, one in _fields(value) if number == 1 for pair in _value(one)]
    except (ValueError, struct.error):
        return []
    return [Scalar(tag=tag, step=step, value=value, wall=wall) for tag, value in found]


def _value(raw: bytes | int) -> list[tuple[str, float]]:
    tag, number = "", None
    for field, value in _fields(raw if isinstance(raw, bytes) else b""):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            number = struct.unpack("<f", value)[0]
        elif field == 8 and isinstance(value, bytes):
            number = _of_tensor(value)
    return [] if number is None or not tag else [(tag, number)]


def _of_tensor(raw: bytes) -> float | None:
    """The one number of a tensor of floats or doubles."""
    fields = dict(_fields(raw))
    kind, content, floats = fields.get(1), fields.get(4), fields.get(5)
    if isinstance(floats, bytes) and len(floats) == 4:
        return float(struct.unpack("<f", floats)[0])
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind) if isinstance(kind, int) else None
    if form and isinstance(content, bytes) and len(content) == struct.calcsize(form):
        return float(struct.unpack(form, content)[0])
    return None


def _fields(raw: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a protobuf message: numbers for varints, bytes for all else. Raises ValueError where it is none."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(raw, at)
            yield key >> 3, number
            continue
        if kind == 2:
            length, at = _varint(raw, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(raw):
            raise ValueError("a field is longer than its message")
        yield key >> 3, raw[at : at + length]
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index in range(10):
        if at + index >= len(raw):
            break
        byte = raw[at + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, at + index + 1
    raise ValueError("a number has no end")


def _table() -> tuple[int, ...]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = (row >> 1) ^ (0x82F63B78 if row & 1 else 0)
        rows.append(row)
    return tuple(rows)


_CRC32C = _table()


def masked_crc(data: bytes) -> int:
    """CRC-32C (Castagnoli), masked as TFRecord does."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) & 0xFFFFFFFF
