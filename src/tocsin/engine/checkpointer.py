"""Save the state of a detector incrementally, so that each checkpoint writes only what is new.

A checkpoint consists of a manifest and segments. The *manifest* is small and written each time. It has the counters,
the state of the last instant, and the list of segments. A *segment* is written once and never changed. It has the rows
that were stored since the previous segment, the events that began to wait for the watermark, and the rows that were
consumed. Rows have stable row ids, by which a later segment names the consumed rows of earlier segments. The settings,
above all the rules, are a separate segment.

A segment is deleted when no rule can read anything in it. Eight segments of a level are merged into one segment of the
next level. Therefore there are few segments, and each row is written a logarithmic number of times. A *full segment*
replaces all other segments.
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
    DetectorSnapshot,
    PipelineState,
    last_instant,
    pack,
    rows_by_type,
    saved_families,
    table_of,
    tail_header,
    tail_of,
    unconsumed,
    unpack,
)
from tocsin.engine.families.requests import used_of
from tocsin.engine.pipeline import Changelog, Consumed, Pipeline
from tocsin.engine.rule_changes import RuleChange, counters, resume, settings
from tocsin.errors import StateError
from tocsin.events.columns import concat
from tocsin.events.types import EventType
from tocsin.kernels import Array
from tocsin.language.eps.ast import Statement
from tocsin.plans.plan import Plan

MANIFEST, SEGMENT = b"TOCHED", b"TOCSEG"
MERGE_FACTOR = 8
"""The number of segments of a level that are merged into one segment of the next level."""
FULL_LEVEL = 99
"""The level of a full segment, which is never merged with others."""
NEVER_EXPIRES_US = 2**61
"""The retention (µs) of events that queries hold for an unlimited time, for example in windows of a length."""
EXPIRED_ROWS_MIN = 4096
"""The number of expired rows up to which no full segment is written."""

Owner = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes to write: the new manifest, new segments by number, and the numbers of segments to delete."""

    manifest: bytes
    put: Mapping[int, bytes]
    drop: tuple[int, ...]


@dataclass(slots=True)
class Segment:
    """The facts about a written segment that are needed to merge and delete it."""

    number: int
    level: int
    first_row_id: int
    """The smallest row id that the segment may contain."""
    expiry: list[tuple[int, int]]
    """Pairs (until, rows), where `rows` is the number of rows that expire when the watermark (µs) reaches `until`."""
    consumed: list[Consumed] = field(default_factory=list)
    waiting: pa.Table | None = None

    @property
    def until(self) -> int:
        """The watermark (µs) at which everything in the segment has expired."""
        return max(until for until, _ in self.expiry)


class Checkpointer:
    """Saves the state of one detector incrementally. Call `delta` after each batch."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._segments: list[Segment] = []
        self._settings_segment: int | None = None
        self._next = 0
        self._first_row_id = 0
        self._pipeline: Pipeline | None = None
        self._plan: tuple[Plan, bool | None, tuple[RuleChange, ...]] | None = None
        self._retentions: dict[str, int] = {}

    def delta(self) -> Delta:
        """Return the changes to write, after which the manifest and its segments hold the current state.

        The amortised time is proportional to the number of rows that are new since the last call.
        """
        self._detector._drop_disabled()
        detector, pipeline = self._detector, self._detector._pipeline
        before = self._live
        put: dict[int, bytes] = {}
        plan = detector._plan, detector._times, detector._future_changes
        if self._plan is None or self._plan[0] is not plan[0] or self._plan[1:] != plan[1:]:
            self._settings_segment = self._take_number()
            put[self._settings_segment] = pack(
                SEGMENT, {"number": self._settings_segment, "settings": settings(detector)}, []
            )
            self._plan, self._retentions = plan, _retentions(pipeline)
        self._segments = [segment for segment in self._segments if segment.until > self._now]
        whole = pipeline is not self._pipeline or self._is_mostly_expired()
        put |= self._full_segment() if whole else self._new_segment()
        live = self._live
        return Delta(self._manifest(), put, tuple(sorted(set(before) - set(live))))

    @property
    def _now(self) -> int:
        return self._detector._scheduler.watermark

    @property
    def _live(self) -> list[int]:
        settings_segment = [] if self._settings_segment is None else [self._settings_segment]
        return settings_segment + [segment.number for segment in self._segments]

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1

    def _is_mostly_expired(self) -> bool:
        expiry = [entry for segment in self._segments for entry in segment.expiry]
        expired = sum(rows for until, rows in expiry if until <= self._now)
        # Rows of a count window do not expire by time. Rows that the window no longer holds have expired.
        unlimited = sum(rows for until, rows in expiry if until > self._now + NEVER_EXPIRES_US // 2)
        if unlimited:
            expired += max(0, unlimited - len(np.unique(self._detector._pipeline.windows.rows)))
        return expired > EXPIRED_ROWS_MIN and 2 * expired > sum(rows for _, rows in expiry)

    # ---- new segments

    def _new_segment(self) -> dict[int, bytes]:
        """Return a segment with the changes since the last segment, by number, or nothing if there are none.

        If there are enough segments of a level, they are merged into the new segment.
        """
        pipeline = self._detector._pipeline
        store, changelog = pipeline.store, pipeline.changelog
        assert changelog is not None
        rows = store.unsaved_from + np.nonzero(store.row_ids[store.unsaved_from : store.size] >= 0)[0]
        first_row_id, self._first_row_id = self._first_row_id, store.next_row_id
        consumed, arrived = changelog.consumed, changelog.arrived
        pipeline.changelog, store.unsaved_from = Changelog(), store.size
        rows_of = self._unexpired(rows)
        waiting = self._still_waiting(arrived)
        if not rows_of and not consumed and waiting is None:
            return {}
        count, level = self._merge()
        if count:
            merged, self._segments = self._segments[-count:], self._segments[:-count]
            first_row_id = merged[0].first_row_id
            rows_of = self._unexpired(np.nonzero(store.row_ids[: store.size] >= first_row_id)[0])
            consumed = [entry for segment in merged for entry in segment.consumed] + consumed
            waiting = self._still_waiting([*(s.waiting for s in merged if s.waiting is not None), *arrived])
        return self._write_segment(
            level, first_row_id, rows_of, self._relevant(consumed, first_row_id, rows_of), waiting, {}
        )

    def _merge(self) -> tuple[int, int]:
        """Return the number of last segments to merge with a new segment, and the level of the merged segment."""
        levels, count, level = [segment.level for segment in self._segments], 0, 0
        while (more := levels[: len(levels) - count].count(level)) >= MERGE_FACTOR - 1:
            count, level = count + more, level + 1
        return count, level

    def _unexpired(self, rows: Array) -> dict[str, Array]:
        pipeline = self._detector._pipeline
        ts, windowed = pipeline.store.ts, pipeline.windows.rows
        unlimited = NEVER_EXPIRES_US in self._retentions.values()
        buffered = {buffer.filter.type for buffer in pipeline.tables.buffer_ids} if unlimited else set()
        unexpired: dict[str, Array] = {}
        for type, some in rows_by_type(self._detector._pipeline, rows).items():
            some = some[ts[some] > self._now - self._retentions.get(type, 0)]
            if self._retentions.get(type) == NEVER_EXPIRES_US and type not in buffered:
                some = some[np.isin(some, windowed)]
            if len(some):
                unexpired[type] = some
        return unexpired

    def _still_waiting(self, batches: Iterable[pa.Table]) -> pa.Table | None:
        waiting = [batch.filter(pa.array(batch["ts"].to_numpy() >= self._now)) for batch in batches]
        waiting = [batch for batch in waiting if batch.num_rows]
        return concat(waiting) if waiting else None

    def _relevant(
        self, consumed: Iterable[Consumed], first_row_id: int, rows_of: Mapping[str, Array]
    ) -> list[Consumed]:
        """Return the consumed rows, by role, that have not expired and are stored in a segment."""
        row_ids = self._detector._pipeline.store.row_ids
        by_owner: dict[Owner, list[Consumed]] = {}
        for entry in consumed:
            by_owner.setdefault(entry.owner, []).append(entry)
        relevant: list[Consumed] = []
        for owner, entries in by_owner.items():
            type = entries[0].type
            numbers = np.concatenate([entry.row_ids for entry in entries])
            ts = np.concatenate([entry.ts for entry in entries])
            saved_ids = row_ids[rows_of[type]] if type in rows_of else np.zeros(0, np.int64)
            keep = (ts > self._now - self._retentions.get(type, 0)) & (
                (numbers < first_row_id) | np.isin(numbers, saved_ids)
            )
            if keep.any():
                relevant.append(Consumed(owner, type, numbers[keep], ts[keep]))
        return relevant

    # ---- full segments

    def _full_segment(self) -> dict[int, bytes]:
        """Return one segment with the whole state, by number, which replaces all other segments."""
        pipeline = self._pipeline = self._detector._pipeline
        pipeline.evict(self._now)
        store, first_row_id = pipeline.store, max(self._first_row_id, pipeline.store.next_row_id)
        store.row_ids[: store.size] = np.arange(first_row_id, first_row_id + store.size)
        store.next_row_id = self._first_row_id = first_row_id + store.size
        store.unsaved_from, pipeline.changelog = store.size, Changelog()
        self._segments = []
        rows_of = rows_by_type(pipeline, np.arange(store.size))
        waiting = self._detector._scheduler.waiting
        if waiting is not None:
            waiting = self._still_waiting([self._detector._with_type_names(waiting)])
        if not rows_of and waiting is None:
            return {}
        used = [
            Consumed(owner, type, store.row_ids[rows_of[type][rows]], store.ts[rows_of[type][rows]])
            for owner, type, rows in used_of(pipeline, rows_of)
        ]
        return self._write_segment(FULL_LEVEL, first_row_id, rows_of, used, waiting, unconsumed(pipeline, rows_of))

    # ---- encoding

    def _write_segment(
        self,
        level: int,
        first_row_id: int,
        rows_of: Mapping[str, Array],
        consumed: list[Consumed],
        waiting: pa.Table | None,
        left: Mapping[Owner, tuple[str, Array]],
    ) -> dict[int, bytes]:
        """Register a new segment and return its bytes, by number. Return nothing if the segment is empty."""
        pipeline = self._detector._pipeline
        tables: list[pa.Table] = []
        groups: dict[int, list[tuple[int, int]]] = {}

        def expires(horizon_us: int, ts: Array, rows: int) -> None:
            # Group retentions of similar size, so that the manifest is short whatever the number of types.
            groups.setdefault(horizon_us.bit_length(), []).append((int(ts.max()) + horizon_us, rows))

        for type, rows in rows_of.items():
            row_ids = pipeline.store.row_ids[rows] - first_row_id
            row_ids = row_ids.astype(np.uint32) if row_ids[-1] < 2**32 else row_ids
            tables.append(table_of(pipeline, type, rows).append_column("born", pa.array(row_ids)))
            expires(self._retentions.get(type, 0), pipeline.store.ts[rows], len(rows))
        for _, rows in left.values():
            tables.append(pa.table({"row": pa.array(rows)}))
        for entry in consumed:
            tables.append(pa.table({"born": pa.array(entry.row_ids), "ts": pa.array(entry.ts)}))
            expires(self._retentions.get(entry.type, 0), entry.ts, 0)
        if waiting is not None:
            tables.append(waiting)
            expires(1, waiting["ts"].to_numpy(), waiting.num_rows)
        if not tables:
            return {}
        expiry = [(max(until for until, _ in group), sum(rows for _, rows in group)) for group in groups.values()]
        segment = Segment(self._take_number(), level, first_row_id, expiry, consumed, waiting)
        self._segments.append(segment)
        header = {
            "number": segment.number,
            "rows": list(rows_of),
            "left": [[*owner, type] for owner, (type, _) in left.items()],
            "consumed": [[*entry.owner, entry.type] for entry in consumed],
            "waiting": waiting is not None,
        }
        return {segment.number: pack(SEGMENT, header, tables, "lz4")}

    def _manifest(self) -> bytes:
        pipeline = self._detector._pipeline
        state = last_instant(pipeline)
        families = saved_families(pipeline, dict.fromkeys(pipeline.tables.types, pipeline.store.row_ids))
        header = {
            "constant": self._settings_segment,
            "segments": [[s.number, s.level, s.first_row_id, s.expiry] for s in self._segments],
            "next": self._next,
            "first": self._first_row_id,
            "numbers": counters(self._detector),
            "pending": list(state.buffered),
            "kept": list(families),
            "tail": tail_header(state),
        }
        return pack(MANIFEST, header, [*state.buffered.values(), *families.values()])

    # ---- resuming

    def _resume(self, header: Mapping[str, Any], contents: Sequence[_SegmentContent], *, unchanged: bool) -> None:
        """Continue with the restored segments. If the rules have changed, the next `delta` replaces all segments."""
        self._segments = [content.segment for content in contents]
        self._settings_segment, self._next, self._first_row_id = header["constant"], header["next"], header["first"]
        if unchanged:
            detector, pipeline = self._detector, self._detector._pipeline
            self._plan, self._retentions = (
                (detector._plan, detector._times, detector._future_changes),
                _retentions(pipeline),
            )
            self._pipeline, pipeline.changelog = pipeline, Changelog()
            pipeline.store.next_row_id, pipeline.store.unsaved_from = self._first_row_id, pipeline.store.size


def live_segments(manifest: bytes) -> tuple[int, ...]:
    """Return the numbers of the segments that `manifest` needs."""
    header, _ = unpack(MANIFEST, manifest, "manifest of the state")
    return header["constant"], *(number for number, *_ in header["segments"])


def rules_of(manifest: bytes, segments: Mapping[int, bytes]) -> dict[str, str]:
    """Return the text of each rule in a checkpoint, by name of the rule."""
    header, _ = unpack(MANIFEST, manifest, "manifest of the state")
    return dict(_open_segment(segments, header["constant"])[0]["settings"]["rules"])


def restore(
    manifest: bytes, segments: Mapping[int, bytes], rules: Sequence[Statement], types: Mapping[str, EventType]
) -> tuple[Detector, Checkpointer]:
    """Return a detector that resumes from the checkpoint, and a checkpointer that continues it.

    A rule that is new or has changed sees only events later than the checkpoint.
    """
    header, tables = unpack(MANIFEST, manifest, "manifest of the state")
    written = _open_segment(segments, header["constant"])[0]["settings"]
    contents = [_read_segment(*_open_segment(segments, entry[0]), *entry) for entry in header["segments"]]
    state = _merged_state(contents)
    state.buffered = {name: next(tables) for name in header["pending"]}
    state.families = {user: _with_positions(next(tables), state.rows) for user in header.get("kept", ())}
    state.tail, state.tail_key, state.tail_last = tail_of(header)
    waiting = [content.segment.waiting for content in contents if content.segment.waiting is not None]
    joined = concat(waiting) if waiting else None
    if joined is not None:
        joined = joined.filter(pa.array(joined["ts"].to_numpy() >= header["numbers"]["watermark"]))
    detector = resume(Detector, DetectorSnapshot(written, header["numbers"], state, joined), rules, types)
    checkpointer = Checkpointer(detector)
    checkpointer._resume(header, contents, unchanged=json.loads(json.dumps(settings(detector))) == written)
    return detector, checkpointer


@dataclass(slots=True)
class _SegmentContent:
    """The decoded content of a segment."""

    segment: Segment
    rows: dict[str, pa.Table]
    left: dict[Owner, tuple[str, Array]]


def _open_segment(segments: Mapping[int, bytes], number: int) -> tuple[dict[str, Any], Iterator[pa.Table]]:
    if number not in segments:
        raise StateError(f"segment {number} of the state is missing")
    header, tables = unpack(SEGMENT, segments[number], "segment of the state")
    if header["number"] != number:
        raise StateError(f"segment {number} of the state has the number {header['number']}")
    return header, tables


def _read_segment(
    header: Mapping[str, Any],
    tables: Iterator[pa.Table],
    number: int,
    level: int,
    first_row_id: int,
    expiry: list[list[int]],
) -> _SegmentContent:
    rows = {}
    for type in header["rows"]:
        table = next(tables)
        row_ids = table["born"].to_numpy().astype(np.int64) + first_row_id
        rows[type] = table.set_column(table.num_columns - 1, "born", pa.array(row_ids))
    left = {(rule, role_index): (type, next(tables)["row"].to_numpy()) for rule, role_index, type in header["left"]}
    consumed = []
    for rule, role_index, type in header["consumed"]:
        table = next(tables)
        consumed.append(Consumed((rule, role_index), type, table["born"].to_numpy(), table["ts"].to_numpy()))
    waiting = next(tables) if header["waiting"] else None
    expiry_pairs = [(until, count) for until, count in expiry]
    return _SegmentContent(Segment(number, level, first_row_id, expiry_pairs, consumed, waiting), rows, left)


def _merged_state(contents: Sequence[_SegmentContent]) -> PipelineState:
    """Return the state in all segments. For consumed roles, it lists which rows are consumed and which are not."""
    types = sorted({type for content in contents for type in content.rows})
    rows = {type: concat([content.rows[type] for content in contents if type in content.rows]) for type in types}
    row_ids = {type: table["born"].to_numpy() for type, table in rows.items()}
    candidates: dict[Owner, tuple[str, Array]] = {}
    consumed: dict[Owner, list[Array]] = {}
    for content in contents:
        for owner, (type, some) in content.left.items():
            if type in row_ids:
                # All other rows of this type in the full segment are consumed.
                size = content.rows[type].num_rows if type in content.rows else 0
                candidates[owner] = type, np.concatenate([some, np.arange(size, len(row_ids[type]))])
        for entry in content.segment.consumed:
            consumed.setdefault(entry.owner, []).append(entry.row_ids)
            if entry.type in row_ids:
                candidates.setdefault(entry.owner, (entry.type, np.arange(len(row_ids[entry.type]))))
    left: dict[Owner, Array] = {}
    used: dict[Owner, Array] = {}
    for owner, (type, some) in candidates.items():
        is_consumed = np.isin(row_ids[type][some], np.concatenate(consumed.get(owner, [some[:0]])))
        left[owner], used[owner] = some[~is_consumed], some[is_consumed]
    return PipelineState(rows, left=left, used=used)


def _with_positions(state: pa.Table, rows: Mapping[str, pa.Table]) -> pa.Table:
    """Replace the row ids in the state of a query or request by positions in the tables of `rows`."""
    positions_of = {
        type: {row_id: n for n, row_id in enumerate(table["born"].to_pylist())} for type, table in rows.items()
    }
    positions = [
        positions_of.get(type, {}).get(row_id, -1)
        for type, row_id in zip(state["type"].to_pylist(), state["row"].to_pylist(), strict=True)
    ]
    return state.set_column(state.column_names.index("row"), "row", pa.array(positions, pa.int64()))


def _retentions(pipeline: Pipeline) -> dict[str, int]:
    """Return how long (µs) events of each type are retained, by type."""
    retentions: dict[str, int] = {}
    for buffer, horizon_us in zip(pipeline.tables.buffer_ids, pipeline.tables.retentions.tolist(), strict=True):
        retentions[buffer.filter.type] = max(retentions.get(buffer.filter.type, 0), horizon_us)
    for loaded in pipeline.tables.windows:
        if loaded.windowed.chained is not None:
            within_us = loaded.windowed.chained.retention_us
            for type in loaded.rule.plan.types:
                retentions[type] = max(
                    retentions.get(type, 0), NEVER_EXPIRES_US if within_us is None else within_us + 1
                )
            continue
        for type, window in zip(loaded.rule.plan.types, loaded.windowed.windows, strict=True):
            if window is not None:
                # A batch window holds an event until the next batch ends.
                horizon_us = 2 * window.size + 1 if window.extent.timed else NEVER_EXPIRES_US
                retentions[type] = max(retentions.get(type, 0), horizon_us)
    return retentions
