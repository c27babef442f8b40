"""The webhook's body: Alertmanager's payload version 4, with the gaps of every version that sends it.

Only what we use is modelled; groupKey (a number once), receiver, common* and whatever comes later are ignored. Sources:
template/template.go and notify/webhook/webhook.go of Alertmanager 0.6 to 0.34.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from tunewarden.domain.alert import Alert, AlertStatus, fingerprint_of
from tunewarden.errors import TunewardenError


class NotJson(TunewardenError):
    """The body is not JSON."""


class WrongShape(TunewardenError):
    """The body is not an Alertmanager payload of version 4."""


def _empty_is_none(value: Any) -> Any:
    return None if value == "" else value


def _null_is_empty(value: Any) -> Any:
    return {} if value is None else value


# Alertmanager writes year 1 where it has no time; other senders leave the text empty.
Moment = Annotated[datetime | None, BeforeValidator(_empty_is_none)]
Labels = Annotated[dict[str, str], BeforeValidator(_null_is_empty)]


class WireAlert(BaseModel):
    """One item of `alerts`. `fingerprint` is missing before Alertmanager 0.19."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: Labels = Field(default_factory=dict)
    starts_at: Moment = Field(default=None, alias="startsAt")
    ends_at: Moment = Field(default=None, alias="endsAt")
    generator_url: str | None = Field(default="", alias="generatorURL")
    fingerprint: str | None = ""


class Payload(BaseModel):
    """One delivery. The root `status` is not here on purpose: each alert has its own."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    version: Literal["4"]
    alerts: list[WireAlert]


def parse(body: bytes) -> Payload:
    """Check the body.

    Raises NotJson or WrongShape; neither quotes it.
    """
    try:
        return Payload.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise NotJson from None
        where = ".".join(str(part) for part in first["loc"][:3])  # deeper is a label's name
        raise WrongShape(f"{where or 'the body'}: {first['msg']}") from None


def alerts_of(body: bytes) -> list[Alert]:
    """The alerts of a delivery, in its order.

    Raises NotJson or WrongShape.
    """
    return [_alert(alert) for alert in parse(body).alerts]


def body_of(alerts: Sequence[Alert]) -> bytes:
    """A body that `alerts_of` reads back: how an agent's event takes the road of Alertmanager's."""
    return to_json({"version": "4", "alerts": [_wire(alert) for alert in alerts]})


def _alert(alert: WireAlert) -> Alert:
    return Alert(
        fingerprint=alert.fingerprint or fingerprint_of(alert.labels),
        status=AlertStatus(alert.status),
        labels=alert.labels,
        annotations=alert.annotations,
        starts_at=_moment(alert.starts_at),
        ends_at=_moment(alert.ends_at) if alert.status == "resolved" else None,
        generator_url=alert.generator_url or "",
    )


def _moment(moment: datetime | None) -> datetime | None:
    if moment is None or moment.year == 1:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _wire(alert: Alert) -> dict[str, Any]:
    return {
        "status": alert.status.value,
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": alert.starts_at,
        "endsAt": alert.ends_at,
        "generatorURL": alert.generator_url,
        "fingerprint": alert.fingerprint,
    }
