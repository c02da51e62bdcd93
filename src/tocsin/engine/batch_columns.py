"""Arrow columns as kernels read them: in one piece, as 64-bit words, or by the addresses of what they hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.strings import FoundTexts, Texts
from tocsin.events.types import Kind
from tocsin.kernels import Array


def words_of(column: pa.Array, kind: Kind, texts: Texts | None, found: FoundTexts | None = None) -> tuple[Array, Array]:
    """A column as 64-bit words, and whether there is a value. Doubles that are not finite are no values.

    `found`: what is known of the strings of a column already.
    """
    size = len(column)
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    else:
        present = np.ones(size, np.uint8)
    if kind == Kind.STRING:
        assert texts is not None
        return texts.encode(column, found), present
    if kind == Kind.DOUBLE:
        doubles = (column.fill_null(0.0) if column.null_count else column).to_numpy(zero_copy_only=False) + 0.0
        finite = np.isfinite(doubles)
        if not finite.all():
            present &= finite
        return doubles.view(np.int64), present
    if kind == Kind.BOOL:
        return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int64), present
    if kind == Kind.TIMESTAMP:
        column = column.cast(pa.int64())
    filled = column.fill_null(0) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), present


def hexadecimal(first: Array, second: Array) -> pa.Array:
    """Identities as they are printed, 32 digits each."""
    data = np.empty(4 * len(first), np.uint64)
    kernels.hexadecimal(first, second, data)
    offsets = np.arange(0, 32 * len(first) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(first), pa.py_buffer(offsets), pa.py_buffer(data))


class View:
    """The columns of some events as filters read them, where they are. `types`, `ts` and `seq` are of each event."""

    def __init__(self, types: Array, ts: Array, seq: Array, shape: tuple[int, int]) -> None:
        self.types = types.astype(np.int32, copy=False)
        self.ts, self.seq = ts, seq
        self.column_of = np.full(shape, kernels.NONE, np.int64)
        """For a type and a slot, the number of the column."""
        self._columns: list[tuple[int, int, int, int]] = []
        self._held: list[object] = []
        """What the addresses point to."""

    def __len__(self) -> int:
        return len(self.types)

    @property
    def columns(self) -> Array:
        """The columns as `kernels.classify` reads them."""
        return np.array(self._columns or [(0, 0, 0, 0)], np.int64)

    def add_words(self, words: Array, present: Array, slot: int) -> None:
        """A column of words that all types keep in one slot, with a byte for each that says whether it is there."""
        words, bits = np.ascontiguousarray(words), np.packbits(present != 0, bitorder="little")
        self._held += [words, bits]
        self.column_of[:, slot] = len(self._columns)
        self._columns.append((words.ctypes.data, bits.ctypes.data, 0, 0))

    def add_column(self, column: pa.Array, kind: Kind, texts: Texts, slots: Array, *, all_texts: bool) -> None:
        """A column of a batch that each type keeps in one of the slots.

        `all_texts`: every string is asked for, not only whether it is some constant of a rule.
        """
        if kind == Kind.STRING and not all_texts:
            words = texts.constants.find(column)
        elif kind in (Kind.DOUBLE, Kind.LONG, Kind.TIMESTAMP) and len(column):
            words = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]
        else:
            words = words_of(column, kind, texts)[0]
        valid = column.buffers()[0] if column.null_count else None
        self._held += [words, valid]
        types = np.flatnonzero(slots >= 0)
        self.column_of[types, slots[types]] = len(self._columns)
        bits, first_bit = (valid.address, column.offset) if valid is not None else (0, 0)
        self._columns.append((words.ctypes.data, bits, first_bit, int(kind == Kind.DOUBLE)))
