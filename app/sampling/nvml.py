"""The cards as the driver tells them (nvidia-ml-py). One lost card or one missing value never hides the rest."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pynvml

from tunewarden.sampling.process import process_name
from tunewarden.sampling.reading import GpuProcess, GpuReading, Readings

T = TypeVar("T")

_log = logging.getLogger(__name__)
# A card or a driver that does not have the value: nothing is wrong.
_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
# The whole card is gone; what it still answers means nothing.
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN)
# The driver has gone or was never there when we began: begin again at the next read.
_REINIT = (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


class NvmlSource:
    """Reads in a thread of its own, for NVML calls can hang.

    After `deadline_s` the last values are given, with their age.
    """

    def __init__(self, deadline_s: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._deadline_s = deadline_s
        self._clock = clock
        self._began = clock()
        self._thread: threading.Thread | None = None
        self._last: tuple[float, Readings] | None = None
        self._ready = False

    def read(self) -> Readings:
        if self._thread is None or not self._thread.is_alive():
            self._began = self._clock()
            self._thread = threading.Thread(target=self._collect, name="nvml", daemon=True)
            self._thread.start()
        self._thread.join(self._deadline_s)
        late = self._thread.is_alive()
        at, readings = self._last or (self._began, Readings())
        age = max(0.0, self._clock() - at)
        gpus = tuple(replace(gpu, age_s=age) for gpu in readings.gpus)
        if not late:
            return Readings(gpus=gpus, errors=readings.errors)
        silent_s = self._clock() - self._began
        return Readings(gpus=gpus, errors=(f"the NVIDIA driver has not answered for {silent_s:.0f} s",))

    def _collect(self) -> None:
        try:
            readings = self._read_all()
        except pynvml.NVMLError as error:
            if error.value in _REINIT:
                self._begin_again()
            readings = Readings(errors=(_say("NVML", error),))
        except Exception:  # noqa: BLE001 - the loop boundary of this thread: one bad answer must not end the sampling
            _log.exception("reading the cards failed")
            readings = Readings(errors=("reading the cards failed; the agent's log has the traceback",))
        self._last = (self._clock(), readings)

    def _begin_again(self) -> None:
        self._ready = False
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _read_all(self) -> Readings:
        if not self._ready:
            pynvml.nvmlInit()
            self._ready = True
        gpus: list[GpuReading] = []
        errors: list[str] = []
        count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                gpus.append(_Card(index, errors).read())
            except pynvml.NVMLError as error:
                if error.value in _REINIT:
                    raise
                errors.append(_say(f"GPU {index}", error))
        if not count:
            errors.append("the NVIDIA driver sees no card")
        return Readings(gpus=tuple(gpus), errors=tuple(errors))


class _Card:
    """One card during one read. NVMLError from the constructor or `read` means that the whole card is lost."""

    def __init__(self, index: int, errors: list[str]) -> None:
        self._index = index
        self._errors = errors
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def read(self) -> GpuReading:
        used, free, total = self._value("memory", self._memory) or (None, None, None)
        return GpuReading(
            uuid=pynvml.nvmlDeviceGetUUID(self._handle),
            index=self._index,
            name=self._value("name", lambda: str(pynvml.nvmlDeviceGetName(self._handle))) or "",
            memory_used=used,
            memory_free=free,
            memory_total=total,
            utilization=self._value(
                "utilization", lambda: float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            ),
            temperature=self._value(
                "temperature",
                lambda: float(pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)),
            ),
            power_watts=self._value("power", lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000.0),
            processes=self._value("processes", self._processes),
        )

    def _value(self, what: str, get: Callable[[], T]) -> T | None:
        try:
            return get()
        except pynvml.NVMLError as error:
            if error.value in _LOST + _REINIT:
                raise
            if error.value not in _ABSENT:
                self._errors.append(_say(f"GPU {self._index}: {what}", error))
            return None

    def _memory(self) -> tuple[int, int, int]:
        """Used, free, total. In v1 (drivers before about 510) `used` counts the driver's reserve too."""
        try:
            info = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        except pynvml.NVMLError as error:
            if error.value not in _ABSENT:
                raise
            info = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        return int(info.used), int(info.free), int(info.total)

    def _processes(self) -> tuple[GpuProcess, ...]:
        found: dict[int, int | None] = {}
        for get in (_compute_processes, _graphics_processes):
            for process in get(self._handle):
                memory = process.usedGpuMemory
                before = found.get(process.pid)
                found[process.pid] = before if memory is None else max(int(memory), before or 0)
        return tuple(GpuProcess(pid=pid, memory=memory, name=process_name(pid)) for pid, memory in found.items())


def _compute_processes(handle: Any) -> list[Any]:
    try:
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle))  # drivers before about 510


def _graphics_processes(handle: Any) -> list[Any]:
    """A desktop holds memory of the card too; a driver that can't list it only hides that."""
    try:
        return list(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle))
    except pynvml.NVMLError as error:
        if error.value not in _ABSENT:
            raise
        return []


def _say(what: str, error: Any) -> str:
    hint = "; start the agent again" if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH else ""
    return f"{what}: {error} (NVML error {error.value}){hint}"
