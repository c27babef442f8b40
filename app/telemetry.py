"""Logs and metrics. A record has an `action`; nothing that looks like a secret gets into it."""

import logging
import re
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.typing import Processor

_HIDDEN = "**********"
_NAMED = re.compile(r"(?i)\b(access_token|token|sign|secret|password|passwd|credentials|api_key)(=|%3D)[^&\s\"'<>]+")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=_\-.~]{8,}")
_USERINFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@]+@")
_SECRET_KEY = re.compile(r"(?i)(^|_)(token|secret|password|authorization|credentials|sign)$")


def redacted(text: str) -> str:
    """`text` without the values of token, sign, secret and password parameters, Authorization and user:password@."""
    text = _NAMED.sub(rf"\1\2{_HIDDEN}", text)
    return _USERINFO.sub(rf"\1{_HIDDEN}@", _BEARER.sub(rf"\1 {_HIDDEN}", text))


def redact(_logger: Any, _method: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The step of every log record that hides secrets, in values and in tracebacks."""
    for key, value in record.items():
        record[key] = _HIDDEN if _SECRET_KEY.search(key) and isinstance(value, str) else _hidden(value)
    return record


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item) for item in value]
    return value


def with_action(_logger: Any, _method: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Records of other libraries get the action `log`."""
    record.setdefault("action", "log")
    return record


def set_up_logging(*, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send our records and those of the standard library to `stream` (stderr): text on a terminal, else JSON lines."""
    stream = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        with_action,
        structlog.processors.format_exc_info,
        redact,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    renderer = structlog.dev.ConsoleRenderer() if stream.isatty() else structlog.processors.JSONRenderer()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # httpx logs each request's whole URL at INFO; DingTalk's holds the access token. uvicorn says nothing we don't.
    for quiet in ("httpx", "httpcore", "uvicorn", "alembic"):
        logging.getLogger(quiet).setLevel(logging.WARNING)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The service's own counters. One record a process, passed explicitly; its registry is what /metrics shows."""

    registry: CollectorRegistry
    deliveries: Counter = field(init=False)
    delivery_bytes: Counter = field(init=False)
    delivery_seconds: Histogram = field(init=False)
    wrong_paths: Counter = field(init=False)
    decisions: Counter = field(init=False)
    remediations: Counter = field(init=False)
    messages: Counter = field(init=False)
    stage_failures: Counter = field(init=False)
    store_low_on_space: Gauge = field(init=False)

    def __post_init__(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tunewarden_{name}", text, labels, registry=self.registry)

        seconds = Histogram(
            "tunewarden_delivery_seconds",
            "From the first byte of a delivery to its answer.",
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
        )
        low = Gauge(
            "tunewarden_store_low_on_space",
            "1 while the disk is full and deliveries are refused.",
            registry=self.registry,
        )
        made: dict[str, Any] = {
            "deliveries": counter("deliveries", "Webhook requests by the status that answered them.", "status"),
            "delivery_bytes": counter("delivery_bytes", "Bytes of the stored deliveries."),
            "delivery_seconds": seconds,
            "wrong_paths": counter("wrong_path_requests", "POST requests to a path that isn't there."),
            "decisions": counter("decisions", "Decisions by verdict and reason.", "verdict", "reason"),
            "remediations": counter(
                "remediations", "Ended remediations by policy, state and reason.", "policy", "state", "reason"
            ),
            "messages": counter("messages", "Posts to robots by target and outcome.", "target", "outcome"),
            "stage_failures": counter("stage_failures", "Unexpected errors of a stage, by stage.", "stage"),
            "store_low_on_space": low,
        }
        for name, metric in made.items():
            object.__setattr__(self, name, metric)
