"""How is the service doing? Told as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tocsin.service.core import Service, status

CONTENT = "text/plain; version=0.0.4; charset=utf-8"


def text(service: Service, streams: int, webhooks: int) -> str:
    """Everything in Prometheus's text format."""
    told = status(service)
    detection = service.detection
    pieces = [
        *_metric("up", "gauge", "Whether detection runs.", int(service.failure is None)),
        *_metric("events_total", "counter", "Events accepted, by type.", dict(detection.events_by_type), "type"),
        *_metric("rejected_events_total", "counter", "Events rejected.", told["rejected"]),
        *_metric("dead_letters_total", "counter", "Accepted events that could not be used.", told["dead_letters"]),
        *_metric("matches_total", "counter", "Composite events found.", dict(detection.matches_by_rule), "rule"),
        *_metric("requests_total", "counter", "Requests that brought events.", told["requests"]),
        *_metric("commits_total", "counter", "Times that the disk was waited for.", told["commits"]),
        *_metric("rules", "gauge", "Rules deployed.", told["rules"]),
        *_metric("lag_seconds", "gauge", "From accepted to detected, for the last events.", told["lag_ms"] / 1_000),
        *_metric("backlog_bytes", "gauge", "Accepted and not detected in yet.", told["backlog_bytes"]),
        *_metric("log_bytes", "gauge", "What the log of events has on the disk.", told["log_bytes"]),
        *_metric("streams", "gauge", "Subscribers that are listening.", streams),
        *_metric("webhooks", "gauge", "Webhooks.", webhooks),
    ]
    return "".join(pieces)


def _metric(name: str, kind: str, help: str, values: float | Mapping[Any, Any], label: str = "") -> Iterator[str]:
    yield f"# HELP tocsin_service_{name} {help}\n# TYPE tocsin_service_{name} {kind}\n"
    if not isinstance(values, Mapping):
        yield f"tocsin_service_{name} {values}\n"
        return
    for key, value in sorted(values.items()):
        escaped = str(key).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'tocsin_service_{name}{{{label}="{escaped}"}} {value}\n'
