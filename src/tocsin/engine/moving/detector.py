"""Run moving queries on a stream of events and location updates, which may arrive in any order.

A moving query matches rules in its *ranges*. A range is the region around an object from one location update to the
next. The output has a *marker* for each new range, and the matches. The state is the current range of each query, and
the events as far back as a range may reach. A snapshot has the format of `detector_state`, but begins with other bytes.
It contains:

settings and counts │ ranges │ retained events │ waiting events
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine.detector import DEAD_LETTERS_MAX
from tocsin.engine.detector_state import MAGIC as RULES
from tocsin.engine.detector_state import pack, unpack
from tocsin.engine.moving.gather import UPDATES, DeadLetter, GatheredEvents, Gatherer
from tocsin.engine.moving.matcher import Matcher, attributes_of
from tocsin.engine.moving.ranges import RangeParameters, RangeTracker
from tocsin.errors import EventError, StateError, nearest
from tocsin.events.columns import concat
from tocsin.events.dead_letters import dead_letter_table, describe_row
from tocsin.events.reader import Columns, Data, ReadResult, read
from tocsin.events.reorder import Scheduler
from tocsin.events.types import EventType
from tocsin.language.mcep.ast import Interest
from tocsin.language.mcep.text import print_interest
from tocsin.language.syntax.expressions import print_rule
from tocsin.plans.typing import Catalog

MAGIC = b"TOCMOV"


@dataclass(frozen=True, slots=True)
class MovingSnapshot:
    """The content of a snapshot. The types of events in tables are indexes of `settings["types"]`."""

    settings: Mapping[str, Any]
    follower: str
    """The current ranges, as JSON text from `RangeTracker.as_data`."""
    events: pa.Table | None
    waiting: pa.Table | None
    """Events and location updates later than the watermark."""


def encode(snapshot: MovingSnapshot) -> bytes:
    """Encode a snapshot as bytes."""
    tables = {name: table for name in ("events", "waiting") if (table := getattr(snapshot, name)) is not None}
    header = {"settings": snapshot.settings, "follower": json.loads(snapshot.follower), "tables": list(tables)}
    return pack(MAGIC, header, tables.values())


def decode(data: bytes) -> MovingSnapshot:
    """Decode a snapshot. Raise a `StateError` if it is damaged or has another format."""
    if data[: len(RULES)] == RULES:
        raise StateError("this is a snapshot of rules, not of moving queries")
    header, tables = unpack(MAGIC, data, "snapshot")
    tables_by_name = {name: next(tables) for name in header["tables"]}
    return MovingSnapshot(
        header["settings"], json.dumps(header["follower"]), tables_by_name.get("events"), tables_by_name.get("waiting")
    )


def query_text(interest: Interest) -> str:
    """Return the text of a query and its rules. Two queries are the same if their texts are equal."""
    return "\n\n".join([*(print_rule(rule) for rule in interest.rules), print_interest(interest)])


def recode_types(table: pa.Table, types: Sequence[str], now: Sequence[str]) -> pa.Table:
    """Replace the type numbers of stored events, and drop the events that no query reads any more.

    The old numbers are indexes of `types`, the new numbers are indexes of `now`.
    """
    if tuple(types) == tuple(now):
        return table
    numbers = np.array([now.index(type) if type in now else -1 for type in types], np.int32)[table["type"].to_numpy()]
    return table.set_column(0, "type", pa.array(numbers)).filter(pa.array(numbers >= 0))


class MovingDetector:
    """Runs moving queries. Create a detector with `RuleSet.detector`.

    Events are kept for `history_us` before the start of a range, or as long as needed if it is None.
    """

    def __init__(
        self,
        interests: Sequence[Interest],
        types: Mapping[str, EventType],
        *,
        delay_us: int = 0,
        columns: Columns | None = None,
        history_us: int | None = None,
    ) -> None:
        self._columns = columns or Columns()
        self._parameters = RangeParameters(tuple(interests), history_us)
        self._tracker = RangeTracker(self._parameters)
        self._gatherer = Gatherer(self._parameters.interests, Catalog(types=types, closed=bool(types)))
        self._matcher: Matcher | None = None
        self._times: bool | None = None
        self._scheduler = Scheduler(delay_us)
        self._events: list[pa.Table] = []
        self._dead_letters: list[DeadLetter] = []
        self._counts = {"events": 0, "late": 0, "dead": 0, "matches": 0}

    def locate(self, locations: pa.Table) -> pa.Table:
        """Process location updates that arrive apart from events. Return the certain markers and matches."""
        return self.push(with_type(locations, self._parameters.interests, self._columns))

    def push(self, data: Data, locations: pa.Table | None = None) -> pa.Table:
        """Process events, and location updates that arrive together with them.

        Return the markers and matches that became certain.
        """
        seen = [self._read(data)]
        if locations is not None:
            seen.append(self._read(with_type(locations, self._parameters.interests, self._columns)))
        self._counts["events"] += sum(one.rows for one in seen)
        batch = concat([one.batch for one in seen])
        self._reject([letter for one in seen for letter in one.rejected])
        released, late = self._scheduler.push(batch)
        for row in late.tolist():
            if (number := batch["type"][row].as_py()) >= 0:
                type = self._gatherer.types[number]
                self._counts["late"] += 1
                self._reject([("late", type, batch["ts"][row].as_py(), describe_row(batch, row, type))])
        return self._process(released, self._scheduler.watermark)

    def advance(self, ts: int) -> pa.Table:
        """Advance the watermark to `ts` (µs), because no earlier event will arrive. Return new markers and matches."""
        return self._process(self._scheduler.advance(ts), self._scheduler.watermark)

    def finish(self) -> pa.Table:
        """Return the remaining markers and matches, because no further event will arrive."""
        return self._process(self._scheduler.finish(), None)

    def dead_letters(self) -> pa.Table:
        """Return and clear the dead letters, a table with the reason, type, ts and text of each event."""
        rejected, self._dead_letters = self._dead_letters, []
        return dead_letter_table(rejected)

    def snapshot(self) -> bytes:
        """Return the state as bytes in a versioned format, from which `RuleSet.restore` resumes."""
        scheduler, gatherer = self._scheduler, self._gatherer
        settings = {
            "queries": {one.name: query_text(one) for one in self._parameters.interests},
            "history_us": self._parameters.history_us,
            "delay_us": scheduler.delay_us,
            "columns": asdict(self._columns),
            "times": self._times,
            "catalog": gatherer.catalog.as_data(),
            "types": list(gatherer.types),
            "watermark": scheduler.watermark,
            "largest": scheduler.largest,
            "counts": self._counts,
        }
        events = GatheredEvents(self._events, gatherer.types, canonical=False).batch if self._events else None
        return encode(MovingSnapshot(settings, self._tracker.as_data(), events, scheduler.waiting))

    @classmethod
    def restore(cls, data: bytes, interests: Sequence[Interest], types: Mapping[str, EventType]) -> MovingDetector:
        """Return a detector that resumes from the snapshot `data`.

        A query that is new or has changed has no range before the next location update. For this range, only the events
        are available that were retained for the other queries.
        """
        snapshot = decode(data)
        settings = snapshot.settings
        catalog = Catalog.from_data(settings["catalog"])
        for name, type in types.items():
            if catalog.types.get(name, type) != type:
                raise StateError(f"the snapshot has {catalog.types[name]}, the queries declare {type}")
        columns = Columns(**settings["columns"])
        detector = cls(
            interests, types, delay_us=settings["delay_us"], columns=columns, history_us=settings["history_us"]
        )
        detector._gatherer = Gatherer(
            detector._parameters.interests, replace(catalog.with_types(types), closed=bool(types))
        )
        detector._times, detector._counts = settings["times"], settings["counts"]
        same = {one.name for one in interests if settings["queries"].get(one.name) == query_text(one)}
        detector._tracker.restore(snapshot.follower, same)
        now = detector._gatherer.types
        if snapshot.events is not None:
            detector._events = [recode_types(snapshot.events, settings["types"], now)]
        scheduler = detector._scheduler
        scheduler.watermark, scheduler.largest = settings["watermark"], settings["largest"]
        if snapshot.waiting is not None:
            scheduler.wait(recode_types(snapshot.waiting, settings["types"], now))
        return detector

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of events, late events, dead letters (for any reason) and matches."""
        return dict(self._counts)

    @property
    def attributes(self) -> dict[str, str]:
        """The attribute of each column of matches, by column name."""
        return attributes_of(self._gatherer.plan)

    def _read(self, data: Data) -> ReadResult:
        seen = read(data, self._columns, self._gatherer.known)
        if self._times is None and seen.rows:
            self._times = seen.times
        self._check_positions(seen)
        catalog = self._gatherer.catalog
        by_type = {name: kinds for name, kinds in seen.by_type.items() if name not in self._gatherer.plan.defined}
        # The columns of a table name all attributes of its events, but not those of location updates.
        learned = catalog.learned(seen.shared, by_type, seen.empty, complete=False)
        if learned is not catalog:
            self._gatherer, self._matcher = Gatherer(self._parameters.interests, learned), None
        return seen

    def _check_positions(self, seen: ReadResult) -> None:
        """Raise an error if the columns of a table show that its events have no position."""
        if not seen.rows or not seen.complete:
            return
        names = {name.rpartition(":")[0] for name in seen.batch.column_names} | seen.empty
        missing = [[name for name in space.coordinates if name not in names] for space in self._gatherer.spaces]
        if all(missing):
            hint = nearest(missing[0][0], names) or ""
            raise EventError(
                f"moving queries need positions, but there is no column '{missing[0][0]}'. {hint}".rstrip()
            )

    def _process(self, released: pa.Table | None, upto: int | None) -> pa.Table:
        updates = UPDATES.empty_table()
        if released is not None and released.num_rows:
            updates, dead = self._gatherer.updates(released)
            self._reject(dead)
            if (events := self._gatherer.events(released)) is not None:
                self._events.append(events)
        if self._matcher is None:
            self._matcher = Matcher(self._parameters, self._gatherer, times=bool(self._times))
        emissions = self._tracker.advance(self._gatherer.focals.expanded(updates), upto)
        matches = self._matcher.run(emissions, GatheredEvents(self._events, self._gatherer.types))
        self._events = later_than(self._events, self._tracker.needed_from())
        self._counts["matches"] += matches.num_rows - matches["rule"].null_count
        return matches

    def _reject(self, dead: list[DeadLetter]) -> None:
        self._counts["dead"] += len(dead)
        self._dead_letters += dead[: max(0, DEAD_LETTERS_MAX - len(self._dead_letters))]


def later_than(tables: Sequence[pa.Table], after: int) -> list[pa.Table]:
    """Return the events of `tables` that are later than the time `after` (µs)."""
    later = []
    for table in tables:
        ts = table["ts"].to_numpy()
        if len(ts) and ts.max() > after:
            later.append(table if ts.min() > after else table.filter(pa.array(ts > after)))
    return later


def with_type(locations: pa.Table, interests: Sequence[Interest], columns: Columns) -> Data:
    """Return location updates with their type.

    If `locations` has no column for types, all updates have the type of the objects that the queries follow.
    """
    if columns.type in locations.column_names:
        return locations
    return {common_focal_type(interests, columns): locations}


def common_focal_type(interests: Sequence[Interest], columns: Columns) -> str:
    """Return the type of the objects that the queries follow. Raise an error if the objects have several types."""
    types = sorted({one.focal.type for one in interests})
    if len(types) > 1:
        message = f"the queries follow {' and '.join(types)}: the locations need a column '{columns.type}'"
        raise EventError(message)
    return types[0]
