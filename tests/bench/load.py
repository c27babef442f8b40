"""A load client in a process of its own: `python -m tests.bench.load URL_PORT TOKEN CONNECTIONS SECONDS [ACKED_FILE]`.

Raw sockets and ready-made requests, so that one core drives the server to its limit. Each body is unique. Prints one
JSON object: requests, seconds, p50_ms, p99_ms, statuses. With ACKED_FILE it writes the number of every body that was
answered 202, and flushes before it sends the next: what a kill test compares with the store.
"""

import asyncio
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TextIO, cast

import uvloop

ALERT = {
    "status": "firing",
    "labels": {"alertname": "GpuMemoryNearlyFull", "uuid": "GPU-6a1d0c52-0000-4000-8000-000000000000", "node": "gpu-1"},
    "annotations": {"summary": "The card is nearly full. " + "x" * 400},
    "startsAt": "2026-11-30T18:59:04.579Z",
    "endsAt": "0001-01-01T00:00:00Z",
    "generatorURL": "http://prometheus:9090/graph?g0.expr=x",
    "fingerprint": "%016d",
}


def template() -> bytes:
    """A body of about 1.1 kB with a place for one number of 16 digits."""
    body = {
        "receiver": "tunewarden",
        "status": "firing",
        "alerts": [ALERT],
        "groupLabels": {"alertname": "GpuMemoryNearlyFull"},
        "commonLabels": ALERT["labels"],
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "version": "4",
        "groupKey": '{}:{alertname="GpuMemoryNearlyFull"}',
        "truncatedAlerts": 0,
    }
    return json.dumps(body).encode()


_LENGTH = re.compile(rb"content-length: (\d+)")


class Client(asyncio.Protocol):
    """One connection: one request after another until `until`."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own classes
        self._send()

    def _send(self) -> None:
        self._buffer = b""
        self._begun = time.perf_counter()
        self._number, request = self._load.next_request()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        # Head and body of an answer may come in two pieces.
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end or len(body) < int(_LENGTH.search(head)[1]):  # type: ignore[index]
            return
        self._buffer = b""
        self._load.answered(self._number, head[9:12], time.perf_counter() - self._begun)
        if time.perf_counter() < self._load.until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Load:
    """What all connections share."""

    def __init__(self, port: int, token: str, seconds: float, acked: TextIO | None) -> None:
        body = template()
        head = (
            f"POST /api/v1/alertmanager HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: Alertmanager/0.25.0\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body) - len(b'%016d') + 16}\r\n\r\n"
        ).encode()
        self._before, self._after = (head + body).split(b"%016d")
        self.begun = time.perf_counter()
        self.until = self.begun + seconds
        self._next = 0
        self._acked = acked
        self.seconds: list[float] = []
        self.statuses: Counter[str] = Counter()

    def next_request(self) -> tuple[int, bytes]:
        self._next += 1
        return self._next, b"%b%016d%b" % (self._before, self._next, self._after)

    def answered(self, number: int, status: bytes, seconds: float) -> None:
        self.statuses[status.decode()] += 1
        self.seconds.append(seconds)
        if self._acked is not None and status == b"202":
            self._acked.write(f"{number:016d}\n")
            self._acked.flush()

    def result(self) -> dict[str, object]:
        ordered = sorted(self.seconds) or [0.0]
        return {
            "requests": len(self.seconds),
            "seconds": time.perf_counter() - self.begun,
            "p50_ms": ordered[len(ordered) // 2] * 1000,
            "p99_ms": ordered[len(ordered) * 99 // 100] * 1000,
            "statuses": dict(self.statuses),
        }


async def _main(port: int, token: str, connections: int, seconds: float, acked: TextIO | None) -> dict[str, object]:
    load = Load(port, token, seconds, acked)
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Client(load), "127.0.0.1", port) for _ in range(connections)]
    await asyncio.gather(*(client.done for _transport, client in made))
    return load.result()


def main(argv: list[str]) -> None:
    acked = Path(argv[4]).open("w", encoding="ascii") if len(argv) > 4 else None  # noqa: SIM115 - open till the end
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_main(int(argv[0]), argv[1], int(argv[2]), float(argv[3]), acked))))


if __name__ == "__main__":
    main(sys.argv[1:])
