"""The hook's parts that need no trainer: imports that are waited for, the control directory, an update's boundary."""

import importlib
import inspect
import json
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tunewarden.shipped import hook_dir

PACKAGE = "tunewarden_trainhook"


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a part of the hook; afterwards it is gone, and so are its finders."""
    monkeypatch.syspath_prepend(str(hook_dir()))
    finders = list(sys.meta_path)
    yield lambda name: importlib.import_module(f"{PACKAGE}.{name}")
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package `trainlib` with a module `loop` that the hook is to wait for."""
    folder = tmp_path / "trainlib"
    folder.mkdir()
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "loop.py").write_text("class Loop:\n    def step(self):\n        return 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "trainlib.loop"
    for name in ("trainlib.loop", "trainlib"):
        sys.modules.pop(name, None)


@pytest.fixture
def patching(part: Callable[[str], ModuleType], library: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`importing`, waiting for the library with a part that doubles what a step gives."""

    def patch(module: ModuleType) -> None:
        original = module.Loop.step
        module.Loop.step = lambda self: 2 * original(self)

    importing = part("importing")
    double = ModuleType(f"{PACKAGE}.double")
    double.patch = patch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.double", double)
    importing.watch_imports({library: ".double"})
    return importing


def test_a_module_is_patched_when_it_is_imported_and_looks_as_before(patching: ModuleType, library: str) -> None:
    """Its loader, its source and pickles of its objects are what they are without the hook."""
    module = importlib.import_module(library)
    loader = importlib.machinery.SourceFileLoader

    assert module.Loop().step() == 2
    assert (type(module.__loader__), type(module.__spec__.loader)) == (loader, loader)  # type: ignore[union-attr]
    assert inspect.getsource(module.Loop).startswith("class Loop:")
    assert isinstance(pickle.loads(pickle.dumps(module.Loop())), module.Loop)


def test_a_module_that_is_loaded_again_is_patched_again(patching: ModuleType, library: str) -> None:
    """Once, not twice."""
    module = importlib.reload(importlib.import_module(library))

    assert module.Loop().step() == 2


def test_a_module_that_is_there_already_is_patched_at_once(part: Callable[[str], ModuleType], library: str) -> None:
    """A sitecustomize further on may have imported it."""
    seen = importlib.import_module(library)
    importing = part("importing")
    late = ModuleType(f"{PACKAGE}.late")
    late.patch = lambda module: setattr(module, "patched", True)  # type: ignore[attr-defined]
    sys.modules[f"{PACKAGE}.late"] = late
    importing.watch_imports({library: ".late"})

    assert seen.patched


def test_a_patch_that_fails_leaves_the_module_alone(
    part: Callable[[str], ModuleType], library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of the library that the hook doesn't understand: one line in hook.log, and the import succeeds."""
    monkeypatch.setenv("TUNEWARDEN_CONTROL_DIR", str(tmp_path))
    part("importing").watch_imports({library: ".no_such_part"})

    assert importlib.import_module(library).Loop().step() == 1
    assert "no_such_part" in (tmp_path / "hook.log").read_text(encoding="utf-8")


def test_of_taking_and_withdrawing_exactly_one_succeeds(part: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """The trainer and the agent rename the same file at the same moment, 200 times."""
    control = part("control").Control(str(tmp_path))
    outcomes = set()
    for number in range(200):
        (tmp_path / "stop").write_text(json.dumps({"request_id": f"r-{number}", "mode": "save"}), encoding="utf-8")
        start, taken = threading.Barrier(2), []

        def take(start: threading.Barrier = start, taken: list[Any] = taken) -> None:
            start.wait()
            taken.append(control.take_stop())

        thread = threading.Thread(target=take)
        thread.start()
        start.wait()
        try:
            (tmp_path / "stop").rename(tmp_path / "stop.withdrawn")
            withdrawn = True
        except FileNotFoundError:
            withdrawn = False
        thread.join()
        outcomes.add((withdrawn, taken[0] is not None))
        assert taken[0] is None or taken[0]["request_id"] == f"r-{number}"

    assert outcomes <= {(True, False), (False, True)}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"mode": "save"}', '{"request_id": 7}'])
def test_a_request_that_is_none_is_no_request(part: Callable[[str], ModuleType], tmp_path: Path, text: str) -> None:
    """Half a file, no object, no id: nobody could answer it."""
    (tmp_path / "stop").write_text(text, encoding="utf-8")

    assert part("control").Control(str(tmp_path)).take_stop() is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, (None, "trainer", None, False, 0)),
        (
            {"resume_by": "me", "base_step": -1, "total_steps": True, "stop_at_total": 1},
            (None, "trainer", None, False, 0),
        ),
        (
            {"states": "/s", "resume_by": "hook", "base_step": 31, "total_steps": 100, "stop_at_total": True},
            ("/s", "hook", 100, True, 31),
        ),
    ],
)
def test_what_the_agent_says_is_read_with_care(
    part: Callable[[str], ModuleType], content: dict[str, Any] | None, expected: tuple[object, ...]
) -> None:
    """hook.json may be absent, older or newer."""
    read = part("settings").Settings(content)

    assert (read.states, read.resume_by, read.total_steps, read.stop_at_total, read.base_step) == expected


def moments(update: Any, adapter: Any, order: str) -> list[int]:
    """Play the calls of a loop; gives the positions at which the boundary is due."""
    found = []
    for number, call in enumerate(order.split()):
        if call.startswith("step"):
            update.optimizer_stepped(adapter.optimizers()[int(call[4:] or 0)], adapter)
        elif call == "sched":
            update.scheduler_stepped(adapter.schedulers()[0])
        name = {"sched": "scheduler", "zero": "zero_grad", "back": "backward"}.get(call)
        if name is not None and update.due(adapter, name):
            update.begin_next()
            found.append(number)
    return found


@pytest.mark.parametrize(
    ("order", "optimizers", "schedulers", "due"),
    [
        ("back step sched zero back step sched zero", 1, 1, [3, 7]),
        ("zero back step sched zero back step sched zero", 1, 1, [4, 8]),
        ("back step zero sched back step zero sched", 1, 1, [3, 7]),
        ("back step zero back step zero", 1, 0, [2, 5]),
        ("back step zero back step zero sched back", 1, 1, [3, 6]),  # the schedule steps once an epoch
        ("back back step sched back", 1, 1, [4]),  # model.zero_grad(), which we don't see
        ("zero back step0 zero back step1 zero", 2, 0, [6]),  # two optimizers, one after the other
        ("zero back step0 zero back step0 zero back", 2, 0, [6]),  # only one of them is ever used
        ("zero back zero back", 1, 1, []),
    ],
)
def test_the_boundary_of_a_loop_without_blocks(
    part: Callable[[str], ModuleType], order: str, optimizers: int, schedulers: int, due: list[int]
) -> None:
    """After optimizer and scheduler, and before a gradient is needed again."""
    made, driving = [object() for _ in range(optimizers)], [object() for _ in range(schedulers)]
    adapter = SimpleNamespace(optimizers=lambda: made, schedulers=lambda: driving, loose_schedulers=list)

    assert moments(part("accelerate_adapter").Update(), adapter, order) == due


class OutOfMemoryError(RuntimeError):
    """As torch's."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(part: Callable[[str], ModuleType], error: Exception, expected: bool) -> None:
    """By class, else by the words of torch and its libraries."""
    assert part("oom").is_oom(error) is expected


def test_on_a_full_disk_the_room_that_was_set_aside_is_given_up(
    part: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt must be written all the same."""
    control = part("control").Control(str(tmp_path))
    (tmp_path / ".room").write_bytes(bytes(64))
    write = control._write

    def full_while_the_room_is_there(name: str, data: bytes) -> None:
        if (tmp_path / ".room").exists():
            raise OSError(28, "No space left on device")
        write(name, data)

    monkeypatch.setattr(control, "_write", full_while_the_room_is_there)

    assert control.write("receipt.json", {"ok": False})
    assert control.read("receipt.json") == {"ok": False}
    assert not (tmp_path / ".room").exists()


class Card:
    """torch.cuda of a card on which a save needs 300 bytes more than the 700 that training holds."""

    def __init__(self) -> None:
        self.cached, self.peak = 250, 950

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def empty_cache(self) -> None:
        self.cached = 0

    def max_memory_allocated(self) -> int:
        return self.peak

    def reset_peak_memory_stats(self) -> None:
        self.peak = 700

    def memory_stats(self, device: int) -> dict[str, int]:
        return {"allocated_bytes.all.peak": self.peak}


def test_a_save_gives_the_cache_back_first_and_tells_its_peak(
    part: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment at which a full card is in danger; the training's own peak is not forgotten."""
    card = Card()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=card))

    def write(folder: str) -> None:
        assert card.cached == 0
        card.peak = 1000
        (Path(folder) / "weights").write_bytes(b"w")

    adapter = SimpleNamespace(
        save=write, settle=lambda folder: None, facts=dict, states_folder=lambda: str(tmp_path), state_name="s-{step}"
    )
    session = SimpleNamespace(
        rank=0,
        world_size=1,
        peak_floor=0,
        progress=None,
        adapter=adapter,
        settings=part("settings").Settings(None),
        counters=part("stepping").Counters(7, None),
        agreement=part("ranks").Alone(None),
    )
    receipt = part("saving").save(session, "request").to_receipt()

    assert {**receipt, "seconds": 0} == {
        "ok": True,
        "cause": "request",
        "consistent": True,
        "step": 7,
        "path": str(tmp_path / "s-7"),
        "seconds": 0,
        "peak_bytes": 1000,
    }
    assert session.peak_floor == 950
    assert {path.name for path in (tmp_path / "s-7").iterdir()} == {"weights", "tunewarden.json"}


class Tensor:
    """What a failed step holds."""


def test_an_exception_that_is_caught_holds_nothing(part: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """A loop that skips the batch has the memory of the failed step back at once, though crash.json is written."""
    control = part("control").Control(str(tmp_path))
    counters = SimpleNamespace(step=3, steps_here=3, phase="train")
    session = SimpleNamespace(control=control, counters=counters, adapter=None, rank=0)
    crash = part("crash").Crash(session)
    held: list[weakref.ref[Tensor]] = []

    def step() -> None:
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        raise ValueError("this batch")

    def skip() -> None:
        try:
            step()
        except ValueError as error:
            crash.passing(error)
            control.remove("crash.json")
            crash.passing(error)  # further up: it is written once

    skip()

    assert (held[0](), control.read("crash.json")) == (None, None)
