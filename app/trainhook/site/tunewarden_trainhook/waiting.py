"""How long the training thread waits for its next batch: the prepared loaders of accelerate are timed."""

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
        return batches if session is None else Timed(batches, session.counters)

    __iter__._tunewarden = original
    return __iter__


class Timed:
    """The loader's own iterator, with a clock around each `next`."""

    def __init__(self, batches, counters):
        self._batches, self._counters = batches, counters

    def __iter__(self):
        return self

    def __next__(self):
        counters = self._counters
        counters.before_batch()
        began = time.monotonic()
        batch = next(self._batches)
        counters.after_batch(time.monotonic() - began)
        return batch

    def __getattr__(self, name):
        return getattr(self._batches, name)
