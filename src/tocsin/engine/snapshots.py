"""A detector's state as bytes, and back.

    TOCSIN  version (2)  CRC-32 of the rest (4)  length (8)  header as JSON  { length (8)  Arrow stream }*

The header names what the streams are. Numbers that grow stand in a stream of their own, so that the length says how
much is remembered and nothing else.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine.state import State
from tocsin.errors import StateError

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
