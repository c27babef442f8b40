"""The thread that asks the service for an order, as long as the agent could take one."""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tunewarden.errors import Permanent, Retryable
from tunewarden.supervisor.client import Service

_LONGEST_PAUSE_S = 5.0
_SHORTEST_S = 0.5
log = logging.getLogger(__name__)


class OrderPoll:
    """One long poll after another while `open_for(generation)` was said; an order found closes it again."""

    def __init__(self, service: Service, *, on_order: Callable[[], None]) -> None:
        self._service, self._on_order = service, on_order
        self._changed = threading.Condition()
        self._generation: int | None = None
        self._found: Mapping[str, Any] | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def open_for(self, generation: int) -> None:
        """Ask for orders for this generation, unless one found waits to be taken."""
        with self._changed:
            if self._found is None and self._generation != generation:
                self._generation = generation
                self._changed.notify_all()

    def take(self) -> Mapping[str, Any] | None:
        """The order that was found, once."""
        with self._changed:
            found, self._found = self._found, None
            return found

    def close(self) -> None:
        with self._changed:
            self._closing, self._generation = True, None
            self._changed.notify_all()

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._generation is not None or self._closing)
                if self._closing or self._generation is None:
                    return
                generation = self._generation
            failures = 0 if self._ask(generation) else failures + 1
            if failures:
                self._pause(failures)

    def _ask(self, generation: int) -> bool:
        asked_at = time.monotonic()
        try:
            order = self._service.order(generation)
        except (Retryable, Permanent) as error:
            log.info("no order: %s", error)
            return False
        except Exception:
            log.exception("the order poll failed")
            return False
        if order is None:
            return time.monotonic() - asked_at > _SHORTEST_S  # a service that shuts down answers at once
        with self._changed:
            self._found, self._generation = order, None
        self._on_order()
        return True

    def _pause(self, failures: int) -> None:
        seconds = min(_LONGEST_PAUSE_S, 0.1 * 2.0**failures) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)
