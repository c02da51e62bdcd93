"""Small bodies that need much memory to parse."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tocsin.service.event_intake import ARROW_STREAM, JSON, NDJSON

MILLION = 1_000_000
TEXT = "x" * MILLION


def stream(columns: dict[str, pa.Array], compression: str | None = "zstd", batches: int = 1) -> bytes:
    """Columns as a stream of some batches that are all the same."""
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def types(rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), ["A"])


def zeros(compression: str) -> bytes:
    column = pa.array(np.zeros(MILLION, np.int64))
    return stream({"type": types(MILLION), **{f"a{n}": column for n in range(40)}}, compression)


def zero_batches() -> bytes:
    """Each batch is small, all of them are not."""
    column = pa.array(np.zeros(10_000, np.int64))
    return stream({"type": types(10_000), **{f"a{n}": column for n in range(40)}}, batches=100)


def claim() -> bytes:
    """A buffer that says it has a terabyte when it is decompressed."""
    body = stream({"type": types(1_000), "a": pa.array(np.zeros(1_000, np.int64))})
    size = (8_000).to_bytes(8, "little")
    assert body.count(size) == 1
    return body.replace(size, (2**40).to_bytes(8, "little"))


def shared_text(kind: str) -> bytes:
    if kind == "view":
        view = np.frombuffer(pa.array([TEXT], pa.string_view()).buffers()[1], np.uint8)[:16]
        buffers = [None, pa.py_buffer(np.tile(view, MILLION).tobytes()), pa.py_buffer(TEXT.encode())]
        column = pa.Array.from_buffers(pa.string_view(), MILLION, buffers)
    else:
        column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(MILLION, np.int8)), [TEXT])
    names = {"type": types(MILLION), "a": column} if kind != "type" else {"type": column}
    return stream(names)


def nulls(rows: int, columns: int) -> bytes:
    return stream({"type": types(rows)} | {f"a{n}": pa.nulls(rows) for n in range(columns)})


def runs() -> bytes:
    ends = pa.array([2**31 - 1], pa.int32())
    return stream({"type": pa.RunEndEncodedArray.from_arrays(ends, pa.array(["A"]))}, None)


def lists_of_nulls() -> bytes:
    return stream({"type": types(64), "a": pa.FixedSizeListArray.from_arrays(pa.nulls(2**26), 2**20)})


def deltas() -> bytes:
    """A dictionary that grows with each batch, and is copied for each."""
    schema = pa.schema([("type", pa.dictionary(pa.int32(), pa.string()))])
    sink = pa.BufferOutputStream()
    words = ["A" * 200_000]
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        for number in range(5_000):
            words.append(f"A{number}")
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(words))
            writer.write_batch(pa.record_batch([column], schema))
    return sink.getvalue().to_pybytes()


def rows_of_nulls() -> bytes:
    """A batch that says it has 2**40 rows, of which none needs a byte."""
    body, rows = stream({"type": pa.nulls(1_003)}), (1_003).to_bytes(8, "little")
    assert body.count(rows) >= 2
    return body.replace(rows, (2**40).to_bytes(8, "little"))


def nested_views() -> bytes:
    """Views in a list, which no attribute can hold: checking their text would take minutes."""
    view = np.frombuffer(pa.array([TEXT], pa.string_view()).buffers()[1], np.uint8)[:16]
    buffers = [None, pa.py_buffer(np.tile(view, MILLION).tobytes()), pa.py_buffer(TEXT.encode())]
    texts = pa.Array.from_buffers(pa.string_view(), MILLION, buffers)
    return stream({"type": types(MILLION), "a": pa.FixedSizeListArray.from_arrays(texts, 1)})


def names(types: int = 1) -> Iterator[bytes]:
    """Events that have one attribute each, of many."""
    for number in range(300_000):
        yield b'{"type":"A%d","a%d":1}' % (number % types, number % 1_000)


def many_batches() -> bytes:
    return stream({"type": pa.array(["A"])}, batches=200_000)


def many_columns() -> bytes:
    return stream({"type": pa.array(["A"])} | {f"a{n}": pa.array([1]) for n in range(100_000)})


REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "zeros, zstd": (ARROW_STREAM, lambda: zeros("zstd")),
    "zeros, lz4": (ARROW_STREAM, lambda: zeros("lz4")),
    "zeros in batches": (ARROW_STREAM, zero_batches),
    "a claim": (ARROW_STREAM, claim),
    "a text of a dictionary": (ARROW_STREAM, lambda: shared_text("dictionary")),
    "a text of views": (ARROW_STREAM, lambda: shared_text("view")),
    "a type of a dictionary": (ARROW_STREAM, lambda: shared_text("type")),
    "columns of nulls": (ARROW_STREAM, lambda: nulls(MILLION, 1_000)),
    "rows of nulls": (ARROW_STREAM, rows_of_nulls),
    "texts of nested views": (ARROW_STREAM, nested_views),
    "runs": (ARROW_STREAM, runs),
    "lists of nulls": (ARROW_STREAM, lists_of_nulls),
    "a dictionary that grows": (ARROW_STREAM, deltas),
    "many batches": (ARROW_STREAM, many_batches),
    "many columns": (ARROW_STREAM, many_columns),
    "lists of JSON": (JSON, lambda: b"[" + b"[]," * 20 * MILLION + b"[]]"),
    "objects of JSON": (JSON, lambda: b"[" + b'{"a":{}},' * 6 * MILLION + b"{}]"),
    "numbers of JSON": (JSON, lambda: b"[" + b"1.5," * 16 * MILLION + b"1]"),
    "texts of JSON": (JSON, lambda: b'["' + b'","'.join(b"\xc3\xbc" for _ in range(11 * MILLION)) + b'"]'),
    "names of JSON": (JSON, lambda: b"[" + b",".join(names()) + b"]"),
    "names of NDJSON": (NDJSON, lambda: b"\n".join(names())),
    "names of types of NDJSON": (NDJSON, lambda: b"\n".join(names(500))),
    "lists of NDJSON": (NDJSON, lambda: (b'{"a":[' + b"[]," * 300_000 + b"[]]}\n") * 60),
}
"""Bodies below the size limit that must be refused: their format, and a function that builds them."""


def whole_bytes() -> bytes:
    """The largest accepted body: bytes of which each becomes four."""
    column = pa.array(np.zeros(MILLION, np.int8))
    return stream({"type": types(MILLION)} | {f"a{n}": column for n in range(46)}, None)


def read(path: str, format: str) -> None:
    """Parse a body and print by how many MB the peak memory of this process grew."""
    from tocsin.errors import EventError
    from tocsin.events.reader import Columns
    from tocsin.service.event_intake import Bounds, EventIntake, Registry

    intake = EventIntake(Registry(), lambda: ())
    warm = stream({"type": types(10), "a": pa.array(np.zeros(10))})
    intake.read(warm, ARROW_STREAM, now_us=0, bounds=Bounds(-(2**61), 2**61))
    body = Path(path).read_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = peak_kb()
    try:
        taken = intake.read(body, format, now_us=0, bounds=Bounds(-(2**61), 2**61), columns=Columns())
        outcome = f"{taken.accepted} accepted"
    except EventError as error:
        outcome = f"{type(error).__name__}: {error}"
    print((peak_kb() - before) // 1024, outcome)


def peak_kb() -> int:
    """Return the peak memory of this process (Linux)."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1])


if __name__ == "__main__":
    read(sys.argv[1], sys.argv[2])
