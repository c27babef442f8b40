"""How the ranks of a run agree: `agreement(session)` gives an object with the four methods of `Alone`.

The boundary calls them on every rank, in the same order. Several ranks agree through the process group's own store
(its TCP server, no collective and no device): rank 0 looks for a stop file on a stride of steps that it chooses, at
most about a second apart, and leaves one word for each such boundary; the others wait there until the word is said.
So a request is taken at one step by all, however far a rank lags behind. Every wait ends: by the word, by a rank that
has left or died, or by LONGEST_S.
"""

import contextlib
import json
import os
import sys
import time

STRIDE_S = 0.5
MOST_STEPS = 16  # of a stride: when steps grow slow all of a sudden, this many slow ones pass before it is seen
LONGEST_S = 1800.0  # a rank may sample or write for long while the others wait; torch's own bound for gloo
_KEPT = 1000  # words behind the newest that stay in the store
_LOOK_S = 1.0  # how often to look whether the waited-for ranks live
_made = [0]  # agreements of this process; the same on every rank


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
        """Training ends, or this rank takes no further part."""


def agreement(session):
    if session.world_size <= 1:
        return Alone(session.control)
    _made[0] += 1
    return Together(session, _store(), f"tunewarden/{_made[0]}")


def _store():
    """The default process group's store, or None where there is no group (yet)."""
    distributed = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.distributed_c10d._get_default_store()
    return None


class Together:
    """Several ranks. `store` has set, get, add, check, compare_set and delete_key, as torch's stores have."""

    def __init__(self, session, store, name):
        self._session, self._store, self._name = session, store, name
        self._polls = self._barriers = 0
        self._next = 1  # the boundary at which the ranks agree again
        self._stride = 1
        self._began = None
        self._apart = None  # why the ranks can't agree any more
        if store is None:
            self._part("there is no process group with a store")
        else:
            store.add(self._key("here"), 1)

    def poll(self, step):
        self._polls += 1
        if self._polls < self._next:
            return None
        if self._apart is not None:
            return self._refuse() if self._session.rank == 0 else None
        word = self._say() if self._session.rank == 0 else self._listen()
        if word is None or self._apart is not None:
            return None
        self._next = self._polls + word["stride"]
        return word["request"]

    def _say(self):
        """Rank 0's word for this boundary. A rank that gave up waiting has said "apart" before us."""
        request = self._session.control.take_stop()
        missing = self._missing() if request is not None else None
        if missing is not None:
            self._answer(request, missing)
            request = None
        self._stride = self._next_stride()
        word = json.dumps({"stride": self._stride, "request": request})
        if not self._first(f"word/{self._polls}", word):
            self._part("a rank waited too long")
            if request is not None:
                self._answer(request, self._apart)
            return None
        if self._polls > _KEPT:
            with contextlib.suppress(Exception):
                self._store.delete_key(self._key(f"word/{self._polls - _KEPT}"))
        return json.loads(word)

    def _missing(self):
        """Why the others would not act on a request, or None."""
        here, world = self._store.add(self._key("here"), 0), self._session.world_size
        if here != world:
            return f"only {here} of {world} ranks have the hook"
        return "a rank has left" if self._has("gone") else None

    def _next_stride(self):
        now = time.monotonic()
        seconds = (now - self._began) / self._stride if self._began is not None else STRIDE_S
        self._began = now
        return max(1, min(MOST_STEPS, 2 * self._stride, int(STRIDE_S / max(seconds, 1e-6))))

    def _listen(self):
        key = f"word/{self._polls}"
        why = self._wait(key, (0,))
        word = self._store.get(self._key(key)) if why is None else self._store_first(key, "apart")
        if word == b"apart":
            self._part(why or "a rank waited too long")
            return None
        return json.loads(word)

    def all_ok(self, ok):
        """The last to come says the verdict for all; who waits in vain says no, and the first verdict is everyone's."""
        self._barriers += 1
        name, world = f"barrier/{self._barriers}", self._session.world_size
        if self._apart is not None:
            return False
        if not ok:
            self._store.set(self._key(name + "/no"), "1")
        if self._store.add(self._key(name), 1) == world:
            self._store_first(name + "/verdict", "no" if self._has(name + "/no") else "yes")
        why = self._wait(name + "/verdict", [rank for rank in range(world) if rank != self._session.rank])
        if why is not None:
            self._session.log.say(f"rank {self._session.rank} stopped waiting for the others: {why}")
            self._store_first(name + "/verdict", "no")
        return self._store.get(self._key(name + "/verdict")) == b"yes"

    def close(self):
        if self._apart is None:
            with contextlib.suppress(Exception):
                self._store.set(self._key("gone"), "1")
            self._apart = "this rank has left"

    def _wait(self, name, ranks):
        """None when the key is there; else why it will not be: a rank has left, is dead, or LONGEST_S is over."""
        began = looked = time.monotonic()
        pause = 0.0005
        while not self._has(name):
            now = time.monotonic()
            if now - began > LONGEST_S:
                return f"nothing was heard for {LONGEST_S:.0f} s"
            if now - looked > _LOOK_S:
                looked = now
                why = self._lost(ranks)
                if why is not None and not self._has(name):
                    return why
            time.sleep(pause)
            pause = min(0.02, pause * 2)
        return None

    def _lost(self, ranks):
        if self._has("gone"):
            return "a rank has left"
        dead = [rank for rank in ranks if self._is_dead(rank)]
        return f"rank {dead[0]} is dead" if dead else None

    def _is_dead(self, rank):
        """Ranks of other hosts write no pid here: they are believed."""
        pid = (self._session.control.read(f"pid.{rank}.json") or {}).get("pid")
        return isinstance(pid, int) and not _lives(pid)

    def _first(self, name, text):
        return self._store_first(name, text) == text.encode()

    def _store_first(self, name, text):
        """Set the key unless it is set; gives what it holds."""
        return bytes(self._store.compare_set(self._key(name), "", text))

    def _has(self, name):
        return self._store.check([self._key(name)])

    def _key(self, name):
        return f"{self._name}/{name}"

    def _part(self, why):
        self._apart = why
        self._session.log.say(f"rank {self._session.rank} takes no more requests: {why}")

    def _refuse(self):
        """Nobody may wait in vain: a request gets an answer."""
        request = self._session.control.take_stop()
        if request is not None:
            self._answer(request, self._apart)

    def _answer(self, request, why):
        content = {"request_id": request["request_id"], "ok": False, "error": "the ranks can't agree: " + why}
        self._session.control.write("receipt.json", content)


def _lives(pid):
    """A zombie (its launcher hasn't looked yet) is dead. Without a /proc all live."""
    if not os.path.isdir("/proc/self"):
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
