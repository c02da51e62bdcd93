"""What a machine remembers, as plain tables: it can be written down, carried elsewhere, and loaded by a machine with
other rules.

Filters and buffers are not part of it: they follow from the rules, and are filled again from the rows. Only buffers
of consumed roles, which lose events on the way, say which rows are left in them.

A detector's state as bytes, and back.

    TOCSIN  version (2)  CRC-32 of the rest (4)  length (8)  header as JSON  { length (8)  Arrow stream }*

The header names what the streams are. Numbers that grow stand in a stream of their own, so that the length says how
much is remembered and nothing else.
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
from tocsin.engine.batch_columns import words_of
from tocsin.engine.families.requests import kept_of, take_kept, take_used, used_of
from tocsin.engine.match_columns import Composites
from tocsin.engine.match_table import column_of
from tocsin.engine.pipeline import Machine
from tocsin.errors import StateError
from tocsin.events.columns import whole
from tocsin.events.types import ID
from tocsin.kernels import Array
from tocsin.language.eps.ast import timer_owner


@dataclass(slots=True)
class State:
    """Rows by type in canonical order, held composites by type, and what is left for consumed roles."""

    rows: dict[str, pa.Table] = field(default_factory=dict)
    pending: dict[str, pa.Table] = field(default_factory=dict)
    left: dict[tuple[str, int], Array] = field(default_factory=dict)
    """For (rule, place): which rows of the role's type are not consumed."""
    used: dict[tuple[str, int], Array] = field(default_factory=dict)
    """For (request, place in what it can use up): which rows of that type it has used."""
    kept: dict[str, pa.Table] = field(default_factory=dict)
    """What requests in one of Snoop's contexts keep, and queries; see `contexts` and `windows`."""
    tail: list[tuple[str, int, int, int]] = field(default_factory=list)
    tail_key: tuple[int, int] | None = None
    tail_last: list[tuple[str, str]] = field(default_factory=list)

    def known_to(self, rules: Collection[str]) -> State:
        """Without what belongs to other rules alone: what they consumed, and their timers."""
        left = {owner: rows for owner, rows in self.left.items() if owner[0] in rules}
        pending = {type: rows for type, rows in self.pending.items() if (timer_owner(type) or "") in ("", *rules)}
        kept = {user: table for user, table in self.kept.items() if (timer_owner(user) or user) in rules}
        used = {owner: rows for owner, rows in self.used.items() if owner[0] in rules}
        return replace(self, left=left, pending=pending, used=used, kept=kept)


def extract(machine: Machine, now: int) -> State:
    """All that the machine needs of the past to go on from `now`."""
    machine.trim(now)
    state, places = instant(machine), by_type(machine, np.arange(machine.store.size))
    state.rows = {type: table_of(machine, type, rows) for type, rows in places.items()}
    state.left = {owner: rows for owner, (_, rows) in left(machine, places).items()}
    state.used = {owner: rows for owner, _, rows in used_of(machine, places)}
    state.kept = all_kept(machine, {type: _positions(rows, machine.store.size) for type, rows in places.items()})
    return state


def all_kept(machine: Machine, numbers: Mapping[str, Array]) -> dict[str, pa.Table]:
    """What requests and queries keep, with rows said as numbers of their type's events."""
    return kept_of(machine, numbers) | machine.windows.kept(numbers) | machine.plain.kept()


def _positions(rows: Array, size: int) -> Array:
    """For each row of the store its number among some of them."""
    numbers = np.full(size, kernels.NONE, np.int64)
    numbers[rows] = np.arange(len(rows))
    return numbers


def instant(machine: Machine) -> State:
    """What belongs to the last instant alone: the composites that are held, and the tail."""
    state, tail = State(), machine.intake.tail
    for name, held in sorted(machine.pending.items()):
        state.pending[name] = _pending_table(name, held, machine)
    if tail is not None and tail.key is not None:
        names = list(machine.tables.types)
        state.tail_key = tail.key
        state.tail = sorted((names[type], first, second, n) for (type, first, second), n in tail.counts.items())
        state.tail_last = sorted((names[type], id) for type, id in tail.last.items())
    return state


def by_type(machine: Machine, rows: Array) -> dict[str, Array]:
    """Rows of the store by the names of their types, in the order of these, each in the order of the store."""
    types = machine.store.type[rows]
    order = np.argsort(types, kind="stable")
    numbers, starts = np.unique(types[order], return_index=True)
    names, parts = list(machine.tables.types), np.split(rows[order], starts[1:])
    return dict(sorted((names[n], part) for n, part in zip(numbers, parts, strict=False) if n >= 0))


def table_of(machine: Machine, type: str, rows: Array) -> pa.Table:
    """Rows of one type, with the attributes that rules read."""
    store = machine.store
    columns: dict[str, pa.Array] = {
        "ts": pa.array(store.ts[rows]),
        "seq": pa.array(store.seq[rows]),
        "first": pa.array(store.first[rows]),
        "second": pa.array(store.second[rows]),
        "given": store.names.texts(store.given[rows]),
    }
    for attribute, (slot, kind) in sorted(machine.tables.slots[type].items()):
        if kind is not None and attribute != ID and slot < store.width:
            known = store.present[slot, rows]
            columns[f"{attribute}:{kind}"] = column_of(store.words[slot, rows], known, kind, machine)
    return pa.table(columns)


def left(machine: Machine, places: Mapping[str, Array]) -> dict[tuple[str, int], tuple[str, Array]]:
    """For each consumed role its type, and which of that type's rows are left for it."""
    found: dict[tuple[str, int], tuple[str, Array]] = {}
    for buffer, number in machine.tables.buffer_ids.items():
        if buffer.owner is not None:
            type = buffer.filter.type
            rows = places.get(type, np.zeros(0, np.int64))
            found[buffer.owner] = type, np.searchsorted(rows, machine.buffers.held(number))
    return found


def load(machine: Machine, state: State) -> None:
    """Gives an empty machine the past. What its rules do not need is left out.

    Rows may have a column `born` with their numbers.
    """
    tables, texts = machine.tables, machine.texts
    numbers: dict[str, Array] = {}
    for type, table in state.rows.items():
        if type not in tables.types:
            continue
        slots: dict[int, tuple[Array, Array]] = {}
        for attribute, (slot, kind) in tables.slots[type].items():
            if f"{attribute}:{kind}" in table.column_names and kind is not None:
                slots[slot] = words_of(whole(table[f"{attribute}:{kind}"]), kind, texts)
        base = machine.store.size
        ts, seq, first, second = (table[name].to_numpy() for name in ("ts", "seq", "first", "second"))
        known = np.nonzero(whole(table["given"]).is_valid().to_numpy(zero_copy_only=False))[0]
        given = np.full(table.num_rows, kernels.NONE, np.int64)
        given[known] = machine.store.names.add(whole(table["given"]).take(pa.array(known)))
        passed, source = machine.intake.identified(tables.types[type], ts, seq, first, second, given, slots)
        machine.buffers.add(tables, machine.store, passed.filters, passed.rows)
        if "born" in table.column_names:
            machine.store.born[base : base + len(source)] = table["born"].to_numpy()[source]
        row = np.full(table.num_rows, kernels.NONE, np.int64)
        row[source] = base + np.arange(len(source))
        numbers[type] = row
    for buffer, number in tables.buffer_ids.items():
        if buffer.owner in state.left and buffer.filter.type in numbers:
            machine.buffers.retain(number, numbers[buffer.filter.type][state.left[buffer.owner]])
    take_used(machine, state.used, numbers)
    take_kept(machine, state.kept, numbers)
    machine.windows.take(state.kept, numbers)
    machine.plain.take(state.kept, numbers, machine.intake.stored)
    for name, table in state.pending.items():
        if name in tables.types and name in machine.emits:
            machine.pending[name] = _pending(name, table, machine)
    tail = machine.intake.tail
    if tail is not None and state.tail_key is not None:
        tail.key = state.tail_key
        known_types = tables.types
        tail.counts = {(known_types[t], a, b): n for t, a, b, n in state.tail if t in known_types}
        tail.last = {known_types[t]: id for t, id in state.tail_last if t in known_types}


def _pending_table(name: str, held: Composites, machine: Machine) -> pa.Table:
    order = np.lexsort((held.second, held.first, held.seq, held.ts))
    columns: dict[str, pa.Array] = {
        "ts": pa.array(held.ts[order]),
        "seq": pa.array(held.seq[order]),
        "first": pa.array(held.first[order]),
        "second": pa.array(held.second[order]),
    }
    if held.order.any():
        columns["order"] = pa.array(held.order[order])
    for k, (attribute, kind) in enumerate(machine.emits[name].attributes):
        columns[f"{attribute}:{kind}"] = column_of(held.words[k][order], held.known[k][order], kind, machine)
    return pa.table(columns)


def _pending(name: str, table: pa.Table, machine: Machine) -> Composites:
    attributes = machine.emits[name].attributes
    words = np.zeros((len(attributes), table.num_rows), np.int64)
    known = np.zeros((len(attributes), table.num_rows), np.uint8)
    for k, (attribute, kind) in enumerate(attributes):
        if f"{attribute}:{kind}" in table.column_names:
            words[k], known[k] = words_of(whole(table[f"{attribute}:{kind}"]), kind, machine.texts)
    ts, seq, first, second = (table[column].to_numpy() for column in ("ts", "seq", "first", "second"))
    order = table["order"].to_numpy() if "order" in table.column_names else np.zeros_like(ts)
    machine.rows_told = max(machine.rows_told, int((order & ((1 << 40) - 1)).max(initial=-1)) + 1)
    return Composites(ts, seq, first, second, words, known, order)


MAGIC = b"TOCSIN"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is written down: settings and rules in `header`, the counters, the state, and the events that wait."""

    header: Mapping[str, Any]
    numbers: Mapping[str, int]
    state: State
    waiting: pa.Table | None


def encode(snapshot: Snapshot) -> bytes:
    """The snapshot as bytes. Equal snapshots give equal bytes."""
    state = snapshot.state
    streams: list[pa.Table] = [pa.table({name: pa.array([n], pa.int64()) for name, n in snapshot.numbers.items()})]
    streams += [*state.rows.values(), *state.pending.values()]
    streams += [pa.table({"row": pa.array(rows, pa.int64())}) for rows in state.left.values()]
    streams += [pa.table({"row": pa.array(rows, pa.int64())}) for rows in state.used.values()]
    streams += state.kept.values()
    if snapshot.waiting is not None:
        streams.append(snapshot.waiting)
    header = {
        **snapshot.header,
        "rows": list(state.rows),
        "pending": list(state.pending),
        "left": list(state.left),
        "used": list(state.used),
        "kept": list(state.kept),
        "tail": tail_in(state),
        "waiting": snapshot.waiting is not None,
    }
    return pack(MAGIC, header, streams)


def decode(data: bytes) -> Snapshot:
    """The snapshot behind the bytes, or a `StateError` that says what is wrong with them."""
    header, tables = unpack(MAGIC, data, "snapshot")
    numbers = {name: int(column[0].as_py()) for name, column in zip(*_columns(next(tables)), strict=True)}
    rows = {name: next(tables) for name in header["rows"]}
    pending = {name: next(tables) for name in header["pending"]}
    left = {(rule, place): np.array(next(tables)["row"], np.int64) for rule, place in header["left"]}
    used = {(rule, place): np.array(next(tables)["row"], np.int64) for rule, place in header.get("used", ())}
    kept = {user: next(tables) for user in header.get("kept", ())}
    state = State(rows, pending, left, used, kept, *tail_of(header))
    return Snapshot(header, numbers, state, next(tables) if header["waiting"] else None)


def tail_in(state: State) -> list[Any]:
    """The tail, as a header has it."""
    return [state.tail_key, state.tail, state.tail_last]


def tail_of(
    header: Mapping[str, Any],
) -> tuple[list[tuple[str, int, int, int]], tuple[int, int] | None, list[tuple[str, str]]]:
    """The tail in a header, in the order of the fields of a state."""
    key, counts, last = header["tail"]
    key = None if key is None else (key[0], key[1])
    return [tuple(entry) for entry in counts], key, [tuple(entry) for entry in last]


def pack(magic: bytes, header: Mapping[str, Any], tables: Iterable[pa.Table], compression: str | None = None) -> bytes:
    """A header and tables as bytes with a checksum."""
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    parts = [json.dumps(header).encode()]
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table.combine_chunks())
        parts.append(sink.getvalue().to_pybytes())
    body = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    return magic + struct.pack("<HI", VERSION, zlib.crc32(body)) + body


def unpack(magic: bytes, data: bytes, what: str) -> tuple[dict[str, Any], Iterator[pa.Table]]:
    """The header and the tables behind the bytes, or a `StateError` that says what is wrong with them."""
    if not isinstance(data, bytes | bytearray) or not data.startswith(magic) or len(data) < len(magic) + 6:
        raise StateError(f"this is not a {what} of a Tocsin detector")
    version, checksum = struct.unpack_from("<HI", data, len(magic))
    if version != VERSION:
        raise StateError(f"the {what} has version {version}, this Tocsin reads version {VERSION}")
    body = memoryview(data)[len(magic) + 6 :]
    if zlib.crc32(body) != checksum:
        raise StateError(f"the {what} is damaged: its checksum does not fit")
    parts = _parts(body)
    header = json.loads(bytes(next(parts)))
    return header, (pa.ipc.open_stream(pa.py_buffer(part)).read_all() for part in parts)


def _columns(table: pa.Table) -> tuple[list[str], list[pa.ChunkedArray]]:
    return table.column_names, table.columns


def _parts(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        (length,) = struct.unpack_from("<Q", body, at)
        yield body[at + 8 : at + 8 + length]
        at += 8 + length
