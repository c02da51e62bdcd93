"""Index the filters of all rules with bitmaps, so that an event is not tested against each filter.

The filters of a type are divided into blocks of at most 512 filters. A block has a bitmap index for each attribute that
some filter compares with a constant. The index has the sorted constants, and for each interval between two constants
one bit per filter. To find the filters that an event passes, one row of each index is selected, and the rows are
combined with AND.

A block of few filters has no index. Instead, each filter is a chain of value ranges, one per attribute, which are
tested in turn, the narrowest range first. All other conditions (`or`, arithmetic, two attributes) form a program, which
runs only if all comparisons hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tocsin import kernels
from tocsin.kernels import Array, PredicateTables, layout

BLOCK = 512
SCAN_MAX = 8
"""The largest number of filters in a block that are tested one by one, without an index."""
LARGEST, LARGEST_DOUBLE = int(np.iinfo(np.int64).max), int(np.array(np.inf).view(np.int64))

ConstantTest = tuple[int, bool, int, int]
"""A comparison of an attribute with a constant, as (slot, is double, relation, constant)."""

ValueRange = tuple[int, int, int, int]
"""A range of values, as (slot, bits to flip, minimum, maximum).

The bits are flipped in negative values, so that the words of doubles sort as integers.
"""

ANY_VALUE: ValueRange = (kernels.NONE, 0, -LARGEST - 1, LARGEST)
"""The range of a filter without comparisons."""

_EQUAL, _OTHER, _BELOW, _AT_MOST, _ABOVE, _AT_LEAST = (
    layout.RELATIONS[name] for name in ("=", "!=", "<", "<=", ">", ">=")
)


@dataclass(slots=True)
class _AttributeBitmap:
    slot: int
    double: bool
    constants: Array
    bits: Array

    @property
    def search_table(self) -> Array:
        """The sorted constants, padded with the largest value to a power of two."""
        table = np.full(1 << (len(self.constants) - 1).bit_length(), LARGEST_DOUBLE if self.double else LARGEST)
        table[: len(self.constants)] = self.constants
        return table


@dataclass(slots=True)
class _Block:
    type: int
    filters: list[int] = field(default_factory=list)
    tests: list[list[ConstantTest]] = field(default_factory=list)
    bitmaps: list[_AttributeBitmap] | None = None

    @property
    def scanned(self) -> bool:
        """Whether the filters of the block are tested one by one."""
        return len(self.filters) <= SCAN_MAX and all(test[2] != _OTHER for tests in self.tests for test in tests)

    def build(self) -> list[_AttributeBitmap]:
        if self.bitmaps is None:
            tests_of: dict[tuple[int, bool], list[tuple[int, int, int]]] = {}
            for number, tests in enumerate(self.tests):
                for slot, double, relation, constant in tests:
                    tests_of.setdefault((slot, double), []).append((number, relation, constant))
            self.bitmaps = [self._bitmap(slot, double, tests_of[slot, double]) for slot, double in sorted(tests_of)]
        return self.bitmaps

    def _bitmap(self, slot: int, double: bool, tests: list[tuple[int, int, int]]) -> _AttributeBitmap:
        """Build the bitmap of one attribute from `tests`, each as (index of the filter, relation, constant).

        The tests must be in the order of the filters.
        """
        count = len(self.tests)
        owners, relations, raw = np.array(tests, np.int64).T.copy()
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=count), out=starts[1:])
        values = raw.view(np.float64) if double else raw
        constants, ranks = np.unique(values, return_inverse=True)
        words = (count + 63) // 64
        positions = 2 * len(constants) + 2
        bits = np.zeros(positions * words, np.uint64)
        kernels.fill_bitmaps(bits, 0, words, positions, count, starts, relations, ranks.astype(np.int64))
        return _AttributeBitmap(slot, double, np.ascontiguousarray(constants).view(np.int64), bits)


class PredicateIndex:
    """Holds the index of all filters. Only blocks that have changed are built again."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._open: dict[int, _Block] = {}
        self._residual: list[int] = []
        self._tables: PredicateTables | None = None
        self._types = 0
        self.has_programs = False
        """Whether some filter has a program."""
        self._tested: set[tuple[int, int]] = set()

    def add(self, type: int, filter: int, tests: list[ConstantTest], residual: int) -> None:
        """Add a filter to a type. `filter`, its number, must be the number of filters so far.

        `residual` is the offset of the program for all conditions that are not in `tests`, or -1.
        """
        block = self._open.get(type)
        if block is None or len(block.filters) == BLOCK:
            block = self._open[type] = _Block(type)
            self._blocks.append(block)
        block.filters.append(filter)
        block.tests.append(tests)
        block.bitmaps = None
        self._residual.append(residual)
        self._tested.update((type, test[0]) for test in tests)
        self.has_programs |= residual != kernels.NONE
        self._tables = None

    def mark_read(self, type: int, slots: Iterable[int]) -> None:
        """Note that a projection reads the attributes in these slots of a type directly from batches."""
        self._tested.update((type, slot) for slot in slots)

    def reads(self, slots: Array) -> bool:
        """Return whether a filter or projection reads an attribute, which has the slot `slots[type]` in each type."""
        return self.has_programs or any((type, slot) in self._tested for type, slot in enumerate(slots.tolist()))

    def tables(self, types: int) -> PredicateTables:
        """Return the index in the form that kernels read. `types` is the number of types."""
        if self._tables is None or types != self._types:
            self._tables = self._build(types)
            self._types = types
        return self._tables

    def freeze(self, types: int) -> None:
        """Build the index for the last time, and free the data from which it was built."""
        self.tables(types)
        self._blocks, self._open, self._residual = [], {}, []

    def _build(self, types: int) -> PredicateTables:
        first = np.full(max(types, 1), kernels.NONE, np.int64)
        following: list[int] = []
        block_bitmaps: list[int] = []
        bitmap_counts: list[int] = []
        block_filters: list[int] = []
        filter_counts: list[int] = []
        filter_ids: list[int] = []
        bitmaps: list[_AttributeBitmap] = []
        chain: list[list[int]] = []
        chains: dict[int, list[int]] = {}
        for number, block in enumerate(self._blocks):
            following.append(int(first[block.type]))
            first[block.type] = number
            built = [] if block.scanned else block.build()
            if block.scanned:
                for filter, tests in zip(block.filters, block.tests, strict=True):
                    ranges = ranges_of(tests) or [ANY_VALUE]
                    chains.setdefault(block.type, []).append(len(chain))
                    chain += [[block.type, *range, int(range is ranges[-1]), filter, 0] for range in ranges]
            block_bitmaps.append(len(bitmaps))
            bitmap_counts.append(len(built))
            bitmaps += built
            block_filters.append(len(filter_ids))
            filter_counts.append(len(block.filters))
            filter_ids += block.filters
        none = len(chain)
        for mine in chains.values():
            for one, other in pairwise([*mine, none]):
                chain[one][layout.SCAN_NEXT_FILTER] = other
        for step in chain:
            step[layout.SCAN_NEXT_FILTER] = step[layout.SCAN_NEXT_FILTER] or none
        firsts = [none, *(chains[type][0] if type in chains else none for type in range(types))]
        constants = [bitmap.search_table for bitmap in bitmaps]
        bits = np.concatenate([*(bitmap.bits for bitmap in bitmaps), np.zeros(1, np.uint64)])
        return PredicateTables(
            first,
            _array(following),
            _array(block_bitmaps),
            _array(bitmap_counts),
            _array(block_filters),
            _array(filter_counts),
            _array([bitmap.slot for bitmap in bitmaps]),
            _array([int(bitmap.double) for bitmap in bitmaps]),
            _starts([len(table) for table in constants]),
            _array([len(bitmap.constants) for bitmap in bitmaps]),
            _starts([len(bitmap.bits) for bitmap in bitmaps]),
            np.concatenate([*constants, np.zeros(1, np.int64)]),
            bits,
            _array(filter_ids),
            _array(self._residual),
            _array([int(any(self._residual[number] >= 0 for number in block.filters)) for block in self._blocks]),
            _array([int(block.scanned) for block in self._blocks]),
            np.array(firsts, np.int32) * kernels.predicate_scan.STEP_BYTES,
            _array([max(map(len, chains.values()), default=0)]),
            np.array(chain, np.int64).reshape(-1, layout.SCAN_WORDS),
        )


def ranges_of(tests: Iterable[ConstantTest]) -> list[ValueRange]:
    """Convert comparisons that must all hold to value ranges, one per attribute, the narrowest first.

    >>> ranges_of([(0, False, _ABOVE, 3), (0, False, _AT_MOST, 9), (1, False, _EQUAL, 7)])
    [(1, 0, 7, 7), (0, 0, 4, 9)]
    """
    ranges: dict[tuple[int, bool], tuple[int, int]] = {}
    for slot, double, relation, constant in tests:
        low = high = ordered(constant) if double else constant
        if double and constant in (0, -LARGEST - 1):  # 0.0 and -0.0 are equal
            low, high = ordered(-LARGEST - 1), 0
        finite = 1 - LARGEST_DOUBLE if double else -LARGEST - 1, LARGEST_DOUBLE - 1 if double else LARGEST
        least, most = ranges.get((slot, double), finite)
        if relation in (_EQUAL, _AT_LEAST, _ABOVE):
            least = max(least, high + 1 if relation == _ABOVE else low)
        if relation in (_EQUAL, _AT_MOST, _BELOW):
            most = min(most, low - 1 if relation == _BELOW else high)
        ranges[slot, double] = least, most
    return [
        (slot, LARGEST if double else 0, *((least, most) if least <= most else (1, 0)))
        for (slot, double), (least, most) in sorted(ranges.items(), key=lambda item: item[1][1] - item[1][0])
    ]


def ordered(word: int) -> int:
    """Map the bits of a double to an integer that sorts as the doubles do.

    >>> words = [int(np.float64(x).view(np.int64)) for x in (-np.inf, -2.0, -0.0, 0.0, 1e-300, 3.0)]
    >>> [ordered(word) for word in words] == sorted(map(ordered, words))
    True
    """
    return word if word >= 0 else word ^ LARGEST


def _array(values: list[int]) -> Array:
    return np.array(values or [0], np.int64)


def _starts(lengths: list[int]) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))])
