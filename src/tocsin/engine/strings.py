"""Encode strings as small integer codes.

Equal strings have equal codes. When a string is no longer used, its code may be assigned to another string.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.kernels import Array
from tocsin.kernels.ingest import ENTRY_WORDS, NUMBER

SMALL_MAX, SPREADS_TRIED = 1024, 16
"""The largest number of strings with a sparse hash table, and the number of hash functions that are tried for it."""


class StringIndex:
    """An immutable hash table from strings to codes. Strings that are not in the table have the code `missing`."""

    def __init__(self, codes: Mapping[str, int], missing: int, dtype: type[np.signedinteger] = np.int64) -> None:
        self._names = [*codes]
        offsets, data, _ = string_buffers(pa.array(self._names, pa.string()))
        size = 1 << max(1, ((16 if len(codes) <= SMALL_MAX else 2) * len(codes)).bit_length())
        self._known = data
        self._table = np.empty((size, ENTRY_WORDS), np.int64)
        self._dtype, self._missing = np.dtype(dtype), dtype(missing)
        code_array = np.array([*codes.values()], np.int64)
        # A string that is not in its first place costs a mispredicted branch. Choose the hash function with the fewest.
        spreads = (
            np.random.default_rng(0).integers(
                1 << 63, 1 << 64, SPREADS_TRIED if len(codes) <= SMALL_MAX else 1, np.uint64
            )
            | 1
        )
        steps = [kernels.insert_strings(offsets, data, code_array, spread, self._table) for spread in spreads]
        self._spread = spreads[np.argmin(steps)]
        kernels.insert_strings(offsets, data, code_array, self._spread, self._table)

    def __len__(self) -> int:
        return len(self._names)

    def find(self, column: pa.Array) -> Array:
        """Return the code of each string of a column, in linear time. The code of a null is arbitrary.

        Strings of up to 16 bytes are compared as two words.
        """
        return self._find(column, np.zeros(0, np.uint8))

    def find_all(self, column: pa.Array, out: Array | None = None) -> tuple[Array, set[int]]:
        """Return the code of each string of a column, and the set of codes that occur.

        If `out` is given, the codes are written to `out`.
        """
        seen = np.zeros(len(self._table), np.uint8)
        return self._find(column, seen, out), set(self._table[seen != 0, NUMBER].tolist())

    def allocate(self, column: pa.Array) -> Array:
        """Allocate an array for the codes of a column."""
        return np.empty(len(column), self._dtype)

    def _find(self, column: pa.Array, seen: Array, out: Array | None = None) -> Array:
        if pa.types.is_dictionary(column.type):
            codes = np.append(self._find(column.dictionary, seen), self._missing)
            indices = column.indices.fill_null(len(column.dictionary)) if column.null_count else column.indices
            return np.asarray(codes[indices.to_numpy(zero_copy_only=False)])
        offsets, data, _ = string_buffers(column)
        out = self.allocate(column) if out is None else out
        table = self._spread, self._table, self._known
        kernels.find_strings(offsets.ctypes.data, data.ctypes.data, len(data), *table, seen, self._missing, out)
        return out


StringCodes: TypeAlias = tuple[StringIndex, Array]
"""The index in which the strings of a column were looked up, and their codes."""


def string_buffers(column: pa.Array) -> tuple[Array, Array, Array]:
    """Return the offsets, the bytes and the validity (one byte per string) of a column of strings."""
    column = column.cast(pa.string())
    buffers = column.buffers()
    if not len(column):
        return np.zeros(1, np.int32), np.zeros(1, np.uint8), np.zeros(0, np.uint8)
    offsets = np.frombuffer(buffers[1], np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None and buffers[2].size else np.zeros(1, np.uint8)
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    else:
        valid = np.ones(len(column), np.uint8)
    return offsets, data, valid


class StringDictionary:
    """Assigns codes to strings. The code of a string does not change while the string is in use."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._strings: list[str | None] = []
        self._free: list[int] = []
        self._pinned: set[int] = set()
        self._constants: StringIndex | None = None
        self._index: StringIndex | None = None
        """An index of the strings that existed when it was built; later strings are looked up in `_codes`."""
        self._kept = 1024
        self._ranks: Array | None = None

    def __len__(self) -> int:
        return len(self._codes)

    def copy(self) -> StringDictionary:
        """Return a copy of the dictionary with the same codes."""
        strings = StringDictionary()
        strings._codes, strings._strings, strings._free = self._codes.copy(), self._strings.copy(), self._free.copy()
        strings._pinned, strings._constants = self._pinned.copy(), self.constants
        return strings

    def code(self, string: str) -> int:
        """Return the code of a string, and assign a code if the string is new."""
        code = self._codes.get(string)
        if code is None:
            code = self._free.pop() if self._free else len(self._strings)
            if code == len(self._strings):
                self._strings.append(string)
            else:
                self._strings[code] = string
            self._codes[string] = code
            self._ranks = None
        return code

    def string(self, code: int) -> str:
        """Return the string of a code that is in use."""
        string = self._strings[code]
        assert string is not None
        return string

    def pin(self, string: str) -> int:
        """Return the code of a string that must never be removed, for example a constant of a rule."""
        code = self.code(string)
        if code not in self._pinned:
            self._pinned.add(code)
            self._constants = None
        return code

    @property
    def constants(self) -> StringIndex:
        """An index of the pinned strings. All other strings have the code -1."""
        if self._constants is None:
            self._constants = StringIndex({self.string(code): code for code in self._pinned}, kernels.NONE)
        return self._constants

    def find(self, column: pa.Array) -> StringCodes | None:
        """Look up the strings of a column for a later `encode`. No string is added, so any thread may call this."""
        index = self._index
        return None if index is None or pa.types.is_dictionary(column.type) else (index, index.find(column))

    def encode(self, column: pa.Array, known: StringCodes | None = None) -> Array:
        """Encode a column of strings, in linear time. The code of a null is arbitrary.

        Strings in the index are found by a kernel. All other distinct strings are looked up one by one. `known` is the
        result of `find` for the column. It is ignored if strings were removed since then.
        """
        if pa.types.is_dictionary(column.type) or not len(self._codes):
            return self._encode_new(column)
        if known is not None and known[0] is self._index:
            codes = known[1]
        else:
            if self._index is None or len(self._codes) > 2 * len(self._index):
                self._index = StringIndex(self._codes, kernels.NONE)
            codes = self._index.find(column)
        new = codes < 0
        if column.null_count:
            new &= column.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(new)
        if len(rows):
            codes[rows] = self._encode_new(column.take(pa.array(rows)))
        return codes

    def _encode_new(self, column: pa.Array) -> Array:
        """Encode a column without the index, and add its new strings."""
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        if len(coded.dictionary) == 0:
            return np.zeros(len(column), np.int64)
        codes = np.fromiter(
            (0 if string is None else self.code(string) for string in coded.dictionary.to_pylist()), np.int64
        )
        indices = coded.indices.fill_null(0) if coded.indices.null_count else coded.indices
        return np.asarray(codes[indices.to_numpy(zero_copy_only=False)])

    def decode(self, codes: Array, valid: Array | None = None) -> pa.Array:
        """Return the strings of `codes` as a column. Codes that are not valid become null."""
        mask = None if valid is None else valid == 0
        if len(self._strings) <= 2 * len(codes):
            dictionary, indices = pa.array(self._strings, pa.string()), codes
        else:
            distinct, indices = np.unique(codes if mask is None else np.where(mask, 0, codes), return_inverse=True)
            dictionary = pa.array([self._strings[code] for code in distinct] if self._strings else [None], pa.string())
        return dictionary.take(pa.array(indices, pa.int64(), mask=mask))

    @property
    def ranks(self) -> Array:
        """The rank of the string of each code, when all strings are sorted."""
        if self._ranks is None:
            order = sorted(self._codes.items())
            self._ranks = np.zeros(max(1, len(self._strings)), np.int64)
            for rank, (_, code) in enumerate(order):
                self._ranks[code] = rank
        return self._ranks

    @property
    def needs_cleanup(self) -> bool:
        """Whether there are so many new strings that it pays off to remove unused strings with `retain`."""
        return len(self._codes) > 2 * self._kept

    def retain(self, used: Iterable[Array]) -> None:
        """Remove all strings that are neither pinned nor have a code in `used`."""
        in_use = np.zeros(len(self._strings) + 1, bool)
        for codes in used:
            in_use[codes] = True
        for string, code in list(self._codes.items()):
            if not in_use[code] and code not in self._pinned:
                del self._codes[string]
                self._strings[code] = None
                self._free.append(code)
        self._kept = max(1024, len(self._codes))
        self._ranks = self._index = None
