"""Save: ask the trainer by the control directory, wait for the receipt, and look whether what it names is whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunewarden.domain.order import Phase
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.cause import is_oom_line
from tunewarden.supervisor.control import Receipt
from tunewarden.supervisor.execution import Done, Execution
from tunewarden.supervisor.state_size import size_of
from tunewarden.supervisor.states import is_whole

GROWING_S = 30.0  # a *.partial that grew this recently is being written
LONGEST_S = 30 * 60.0  # and no save is waited for longer than this
_SUSPENDED_POLL_S = 0.2


def intend(ex: Execution) -> dict[str, Any]:
    return {"request_id": ex.request_id, "mode": ex.mode, "begun": ex.run.monotonic()}


def act(ex: Execution, intent: Mapping[str, Any]) -> Done:
    """Ask (once), wait, judge. Raises Refused where nothing was saved and the order may not do without."""
    control = ex.run.control()
    control.ask(ex.request_id, ex.mode)
    ex.run.boundary.reach("save.request", "after_effect")
    receipt = _wait_for_receipt(ex, float(intent["begun"]))
    if receipt is None:
        return _none_came(ex)
    if not receipt.ok or receipt.state is None:
        return _or_lose(ex, Refused(Reason.SAVE_FAILED, _why_failed(receipt.error[:300])))
    state = receipt.state
    if not is_whole(state) or not receipt.consistent or not ex.run.may_hold_state(state.path):
        text = f"{state.path}: the receipt names it, but it is not there, or not whole"
        return _or_lose(ex, Refused(Reason.SAVE_INCOMPLETE, text))
    return Done(
        facts={"step": state.step, "path": str(state.path)},
        report=Phase.SAVED,
        detail={
            "step": state.step,
            "path": str(state.path),
            "seconds": receipt.seconds,
            "peak_bytes": receipt.peak_bytes,
        },
    )


def _why_failed(error: str) -> str:
    if is_oom_line(error):  # saving takes memory of its own: just then a full card fails
        return f"the card had no memory left for the save; the job trains on without a new state: {error}"
    return f"the trainer could not save: {error}"


@dataclass(kw_only=True)
class Partials:
    """Watches `*.partial` in the folders where this job's states lie: while one grows, a save is under way."""

    folders: tuple[Path, ...]
    size: int = 0
    grew_at: float | None = None

    @classmethod
    def of(cls, ex: Execution) -> "Partials":
        control = ex.run.control()
        progress = control.progress()
        states = (progress.last_state if progress else None, control.resume())
        folders = {state.path.parent for state in states if state is not None}
        made = cls(folders=tuple(sorted(folders | {ex.run.states_folder()})))
        made.size = made.measure()  # what an earlier crash left behind does not grow
        return made

    def measure(self) -> int:
        """Bytes of all of them."""
        return size_of(*(path for folder in self.folders for path in folder.glob("*.partial")))

    def growing(self, now: float) -> bool:
        """Whether one grew within the last 30 s, as far as was looked."""
        size = self.measure()
        if size > self.size:
            self.grew_at = now
        self.size = size
        return self.grew_at is not None and now - self.grew_at < GROWING_S


def _wait_for_receipt(ex: Execution, begun: float) -> Receipt | None:
    """The receipt, or None: in time there was none. A save that is being written is waited for, up to 30 minutes."""
    grace, clock = ex.run.spec.grace_s, ex.run.monotonic
    control, partials = ex.run.control(), Partials.of(ex)
    deadline, last = begun + grace, begun + LONGEST_S
    taken_late = False
    while True:
        stood_still = _stand_still(ex)
        deadline, last = deadline + stood_still, last + stood_still
        if control.withdrawn(ex.request_id):  # by us, before a restart
            return None
        if ex.wait(lambda: ex.receipt() is not None, min(deadline, clock() + 1.0)):
            return ex.receipt()
        if partials.growing(clock()) and clock() < last:
            deadline = max(deadline, clock() + 1.0)
            continue
        if clock() < deadline:
            continue
        if taken_late or control.withdraw(ex.request_id):
            return ex.receipt()
        # The trainer has taken it: from here it is saving, and has the same time again.
        taken_late, deadline = True, clock() + grace


def _stand_still(ex: Execution) -> float:
    """Wait while the job is suspended (Ctrl-Z): it can't answer. Returns the seconds that this took."""
    begun = ex.run.monotonic()
    while ex.run.link.on_hold and ex.receipt() is None:
        ex.breathe(_SUSPENDED_POLL_S)
    return ex.run.monotonic() - begun


def _none_came(ex: Execution) -> Done:
    if ex.run.control().taken(ex.request_id):
        text = "the trainer took the request to save and wrote no receipt"
        return _or_lose(ex, Refused(Reason.SAVE_FAILED, text))
    if ex.run.steps_made() == 0 and ex.order.kind.value != "save":
        return Done(facts={"step": None})  # nothing was trained yet: nothing is lost
    progress = ex.run.control().progress()
    at = f" (it said that it is at: {progress.phase})" if progress and progress.phase not in (None, "train") else ""
    limit = f"{ex.run.spec.grace_s:.0f} s"
    text = f"no optimizer step ended within {limit}{at}; the request was withdrawn, the job trains on"
    return _or_lose(ex, Refused(Reason.NO_STEP_BOUNDARY, text))


def _or_lose(ex: Execution, refusal: Refused) -> Done:
    """Without a state: go on where the order says that unsaved steps may be lost, else refuse."""
    if ex.order.lose_unsaved and ex.order.kind.value != "save":
        return Done(facts={"step": None, "why": str(refusal)})
    raise refusal
