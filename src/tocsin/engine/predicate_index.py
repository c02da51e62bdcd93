"""Which filters does an event pass? An index over the filters of all rules, so that they are not tried one by one.

The filters of a type are cut into blocks of at most 512. In a block each attribute that some filter compares with a
constant is an *axis*: the sorted constants, and for each position a value can have among them one bit for each
filter. The filters that an event passes are the bits left when the rows of all axes are put together. A block of few
filters needs no index: each is some *ranges*, one for each attribute that it compares, tried one after another, the
narrowest first. What a filter asks beyond that (`or`, arithmetic, two attributes) is a program, run only where the rest
holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tocsin import kernels
from tocsin.kernels import Array, Filters, layout

BLOCK = 512
FEW = 8
"""Up to how many filters of a type are tried one by one."""
LARGEST, LARGEST_DOUBLE = int(np.iinfo(np.int64).max), int(np.array(np.inf).view(np.int64))

AxisTest = tuple[int, bool, int, int]
"""(slot, whether it holds doubles, relation, constant)."""

Range = tuple[int, int, int, int]
"""(slot, the bits to turn in a negative word so that words are in the order of values, the least and the greatest)."""

ANYTHING: Range = (kernels.NONE, 0, -LARGEST - 1, LARGEST)
"""What a filter tries that has no tests."""

_EQUAL, _OTHER, _BELOW, _AT_MOST, _ABOVE, _AT_LEAST = (
    layout.RELATIONS[name] for name in ("=", "!=", "<", "<=", ">", ">=")
)


@dataclass(slots=True)
class _Axis:
    slot: int
    double: bool
    constants: Array
    bits: Array

    @property
    def searched(self) -> Array:
        """The constants, filled up to a power of two with the largest value."""
        table = np.full(1 << (len(self.constants) - 1).bit_length(), LARGEST_DOUBLE if self.double else LARGEST)
        table[: len(self.constants)] = self.constants
        return table


@dataclass(slots=True)
class _Block:
    type: int
    filters: list[int] = field(default_factory=list)
    tests: list[list[AxisTest]] = field(default_factory=list)
    axes: list[_Axis] | None = None

    @property
    def few(self) -> bool:
        """Whether each filter is tried by itself."""
        return len(self.filters) <= FEW and all(test[2] != _OTHER for tests in self.tests for test in tests)

    def build(self) -> list[_Axis]:
        if self.axes is None:
            found: dict[tuple[int, bool], list[tuple[int, int, int]]] = {}
            for number, tests in enumerate(self.tests):
                for slot, double, relation, constant in tests:
                    found.setdefault((slot, double), []).append((number, relation, constant))
            self.axes = [self._axis(slot, double, found[slot, double]) for slot, double in sorted(found)]
        return self.axes

    def _axis(self, slot: int, double: bool, tests: list[tuple[int, int, int]]) -> _Axis:
        """The axis of tests (place of the filter, relation, constant), in the order of the filters."""
        count = len(self.tests)
        owners, relations, raw = np.array(tests, np.int64).T.copy()
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=count), out=starts[1:])
        values = raw.view(np.float64) if double else raw
        constants, ranks = np.unique(values, return_inverse=True)
        words = (count + 63) // 64
        positions = 2 * len(constants) + 2
        bits = np.zeros(positions * words, np.uint64)
        kernels.fill_axis(bits, 0, words, positions, count, starts, relations, ranks.astype(np.int64))
        return _Axis(slot, double, np.ascontiguousarray(constants).view(np.int64), bits)


class FilterIndex:
    """The index; changes are gathered, and only the blocks that changed are built again."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._open: dict[int, _Block] = {}
        self._residual: list[int] = []
        self._tables: Filters | None = None
        self._types = 0
        self.has_programs = False
        """Whether some filter is more than comparisons with constants."""
        self._tested: set[tuple[int, int]] = set()

    def add(self, type: int, filter: int, tests: list[AxisTest], residual: int) -> None:
        """Adds the filter of that number, the next free one, to a type's."""
        block = self._open.get(type)
        if block is None or len(block.filters) == BLOCK:
            block = self._open[type] = _Block(type)
            self._blocks.append(block)
        block.filters.append(filter)
        block.tests.append(tests)
        block.axes = None
        self._residual.append(residual)
        self._tested.update((type, test[0]) for test in tests)
        self.has_programs |= residual != kernels.NONE
        self._tables = None

    def show(self, type: int, slots: Iterable[int]) -> None:
        """Says that attributes of a type are read where filters find them."""
        self._tested.update((type, slot) for slot in slots)

    def ask_for(self, slots: Array) -> bool:
        """Whether somebody looks at an attribute that each type keeps in one of these slots."""
        return self.has_programs or any((type, slot) in self._tested for type, slot in enumerate(slots.tolist()))

    def tables(self, types: int) -> Filters:
        """The index as the kernels read it, for that many types."""
        if self._tables is None or types != self._types:
            self._tables = self._build(types)
            self._types = types
        return self._tables

    def close(self, types: int) -> None:
        """Builds the index for that many types, the last time, and lets go of what it was built from."""
        self.tables(types)
        self._blocks, self._open, self._residual = [], {}, []

    def _build(self, types: int) -> Filters:
        first = np.full(max(types, 1), kernels.NONE, np.int64)
        following: list[int] = []
        block_axes: list[int] = []
        axis_counts: list[int] = []
        block_filters: list[int] = []
        filter_counts: list[int] = []
        filter_ids: list[int] = []
        axes: list[_Axis] = []
        steps: list[list[int]] = []
        tried: dict[int, list[int]] = {}
        for number, block in enumerate(self._blocks):
            following.append(int(first[block.type]))
            first[block.type] = number
            built = [] if block.few else block.build()
            if block.few:
                for filter, tests in zip(block.filters, block.tests, strict=True):
                    ranges = ranges_of(tests) or [ANYTHING]
                    tried.setdefault(block.type, []).append(len(steps))
                    steps += [[block.type, *range, int(range is ranges[-1]), filter, 0] for range in ranges]
            block_axes.append(len(axes))
            axis_counts.append(len(built))
            axes += built
            block_filters.append(len(filter_ids))
            filter_counts.append(len(block.filters))
            filter_ids += block.filters
        none = len(steps)
        for mine in tried.values():
            for one, other in pairwise([*mine, none]):
                steps[one][layout.TRY_OTHER] = other
        for step in steps:
            step[layout.TRY_OTHER] = step[layout.TRY_OTHER] or none
        firsts = [none, *(tried[type][0] if type in tried else none for type in range(types))]
        constants = [axis.searched for axis in axes]
        bits = np.concatenate([*(axis.bits for axis in axes), np.zeros(1, np.uint64)])
        return Filters(
            first,
            _words(following),
            _words(block_axes),
            _words(axis_counts),
            _words(block_filters),
            _words(filter_counts),
            _words([axis.slot for axis in axes]),
            _words([int(axis.double) for axis in axes]),
            _starts([len(table) for table in constants]),
            _words([len(axis.constants) for axis in axes]),
            _starts([len(axis.bits) for axis in axes]),
            np.concatenate([*constants, np.zeros(1, np.int64)]),
            bits,
            _words(filter_ids),
            _words(self._residual),
            _words([int(any(self._residual[number] >= 0 for number in block.filters)) for block in self._blocks]),
            _words([int(block.few) for block in self._blocks]),
            np.array(firsts, np.int32) * kernels.predicate_scan.STEP_BYTES,
            _words([max(map(len, tried.values()), default=0)]),
            np.array(steps, np.int64).reshape(-1, layout.TRY_WORDS),
        )


def ranges_of(tests: Iterable[AxisTest]) -> list[Range]:
    """Comparisons that must all hold as ranges, one for each attribute, the narrowest first.

    >>> ranges_of([(0, False, _ABOVE, 3), (0, False, _AT_MOST, 9), (1, False, _EQUAL, 7)])
    [(1, 0, 7, 7), (0, 0, 4, 9)]
    """
    found: dict[tuple[int, bool], tuple[int, int]] = {}
    for slot, double, relation, constant in tests:
        low = high = ordered(constant) if double else constant
        if double and constant in (0, -LARGEST - 1):  # both zeros are one value
            low, high = ordered(-LARGEST - 1), 0
        finite = 1 - LARGEST_DOUBLE if double else -LARGEST - 1, LARGEST_DOUBLE - 1 if double else LARGEST
        least, most = found.get((slot, double), finite)
        if relation in (_EQUAL, _AT_LEAST, _ABOVE):
            least = max(least, high + 1 if relation == _ABOVE else low)
        if relation in (_EQUAL, _AT_MOST, _BELOW):
            most = min(most, low - 1 if relation == _BELOW else high)
        found[slot, double] = least, most
    return [
        (slot, LARGEST if double else 0, *((least, most) if least <= most else (1, 0)))
        for (slot, double), (least, most) in sorted(found.items(), key=lambda item: item[1][1] - item[1][0])
    ]


def ordered(word: int) -> int:
    """The word of a double as one that is in the order of doubles.

    >>> words = [int(np.float64(x).view(np.int64)) for x in (-np.inf, -2.0, -0.0, 0.0, 1e-300, 3.0)]
    >>> [ordered(word) for word in words] == sorted(map(ordered, words))
    True
    """
    return word if word >= 0 else word ^ LARGEST


def _words(values: list[int]) -> Array:
    return np.array(values or [0], np.int64)


def _starts(lengths: list[int]) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))])
