"""An order being carried out: its record, waiting that a local act can break, and the moment's checks."""

import contextlib
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunewarden.domain.order import Order, OrderKind, Phase
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused, TunewardenError
from tunewarden.supervisor.cards import confirms
from tunewarden.supervisor.control import Mode, Receipt
from tunewarden.supervisor.orders import OrderRecord
from tunewarden.supervisor.run import Run

_POLL_S = 0.03
log = logging.getLogger(__name__)


class Superseded(TunewardenError):
    """Something local took the order's place."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a phase leaves: facts for later phases, and the report that the service gets (None: none)."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    report: Phase | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Execution:
    """One order on one run."""

    run: Run
    record: OrderRecord

    @property
    def order(self) -> Order:
        return self.record.order

    @property
    def request_id(self) -> str:
        """The same after a restart of the agent: a request that is there already is not made again."""
        return f"r-{self.order.order_id}"

    @property
    def mode(self) -> Mode:
        return Mode.SAVE if self.order.kind is OrderKind.SAVE else Mode.SAVE_AND_STOP

    def receipt(self) -> Receipt | None:
        """The trainer's answer to this order's request."""
        return self.run.control(self.order.generation).receipt(self.request_id)

    def breathe(self, seconds: float) -> None:
        """Let messages in for up to `seconds`. Raises Superseded when a person stops the job, or it ended by itself."""
        self.run.pump(seconds)
        if self.run.situation.interrupts:
            raise Superseded(Reason.USER_STOP, "a person stopped the job: nothing is launched")
        if self.run.situation.ended and not self._end_is_ours():
            raise Superseded(Reason.JOB_ENDED, "the job ended by itself meanwhile")

    def wait(self, done: Callable[[], bool], deadline: float) -> bool:
        """Look every 30 ms until `done`, at most to `deadline` (CLOCK_MONOTONIC); whether it was done."""
        while not done():
            left = deadline - self.run.monotonic()
            if left <= 0:
                return False
            self.breathe(min(_POLL_S, left))
        return True

    def check_moment(self) -> None:
        """What must hold at the moment of the first act. Raises Refused."""
        if self.run.monotonic() >= self.record.deadline:
            raise Refused(Reason.EXPIRED, f"the order was not begun within {self.order.expires_in_s:.0f} s")
        if not self.order.after_oom:
            self._check_confirmed()

    def _check_confirmed(self) -> None:
        if not self.order.confirm:
            return
        pids = frozenset(member.id.pid for member in self.run.host.members())
        cards = self.run.host.job_gpus(self.run.host.gpus(), pids)
        for check in self.order.confirm:
            verdict = confirms(check, cards or ())
            said = f"{check.metric} {check.op} {check.value:g}"
            if verdict is None:
                raise Refused(Reason.UNCONFIRMED, f"nothing could be measured for {said} on this host: no action")
            if not verdict:
                raise Refused(Reason.UNCONFIRMED, f"measured on this host now, {said} does not hold: no action")

    def _end_is_ours(self) -> bool:
        """Whether the generation's end belongs to this order: we ended it, or it parked for us and its time ran out."""
        if self.order.after_oom or "stop" in self.record.intents:
            return True
        receipt = self.receipt() if self.mode is Mode.SAVE_AND_STOP and "save" in self.record.intents else None
        return receipt is not None and receipt.ok

    def clean_up(self) -> str:
        """Leave the job as it was: no request for the trainer, no config that nothing reads.

        Never raises, so that an order always ends; returns what could not be undone, "" where all was.
        """
        left = ""
        try:
            self._withdraw()
        except Refused as refusal:
            log.warning("order %s: %s", self.order.order_id, refusal)
            left = str(refusal) if refusal.reason is Reason.UNCERTAIN else ""
        self._remove_config()
        return left

    def _withdraw(self) -> None:
        if "save" in self.record.intents:
            control = self.run.control(self.order.generation)
            if control.asked(self.request_id) and not control.taken(self.request_id):
                control.withdraw(self.request_id)

    def _remove_config(self) -> None:
        """Of a plan that came to nothing. What was edited since is the person's."""
        if "launch" in self.record.outcomes:
            return
        for written, sha256 in self.record.fact("plan", "new_configs") or ():
            path = Path(written)
            with contextlib.suppress(OSError):
                if hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
                    path.unlink()
