"""What is done at an optimizer-step boundary: count, poll, save, answer, park, stop at the total.

`Boundary.at_step()` is called on the main thread of every rank, once after each optimizer step, when the scheduler has
stepped too. It returns, or raises SystemExit(0) after a save that was asked with `save_and_stop` and at the total.

An adapter is what a framework must offer (accelerate_patch and trainer_patch have one each):
- `framework`: "accelerate" or "transformers"; `can`: words for hello.json, said at the first boundary;
- `state_name`: pattern with {step}; `states_folder()`: where the trainer writes, or None;
- `save(folder)`: write all that the next step depends on into the folder (it is there and empty); on every rank;
- `settle(folder)`: on rank 0, when every rank has written: put into place what was written below the folder;
- `can_save_alone()`: whether this rank's save needs no other rank (after a crash the others are not there);
- `facts()`: {"scheduler_epochs": [last_epoch of each scheduler], "optimizer_steps": the optimizer's count or None};
- `mid_update()`: whether an optimizer step was begun and it and its scheduler are not through;
- `load(path)`: load a state now (where hook.json says resume_by hook); `end()`: close trackers before the end;
- `finish()`: the planned total is reached and saved: see to it that no further update is made. A loop that ends by
  itself now must come to its own end, with its own last save; `boundary.finish(session)` ends one that would go on.
"""

import contextlib
import os
import sys
import time

from . import metrics, watching
from .saving import save

PARK_SECONDS = 60.0
MOST_ROUNDS = 1000  # of a loop that gets no batch any more,
MOST_ROUND_SECONDS = 600.0  # and how long that may take: it may evaluate in each of them


class Boundary:
    def __init__(self, session):
        self._session = session
        self._seen = False
        self._finishing = False
        self._rounds = 0
        self._over_since = None

    def at_step(self):
        session = self._session
        session.counters.optimizer_step()
        session.crash.forget()
        if not self._seen:
            self._seen = True
            session.hello(session.adapter.can)
        request = session.agreement.poll(session.counters.step)
        if request is not None:
            self._answer(request)
        if self.at_total() and not self._finishing:
            self._finish()

    def at_total(self):
        settings = self._session.settings
        total = settings.total_steps
        return settings.stop_at_total and total is not None and self._session.counters.step >= total

    def over(self, loader):
        """Whether this loader gives no more batches: the planned total is reached, and its batches train.

        So a loop over epochs comes to its own end, with the last save of its script. One that goes round and round for
        want of steps is ended: SystemExit(0).
        """
        session = self._session
        if not getattr(session.adapter, "finished", False) or session.trains_on is not loader:
            return False
        session.counters.enter("finished")
        now = time.monotonic()
        self._rounds += 1
        self._over_since = self._over_since or now
        if self._rounds > MOST_ROUNDS or now - self._over_since > MOST_ROUND_SECONDS:
            finish(session)
        return True

    def _answer(self, request):
        session, mode = self._session, request.get("mode")
        if mode not in ("save", "save_and_stop"):
            return self._receipt(request, {"ok": False, "error": f"unknown mode {mode!r}"})
        saved = save(session, "request")
        self._receipt(request, saved.to_receipt())
        if saved.path is not None and mode == "save_and_stop":
            session.adapter.end()
            park(session, saved)
            leave(session, f"saved at step {saved.step}: {saved.path}; stopped, as was asked")
        return None

    def _receipt(self, request, content):
        if self._session.rank == 0:
            self._session.control.write("receipt.json", dict(content, request_id=request["request_id"]))

    def _finish(self):
        session, self._finishing = self._session, True
        if (session.counters.last_state or {}).get("step") != session.counters.step:
            saved = save(session, "total")
            if saved.path is None:  # the trainer goes on: its own end saves what we could not
                session.log.say("the planned total is reached, but the state could not be saved: " + saved.error)
                return
        session.adapter.finish()


def finish(session):
    """The planned total is reached and its state is on disk, and the loop wants to go on: end it. SystemExit(0)."""
    session.counters.enter("finished")
    if session.rank == 0:
        metrics.flush(session)
    session.adapter.end()
    leave(session, f"the planned {session.counters.step} steps are done")


def park(session, saved):
    """No further step, until somebody ends this process. A notebook's cell, or what a GUI has started, just ends."""
    if watching.in_a_cell() or watching.is_watched(session):
        return
    if session.rank == 0 and sys.stderr is not None:
        sys.stderr.write(f"\ntunewarden: saved at step {saved.step}: {saved.path}; stops now, as was asked\n")
        sys.stderr.flush()
    deadline = time.monotonic() + PARK_SECONDS
    while time.monotonic() < deadline:
        time.sleep(max(0.0, min(1.0, deadline - time.monotonic())))


def leave(session, text):
    session.leaving = True
    session.agreement.close()
    if watching.in_a_cell() or watching.is_watched(session):
        watching.end(session, text)
    raise SystemExit(0)


def still_here(session):
    """The trainer swallowed our SystemExit and wants to go on: it must not. A notebook's next cell may."""
    if watching.in_a_cell():
        session.leaving = False
        return
    if watching.is_watched(session) and watching.in_a_thread():
        watching.end(session, "stopped, as was asked")  # the process around it is not ours to end
    with contextlib.suppress(Exception):  # os._exit drops what the script has printed and Python still holds
        sys.stdout.flush()
    os._exit(session.status)
