"""How is the service doing? Told as Prometheus text.

How is the service doing, in numbers?
"""

from __future__ import annotations

import time
from typing import Any

from tocsin.events.reorder import BEGINNING
from tocsin.process import metric
from tocsin.service.service import Service


def status(service: Service) -> dict[str, Any]:
    """Counts and rates."""
    detection = service.detection
    return {
        "state": "failed" if service.failure else "running",
        "failure": service.failure,
        "engine": service.options.engine,
        "uptime_s": round(time.time() - service.started_s, 1),
        "events": service.events,
        "rejected": service.rejected,
        "dead_letters": detection.dead,
        "matches": service.matches.last,
        "rules": len(detection.deployed),
        "lag_ms": round(service.lag_s * 1_000, 2),
        "backlog_bytes": service.backlog_bytes,
        "log_bytes": service.log.size_bytes,
        "commits": service.committer.groups,
        "requests": service.requests,
        "watermark_us": None if detection.watermark == BEGINNING else detection.watermark,
        "events_per_s": round(sum(service.event_rates.per_s().values()), 2),
        "matches_per_s": round(sum(service.match_rates.per_s().values()), 2),
    }


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
