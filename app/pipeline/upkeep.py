"""The upkeep: prunes what is old or too much, and keeps the gauges of the store up to date."""

import asyncio
from datetime import timedelta

import structlog

from tunewarden.adapters.store.engine import Store
from tunewarden.adapters.store.prune import BITE, PruneAges, prune
from tunewarden.errors import StoreUnavailable
from tunewarden.ports import Clock

log = structlog.get_logger(__name__)


class Upkeep:
    """One a service. Looks every `every`, and at the start."""

    def __init__(self, store: Store, clock: Clock, ages: PruneAges, *, every: timedelta) -> None:
        self._store, self._clock, self._ages, self._every = store, clock, ages, every

    async def run(self, stopping: asyncio.Event) -> None:
        """Prune until `stopping` is set."""
        while not stopping.is_set():
            try:
                await self.prune()
            except StoreUnavailable as error:
                log.warning("the store is away", action="upkeep_waits", error=str(error))
            except Exception:
                log.exception("pruning failed", action="upkeep_failed")
            try:
                async with asyncio.timeout(self._every.total_seconds()):
                    await stopping.wait()
            except TimeoutError:
                continue

    async def prune(self) -> None:
        """Delete in bites, so that a delivery never waits for a long delete."""
        while True:
            now = self._clock.now().timestamp()
            removed = await self._store.write(lambda conn, now=now: prune(conn, now, self._ages))  # type: ignore[misc]
            if removed:
                log.info("pruned", action="pruned", **removed)
            if max(removed.values(), default=0) < BITE:
                return
