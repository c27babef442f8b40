"""The agent's journal: one line for each intent and outcome, fsynced before what it announces happens."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Kind(StrEnum):
    """What a line says."""

    INTENT = "intent"  # this is about to be done
    OUTCOME = "outcome"  # it is done
    ENDED = "ended"  # the order ended before its last phase: refused or superseded
    ACKED = "acked"  # the service has taken the report (or event) of this phase
    NOTE = "note"  # something that belongs to no order: a launch, a trainer seen, an event


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line. `at` is seconds on CLOCK_MONOTONIC, which all processes of one boot share; `order_id` "" for notes."""

    seq: int
    order_id: str
    phase: str
    kind: Kind
    detail: Mapping[str, Any] = field(default_factory=dict)
    boot_id: str
    at: float


class Journal:
    """An append-only file of entries. Safe to append to from several threads.

    A last line without its newline is what a kill left of a write: it was never announced, and is cut off.
    `damaged` is true when another line can't be read; then nothing that was open can be told. `trouble` is what the
    host said of the last write that failed, "" when all is on disk.
    """

    def __init__(self, path: Path, *, boot_id: str, monotonic: Callable[[], float]) -> None:
        self._path, self._boot_id, self._monotonic = path, boot_id, monotonic
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.damaged = False
        self.trouble = ""
        self._owed = b""  # lines of `keep` that are not on disk yet
        self._torn = False  # half a line may stand at the end
        self._whole = 0  # bytes, to the end of the last whole line
        self._entries = self._read(path)
        self._next = max((entry.seq for entry in self._entries), default=0) + 1

    def _read(self, path: Path) -> list[Entry]:
        data = path.read_bytes()
        self._whole = whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.ftruncate(self._descriptor, whole)
        entries = []
        for line in data[:whole].splitlines():
            entry = _parse(line)
            if entry is None:
                self.damaged = True
            else:
                entries.append(entry)
        return entries

    def append(self, order_id: str, phase: str, kind: Kind, detail: Mapping[str, Any] | None = None) -> Entry:
        """Write one entry and return when it is on disk. Raises OSError: it is not, and is no entry."""
        with self._lock:
            entry = self._entry(order_id, phase, kind, detail or {})
            self._write(_line(entry))
            self._take(entry)
        return entry

    def keep(self, order_id: str, phase: str, kind: Kind, detail: Mapping[str, Any]) -> Entry:
        """Write one entry of what is so already; where the disk is full, hold it and write it before the next one."""
        with self._lock:
            entry = self._entry(order_id, phase, kind, detail)
            line = _line(entry)
            try:
                self._write(line)
            except OSError:
                self._owed += line
            self._take(entry)
        return entry

    def note(self, phase: str, detail: Mapping[str, Any]) -> Entry:
        """Keep something that belongs to no order."""
        return self.keep("", phase, Kind.NOTE, detail)

    def _entry(self, order_id: str, phase: str, kind: Kind, detail: Mapping[str, Any]) -> Entry:
        return Entry(
            seq=self._next,
            order_id=order_id,
            phase=phase,
            kind=kind,
            detail=dict(detail),
            boot_id=self._boot_id,
            at=self._monotonic(),
        )

    def _take(self, entry: Entry) -> None:
        self._next += 1
        self._entries.append(entry)

    def _write(self, line: bytes) -> None:
        data = self._owed + line
        try:
            if self._torn:
                self._cut()
            self._torn = True
            _write_all(self._descriptor, data)
            os.fsync(self._descriptor)
        except OSError as error:
            self.trouble = error.strerror or type(error).__name__
            with contextlib.suppress(OSError):  # else before the next write
                self._cut()
            raise OSError(error.errno, self.trouble, str(self._path)) from error
        self._whole += len(data)
        self._torn, self._owed, self.trouble = False, b"", ""

    def _cut(self) -> None:
        """Take away the half line of a write that failed: the next one would be glued onto it."""
        os.ftruncate(self._descriptor, self._whole)
        self._torn = False

    def entries(self) -> tuple[Entry, ...]:
        """Everything so far, oldest first."""
        with self._lock:
            return tuple(self._entries)

    def notes(self, phase: str) -> list[Entry]:
        """The notes of one name, oldest first."""
        return [each for each in self.entries() if each.kind is Kind.NOTE and each.phase == phase]


def _line(entry: Entry) -> bytes:
    return json.dumps(asdict(entry)).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _parse(line: bytes) -> Entry | None:
    try:
        raw = json.loads(line)
        return Entry(
            seq=int(raw["seq"]),
            order_id=str(raw["order_id"]),
            phase=str(raw["phase"]),
            kind=Kind(raw["kind"]),
            detail=dict(raw["detail"]),
            boot_id=str(raw["boot_id"]),
            at=float(raw["at"]),
        )
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        return None
