"""Report the status of a service as JSON and as Prometheus metrics."""

from __future__ import annotations

import time
from typing import Any

from tocsin.events.reorder import BEGINNING
from tocsin.process import metric
from tocsin.service.service import Service


def status(service: Service) -> dict[str, Any]:
    """Return the state, the counts and the rates of `service`."""
    backend = service.backend
    return {
        "state": "failed" if service.failure else "running",
        "failure": service.failure,
        "engine": service.options.engine,
        "uptime_s": round(time.time() - service.started_s, 1),
        "events": service.events,
        "rejected": service.rejected,
        "dead_letters": backend.dead,
        "matches": service.matches.last,
        "rules": len(backend.deployed),
        "lag_ms": round(service.lag_s * 1_000, 2),
        "backlog_bytes": service.backlog_bytes,
        "log_bytes": service.log.size_bytes,
        "commits": service.committer.groups,
        "requests": service.requests,
        "watermark_us": None if backend.watermark == BEGINNING else backend.watermark,
        "events_per_s": round(sum(service.event_rates.per_s().values()), 2),
        "matches_per_s": round(sum(service.match_rates.per_s().values()), 2),
    }


CONTENT = "text/plain; version=0.0.4; charset=utf-8"


def text(service: Service, streams: int, webhooks: int) -> str:
    """Return all metrics of `service` in the text format of Prometheus.

    `streams` is the number of connected subscribers, and `webhooks` the number of webhooks.
    """
    counts = status(service)
    backend = service.backend
    lines = [
        *metric("service_up", "gauge", "Whether detection runs.", int(service.failure is None)),
        *metric("service_events_total", "counter", "Events accepted, by type.", dict(backend.events_by_type), "type"),
        *metric("service_rejected_events_total", "counter", "Events rejected.", counts["rejected"]),
        *metric(
            "service_dead_letters_total", "counter", "Accepted events that could not be used.", counts["dead_letters"]
        ),
        *metric("service_matches_total", "counter", "Matches, by rule.", dict(backend.matches_by_rule), "rule"),
        *metric("service_requests_total", "counter", "Requests with events.", counts["requests"]),
        *metric("service_commits_total", "counter", "Group commits to disk.", counts["commits"]),
        *metric("service_rules", "gauge", "Rules deployed.", counts["rules"]),
        *metric(
            "service_lag_seconds",
            "gauge",
            "Seconds from acceptance to detection, for the last events.",
            counts["lag_ms"] / 1_000,
        ),
        *metric("service_backlog_bytes", "gauge", "Bytes accepted but not yet processed.", counts["backlog_bytes"]),
        *metric("service_log_bytes", "gauge", "Size of the event log on disk.", counts["log_bytes"]),
        *metric("service_streams", "gauge", "Connected subscribers.", streams),
        *metric("service_webhooks", "gauge", "Webhooks.", webhooks),
    ]
    return "".join(lines)
