"""The deliveries: each body as it came in, and how far it has been taken apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from tunewarden.adapters.store.tables import deliveries
from tunewarden.adapters.store.wakes import wake

TOPIC = "deliveries"
INSERT = insert(deliveries)  # for Store.append: the receiver's road
_OPEN = ("new", "exploding")
_CHANGE = (
    update(deliveries)
    .where(
        deliveries.c.delivery_id == bindparam("seen_id"),
        deliveries.c.next_alert == bindparam("seen_alert"),
        deliveries.c.state.in_(_OPEN),
    )
    .values(state=bindparam("state"), next_alert=bindparam("next_alert"))
)
_NEXT_OPEN = (  # built once: that costs as much as to run it
    select(
        deliveries.c.delivery_id,
        deliveries.c.source,
        deliveries.c.received_at,
        deliveries.c.body,
        deliveries.c.next_alert,
    )
    .where(deliveries.c.state.in_(_OPEN))
    .order_by(deliveries.c.delivery_id)
    .limit(1)
)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One stored body. `next_alert` of its alerts are decided already."""

    delivery_id: int
    source: str
    received_at: float
    body: bytes
    next_alert: int


def row(*, source: str, received_at: float, body: bytes, remote: str = "") -> Mapping[str, Any]:
    """The values of one new delivery for `INSERT`. `received_at` in UTC epoch seconds."""
    return {"source": source, "received_at": received_at, "body": body, "remote": remote[:64]}


def add(conn: Connection, *, source: str, received_at: float, body: bytes, remote: str = "") -> int:
    """Store a delivery and wake the dispatcher."""
    values = row(source=source, received_at=received_at, body=body, remote=remote)
    delivery_id: int = conn.execute(INSERT.returning(deliveries.c.delivery_id), values).scalar_one()
    wake(conn, TOPIC)
    return delivery_id


def add_event(conn: Connection, *, event_id: str, received_at: float, body: bytes, remote: str = "") -> bool:
    """Store an agent's event once. False when this `event_id` came before."""
    if conn.scalar(select(deliveries.c.delivery_id).where(deliveries.c.event_id == event_id)) is not None:
        return False
    values = {**row(source="agent", received_at=received_at, body=body, remote=remote), "event_id": event_id}
    conn.execute(INSERT, values)
    wake(conn, TOPIC)
    return True


def next_open(conn: Connection) -> Delivery | None:
    """The oldest delivery that is not wholly taken apart."""
    found = conn.execute(_NEXT_OPEN).one_or_none()
    return None if found is None else Delivery(**found._mapping)


def advance(conn: Connection, delivery_id: int, *, expected: int, next_alert: int) -> bool:
    """Say that the alerts before `next_alert` are decided, in the transaction that decided them.

    False when the delivery is no longer at `expected`: somebody else decided, so the caller must raise and undo.
    """
    return _changed(conn, delivery_id, expected, {"state": "exploding", "next_alert": next_alert})


def finish(conn: Connection, delivery_id: int, *, expected: int, next_alert: int) -> bool:
    """As `advance`, for the last part."""
    return _changed(conn, delivery_id, expected, {"state": "done", "next_alert": next_alert})


def _changed(conn: Connection, delivery_id: int, expected: int, values: Mapping[str, Any]) -> bool:
    done = conn.execute(_CHANGE, {"seen_id": delivery_id, "seen_alert": expected, **values})
    return done.rowcount == 1


def mark_bad(conn: Connection, delivery_id: int, error: str) -> None:
    """Set a delivery aside that can't be taken apart; a person can look at it."""
    conn.execute(
        update(deliveries).where(deliveries.c.delivery_id == delivery_id).values(state="bad", error=error[:2000])
    )


def count_open(conn: Connection) -> int:
    """How many deliveries wait."""
    return int(conn.scalar(select(func.count()).select_from(deliveries).where(deliveries.c.state.in_(_OPEN))) or 0)


def note_error(conn: Connection, delivery_id: int, error: str) -> None:
    """Say beside a delivery what went wrong with a part of it."""
    conn.execute(update(deliveries).where(deliveries.c.delivery_id == delivery_id).values(error=error[:2000]))
