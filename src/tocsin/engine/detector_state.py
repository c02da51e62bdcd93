"""Extract the state of a pipeline as tables, and encode snapshots of detectors.

A pipeline with other rules can load the tables. Filters and buffers are not saved, because they follow from the rules
and the rows. Only for consumed roles, whose buffers lose events, the remaining rows are listed. The *tail* is the
content of the last instant of an ordered source. A snapshot has this format, with lengths in bytes:

TOCSIN  version (2)  CRC-32 of the rest (4)  length (8)  header as JSON  { length (8)  Arrow stream }*

The header names the streams. Counters are in a separate stream, so that their values do not change the length.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.batch_columns import column_values
from tocsin.engine.families.requests import restore_contexts, restore_used, saved_contexts, used_of
from tocsin.engine.match_columns import Composites
from tocsin.engine.match_table import column_of
from tocsin.engine.pipeline import Pipeline
from tocsin.errors import StateError
from tocsin.events.columns import one_array
from tocsin.events.types import ID
from tocsin.kernels import Array
from tocsin.language.eps.ast import timer_owner


@dataclass(slots=True)
class PipelineState:
    """The state of a pipeline as tables.

    `rows` has the stored events by type, in canonical order. `buffered` has the composite events, by type, that wait
    until their instant is closed. The `tail` fields are those of `ties.Tail`, with names of types.
    """

    rows: dict[str, pa.Table] = field(default_factory=dict)
    buffered: dict[str, pa.Table] = field(default_factory=dict)
    left: dict[tuple[str, int], Array] = field(default_factory=dict)
    """The rows of a role's type that the role has not consumed, by (rule, role index)."""
    used: dict[tuple[str, int], Array] = field(default_factory=dict)
    """The rows of an event type that a request has used, by (request, index of the type among the consumed types)."""
    families: dict[str, pa.Table] = field(default_factory=dict)
    """The state of queries, and of requests in one of Snoop's contexts, by name."""
    tail: list[tuple[str, int, int, int]] = field(default_factory=list)
    tail_key: tuple[int, int] | None = None
    tail_last: list[tuple[str, str]] = field(default_factory=list)

    def known_to(self, rules: Collection[str]) -> PipelineState:
        """Return the state of `rules` only, without the consumed rows, timers and families of all other rules."""
        left = {owner: rows for owner, rows in self.left.items() if owner[0] in rules}
        buffered = {type: rows for type, rows in self.buffered.items() if (timer_owner(type) or "") in ("", *rules)}
        families = {user: table for user, table in self.families.items() if (timer_owner(user) or user) in rules}
        used = {owner: rows for owner, rows in self.used.items() if owner[0] in rules}
        return replace(self, left=left, buffered=buffered, used=used, families=families)


def extract(pipeline: Pipeline, now: int) -> PipelineState:
    """Evict expired rows, and return the state from which the pipeline can resume at the watermark `now` (µs)."""
    pipeline.evict(now)
    state, rows_of = last_instant(pipeline), rows_by_type(pipeline, np.arange(pipeline.store.size))
    state.rows = {type: table_of(pipeline, type, rows) for type, rows in rows_of.items()}
    state.left = {owner: rows for owner, (_, rows) in unconsumed(pipeline, rows_of).items()}
    state.used = {owner: rows for owner, _, rows in used_of(pipeline, rows_of)}
    state.families = saved_families(
        pipeline, {type: _positions(rows, pipeline.store.size) for type, rows in rows_of.items()}
    )
    return state


def saved_families(pipeline: Pipeline, numbers: Mapping[str, Array]) -> dict[str, pa.Table]:
    """Return the state of queries and of requests with Snoop's contexts, by name.

    `numbers` maps rows of the store to numbers that identify them within their type, by type.
    """
    return saved_contexts(pipeline, numbers) | pipeline.windows.save(numbers) | pipeline.projections.save()


def _positions(rows: Array, size: int) -> Array:
    """Map each row of the store to its index in `rows`."""
    numbers = np.full(size, kernels.NONE, np.int64)
    numbers[rows] = np.arange(len(rows))
    return numbers


def last_instant(pipeline: Pipeline) -> PipelineState:
    """Return a state with only the buffered composite events and the tail."""
    state, tail = PipelineState(), pipeline.ingest.tail
    for name, composites in sorted(pipeline.buffered.items()):
        state.buffered[name] = _buffered_table(name, composites, pipeline)
    if tail is not None and tail.key is not None:
        names = list(pipeline.tables.types)
        state.tail_key = tail.key
        state.tail = sorted((names[type], id_high, id_low, n) for (type, id_high, id_low), n in tail.counts.items())
        state.tail_last = sorted((names[type], id) for type, id in tail.last.items())
    return state


def rows_by_type(pipeline: Pipeline, rows: Array) -> dict[str, Array]:
    """Group rows by the name of their type. The groups are sorted by name, and each group is in store order."""
    types = pipeline.store.type[rows]
    order = np.argsort(types, kind="stable")
    numbers, starts = np.unique(types[order], return_index=True)
    names, groups = list(pipeline.tables.types), np.split(rows[order], starts[1:])
    return dict(sorted((names[n], group) for n, group in zip(numbers, groups, strict=False) if n >= 0))


def table_of(pipeline: Pipeline, type: str, rows: Array) -> pa.Table:
    """Return rows of one type as a table, with the attributes that rules read."""
    store = pipeline.store
    columns: dict[str, pa.Array] = {
        "ts": pa.array(store.ts[rows]),
        "seq": pa.array(store.seq[rows]),
        "first": pa.array(store.id_high[rows]),
        "second": pa.array(store.id_low[rows]),
        "given": store.source_ids.strings(store.source_id[rows]),
    }
    for attribute, (slot, kind) in sorted(pipeline.tables.slots[type].items()):
        if kind is not None and attribute != ID and slot < store.width:
            valid = store.valid[slot, rows]
            columns[f"{attribute}:{kind}"] = column_of(store.values[slot, rows], valid, kind, pipeline)
    return pa.table(columns)


def unconsumed(pipeline: Pipeline, rows_of: Mapping[str, Array]) -> dict[tuple[str, int], tuple[str, Array]]:
    """Return the type of each consumed role, and the positions in `rows_of[type]` that the role has not consumed."""
    remaining: dict[tuple[str, int], tuple[str, Array]] = {}
    for buffer, number in pipeline.tables.buffer_ids.items():
        if buffer.owner is not None:
            type = buffer.filter.type
            rows = rows_of.get(type, np.zeros(0, np.int64))
            remaining[buffer.owner] = type, np.searchsorted(rows, pipeline.buffers.rows_of(number))
    return remaining


def restore_state(pipeline: Pipeline, state: PipelineState) -> None:
    """Load the parts of a state that the rules of an empty pipeline need.

    The tables in `state.rows` may have a column `born` with row ids.
    """
    tables, strings = pipeline.tables, pipeline.strings
    numbers: dict[str, Array] = {}
    for type, table in state.rows.items():
        if type not in tables.types:
            continue
        slots: dict[int, tuple[Array, Array]] = {}
        for attribute, (slot, kind) in tables.slots[type].items():
            if f"{attribute}:{kind}" in table.column_names and kind is not None:
                slots[slot] = column_values(one_array(table[f"{attribute}:{kind}"]), kind, strings)
        base = pipeline.store.size
        ts, seq, id_high, id_low = (table[name].to_numpy() for name in ("ts", "seq", "first", "second"))
        has_source_id = np.nonzero(one_array(table["given"]).is_valid().to_numpy(zero_copy_only=False))[0]
        source_id = np.full(table.num_rows, kernels.NONE, np.int64)
        source_id[has_source_id] = pipeline.store.source_ids.add(
            one_array(table["given"]).take(pa.array(has_source_id))
        )
        selected, source = pipeline.ingest.store_identified(
            tables.types[type], ts, seq, id_high, id_low, source_id, slots
        )
        pipeline.buffers.add(tables, pipeline.store, selected.filters, selected.rows)
        if "born" in table.column_names:
            pipeline.store.row_ids[base : base + len(source)] = table["born"].to_numpy()[source]
        row = np.full(table.num_rows, kernels.NONE, np.int64)
        row[source] = base + np.arange(len(source))
        numbers[type] = row
    for buffer, number in tables.buffer_ids.items():
        if buffer.owner in state.left and buffer.filter.type in numbers:
            pipeline.buffers.retain(number, numbers[buffer.filter.type][state.left[buffer.owner]])
    restore_used(pipeline, state.used, numbers)
    restore_contexts(pipeline, state.families, numbers)
    pipeline.windows.restore(state.families, numbers)
    pipeline.projections.restore(state.families, numbers, pipeline.ingest.view_rows)
    for name, table in state.buffered.items():
        if name in tables.types and name in pipeline.emits:
            pipeline.buffered[name] = _buffered(name, table, pipeline)
    tail = pipeline.ingest.tail
    if tail is not None and state.tail_key is not None:
        tail.key = state.tail_key
        known_types = tables.types
        tail.counts = {(known_types[t], a, b): n for t, a, b, n in state.tail if t in known_types}
        tail.last = {known_types[t]: id for t, id in state.tail_last if t in known_types}


def _buffered_table(name: str, composites: Composites, pipeline: Pipeline) -> pa.Table:
    order = np.lexsort((composites.id_low, composites.id_high, composites.seq, composites.ts))
    columns: dict[str, pa.Array] = {
        "ts": pa.array(composites.ts[order]),
        "seq": pa.array(composites.seq[order]),
        "first": pa.array(composites.id_high[order]),
        "second": pa.array(composites.id_low[order]),
    }
    if composites.order.any():
        columns["order"] = pa.array(composites.order[order])
    for k, (attribute, kind) in enumerate(pipeline.emits[name].attributes):
        columns[f"{attribute}:{kind}"] = column_of(
            composites.values[k][order], composites.valid[k][order], kind, pipeline
        )
    return pa.table(columns)


def _buffered(name: str, table: pa.Table, pipeline: Pipeline) -> Composites:
    attributes = pipeline.emits[name].attributes
    values = np.zeros((len(attributes), table.num_rows), np.int64)
    valid = np.zeros((len(attributes), table.num_rows), np.uint8)
    for k, (attribute, kind) in enumerate(attributes):
        if f"{attribute}:{kind}" in table.column_names:
            values[k], valid[k] = column_values(one_array(table[f"{attribute}:{kind}"]), kind, pipeline.strings)
    ts, seq, id_high, id_low = (table[column].to_numpy() for column in ("ts", "seq", "first", "second"))
    order = table["order"].to_numpy() if "order" in table.column_names else np.zeros_like(ts)
    pipeline.rows_emitted = max(pipeline.rows_emitted, int((order & ((1 << 40) - 1)).max(initial=-1)) + 1)
    return Composites(ts, seq, id_high, id_low, values, valid, order)


MAGIC = b"TOCSIN"
VERSION = 1


@dataclass(frozen=True, slots=True)
class DetectorSnapshot:
    """The content of a snapshot.

    `header` has the settings and rules, `numbers` the counters, and `waiting` the events that wait for the watermark.
    """

    header: Mapping[str, Any]
    numbers: Mapping[str, int]
    state: PipelineState
    waiting: pa.Table | None


def encode(snapshot: DetectorSnapshot) -> bytes:
    """Encode a snapshot as bytes. Equal snapshots give equal bytes."""
    state = snapshot.state
    streams: list[pa.Table] = [pa.table({name: pa.array([n], pa.int64()) for name, n in snapshot.numbers.items()})]
    streams += [*state.rows.values(), *state.buffered.values()]
    streams += [pa.table({"row": pa.array(rows, pa.int64())}) for rows in state.left.values()]
    streams += [pa.table({"row": pa.array(rows, pa.int64())}) for rows in state.used.values()]
    streams += state.families.values()
    if snapshot.waiting is not None:
        streams.append(snapshot.waiting)
    header = {
        **snapshot.header,
        "rows": list(state.rows),
        "pending": list(state.buffered),
        "left": list(state.left),
        "used": list(state.used),
        "kept": list(state.families),
        "tail": tail_header(state),
        "waiting": snapshot.waiting is not None,
    }
    return pack(MAGIC, header, streams)


def decode(data: bytes) -> DetectorSnapshot:
    """Decode a snapshot. Raise a `StateError` if it is damaged or has another format."""
    header, tables = unpack(MAGIC, data, "snapshot")
    numbers = {name: int(column[0].as_py()) for name, column in zip(*_columns(next(tables)), strict=True)}
    rows = {name: next(tables) for name in header["rows"]}
    buffered = {name: next(tables) for name in header["pending"]}
    left = {(rule, role_index): np.array(next(tables)["row"], np.int64) for rule, role_index in header["left"]}
    used = {(rule, role_index): np.array(next(tables)["row"], np.int64) for rule, role_index in header.get("used", ())}
    families = {user: next(tables) for user in header.get("kept", ())}
    state = PipelineState(rows, buffered, left, used, families, *tail_of(header))
    return DetectorSnapshot(header, numbers, state, next(tables) if header["waiting"] else None)


def tail_header(state: PipelineState) -> list[Any]:
    """Return the tail of a state as JSON data for a header."""
    return [state.tail_key, state.tail, state.tail_last]


def tail_of(
    header: Mapping[str, Any],
) -> tuple[list[tuple[str, int, int, int]], tuple[int, int] | None, list[tuple[str, str]]]:
    """Return the tail from a header as (tail, tail_key, tail_last), the order of the fields of `PipelineState`."""
    key, counts, last = header["tail"]
    key = None if key is None else (key[0], key[1])
    return [tuple(entry) for entry in counts], key, [tuple(entry) for entry in last]


def pack(magic: bytes, header: Mapping[str, Any], tables: Iterable[pa.Table], compression: str | None = None) -> bytes:
    """Encode a header and tables as bytes with a checksum, which begin with `magic`."""
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    sections = [json.dumps(header).encode()]
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table.combine_chunks())
        sections.append(sink.getvalue().to_pybytes())
    body = b"".join(struct.pack("<Q", len(section)) + section for section in sections)
    return magic + struct.pack("<HI", VERSION, zlib.crc32(body)) + body


def unpack(magic: bytes, data: bytes, what: str) -> tuple[dict[str, Any], Iterator[pa.Table]]:
    """Decode a header and tables. Raise a `StateError`, which names `what`, if they are damaged."""
    if not isinstance(data, bytes | bytearray) or not data.startswith(magic) or len(data) < len(magic) + 6:
        raise StateError(f"this is not a {what} of a Tocsin detector")
    version, checksum = struct.unpack_from("<HI", data, len(magic))
    if version != VERSION:
        raise StateError(f"the {what} has version {version}, this Tocsin reads version {VERSION}")
    body = memoryview(data)[len(magic) + 6 :]
    if zlib.crc32(body) != checksum:
        raise StateError(f"the {what} is damaged: its checksum does not match")
    sections = _sections(body)
    header = json.loads(bytes(next(sections)))
    return header, (pa.ipc.open_stream(pa.py_buffer(section)).read_all() for section in sections)


def _columns(table: pa.Table) -> tuple[list[str], list[pa.ChunkedArray]]:
    return table.column_names, table.columns


def _sections(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        (length,) = struct.unpack_from("<Q", body, at)
        yield body[at + 8 : at + 8 + length]
        at += 8 + length
