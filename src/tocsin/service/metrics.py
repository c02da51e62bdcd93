"""How is the service doing? Told as Prometheus text."""

from __future__ import annotations

from tocsin.prometheus import metric
from tocsin.service.core import Service
from tocsin.service.status import status

CONTENT = "text/plain; version=0.0.4; charset=utf-8"


def text(service: Service, streams: int, webhooks: int) -> str:
    """Everything in Prometheus's text format."""
    told = status(service)
    detection = service.detection
    pieces = [
        *metric("service_up", "gauge", "Whether detection runs.", int(service.failure is None)),
        *metric("service_events_total", "counter", "Events accepted, by type.", dict(detection.events_by_type), "type"),
        *metric("service_rejected_events_total", "counter", "Events rejected.", told["rejected"]),
        *metric(
            "service_dead_letters_total", "counter", "Accepted events that could not be used.", told["dead_letters"]
        ),
        *metric("service_matches_total", "counter", "Composite events found.", dict(detection.matches_by_rule), "rule"),
        *metric("service_requests_total", "counter", "Requests that brought events.", told["requests"]),
        *metric("service_commits_total", "counter", "Times that the disk was waited for.", told["commits"]),
        *metric("service_rules", "gauge", "Rules deployed.", told["rules"]),
        *metric(
            "service_lag_seconds", "gauge", "From accepted to detected, for the last events.", told["lag_ms"] / 1_000
        ),
        *metric("service_backlog_bytes", "gauge", "Accepted and not detected in yet.", told["backlog_bytes"]),
        *metric("service_log_bytes", "gauge", "What the log of events has on the disk.", told["log_bytes"]),
        *metric("service_streams", "gauge", "Subscribers that are listening.", streams),
        *metric("service_webhooks", "gauge", "Webhooks.", webhooks),
    ]
    return "".join(pieces)
