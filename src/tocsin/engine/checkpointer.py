"""A detector's state in pieces: how to write down, batch by batch, only what is new.

The *head* is small and written each time: counters, what belongs to the last instant, and which segments there are. A
*segment* is written once and never changed: the rows that came since the last one, the events that began to wait, and
what consumed roles took away since. Rows have numbers that never change, so that a later segment can say which rows
of an earlier one were consumed. A segment is dropped when no rule can reach anything in it any more. Eight segments
of a level are merged into one of the next, so that there are few and a row is written a logarithmic number of times.
What is the same in every batch, above all the rules, is a segment of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine.detector import Detector
from tocsin.engine.detector_state import (
    Snapshot,
    State,
    all_kept,
    by_type,
    instant,
    left,
    pack,
    table_of,
    tail_in,
    tail_of,
    unpack,
)
from tocsin.engine.families.requests import used_of
from tocsin.engine.pipeline import Consumed, Journal, Machine
from tocsin.engine.rule_changes import Change, numbers, resume, settings
from tocsin.errors import StateError
from tocsin.events.columns import concat
from tocsin.events.types import EventType
from tocsin.kernels import Array
from tocsin.language.eps.ast import Statement
from tocsin.plans.plan import Plan

HEAD, SEGMENT = b"TOCHED", b"TOCSEG"
FAN = 8
"""How many segments of a level become one."""
BASE = 99
"""The level of a segment with everything: it is merged with others only when all is written anew."""
ENDLESS_US = 2**61
"""How long events are kept that leave when others come."""
DEAD_MIN = 4096
"""Fewer dead rows are not worth writing everything anew."""

Owner = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Changes:
    """What to write: the new head, new segments by number, and which segments are not needed any more."""

    head: bytes
    put: Mapping[int, bytes]
    drop: tuple[int, ...]


@dataclass(slots=True)
class Segment:
    """What must be known of a segment to merge and to drop it."""

    number: int
    level: int
    first: int
    """Its rows have this number or a larger one."""
    lives: list[tuple[int, int]]
    """(until, rows): so many rows are out of reach when the watermark (µs) is there."""
    consumed: list[Consumed] = field(default_factory=list)
    waiting: pa.Table | None = None

    @property
    def until(self) -> int:
        """The watermark (µs) at which nothing in it is needed any more."""
        return max(until for until, _ in self.lives)


class Ledger:
    """Which part of a detector's state is written down already; at first nothing.

    One detector has one ledger, whose `changes` are taken after each batch.
    """

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._segments: list[Segment] = []
        self._constant: int | None = None
        self._next = 0
        self._first = 0
        self._machine: Machine | None = None
        self._plan: tuple[Plan, bool | None, tuple[Change, ...]] | None = None
        self._horizons: dict[str, int] = {}

    def changes(self) -> Changes:
        """What to write so that the head and the live segments are the state.

        Takes time in proportion to what is new since the last call, on the average.
        """
        self._detector._forget()
        detector, machine = self._detector, self._detector._machine
        before = self._live
        put: dict[int, bytes] = {}
        plan = detector._plan, detector._times, detector._coming
        if self._plan is None or self._plan[0] is not plan[0] or self._plan[1:] != plan[1:]:
            self._constant = self._take_number()
            put[self._constant] = pack(SEGMENT, {"number": self._constant, "settings": settings(detector)}, [])
            self._plan, self._horizons = plan, _horizons(machine)
        self._segments = [segment for segment in self._segments if segment.until > self._now]
        whole = machine is not self._machine or self._is_mostly_dead()
        put |= self._everything() if whole else self._news()
        live = self._live
        return Changes(self._head(), put, tuple(sorted(set(before) - set(live))))

    @property
    def _now(self) -> int:
        return self._detector._scheduler.watermark

    @property
    def _live(self) -> list[int]:
        constant = [] if self._constant is None else [self._constant]
        return constant + [segment.number for segment in self._segments]

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1

    def _is_mostly_dead(self) -> bool:
        lives = [life for segment in self._segments for life in segment.lives]
        dead = sum(rows for until, rows in lives if until <= self._now)
        # What a window that counts events has let go shows only in what it still holds.
        endless = sum(rows for until, rows in lives if until > self._now + ENDLESS_US // 2)
        if endless:
            dead += max(0, endless - len(np.unique(self._detector._machine.windows.rows)))
        return dead > DEAD_MIN and 2 * dead > sum(rows for _, rows in lives)

    # ---- what is new

    def _news(self) -> dict[int, bytes]:
        """A segment with what is new, and with the last segments if there are enough of them."""
        machine = self._detector._machine
        store, journal = machine.store, machine.journal
        assert journal is not None
        rows = store.recent + np.nonzero(store.born[store.recent : store.size] >= 0)[0]
        first, self._first = self._first, store.numbered
        consumed, arrived = journal.consumed, journal.arrived
        machine.journal, store.recent = Journal(), store.size
        places = self._within_reach(rows)
        waiting = self._still_waiting(arrived)
        if not places and not consumed and waiting is None:
            return {}
        count, level = self._merge()
        if count:
            merged, self._segments = self._segments[-count:], self._segments[:-count]
            first = merged[0].first
            places = self._within_reach(np.nonzero(store.born[: store.size] >= first)[0])
            consumed = [entry for segment in merged for entry in segment.consumed] + consumed
            waiting = self._still_waiting([*(s.waiting for s in merged if s.waiting is not None), *arrived])
        return self._written(level, first, places, self._relevant(consumed, first, places), waiting, {})

    def _merge(self) -> tuple[int, int]:
        """How many of the last segments are merged with a new one, and the level of what comes out."""
        levels, count, level = [segment.level for segment in self._segments], 0, 0
        while (more := levels[: len(levels) - count].count(level)) >= FAN - 1:
            count, level = count + more, level + 1
        return count, level

    def _within_reach(self, rows: Array) -> dict[str, Array]:
        machine = self._detector._machine
        ts, held = machine.store.ts, machine.windows.rows
        endless = ENDLESS_US in self._horizons.values()
        buffered = {buffer.filter.type for buffer in machine.tables.buffer_ids} if endless else set()
        found: dict[str, Array] = {}
        for type, some in by_type(self._detector._machine, rows).items():
            some = some[ts[some] > self._now - self._horizons.get(type, 0)]
            if self._horizons.get(type) == ENDLESS_US and type not in buffered:
                some = some[np.isin(some, held)]
            if len(some):
                found[type] = some
        return found

    def _still_waiting(self, batches: Iterable[pa.Table]) -> pa.Table | None:
        waiting = [batch.filter(pa.array(batch["ts"].to_numpy() >= self._now)) for batch in batches]
        waiting = [batch for batch in waiting if batch.num_rows]
        return concat(waiting) if waiting else None

    def _relevant(self, consumed: Iterable[Consumed], first: int, places: Mapping[str, Array]) -> list[Consumed]:
        """What was consumed, by role, of the rows that are within reach and written down."""
        born = self._detector._machine.store.born
        found: dict[Owner, list[Consumed]] = {}
        for entry in consumed:
            found.setdefault(entry.owner, []).append(entry)
        relevant: list[Consumed] = []
        for owner, entries in found.items():
            type = entries[0].type
            numbers = np.concatenate([entry.born for entry in entries])
            ts = np.concatenate([entry.ts for entry in entries])
            here = born[places[type]] if type in places else np.zeros(0, np.int64)
            keep = (ts > self._now - self._horizons.get(type, 0)) & ((numbers < first) | np.isin(numbers, here))
            if keep.any():
                relevant.append(Consumed(owner, type, numbers[keep], ts[keep]))
        return relevant

    # ---- everything

    def _everything(self) -> dict[int, bytes]:
        """One segment with all that there is."""
        machine = self._machine = self._detector._machine
        machine.trim(self._now)
        store, first = machine.store, max(self._first, machine.store.numbered)
        store.born[: store.size] = np.arange(first, first + store.size)
        store.numbered = self._first = first + store.size
        store.recent, machine.journal = store.size, Journal()
        self._segments = []
        places = by_type(machine, np.arange(store.size))
        waiting = self._detector._scheduler.waiting
        if waiting is not None:
            waiting = self._still_waiting([self._detector._named(waiting)])
        if not places and waiting is None:
            return {}
        used = [
            Consumed(owner, type, store.born[places[type][rows]], store.ts[places[type][rows]])
            for owner, type, rows in used_of(machine, places)
        ]
        return self._written(BASE, first, places, used, waiting, left(machine, places))

    # ---- bytes

    def _written(
        self,
        level: int,
        first: int,
        places: Mapping[str, Array],
        consumed: list[Consumed],
        waiting: pa.Table | None,
        left: Mapping[Owner, tuple[str, Array]],
    ) -> dict[int, bytes]:
        """Enters a segment and returns it as bytes, unless there is nothing in it."""
        machine = self._detector._machine
        tables: list[pa.Table] = []
        groups: dict[int, list[tuple[int, int]]] = {}

        def lasts(horizon_us: int, ts: Array, rows: int) -> None:
            # Horizons of like size are counted together, so that a head is short whatever the number of types.
            groups.setdefault(horizon_us.bit_length(), []).append((int(ts.max()) + horizon_us, rows))

        for type, rows in places.items():
            born = machine.store.born[rows] - first
            born = born.astype(np.uint32) if born[-1] < 2**32 else born
            tables.append(table_of(machine, type, rows).append_column("born", pa.array(born)))
            lasts(self._horizons.get(type, 0), machine.store.ts[rows], len(rows))
        for _, rows in left.values():
            tables.append(pa.table({"row": pa.array(rows)}))
        for entry in consumed:
            tables.append(pa.table({"born": pa.array(entry.born), "ts": pa.array(entry.ts)}))
            lasts(self._horizons.get(entry.type, 0), entry.ts, 0)
        if waiting is not None:
            tables.append(waiting)
            lasts(1, waiting["ts"].to_numpy(), waiting.num_rows)
        if not tables:
            return {}
        lives = [(max(until for until, _ in group), sum(rows for _, rows in group)) for group in groups.values()]
        segment = Segment(self._take_number(), level, first, lives, consumed, waiting)
        self._segments.append(segment)
        header = {
            "number": segment.number,
            "rows": list(places),
            "left": [[*owner, type] for owner, (type, _) in left.items()],
            "consumed": [[*entry.owner, entry.type] for entry in consumed],
            "waiting": waiting is not None,
        }
        return {segment.number: pack(SEGMENT, header, tables, "lz4")}

    def _head(self) -> bytes:
        machine = self._detector._machine
        state = instant(machine)
        kept = all_kept(machine, dict.fromkeys(machine.tables.types, machine.store.born))
        header = {
            "constant": self._constant,
            "segments": [[s.number, s.level, s.first, s.lives] for s in self._segments],
            "next": self._next,
            "first": self._first,
            "numbers": numbers(self._detector),
            "pending": list(state.pending),
            "kept": list(kept),
            "tail": tail_in(state),
        }
        return pack(HEAD, header, [*state.pending.values(), *kept.values()])

    # ---- going on

    def _go_on(self, header: Mapping[str, Any], contents: Sequence[_Content], *, unchanged: bool) -> None:
        """Takes over what is written down. Under changed rules that is of no use, and will be dropped."""
        self._segments = [content.segment for content in contents]
        self._constant, self._next, self._first = header["constant"], header["next"], header["first"]
        if unchanged:
            detector, machine = self._detector, self._detector._machine
            self._plan, self._horizons = (detector._plan, detector._times, detector._coming), _horizons(machine)
            self._machine, machine.journal = machine, Journal()
            machine.store.numbered, machine.store.recent = self._first, machine.store.size


def live(head: bytes) -> tuple[int, ...]:
    """The numbers of the segments that belong to a head."""
    header, _ = unpack(HEAD, head, "head of the state")
    return header["constant"], *(number for number, *_ in header["segments"])


def rules_of(head: bytes, segments: Mapping[int, bytes]) -> dict[str, str]:
    """The text of each rule that was running, by name."""
    header, _ = unpack(HEAD, head, "head of the state")
    return dict(_opened(segments, header["constant"])[0]["settings"]["rules"])


def restore(
    head: bytes, segments: Mapping[int, bytes], rules: Sequence[Statement], types: Mapping[str, EventType]
) -> tuple[Detector, Ledger]:
    """A detector that goes on from there, and its ledger. New and changed rules see events from there on."""
    header, tables = unpack(HEAD, head, "head of the state")
    written = _opened(segments, header["constant"])[0]["settings"]
    contents = [_content(*_opened(segments, entry[0]), *entry) for entry in header["segments"]]
    state = _state(contents)
    state.pending = {name: next(tables) for name in header["pending"]}
    state.kept = {user: _by_row(next(tables), state.rows) for user in header.get("kept", ())}
    state.tail, state.tail_key, state.tail_last = tail_of(header)
    waiting = [content.segment.waiting for content in contents if content.segment.waiting is not None]
    joined = concat(waiting) if waiting else None
    if joined is not None:
        joined = joined.filter(pa.array(joined["ts"].to_numpy() >= header["numbers"]["watermark"]))
    detector = resume(Detector, Snapshot(written, header["numbers"], state, joined), rules, types)
    ledger = Ledger(detector)
    ledger._go_on(header, contents, unchanged=json.loads(json.dumps(settings(detector))) == written)
    return detector, ledger


@dataclass(slots=True)
class _Content:
    """What a segment holds."""

    segment: Segment
    rows: dict[str, pa.Table]
    left: dict[Owner, tuple[str, Array]]


def _opened(segments: Mapping[int, bytes], number: int) -> tuple[dict[str, Any], Iterator[pa.Table]]:
    if number not in segments:
        raise StateError(f"segment {number} of the state is missing")
    header, tables = unpack(SEGMENT, segments[number], "segment of the state")
    if header["number"] != number:
        raise StateError(f"segment {number} of the state is another one: it says {header['number']}")
    return header, tables


def _content(
    header: Mapping[str, Any], tables: Iterator[pa.Table], number: int, level: int, first: int, lives: list[list[int]]
) -> _Content:
    rows = {}
    for type in header["rows"]:
        table = next(tables)
        born = table["born"].to_numpy().astype(np.int64) + first
        rows[type] = table.set_column(table.num_columns - 1, "born", pa.array(born))
    left = {(rule, place): (type, next(tables)["row"].to_numpy()) for rule, place, type in header["left"]}
    consumed = []
    for rule, place, type in header["consumed"]:
        table = next(tables)
        consumed.append(Consumed((rule, place), type, table["born"].to_numpy(), table["ts"].to_numpy()))
    waiting = next(tables) if header["waiting"] else None
    known = [(until, count) for until, count in lives]
    return _Content(Segment(number, level, first, known, consumed, waiting), rows, left)


def _state(contents: Sequence[_Content]) -> State:
    """The rows of all segments, and what is left of them."""
    types = sorted({type for content in contents for type in content.rows})
    rows = {type: concat([content.rows[type] for content in contents if type in content.rows]) for type in types}
    born = {type: table["born"].to_numpy() for type, table in rows.items()}
    candidates: dict[Owner, tuple[str, Array]] = {}
    consumed: dict[Owner, list[Array]] = {}
    for content in contents:
        for owner, (type, some) in content.left.items():
            if type in born:
                # Whatever else the segment with everything holds of this type is consumed.
                size = content.rows[type].num_rows if type in content.rows else 0
                candidates[owner] = type, np.concatenate([some, np.arange(size, len(born[type]))])
        for entry in content.segment.consumed:
            consumed.setdefault(entry.owner, []).append(entry.born)
            if entry.type in born:
                candidates.setdefault(entry.owner, (entry.type, np.arange(len(born[entry.type]))))
    left: dict[Owner, Array] = {}
    used: dict[Owner, Array] = {}
    for owner, (type, some) in candidates.items():
        gone = np.isin(born[type][some], np.concatenate(consumed.get(owner, [some[:0]])))
        left[owner], used[owner] = some[~gone], some[gone]
    return State(rows, left=left, used=used)


def _by_row(kept: pa.Table, rows: Mapping[str, pa.Table]) -> pa.Table:
    """What a request keeps, with rows that are said by the numbers which never change said by their place."""
    places = {type: {born: n for n, born in enumerate(table["born"].to_pylist())} for type, table in rows.items()}
    found = [
        places.get(type, {}).get(born, -1)
        for type, born in zip(kept["type"].to_pylist(), kept["row"].to_pylist(), strict=True)
    ]
    return kept.set_column(kept.column_names.index("row"), "row", pa.array(found, pa.int64()))


def _horizons(machine: Machine) -> dict[str, int]:
    """How long events of each type are kept at most, in microseconds."""
    found: dict[str, int] = {}
    for buffer, horizon_us in zip(machine.tables.buffer_ids, machine.tables.horizons.tolist(), strict=True):
        found[buffer.filter.type] = max(found.get(buffer.filter.type, 0), horizon_us)
    for loaded in machine.tables.windows:
        if loaded.windowed.chained is not None:
            within_us = loaded.windowed.chained.horizon_us
            for type in loaded.rule.plan.types:
                found[type] = max(found.get(type, 0), ENDLESS_US if within_us is None else within_us + 1)
            continue
        for type, window in zip(loaded.rule.plan.types, loaded.windowed.windows, strict=True):
            if window is not None:
                # An event of a batch is held until the next batch is over.
                horizon_us = 2 * window.size + 1 if window.extent.timed else ENDLESS_US
                found[type] = max(found.get(type, 0), horizon_us)
    return found
