"""Limit the memory that decoding an Arrow stream needs.

A compressed buffer starts with its decompressed size, and a column of nulls has rows but no data. So a stream of one
kilobyte can claim gigabytes. `check_size` reads only the metadata of the messages, and adds up what decoding would
allocate: the decompressed buffers and the cells. `check_texts` adds up text that rows share (in dictionaries and views)
once for each row, because attributes are plain text and each row gets its own copy.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import EventError

DECODED_BYTES_MAX = 64 << 20
CELLS_MAX = 50_000_000
"""The limit of rows times columns, which counts nested columns and the values of dictionaries, too."""
MESSAGES_MAX = 10_000
SCHEMA_BYTES_MAX = 4 << 20

_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3
_RANGE = np.dtype([("first", "<i8"), ("second", "<i8")])


class TooLarge(EventError):
    """The decoded body would be too large."""


def check_size(body: bytes) -> None:
    """Raise `TooLarge` if decoding `body` would need too much memory, or `ArrowInvalid` if it is not a stream."""
    size = _Size()
    for messages, message in enumerate(pa.ipc.MessageReader.open_stream(pa.py_buffer(body)), 1):
        if messages > MESSAGES_MAX:
            raise TooLarge(f"an Arrow stream has at most {MESSAGES_MAX:,} messages (batches and dictionaries)")
        try:
            size.add(message)
        except (struct.error, IndexError, ValueError) as error:
            raise pa.ArrowInvalid(f"invalid metadata: {error}") from None


def check_texts(batch: pa.RecordBatch, before: int = 0) -> int:
    """Count the bytes of shared text, once for each row, and return them plus `before`, the count of earlier batches.

    Raise `TooLarge` if the sum exceeds the limit. Only the sizes of the batch's buffers need to be valid, not their
    content.
    """
    for column in batch.columns:
        before += _text_bytes(column)
        if before > DECODED_BYTES_MAX:
            raise TooLarge(
                f"an Arrow stream has at most {DECODED_BYTES_MAX:,} bytes of text in dictionaries and views, "
                "with the text of each row counted"
            )
    return before


def _text_bytes(column: pa.Array) -> int:
    """Return the bytes of the text in `column` that rows share, counted once for each row."""
    type = column.type
    if pa.types.is_dictionary(type):
        lengths = _lengths(column.dictionary)
        selected = 0
        if lengths is not None and len(column):
            selected = int(lengths[pc.drop_null(column.indices).to_numpy(zero_copy_only=False)].sum())
        return selected + _text_bytes(column.dictionary)
    if pa.types.is_string_view(type) or pa.types.is_binary_view(type):
        lengths = _lengths(column)
        return 0 if lengths is None else int(lengths.sum())
    if pa.types.is_struct(type) or pa.types.is_union(type):
        return sum(_text_bytes(column.field(number)) for number in range(type.num_fields))
    if pa.types.is_nested(type) or pa.types.is_run_end_encoded(type):
        return _text_bytes(column.values)
    return 0


def _lengths(texts: pa.Array) -> np.ndarray[Any, Any] | None:
    """Return the length of each text in bytes, or None if `texts` is not an array of texts."""
    type = texts.type
    if pa.types.is_string_view(type) or pa.types.is_binary_view(type):
        views = np.frombuffer(texts.buffers()[1], "<i4")[::4][texts.offset : texts.offset + len(texts)]
        return np.maximum(views.astype(np.int64), 0)
    if type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        lengths: np.ndarray[Any, Any] = pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False)
        return lengths.astype(np.int64)
    return None


@dataclass
class _Size:
    """The decoded bytes and the cells that the messages of a stream have claimed so far."""

    decoded: int = 0
    cells: int = 0
    dictionaries: dict[int, int] = field(default_factory=dict)
    """The decoded bytes of each dictionary, by its id."""

    def add(self, message: pa.Message) -> None:
        data = memoryview(message.metadata)
        root = _Table(data, _u32(data, 0))
        kind, header = root.byte(1), root.table(2)
        if kind == _SCHEMA and len(data) > SCHEMA_BYTES_MAX:
            raise TooLarge(f"the schema of an Arrow stream has at most {SCHEMA_BYTES_MAX:,} bytes")
        if header is None or kind not in (_DICTIONARY, _RECORDS):
            return
        body = memoryview(message.body or b"")
        if kind == _RECORDS:
            self._count(header, body)
            return
        batch, id = header.table(1), header.long(0)
        if batch is None:
            return
        added = self._count(batch, body)
        if header.byte(2):  # a delta: decoding copies the old values
            added += self.dictionaries.get(id, 0)
            self.decoded += self.dictionaries.get(id, 0)
        self.dictionaries[id] = added
        self._check()

    def _count(self, batch: _Table, body: memoryview) -> int:
        """Add the bytes and cells of `batch` to the sums, and return its decoded bytes."""
        nodes, buffers = batch.ranges(1), batch.ranges(2)
        cells = max(batch.long(0), 0) + sum(max(one, 0) for one in nodes["first"].tolist())
        compressed = batch.table(3) is not None
        decoded = 0
        for start, length in buffers.tolist():
            if start < 0 or length < 0 or start + length > len(body):
                raise ValueError("a buffer is not within the message")
            decoded += _claimed(body, start, length) if compressed else length
        self.decoded += decoded
        self.cells += cells
        self._check()
        return decoded

    def _check(self) -> None:
        if self.decoded > DECODED_BYTES_MAX:
            raise TooLarge(
                f"an Arrow stream has at most {DECODED_BYTES_MAX:,} bytes when it is decoded, this has {self.decoded:,}"
            )
        if self.cells > CELLS_MAX:
            raise TooLarge(
                f"an Arrow stream has at most {CELLS_MAX:,} values (rows times columns), this has {self.cells:,}"
            )


def _claimed(body: memoryview, start: int, length: int) -> int:
    """Return the decompressed size that a buffer claims. A claim of -1 means that the buffer is not compressed."""
    if not length:
        return 0
    (claimed,) = struct.unpack_from("<q", body, start)
    if claimed < -1 or length < 8:
        raise ValueError("a compressed buffer without its size")
    return length - 8 if claimed == -1 else int(claimed)


class _Table:
    """A flatbuffer table. Every read is checked, because the metadata is untrusted."""

    def __init__(self, data: memoryview, position: int) -> None:
        self._data, self._position = data, position
        self._fields = position - struct.unpack_from("<i", data, _at(position))[0]
        self._size = struct.unpack_from("<H", data, _at(self._fields))[0]

    def _field(self, number: int) -> int | None:
        """Return the position of field `number` in the data, or None if the field has its default."""
        entry = 4 + 2 * number
        if entry + 2 > self._size:
            return None
        offset: int = struct.unpack_from("<H", self._data, self._fields + entry)[0]
        return self._position + offset if offset else None

    def byte(self, number: int) -> int:
        at = self._field(number)
        return 0 if at is None else self._data[at]

    def long(self, number: int) -> int:
        at = self._field(number)
        return 0 if at is None else int(struct.unpack_from("<q", self._data, at)[0])

    def table(self, number: int) -> _Table | None:
        at = self._field(number)
        return None if at is None else _Table(self._data, at + _u32(self._data, at))

    def ranges(self, number: int) -> np.ndarray[Any, Any]:
        """Return field `number`, which is a vector of pairs of 64-bit integers."""
        at = self._field(number)
        if at is None:
            return np.empty(0, _RANGE)
        start = at + _u32(self._data, at)
        return np.frombuffer(self._data, _RANGE, _u32(self._data, start), start + 4)


def _u32(data: memoryview, position: int) -> int:
    return int(struct.unpack_from("<I", data, _at(position))[0])


def _at(position: int) -> int:
    if position < 0:
        raise ValueError("an offset points before the message")
    return position
