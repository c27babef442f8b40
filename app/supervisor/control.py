"""The control directory of one generation, from the agent's side. See docs/reference/control-directory.md."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.control_file import (
    NO_ROOM,
    absolute_path,
    loss_of,
    number,
    read_object,
    set_room_aside,
    text,
    whole_number,
    write_object,
)

_MOST_NAMES = 32  # of what a trainer says it can do
_NAME_CHARS = 64
_ERROR_CHARS = 2000
_CRASH_CHARS = 16 * 1024  # before any search in it


class Mode(StrEnum):
    """What a stop request asks for."""

    SAVE = "save"
    SAVE_AND_STOP = "save_and_stop"


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What the trainer says it can do."""

    can: frozenset[str]
    pid: int | None
    framework: str | None = None  # accelerate or transformers, where the training hook said hello
    by: str | None = None  # hook, where the training hook said it; None: the trainer itself
    states: Path | None = None  # the folder where it writes states, where it said so


@dataclass(frozen=True, kw_only=True)
class State:
    """A saved state: the step it holds, and where it is."""

    step: int
    path: Path

    @property
    def whole(self) -> bool:
        """Whether what is named is there, and not under a partial name."""
        try:
            # A mount's root is no state, and measuring it would be measuring the disk.
            return not self.path.name.endswith(".partial") and self.path.exists() and not self.path.is_mount()
        except OSError:  # a name that is too long, a folder that may not be looked into
            return False


@dataclass(frozen=True, kw_only=True)
class TorchMemory:
    """What torch's allocator says of one card: bytes, and counts of this generation. None: not said."""

    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None
    retries: int | None = None
    ooms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """progress.json. Seconds and counts are of this generation, `step` of the whole training. None: not said.

    `loss` may be NaN or infinite. `source` is hook, trainer or log: who counted.
    """

    step: int
    total_steps: int | None = None
    phase: str | None = None
    loss: float | None = None
    step_seconds_sum: float | None = None
    step_seconds_count: int | None = None
    data_wait_seconds_sum: float | None = None
    last_state: State | None = None
    micro_steps: int | None = None
    memory: TorchMemory = TorchMemory()
    source: str = "trainer"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The answer to one request. `state` is set when `ok`; `peak_bytes` is torch's peak during the save.

    Not `consistent`: it was saved inside optimizer.step. `cause` is request, oom or total: what made the trainer save.
    """

    request_id: str
    ok: bool
    state: State | None
    seconds: float | None
    error: str
    peak_bytes: int | None = None
    consistent: bool = True
    cause: str = "request"


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How many processes train, and whether other nodes take part."""

    pids: tuple[int, ...]
    multi_node: bool


@dataclass(frozen=True)
class ControlDirectory:
    """`path` is `<run>/g<N>`. Reading never fails: what is absent, half or not understood reads as None.

    What writes raises Refused, with the file's path, where the host does not let it.
    """

    path: Path

    def hello(self) -> Hello | None:
        raw = self.read("hello.json")
        if raw is None or raw.get("protocol") != 1:
            return None
        can = raw.get("can")
        said = can[:_MOST_NAMES] if isinstance(can, list) else []
        names = frozenset(name for each in said if (name := text(each, _NAME_CHARS)) is not None)
        framework = text(raw.get("framework"), _NAME_CHARS)
        by = text(raw.get("by"), _NAME_CHARS)
        states = absolute_path(raw.get("states"))
        return Hello(can=names, pid=whole_number(raw.get("pid")), framework=framework, by=by, states=states)

    def ranks(self) -> Ranks:
        pids, multi_node = [], False
        for file in sorted(self.path.glob("pid.*.json")):
            raw = self.read(file.name) or {}
            pid = whole_number(raw.get("pid"))
            if pid is not None:
                pids.append(pid)
            world, local = whole_number(raw.get("world_size")), whole_number(raw.get("local_world_size"))
            multi_node = multi_node or (world is not None and local is not None and world > local)
        return Ranks(pids=tuple(pids), multi_node=multi_node)

    def progress(self) -> Progress | None:
        raw = self.read("progress.json")
        step = whole_number(raw.get("step")) if raw else None
        if raw is None or step is None:
            return None
        return Progress(
            step=step,
            total_steps=whole_number(raw.get("total_steps")),
            phase=text(raw.get("phase"), _NAME_CHARS),
            loss=loss_of(raw.get("loss")),
            step_seconds_sum=number(raw.get("step_seconds_sum")),
            step_seconds_count=whole_number(raw.get("step_seconds_count")),
            data_wait_seconds_sum=number(raw.get("data_wait_seconds_sum")),
            last_state=state_of(raw.get("last_state")),
            micro_steps=whole_number(raw.get("micro_steps")),
            memory=memory_of(raw.get("memory")),
            source=text(raw.get("source"), _NAME_CHARS) or "trainer",
        )

    def resumed(self) -> State | None:
        return state_of(self.read("resumed.json"))

    def crash(self) -> str | None:
        """The exception that the trainer wrote about when it died."""
        return text((self.read("crash.json") or {}).get("error"), _CRASH_CHARS)

    def receipt(self, request_id: str) -> Receipt | None:
        """The answer to this request; an answer to another request is none."""
        raw = self.read("receipt.json")
        if raw is None or raw.get("request_id") != request_id:
            return None
        return self._receipt(raw, request_id)

    def last_receipt(self) -> Receipt | None:
        """The newest answer, whatever it answers."""
        raw = self.read("receipt.json")
        request_id = text((raw or {}).get("request_id"), _ERROR_CHARS)
        return None if raw is None or request_id is None else self._receipt(raw, request_id)

    def _receipt(self, raw: Mapping[str, Any], request_id: str) -> Receipt:
        state = state_of(raw)
        ok = raw.get("ok") is True
        error = text(raw.get("error"), _ERROR_CHARS) or ""
        if ok and state is None:
            ok, error = False, "the receipt names no step and path"
        return Receipt(
            request_id=request_id,
            ok=ok,
            state=state if ok else None,
            seconds=number(raw.get("seconds")),
            error=error,
            peak_bytes=whole_number(raw.get("peak_bytes")),
            consistent=raw.get("consistent") in (None, True),
            cause=text(raw.get("cause"), _NAME_CHARS) or "request",
        )

    def set_room_aside(self) -> None:
        """Keep some of the disk for a request and its answer."""
        set_room_aside(self.path)

    def ask(self, request_id: str, mode: Mode) -> None:
        """Put a stop request where the trainer looks. A request that is there or taken already is left alone."""
        if self.asked(request_id):
            return
        self._write("stop", {"request_id": request_id, "mode": mode}, Reason.SAVE_FAILED)

    def asked(self, request_id: str) -> bool:
        """Whether this request was put here before, wherever it is now."""
        names = ("stop", "stop.taken", "stop.withdrawn")
        return any(self._names(name, request_id) for name in names) or self.receipt(request_id) is not None

    def taken(self, request_id: str) -> bool:
        return self._names("stop.taken", request_id) or self.receipt(request_id) is not None

    def taken_request(self) -> tuple[str, str] | None:
        """The request that the trainer took last, and its mode."""
        raw = self.read("stop.taken") or {}
        request_id, mode = raw.get("request_id"), raw.get("mode")
        return (request_id, mode) if isinstance(request_id, str) and isinstance(mode, str) else None

    def withdrawn(self, request_id: str) -> bool:
        return self._names("stop.withdrawn", request_id)

    def withdraw(self, request_id: str) -> bool:
        """Take the request back. False: the trainer took it first. The rename decides, exactly one wins.

        Raises Refused where it can't be put aside: it is deleted then, or the refusal says that it is still there.
        """
        stop, aside = self.path / "stop", self.path / "stop.withdrawn"
        try:
            stop.rename(aside)
        except FileNotFoundError:
            return self.withdrawn(request_id)
        except OSError as error:
            return self._delete_request(stop, error)
        return True

    def _delete_request(self, stop: Path, why: OSError) -> bool:
        try:
            stop.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            said = f"the request to save can't be withdrawn ({error}): {stop} is still there, the job may yet take it"
            raise Refused(Reason.UNCERTAIN, said) from error
        raise Refused(Reason.SAVE_FAILED, f"the request to save was deleted, not put aside: {why}") from why

    def write_resume(self, state: State, from_generation: int) -> None:
        self._write(
            "resume.json",
            {"protocol": 1, "step": state.step, "path": str(state.path), "from_generation": from_generation},
            Reason.UNCERTAIN,
        )

    def write_hook(self, content: Mapping[str, Any]) -> None:
        """What the training hook is told before the launch."""
        self._write("hook.json", content, Reason.UNCERTAIN)

    def resume(self) -> State | None:
        """The state that this generation was told to go on from."""
        return state_of(self.read("resume.json"))

    def _names(self, name: str, request_id: str) -> bool:
        raw = self.read(name)
        return raw is not None and raw.get("request_id") == request_id

    def read(self, name: str) -> dict[str, Any] | None:
        """A file's JSON object, or None."""
        return read_object(self.path / name)

    def _write(self, name: str, content: Mapping[str, Any], otherwise: Reason) -> None:
        try:
            write_object(self.path / name, content)
        except OSError as error:
            said = f"{self.path / name} can't be written: {error.strerror}"
            raise Refused(Reason.NO_DISK_SPACE if error.errno in NO_ROOM else otherwise, said) from error


def memory_of(raw: object) -> TorchMemory:
    """What was said of torch's allocator; what is absent or no count is None."""
    said = raw if isinstance(raw, dict) else {}
    return TorchMemory(**{field.name: whole_number(said.get(field.name)) for field in fields(TorchMemory)})


def state_of(raw: object) -> State | None:
    """A `{"step", "path"}`, or None."""
    if not isinstance(raw, dict):
        return None
    step, path = whole_number(raw.get("step")), absolute_path(raw.get("path"))
    return State(step=step, path=path) if step is not None and path is not None else None
