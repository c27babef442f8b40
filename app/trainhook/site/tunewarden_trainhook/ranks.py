"""How the ranks of a run agree: `agreement(session)` gives an object with the four methods of `Alone`.

The boundary calls them on every rank, in the same order.
"""


class Alone:
    """One rank: it agrees with itself."""

    def __init__(self, control):
        self._control = control

    def poll(self, step):
        """At each boundary. The request {"request_id", "mode"} when all ranks act on it at this step, else None."""
        return self._control.take_stop()

    def all_ok(self, ok):
        """A barrier: True when every rank came here with True."""
        return ok

    def close(self):
        """Training ends."""


def agreement(session):
    return Alone(session.control)
