"""Batch size and gradient accumulation change together, so that an optimizer step sees as many samples as before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tunewarden.domain.reason import Reason
from tunewarden.domain.tuning import ACCUMULATION, BATCH, Change, Op, Refusal, parse_change


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Batch size and accumulation. `accumulation` is None where the config has no key for it (it counts as 1)."""

    batch: int
    accumulation: int | None

    @property
    def effective(self) -> int:
        """Samples of one optimizer step."""
        return self.batch * (self.accumulation or 1)


def resize(
    now: Sizes, batch: str | None, accumulation: str | None, *, allow_effective_batch_change: bool
) -> Sizes | Refusal:
    """The batch size and accumulation that answer what is asked of either (None: nothing is).

    The effective batch, batch × accumulation, stays equal: `/n` gives the largest divisor of it that is ≤ batch / n,
    `*n` the smallest that is ≥ batch × n, and accumulation follows. Where that can't be (no accumulation key, or a
    plain value that is no divisor), the effective batch would change: refused unless allowed.
    """
    wanted = _wanted(now, batch, accumulation)
    if isinstance(wanted, Refusal) or wanted.effective == now.effective or allow_effective_batch_change:
        return wanted
    return Refusal(
        reason=Reason.EFFECTIVE_BATCH_WOULD_CHANGE, why=f"effective batch {now.effective} → {wanted.effective}"
    )


def resize_all(
    batches: Sequence[int],
    accumulation: int | None,
    batch: str | None,
    steps: str | None,
    *,
    allow_effective_batch_change: bool,
) -> tuple[tuple[int, ...], int | None] | Refusal:
    """`resize` for data sets that have a batch size each and share the accumulation; the new numbers, in order.

    Unequal batch sizes are scaled together: the accumulation is the smallest (for `/n`) or largest (`*n`) that divides
    the effective batch of each. They can't be given one value, and one of 1 can't be divided.
    """
    if len(set(batches)) == 1:
        sizes = Sizes(batch=batches[0], accumulation=accumulation)
        one = resize(sizes, batch, steps, allow_effective_batch_change=allow_effective_batch_change)
        return one if isinstance(one, Refusal) else ((one.batch,) * len(batches), one.accumulation)
    change = parse_change(batch) if batch is not None else None
    if change is not None and change.op is Op.SET:
        why = f"{BATCH} is {', '.join(map(str, batches))} in several places; one value can't replace them: write /n"
        return Refusal(reason=Reason.KNOB_NOT_CHANGEABLE, why=why)
    if change is not None and change.op is Op.DIVIDE and min(batches) == 1:
        return Refusal(reason=Reason.AT_MINIMUM, why=f"{BATCH} is 1 in one place and can't go lower")
    then = _scaled_together(batches, accumulation, change, steps)
    for old, new in zip(batches, then[0], strict=True):
        before, after = old * (accumulation or 1), new * (then[1] or 1)
        if before != after and not allow_effective_batch_change:
            return Refusal(
                reason=Reason.EFFECTIVE_BATCH_WOULD_CHANGE, why=f"effective batch {before} → {after} in one place"
            )
    return then


def _scaled_together(
    batches: Sequence[int], accumulation: int | None, change: Change | None, steps: str | None
) -> tuple[tuple[int, ...], int | None]:
    now = accumulation or 1
    scaled = tuple(max(1, _scaled(each, change)) if change else each for each in batches)
    if steps is not None:
        return scaled, max(1, _scaled(now, parse_change(steps)))
    if accumulation is None or change is None:
        return scaled, accumulation
    totals = [each * now for each in batches]
    divisors = _divisors(math.gcd(*totals))
    if change.op is Op.DIVIDE:
        common = [each for each in divisors if each >= now * change.factor][:1]
    else:
        common = [each for each in divisors if each * change.factor <= now][-1:]
    if not common:
        return scaled, max(1, now * change.factor if change.op is Op.DIVIDE else now // change.factor)
    return tuple(total // common[0] for total in totals), common[0]


def _wanted(now: Sizes, batch: str | None, accumulation: str | None) -> Sizes | Refusal:
    if batch is None and accumulation is None:
        return now
    if batch is None:
        steps = _scaled(now.accumulation or 1, parse_change(accumulation or ""))
        if steps < 1:
            return Refusal(reason=Reason.AT_MINIMUM, why=f"{ACCUMULATION} is {now.accumulation} and can't go below 1")
        return Sizes(batch=now.batch, accumulation=steps)
    change = parse_change(batch)
    if change.op is Op.DIVIDE and now.batch == 1:
        return Refusal(reason=Reason.AT_MINIMUM, why=f"{BATCH} is 1 and can't go lower")
    if accumulation is not None:
        steps = _scaled(now.accumulation or 1, parse_change(accumulation))
        return Sizes(batch=max(1, _scaled(now.batch, change)), accumulation=max(1, steps))
    if now.accumulation is None:
        return Sizes(batch=max(1, _scaled(now.batch, change)), accumulation=None)
    return _with_accumulation(now.batch, now.effective, change)


def _with_accumulation(batch: int, total: int, change: Change) -> Sizes:
    """The batch that `change` asks for, with the accumulation that keeps `total`, or comes nearest to it."""
    divisors = _divisors(total)
    target = _scaled(batch, change)
    if change.op is Op.DIVIDE:
        target = max((each for each in divisors if each * change.factor <= batch), default=1)
    elif change.op is Op.MULTIPLY:
        target = min((each for each in divisors if each >= target), default=target)
    return Sizes(batch=target, accumulation=max(1, (total + target // 2) // target))


def _scaled(value: int, change: Change) -> int:
    if change.op is Op.SET:
        return int(change.value)
    return value * change.factor if change.op is Op.MULTIPLY else value // change.factor


def _divisors(total: int) -> list[int]:
    small = [each for each in range(1, int(total**0.5) + 1) if total % each == 0]
    return sorted({*small, *(total // each for each in small)})
