"""Going back once: an order with the knobs that the job had before."""

from typing import Any

from sqlalchemy import Connection

from tunewarden.adapters.store import jobs, orders
from tunewarden.domain.advance import rollback_order
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import Event, Remediation
from tunewarden.domain.verification import Evidence, Finding, Recovery
from tunewarden.pipeline.moves import Moves
from tunewarden.pipeline.opening import issue

# After an out-of-memory death never: the bigger batch was the cause. A generation that did not resume is left to a
# person too: another replacement would save over what is worth keeping.
_WORTH_GOING_BACK = frozenset({Reason.DIED_AGAIN, Reason.NO_STEP})


def roll_back(
    conn: Connection, moves: Moves, broken: Remediation, evidence: Evidence, finding: Finding, now: float
) -> bool:
    """Once back to the previous knobs, if the generation made no step and can still be replaced. True when begun."""
    job = jobs.get(conn, broken.job_id)
    if finding.recovery is not Recovery.BROKEN or finding.reason not in _WORTH_GOING_BACK or broken.rolled_back:
        return False
    if job is None or not job.living or job.held or evidence.first_step is not None:
        return False
    expires_in_s = moves.acting.order_expires_s
    order = rollback_order(broken, job, order_id=orders.new_order_id(), expires_in_s=expires_in_s)
    if order is None:
        return False
    facts: dict[str, Any] = {"broken_reason": finding.reason.value, "verify": {}}
    after = issue(
        conn, moves, broken, order, Event.ROLLED_BACK, now, reason=finding.reason, facts=facts, rolled_back=True
    )
    moves.count_broken(conn, after, now)
    return True
