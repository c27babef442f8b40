"""Orders as the agent keeps them: read from the wire, and rebuilt from the journal after a restart."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunewarden.domain.order import ENDING_PHASES, HostCheck, Order, OrderKind, Phase
from tunewarden.supervisor.journal import Entry, Kind

ACCEPT = "accept"
_LONGEST_EXPIRY_S = 3600.0
_METRICS = frozenset({"memory_ratio", "utilization"})


def parse_order(raw: Mapping[str, Any]) -> Order:
    """An order from the wire; unknown fields are passed over. Raises ValueError: it is not understood, so not done."""
    try:
        order = Order(
            order_id=_text(raw["order_id"]),
            job_id=_text(raw["job_id"]),
            generation=int(raw["generation"]),
            kind=OrderKind(raw["kind"]),
            knobs={_text(key): str(value) for key, value in (raw.get("knobs") or {}).items()},
            confirm=tuple(_check(each) for each in raw.get("confirm") or ()),
            expires_in_s=min(float(raw.get("expires_in_s", 60.0)), _LONGEST_EXPIRY_S),
            save_first=_flag(raw, "save_first", default=True),
            lose_unsaved=_flag(raw, "lose_unsaved", default=False),
            allow_effective_batch_change=_flag(raw, "allow_effective_batch_change", default=False),
            after_oom=_flag(raw, "after_oom", default=False),
        )
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:  # ArithmeticError: a generation of 1e999
        raise ValueError(f"an order that is not understood: {error!r}") from error
    if raw.get("protocol") != 1:
        raise ValueError(f"an order of protocol {raw.get('protocol')!r}")
    return order


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > 200 or not value.isprintable():
        raise ValueError(f"not a name: {value!r}")
    return value


def _flag(raw: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = raw.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is not true or false")
    return value


def _check(raw: Mapping[str, Any]) -> HostCheck:
    check = HostCheck(metric=str(raw["metric"]), op=str(raw["op"]), value=float(raw["value"]))
    if check.metric not in _METRICS or check.op not in ("<", ">"):
        raise ValueError(f"a check that is not understood: {raw!r}")
    return check


@dataclass(kw_only=True)
class OrderRecord:
    """An order with all that the journal says about it."""

    order: Order
    deadline: float  # on CLOCK_MONOTONIC: when it expires
    boot_id: str
    intents: dict[str, Entry] = field(default_factory=dict)
    outcomes: dict[str, Entry] = field(default_factory=dict)
    end: Entry | None = None
    acked: set[str] = field(default_factory=set)

    @property
    def reports(self) -> dict[str, Mapping[str, Any]]:
        """The reports so far by phase, oldest first."""
        entries = [*self.outcomes.values(), *([self.end] if self.end else [])]
        made = [each.detail.get("report") for each in sorted(entries, key=lambda each: each.seq)]
        return {report["phase"]: report["body"] for report in made if report}

    @property
    def ended(self) -> bool:
        return self.end is not None or bool(ENDING_PHASES[self.order.kind] & {Phase(each) for each in self.reports})

    def fact(self, step: str, name: str) -> Any:
        """What the outcome of a step keeps under a name; None where the step was not done."""
        outcome = self.outcomes.get(step)
        return (outcome.detail.get("facts") or {}).get(name) if outcome else None

    def take(self, entry: Entry) -> None:
        """Take one more entry of this order in."""
        if entry.kind is Kind.INTENT:
            self.intents[entry.phase] = entry
        elif entry.kind is Kind.OUTCOME:
            self.outcomes[entry.phase] = entry
        elif entry.kind is Kind.ENDED:
            self.end = entry
        elif entry.kind is Kind.ACKED:
            self.acked.add(entry.phase)


def records(entries: Iterable[Entry]) -> dict[str, OrderRecord]:
    """Every order of a journal, oldest first. An order exists from the intent of its acceptance on."""
    found: dict[str, OrderRecord] = {}
    for entry in entries:
        if entry.kind is Kind.INTENT and entry.phase == ACCEPT:
            found[entry.order_id] = OrderRecord(
                order=parse_order(entry.detail["order"]),
                deadline=float(entry.detail["deadline"]),
                boot_id=entry.boot_id,
            )
        record = found.get(entry.order_id)
        if record is not None:
            record.take(entry)
    return found
