"""The control directory of one generation, from the agent's side. See docs/reference/control-directory.md."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 20  # the job writes these files: a reader takes no more than this


class Mode(StrEnum):
    """What a stop request asks for."""

    SAVE = "save"
    SAVE_AND_STOP = "save_and_stop"


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What the trainer says it can do."""

    can: frozenset[str]
    pid: int | None


@dataclass(frozen=True, kw_only=True)
class State:
    """A saved state: the step it holds, and where it is."""

    step: int
    path: Path

    @property
    def whole(self) -> bool:
        """Whether what is named is there, and not under a partial name."""
        return not self.path.name.endswith(".partial") and self.path.exists()


@dataclass(frozen=True, kw_only=True)
class Progress:
    """progress.json. Seconds and counts are of this generation, `step` of the whole training. None: not said."""

    step: int
    total_steps: int | None
    phase: str | None
    loss: float | None
    step_seconds_sum: float | None
    step_seconds_count: int | None
    data_wait_seconds_sum: float | None
    last_state: State | None


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The answer to one request. `state` is set when `ok`."""

    request_id: str
    ok: bool
    state: State | None
    seconds: float | None
    error: str


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How many processes train, and whether other nodes take part."""

    pids: tuple[int, ...]
    multi_node: bool


@dataclass(frozen=True)
class ControlDirectory:
    """`path` is `<run>/g<N>`. Reading never fails: what is absent, half or not understood reads as None."""

    path: Path

    def hello(self) -> Hello | None:
        raw = self._read("hello.json")
        if raw is None or raw.get("protocol") != 1:
            return None
        can = raw.get("can")
        names = frozenset(each for each in can if isinstance(each, str)) if isinstance(can, list) else frozenset()
        return Hello(can=names, pid=_whole(raw.get("pid")))

    def ranks(self) -> Ranks:
        pids, multi_node = [], False
        for file in sorted(self.path.glob("pid.*.json")):
            raw = self._read(file.name) or {}
            pid = _whole(raw.get("pid"))
            if pid is not None:
                pids.append(pid)
            world, local = _whole(raw.get("world_size")), _whole(raw.get("local_world_size"))
            multi_node = multi_node or (world is not None and local is not None and world > local)
        return Ranks(pids=tuple(pids), multi_node=multi_node)

    def progress(self) -> Progress | None:
        raw = self._read("progress.json")
        step = _whole(raw.get("step")) if raw else None
        if raw is None or step is None:
            return None
        phase = raw.get("phase")
        return Progress(
            step=step,
            total_steps=_whole(raw.get("total_steps")),
            phase=phase if isinstance(phase, str) else None,
            loss=_number(raw.get("loss")),
            step_seconds_sum=_number(raw.get("step_seconds_sum")),
            step_seconds_count=_whole(raw.get("step_seconds_count")),
            data_wait_seconds_sum=_number(raw.get("data_wait_seconds_sum")),
            last_state=_state(raw.get("last_state")),
        )

    def resumed(self) -> State | None:
        return _state(self._read("resumed.json"))

    def crash(self) -> str | None:
        """The exception that the trainer wrote about when it died."""
        error = (self._read("crash.json") or {}).get("error")
        return error if isinstance(error, str) else None

    def receipt(self, request_id: str) -> Receipt | None:
        """The answer to this request; an answer to another request is none."""
        raw = self._read("receipt.json")
        if raw is None or raw.get("request_id") != request_id:
            return None
        state = _state(raw)
        ok = raw.get("ok") is True
        error = raw.get("error") if isinstance(raw.get("error"), str) else ""
        if ok and state is None:
            ok, error = False, "the receipt names no step and path"
        return Receipt(
            request_id=request_id,
            ok=ok,
            state=state if ok else None,
            seconds=_number(raw.get("seconds")),
            error=str(error),
        )

    def ask(self, request_id: str, mode: Mode) -> None:
        """Put a stop request where the trainer looks. A request that is there or taken already is left alone."""
        if self.asked(request_id):
            return
        self._write("stop", {"request_id": request_id, "mode": mode})

    def asked(self, request_id: str) -> bool:
        """Whether this request was put here before, wherever it is now."""
        names = ("stop", "stop.taken", "stop.withdrawn")
        return any(self._names(name, request_id) for name in names) or self.receipt(request_id) is not None

    def taken(self, request_id: str) -> bool:
        return self._names("stop.taken", request_id) or self.receipt(request_id) is not None

    def taken_request(self) -> tuple[str, str] | None:
        """The request that the trainer took last, and its mode."""
        raw = self._read("stop.taken") or {}
        request_id, mode = raw.get("request_id"), raw.get("mode")
        return (request_id, mode) if isinstance(request_id, str) and isinstance(mode, str) else None

    def withdrawn(self, request_id: str) -> bool:
        return self._names("stop.withdrawn", request_id)

    def withdraw(self, request_id: str) -> bool:
        """Take the request back. False: the trainer took it first. The rename decides, exactly one wins."""
        try:
            (self.path / "stop").rename(self.path / "stop.withdrawn")
        except FileNotFoundError:
            return self.withdrawn(request_id)
        return True

    def write_resume(self, state: State, from_generation: int) -> None:
        self._write(
            "resume.json",
            {"protocol": 1, "step": state.step, "path": str(state.path), "from_generation": from_generation},
        )

    def resume(self) -> State | None:
        """The state that this generation was told to go on from."""
        return _state(self._read("resume.json"))

    def _names(self, name: str, request_id: str) -> bool:
        raw = self._read(name)
        return raw is not None and raw.get("request_id") == request_id

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with (self.path / name).open("rb") as file:
                raw = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return raw if isinstance(raw, dict) else None

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        descriptor, temp = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        Path(temp).replace(self.path / name)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: object) -> float | None:
    """A finite number. NaN and infinity are no JSON, and the service would refuse the whole message."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < float("inf") else None


def _state(raw: object) -> State | None:
    if not isinstance(raw, dict):
        return None
    step, path = _whole(raw.get("step")), raw.get("path")
    if step is None or not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        return None
    return State(step=step, path=Path(path))
