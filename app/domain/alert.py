"""An alert as Alertmanager means it: labels, a status of its own, a fingerprint of its labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

_FNV_OFFSET = 14695981039346656037
_FNV_PRIME = 1099511628211
_MASK = (1 << 64) - 1


class AlertStatus(StrEnum):
    """The status of one alert; the root status of a delivery is never used."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert of a delivery, or an event of an agent, which enters by the same road.

    `starts_at` is the moment of firing (after `for`), not of the crossing. `ends_at` is None while it fires:
    Alertmanager writes year 1 then. All times carry a time zone.
    """

    fingerprint: str
    status: AlertStatus
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    generator_url: str = ""

    @property
    def name(self) -> str:
        """The label `alertname`, or an empty string."""
        return self.labels.get("alertname", "")


def fingerprint_of(labels: Mapping[str, str]) -> str:
    """The 16 hex digits that Alertmanager itself computes (FNV-1a over the sorted labels, prometheus/common model).

    Needed for Alertmanager before 0.19, which sends none, and for senders that leave it empty.
    """
    digest = _FNV_OFFSET
    for name in sorted(labels):
        for part in (name, labels[name]):
            for byte in (*part.encode("utf-8", "surrogatepass"), 0xFF):
                digest = ((digest ^ byte) * _FNV_PRIME) & _MASK
    return f"{digest:016x}"
