"""How is the service doing, in numbers?"""

from __future__ import annotations

import time
from typing import Any

from tocsin.events.scheduler import BEGINNING
from tocsin.service.core import Service


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
