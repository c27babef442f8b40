"""The prepared loaders of accelerate: how long training waits for a batch, and that none comes after the total."""

import functools
import time

from . import session as sessions


def patch(module):
    """`module` is accelerate.data_loader, just imported."""
    for name in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
        owner = getattr(module, name, None)
        original = vars(owner).get("__iter__") if owner is not None else None
        if original is not None and not hasattr(original, "_tunewarden"):
            owner.__iter__ = _timed(original)


def _timed(original):
    @functools.wraps(original)
    def __iter__(self):
        batches = original(self)
        session = sessions.current()
        return batches if session is None else Timed(batches, session, self)

    __iter__._tunewarden = original
    return __iter__


class Timed:
    """The loader's own iterator, with a clock around each `next`, and an end of its own at the planned total."""

    def __init__(self, batches, session, loader):
        self._batches, self._session, self._loader = batches, session, loader

    def __iter__(self):
        return self

    def __next__(self):
        session, counters = self._session, self._session.counters
        if session.alive and session.boundary is not None and session.guarded(session.boundary.over, self._loader):
            raise StopIteration
        counters.before_batch()
        began = time.monotonic()
        batch = next(self._batches)
        counters.after_batch(time.monotonic() - began)
        session.gave = self._loader
        return batch

    def __getattr__(self, name):
        return getattr(self._batches, name)
