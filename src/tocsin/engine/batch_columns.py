"""Convert Arrow columns to the form that kernels read.

Kernels read either 64-bit values with their validity, or Arrow buffers in place by their addresses. Each type keeps an
attribute in a numbered *slot*, which types share.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.strings import StringCodes, StringDictionary
from tocsin.events.types import Kind
from tocsin.kernels import Array


def column_values(
    column: pa.Array, kind: Kind, strings: StringDictionary | None, codes: StringCodes | None = None
) -> tuple[Array, Array]:
    """Return `column` as 64-bit values and their validity. Doubles that are not finite are invalid.

    `codes` are the codes of strings in the column that are known already.
    """
    size = len(column)
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    else:
        valid = np.ones(size, np.uint8)
    if kind == Kind.STRING:
        assert strings is not None
        return strings.encode(column, codes), valid
    if kind == Kind.DOUBLE:
        doubles = (column.fill_null(0.0) if column.null_count else column).to_numpy(zero_copy_only=False) + 0.0
        finite = np.isfinite(doubles)
        if not finite.all():
            valid &= finite
        return doubles.view(np.int64), valid
    if kind == Kind.BOOL:
        return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int64), valid
    if kind == Kind.TIMESTAMP:
        column = column.cast(pa.int64())
    filled = column.fill_null(0) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), valid


def hexadecimal(id_high: Array, id_low: Array) -> pa.Array:
    """Format event ids as 32 hexadecimal digits each."""
    data = np.empty(4 * len(id_high), np.uint64)
    kernels.hexadecimal(id_high, id_low, data)
    offsets = np.arange(0, 32 * len(id_high) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(id_high), pa.py_buffer(offsets), pa.py_buffer(data))


class ColumnView:
    """Gives predicates access to the columns of a batch, in place.

    `types`, `ts` and `seq` have one element per event.
    """

    def __init__(self, types: Array, ts: Array, seq: Array, shape: tuple[int, int]) -> None:
        self.types = types.astype(np.int32, copy=False)
        self.ts, self.seq = ts, seq
        self.column_of = np.full(shape, kernels.NONE, np.int64)
        """The number of the column that holds each (type, slot)."""
        self._columns: list[tuple[int, int, int, int]] = []
        self._pinned: list[object] = []
        """The owners of the memory that the addresses in `_columns` point to."""

    def __len__(self) -> int:
        return len(self.types)

    @property
    def columns(self) -> Array:
        """One row per column: (address of values, address of validity bits, first bit, whether it has doubles)."""
        return np.array(self._columns or [(0, 0, 0, 0)], np.int64)

    def add_values(self, values: Array, valid: Array, slot: int) -> None:
        """Add a column of values that all types keep in `slot`. `valid` has one byte per value."""
        values, bits = np.ascontiguousarray(values), np.packbits(valid != 0, bitorder="little")
        self._pinned += [values, bits]
        self.column_of[:, slot] = len(self._columns)
        self._columns.append((values.ctypes.data, bits.ctypes.data, 0, 0))

    def add_column(
        self, column: pa.Array, kind: Kind, strings: StringDictionary, slots: Array, *, all_strings: bool
    ) -> None:
        """Add a column of a batch. `slots` has the slot in which each type keeps the column.

        If `all_strings`, every string is encoded. Otherwise only constants of rules get a code, and other strings -1.
        """
        if kind == Kind.STRING and not all_strings:
            values = strings.constants.find(column)
        elif kind in (Kind.DOUBLE, Kind.LONG, Kind.TIMESTAMP) and len(column):
            values = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]
        else:
            values = column_values(column, kind, strings)[0]
        valid = column.buffers()[0] if column.null_count else None
        self._pinned += [values, valid]
        types = np.flatnonzero(slots >= 0)
        self.column_of[types, slots[types]] = len(self._columns)
        bits, first_bit = (valid.address, column.offset) if valid is not None else (0, 0)
        self._columns.append((values.ctypes.data, bits, first_bit, int(kind == Kind.DOUBLE)))
