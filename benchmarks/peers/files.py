"""Write one file of events for all engines: little-endian columns that Java and NumPy read directly.

    "TOCSINEV"; int32 events, types, texts, values; for each type, then each text: int32 length, UTF-8
    of all events: int64 ts (µs, strictly increasing); int32 type; int32 text (-1: none); each value: float64

A workload has up to one column of text and two of doubles; `LAYOUTS` lists them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

MAGIC = b"TOCSINEV"
NONE = -1


@dataclass(frozen=True)
class Layout:
    """Names of a workload's columns besides `type` and `ts`."""

    text: str | None
    values: tuple[str, ...]


LAYOUTS = {"W1": Layout("area", ("value",)), "W2": Layout(None, ("value",)), "W3": Layout("site", ("a", "b"))}


def layout(workload: str) -> Layout:
    """The layout of a workload such as `W1 last`."""
    return LAYOUTS[workload.split()[0]]


def write(path: Path, events: pa.Table, columns: Layout) -> None:
    """Write a table of events."""
    ts = events["ts"].cast(pa.int64()).to_numpy()
    if len(ts) > 1 and np.diff(ts).min() <= 0:
        raise ValueError("times must increase strictly")
    types, type_names = _coded(events["type"])
    texts, text_names = _coded(events[columns.text]) if columns.text else (np.full(len(ts), NONE, "<i4"), [])
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<4i", len(ts), len(type_names), len(text_names), len(columns.values)))
        for name in (*type_names, *text_names):
            encoded = name.encode()
            file.write(struct.pack("<i", len(encoded)) + encoded)
        ts.astype("<i8").tofile(file)
        types.tofile(file)
        texts.tofile(file)
        for name in columns.values:
            events[name].cast(pa.float64()).to_numpy(zero_copy_only=False).astype("<f8").tofile(file)


def read(path: Path, columns: Layout) -> pa.Table:
    """Read a written table, with texts as strings."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path} is no file of events")
        count, types, texts, values = struct.unpack("<4i", file.read(16))
        if values != len(columns.values):
            raise ValueError(f"{path} has {values} columns of values, {len(columns.values)} were asked for")
        names = [_name(file) for _ in range(types + texts)]
        ts = np.fromfile(file, "<i8", count)
        table = {
            "type": _texts(np.fromfile(file, "<i4", count), names[:types]),
            "ts": pa.array(ts).cast(pa.timestamp("us", "UTC")),
        }
        coded = np.fromfile(file, "<i4", count)
        if columns.text:
            table[columns.text] = _texts(coded, names[types:])
        for name in columns.values:
            table[name] = pa.array(np.fromfile(file, "<f8", count), from_pandas=True)
    return pa.table(table)


def _coded(column: pa.ChunkedArray) -> tuple[np.ndarray[Any, Any], list[str]]:
    coded = column.combine_chunks().dictionary_encode()
    return coded.indices.fill_null(NONE).to_numpy().astype("<i4"), coded.dictionary.to_pylist()


def _texts(codes: np.ndarray[Any, Any], names: list[str]) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(codes, mask=codes == NONE))


def _name(file: BinaryIO) -> str:
    (length,) = struct.unpack("<i", file.read(4))
    return file.read(length).decode()
