"""Deliveries of moving queries, from rows and from the reference, in one form; and ways to cut a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa

from tests.simulation.moving import Moving
from tocsin.events.types import Event
from tocsin.reference.ranges import Covering

HEADER = ("query", "range", "rule", "type", "ts", "id", "parts", "error")


def by_range(rows: Iterable[dict[str, Any]]) -> dict[str, list[list[object]]]:
    """Return rows by query and range: number, start and error, then the matches."""
    found: dict[str, list[list[object]]] = {}
    for row in rows:
        ranges = found.setdefault(row["query"], [])
        if row["rule"] is None:
            assert row["type"] == "Marker"
            ranges.append([(row["range"], row["ts"], row["error"])])
            continue
        parts = [(part["role"], part["type"], part["ts"], part["id"]) for part in row["parts"]]
        attributes = {name: value for name, value in row.items() if name not in HEADER and value is not None}
        assert ranges[-1][0][0] == row["range"], "a match stands behind the marker of its range"  # type: ignore[index]
        ranges[-1].append((row["id"], row["rule"], row["type"], row["ts"], parts, attributes))
    return found


def expected(coverings: Iterable[Covering]) -> list[list[object]]:
    """Return the same from the reference."""
    found: list[list[object]] = []
    for covering in coverings:
        found.append([(covering.range.number, covering.range.start, covering.error)])
        for one in covering.delivered:
            match = one.match
            parts = [(part.role, part.type, part.ts, part.id) for part in match.parts]
            attributes = {name: value for name, value in match.attributes.items() if value is not None}
            found[-1].append((one.id, match.rule, match.type, match.ts, parts, attributes))
    return found


def all_expected(case: Moving) -> dict[str, list[list[object]]]:
    """Return the expected deliveries of all queries that have a range."""
    found = {name: expected(coverings) for name, coverings in case.expected().items()}
    return {name: ranges for name, ranges in found.items() if ranges}


def without_ids(case: Moving) -> Moving:
    """Return the case with events without ids, some of them twice."""
    events = [replace(event, id=None) for event in case.case.events]
    twice = [event for number, event in enumerate(events) if number % 7 == 0 and event.type in "ABC"]
    return replace(case, case=replace(case.case, events=tuple(events + twice)))


def arriving(events: Sequence[Event], rng: Random) -> tuple[list[list[Event]], int]:
    """Return batches out of order, and the delay that they stay within."""
    delay_us = rng.choice([0, 1, 5, 20])
    late = sorted(events, key=lambda event: event.ts + rng.uniform(0, delay_us))
    count = min(rng.choice([1, 2, 5, 20]), max(1, len(late)))
    cuts = sorted(rng.sample(range(1, len(late)), count - 1)) if len(late) > 1 else []
    return [list(late[low:high]) for low, high in zip([0, *cuts], [*cuts, len(late)], strict=True)], delay_us


def rows_of(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """Return the rows of tables with times as integers."""
    from tests.conformance.packs import rows_of as plain

    return [row for table in tables for row in plain(table)]
