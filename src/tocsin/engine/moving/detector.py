"""Queries that move, at work on a stream: events and location updates in any order in, markers and matches out.

What is remembered is events, as far back as some range may still look, and where each query's range is.

The state of queries that move as bytes, and back.

    settings and counts │ where the ranges are │ the events that are kept │ those that wait

No operator has state of its own between pieces (`following`), so that this is all. The encoding is that of detectors,
with another mark in front.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine.detector import LETTERS_KEPT
from tocsin.engine.detector_state import MAGIC as RULES
from tocsin.engine.detector_state import pack, unpack
from tocsin.engine.moving.gather import UPDATES, Gathered, Letter, Sieve
from tocsin.engine.moving.matcher import Matcher, attributes_of
from tocsin.engine.moving.ranges import Followed, Follower
from tocsin.errors import EventError, StateError, nearest
from tocsin.events.columns import concat
from tocsin.events.dead_letters import describe_row, letters
from tocsin.events.reader import Columns, Data, Seen, read
from tocsin.events.reorder import Scheduler
from tocsin.events.types import EventType
from tocsin.language.mcep.ast import Interest
from tocsin.language.mcep.text import print_interest
from tocsin.language.syntax.expressions import print_rule
from tocsin.plans.typing import Catalog

MAGIC = b"TOCMOV"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is written down. Types in tables are numbers that `settings["types"]` names."""

    settings: Mapping[str, Any]
    follower: str
    """As `Follower.as_data` has it."""
    events: pa.Table | None
    waiting: pa.Table | None
    """Events and location updates that came early, or before the delay was over."""


def encode(snapshot: Snapshot) -> bytes:
    """The snapshot as bytes."""
    tables = {name: table for name in ("events", "waiting") if (table := getattr(snapshot, name)) is not None}
    header = {"settings": snapshot.settings, "follower": json.loads(snapshot.follower), "tables": list(tables)}
    return pack(MAGIC, header, tables.values())


def decode(data: bytes) -> Snapshot:
    """The snapshot behind the bytes, or a `StateError` that says what is wrong with them."""
    if data[: len(RULES)] == RULES:
        raise StateError("this is a snapshot of rules, not of queries that move")
    header, tables = unpack(MAGIC, data, "snapshot")
    found = {name: next(tables) for name in header["tables"]}
    return Snapshot(header["settings"], json.dumps(header["follower"]), found.get("events"), found.get("waiting"))


def text_of(interest: Interest) -> str:
    """A query as text, with its rules: two are the same query if this is."""
    return "\n\n".join([*(print_rule(rule) for rule in interest.rules), print_interest(interest)])


def renumbered(part: pa.Table, types: Sequence[str], now: Sequence[str]) -> pa.Table:
    """Stored events, for queries that may look at other types than those that stored them."""
    if tuple(types) == tuple(now):
        return part
    numbers = np.array([now.index(type) if type in now else -1 for type in types], np.int32)[part["type"].to_numpy()]
    return part.set_column(0, "type", pa.array(numbers)).filter(pa.array(numbers >= 0))


class MovingDetector:
    """Follows the objects of some interests. Make one with `RuleSet.detector`.

    `history_us`: how far back from a range's start events are kept; None: as far as needed.
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
        self._followed = Followed(tuple(interests), history_us)
        self._follower = Follower(self._followed)
        self._sieve = Sieve(self._followed.interests, Catalog(types=types, closed=bool(types)))
        self._matcher: Matcher | None = None
        self._times: bool | None = None
        self._scheduler = Scheduler(delay_us)
        self._parts: list[pa.Table] = []
        self._letters: list[Letter] = []
        self._counts = {"events": 0, "late": 0, "dead": 0, "matches": 0}

    def locate(self, locations: pa.Table) -> pa.Table:
        """Takes location updates that come apart from events; returns what became certain."""
        return self.push(typed(locations, self._followed.interests, self._columns))

    def push(self, data: Data, locations: pa.Table | None = None) -> pa.Table:
        """Takes events, and location updates if they come beside them; returns what became certain."""
        seen = [self._read(data)]
        if locations is not None:
            seen.append(self._read(typed(locations, self._followed.interests, self._columns)))
        self._counts["events"] += sum(one.rows for one in seen)
        batch = concat([one.batch for one in seen])
        self._bury([letter for one in seen for letter in one.dead])
        released, late = self._scheduler.push(batch)
        for row in late.tolist():
            if (number := batch["type"][row].as_py()) >= 0:
                type = self._sieve.types[number]
                self._counts["late"] += 1
                self._bury([("late", type, batch["ts"][row].as_py(), describe_row(batch, row, type))])
        return self._process(released, self._scheduler.watermark)

    def advance(self, ts: int) -> pa.Table:
        """Says that time has reached `ts` (µs): no event before it will come any more."""
        return self._process(self._scheduler.advance(ts), self._scheduler.watermark)

    def finish(self) -> pa.Table:
        """Says that no event will come any more; returns the rest."""
        return self._process(self._scheduler.finish(), None)

    def dead_letters(self) -> pa.Table:
        """Takes what could not be used: reason, type, ts, and the event in its notation."""
        taken, self._letters = self._letters, []
        return letters(taken)

    def snapshot(self) -> bytes:
        """All that is remembered, in a versioned encoding; `RuleSet.restore` goes on from it."""
        scheduler, sieve = self._scheduler, self._sieve
        settings = {
            "queries": {one.name: text_of(one) for one in self._followed.interests},
            "history_us": self._followed.history_us,
            "delay_us": scheduler.delay_us,
            "columns": asdict(self._columns),
            "times": self._times,
            "catalog": sieve.catalog.as_data(),
            "types": list(sieve.types),
            "watermark": scheduler.watermark,
            "largest": scheduler.largest,
            "counts": self._counts,
        }
        events = Gathered(self._parts, sieve.types, settled=False).batch if self._parts else None
        return encode(Snapshot(settings, self._follower.as_data(), events, scheduler.waiting))

    @classmethod
    def restore(cls, data: bytes, interests: Sequence[Interest], types: Mapping[str, EventType]) -> MovingDetector:
        """A detector that goes on where the snapshot was taken.

        A query that is new or changed has no range before the next location update, and looks back no further than to
        what was kept for the others.
        """
        snapshot = decode(data)
        told = snapshot.settings
        catalog = Catalog.from_data(told["catalog"])
        for name, type in types.items():
            if catalog.types.get(name, type) != type:
                raise StateError(f"the snapshot has {catalog.types[name]}, the queries declare {type}")
        columns = Columns(**told["columns"])
        detector = cls(interests, types, delay_us=told["delay_us"], columns=columns, history_us=told["history_us"])
        detector._sieve = Sieve(detector._followed.interests, replace(catalog.with_types(types), closed=bool(types)))
        detector._times, detector._counts = told["times"], told["counts"]
        same = {one.name for one in interests if told["queries"].get(one.name) == text_of(one)}
        detector._follower.restore(snapshot.follower, same)
        now = detector._sieve.types
        if snapshot.events is not None:
            detector._parts = [renumbered(snapshot.events, told["types"], now)]
        scheduler = detector._scheduler
        scheduler.watermark, scheduler.largest = told["watermark"], told["largest"]
        if snapshot.waiting is not None:
            scheduler.wait(renumbered(snapshot.waiting, told["types"], now))
        return detector

    @property
    def counts(self) -> dict[str, int]:
        """How many events came, were late, were dead-lettered for any reason, and how many matches were found."""
        return dict(self._counts)

    @property
    def attributes(self) -> dict[str, str]:
        """Which attribute each column of what is delivered holds."""
        return attributes_of(self._sieve.plan)

    def _read(self, data: Data) -> Seen:
        seen = read(data, self._columns, self._sieve.known)
        if self._times is None and seen.rows:
            self._times = seen.times
        self._check_places(seen)
        given = self._sieve.catalog
        by_type = {name: kinds for name, kinds in seen.by_type.items() if name not in self._sieve.plan.defined}
        # Events of one table have no attribute that their columns do not name; location updates may have others.
        learned = given.learned(seen.shared, by_type, seen.empty, complete=False)
        if learned is not given:
            self._sieve, self._matcher = Sieve(self._followed.interests, learned), None
        return seen

    def _check_places(self, seen: Seen) -> None:
        """Fails if the columns of a table show that its events have no places."""
        if not seen.rows or not seen.complete:
            return
        names = {name.rpartition(":")[0] for name in seen.batch.column_names} | seen.empty
        missing = [[name for name in space.coordinates if name not in names] for space in self._sieve.spaces]
        if all(missing):
            hint = nearest(missing[0][0], names) or ""
            raise EventError(
                f"queries that move look at places, and there is no column '{missing[0][0]}'. {hint}".rstrip()
            )

    def _process(self, released: pa.Table | None, upto: int | None) -> pa.Table:
        updates = UPDATES.empty_table()
        if released is not None and released.num_rows:
            updates, dead = self._sieve.updates(released)
            self._bury(dead)
            if (events := self._sieve.events(released)) is not None:
                self._parts.append(events)
        if self._matcher is None:
            self._matcher = Matcher(self._followed, self._sieve, times=bool(self._times))
        pieces = self._follower.advance(self._sieve.focals.expanded(updates), upto)
        found = self._matcher.run(pieces, Gathered(self._parts, self._sieve.types))
        self._parts = recent(self._parts, self._follower.needed_from())
        self._counts["matches"] += found.num_rows - found["rule"].null_count
        return found

    def _bury(self, dead: list[Letter]) -> None:
        self._counts["dead"] += len(dead)
        self._letters += dead[: max(0, LETTERS_KEPT - len(self._letters))]


def recent(parts: Sequence[pa.Table], after: int) -> list[pa.Table]:
    """What of these events is later than a time."""
    kept = []
    for part in parts:
        ts = part["ts"].to_numpy()
        if len(ts) and ts.max() > after:
            kept.append(part if ts.min() > after else part.filter(pa.array(ts > after)))
    return kept


def typed(locations: pa.Table, interests: Sequence[Interest], columns: Columns) -> Data:
    """Location updates with their type: without a column for it, the one that all queries follow."""
    if columns.type in locations.column_names:
        return locations
    return {the_focal_type(interests, columns): locations}


def the_focal_type(interests: Sequence[Interest], columns: Columns) -> str:
    """The type of all focal objects."""
    types = sorted({one.focal.type for one in interests})
    if len(types) > 1:
        message = f"the queries follow {' and '.join(types)}: the locations need a column '{columns.type}'"
        raise EventError(message)
    return types[0]
