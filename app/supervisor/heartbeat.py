"""What the service is told every few seconds, and the thread that tells it."""

import dataclasses
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tunewarden.errors import Permanent, Retryable
from tunewarden.processes.tree import Member
from tunewarden.sampling.gpu import GpuReading
from tunewarden.sampling.host import HostSampler
from tunewarden.supervisor.client import PROTOCOL, Service, UnknownJob
from tunewarden.supervisor.generation_watch import GenerationWatch
from tunewarden.supervisor.host_watch import HostWatch, read_bytes
from tunewarden.supervisor.service_watch import ServiceWatch

_TICKS = os.sysconf("SC_CLK_TCK")
log = logging.getLogger(__name__)


class Samples:
    """Makes the body of a heartbeat. `state` says running, waiting or ended."""

    def __init__(self, host: HostWatch, *, state: Callable[[], str], monotonic: Callable[[], float]) -> None:
        self._host, self._state, self._monotonic = host, state, monotonic
        self._sampler = HostSampler()

    def body(self, watch: GenerationWatch) -> dict[str, Any]:
        """One heartbeat, by docs/reference/jobs-api.md."""
        members = self._host.members()
        pids = frozenset(member.id.pid for member in members)
        gpus = self._host.gpus()
        cards = self._host.job_gpus(gpus, pids)
        hello = watch.control.hello()
        return {
            "protocol": PROTOCOL,
            "generation": watch.generation,
            "state": self._state(),
            "wall": time.time(),
            "can": sorted(hello.can) if hello else [],
            "gpus_of_job": names_of(cards),
            "gpus": [_gpu(gpu, pids) for gpu in gpus],
            "host": dataclasses.asdict(self._sampler.read()),
            "job": self._job(watch, members),
        }

    def _job(self, watch: GenerationWatch, members: tuple[Member, ...]) -> dict[str, Any]:
        watch.log.read()
        now = self._monotonic()
        progress = watch.newest({member.id.pid for member in members}, now)
        return {
            **watch.counted(progress, now, alive=self._state() == "running"),
            **watch.besides(progress),
            "rss_bytes": sum(member.rss_bytes for member in members) if members else None,
            "cpu_cores": _cpu_cores(watch, members, now),
            "read_bytes": read_bytes(member.id.pid for member in members),
            "oom_lines": watch.log.oom_lines,
            "log_idle_s": watch.log.idle_s(time.time()),
        }


def names_of(gpus: tuple[GpuReading, ...] | None) -> list[dict[str, Any]] | None:
    """Cards as the service registers them; None: unknown."""
    return None if gpus is None else [{"uuid": gpu.uuid, "index": gpu.index} for gpu in gpus]


def _gpu(gpu: GpuReading, pids: frozenset[int]) -> dict[str, Any]:
    processes = [
        {"pid": each.pid, "memory": each.memory, "ours": each.pid in pids, "name": each.name}
        for each in gpu.processes or ()
    ]
    return {**dataclasses.asdict(gpu), "processes": None if gpu.processes is None else processes}


def _cpu_cores(watch: GenerationWatch, members: tuple[Member, ...], now: float) -> float | None:
    """Cores that the living tree kept busy since the last look. What ended takes its time away: never below 0."""
    spent = sum(member.cpu_ticks for member in members) / _TICKS
    before, watch.cpu = watch.cpu, (now, spent)
    if before is None or now <= before[0]:
        return None
    return max(0.0, (spent - before[1]) / (now - before[0]))


class Heartbeat:
    """A thread: registers when asked to, then sends a heartbeat every `every_s` seconds."""

    def __init__(
        self,
        service: Service,
        *,
        every_s: float,
        registration: Callable[[], Mapping[str, Any]],
        body: Callable[[], Mapping[str, Any]],
        watch: ServiceWatch,
    ) -> None:
        self._service, self._every_s, self._watch = service, every_s, watch
        self._registration, self._body = registration, body
        self._wake = threading.Event()
        self._unregistered = threading.Event()
        self._unregistered.set()
        self._closing = False
        self._said: str | None = None
        self._registered: Mapping[str, Any] | None = None
        self.newest: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None  # a registration and a heartbeat
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def register_again(self) -> None:
        """Register before the next heartbeat, and make that at once."""
        self._unregistered.set()
        self._wake.set()

    def close(self, timeout: float) -> None:
        """One heartbeat more, with the last state, then none; waits at most `timeout` seconds for it."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            last, started = self._closing, time.monotonic()
            self._wake.clear()
            went = self._beat()
            if last:
                return
            if self._closing:
                continue
            pause = self._every_s if went else min(self._every_s, 2.0) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
            self._wake.wait(max(0.05, pause - (time.monotonic() - started)))

    def _beat(self) -> bool:
        try:
            body = self._body()  # first: a Pushgateway gets it where the service is away
            if self._unregistered.is_set() or self._registered is None:
                self._unregistered.clear()
                self._registered = self._registration()
                self.newest = (self._registered, body)
                self._register(self._registered)
            self.newest = (self._registered, body)
            self._service.heartbeat({**body, "wall": time.time()})
        except UnknownJob as error:
            self._unregistered.set()
            self._watch.failed(error, time.monotonic())
            return False
        except (Retryable, Permanent) as error:
            self._watch.failed(error, time.monotonic())
            self._tell(str(error))
            return False
        except Exception:
            log.exception("no heartbeat this time")
            return True
        self._watch.answered()
        self._said = None
        return True

    def _register(self, registration: Mapping[str, Any]) -> None:
        try:
            self._service.register(registration)
        except Exception:
            self._unregistered.set()
            raise

    def _tell(self, text: str) -> None:
        """The first of many equal failures is a line in the log."""
        if text != self._said:
            log.warning("the service can't be told: %s", text)
            self._said = text
