"""Writers of live sources, which write in small portions and slightly out of order."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.sites.running import RULES
from tocsin.simulation.checking import expected_ids
from tocsin.sites.site_plan import SECOND_US, SitePlan

LATE_S = 5
BRIEF: dict[str, Any] = {"rules": RULES.replace("5 min", "30 s"), "seconds": 60, "epoch": 2}
SOURCES = {site: {"from": f"arriving/{site}", "late": LATE_S, "id": "id"} for site in ("hill", "dam")}


class Writers:
    """The events of a plan that is not live, put into folders little by little, a bit out of order."""

    def __init__(self, folder: Path, made: SitePlan, seed: int = 0) -> None:
        self.folder, self.plan, self.chance = folder, made, random.Random(seed)
        self.upto_us = round(made.seconds * SECOND_US)
        rows = [{k: v for k, v in row.items() if v is not None} for row in made.events.to_pylist()]
        late_us = LATE_S * SECOND_US
        self.waiting = sorted(
            (
                (row["ts"] + self.chance.randrange(late_us), site, row)
                for row, site in zip(rows, made.where, strict=True)
            ),
            key=lambda one: one[0],
        )
        self.files = 0

    def put(self, site: str, rows: Sequence[Any], ending: str = "jsonl") -> None:
        """A file of a source."""
        self.files += 1
        path = self.folder / site / f"{self.chance.randrange(10**6):06}-{self.files}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name("." + path.name)
        fresh.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
        fresh.rename(path)

    def write(self, count: int) -> None:
        """So many events, wherever they happen."""
        now, self.waiting = self.waiting[:count], self.waiting[count:]
        for site in sorted({site for _, site, _ in now}):
            self.put(site, [row for _, where, row in now if where == site])

    def end(self) -> None:
        """What moves time beyond all events."""
        after = self.upto_us + 2 * LATE_S * SECOND_US
        for site in SOURCES:
            self.put(site, [{"type": "Temp", "ts": after, "area": "none", "value": 0.0, "id": f"end-{site}"}])

    @property
    def due(self) -> dict[str, list[str]]:
        made = self.plan
        return expected_ids(made.rules, made.types, made.sites.sinks, made.events, self.upto_us)
