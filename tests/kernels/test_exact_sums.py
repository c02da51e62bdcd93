"""Exact sums: after any additions and subtractions, sum and variance equal those of fractions, rounded once."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budget import examples
from tocsin.kernels import exact_sums

LIKE = st.floats(-1000.0, 1000.0).map(lambda x: round(x, 2)) | st.floats(1.0, 1e9) | st.floats(1e-312, 1e-300)
DOUBLES = (
    LIKE
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.1, 0.2, 1e100, -1e100, 5e-324, 1.7e308])
)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
SUM, SQUARES, ALONE = 1100, 1300, 1600


def rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@settings(max_examples=examples(300))
@given(
    values=st.lists(st.tuples(DOUBLES, st.booleans()), max_size=8)
    | st.lists(st.tuples(LIKE, st.booleans()), max_size=20)
    | st.lists(st.tuples(LONGS, st.booleans()), max_size=8)
)
def test_sums_and_variances_are_those_of_fractions(values: list[tuple[int | float, bool]]) -> None:
    memory = np.zeros(2048, np.int64)
    at, double = memory.ctypes.data, any(isinstance(value, float) for value, _ in values)
    exact_sums.clear_sum(at, SUM)
    exact_sums.clear_sum(at, ALONE)  # no variance is computed from it: it stays narrow as long as it can
    exact_sums.clear_wide(at, SQUARES, exact_sums.LIMBS_DOUBLE_SQUARES if double else exact_sums.LIMBS_LONG_SQUARES)
    held: list[int | float] = []

    def change(value: int | float, sign: int) -> None:
        word = struct.unpack("<q", struct.pack("<d", value + 0.0))[0] if double else value
        exact_sums.add_value(at, SUM, word, double, sign)
        exact_sums.add_value(at, ALONE, word, double, sign)
        exact_sums.add_square(at, SQUARES, word, double, sign)

    for value, leaves in values:
        held.append(value)
        change(value, 1)
        if leaves:
            change(held.pop(0), -1)
        total, squares = sum(map(Fraction, held), Fraction(0)), sum((Fraction(x) ** 2 for x in held), Fraction(0))
        exponent = exact_sums.DOUBLE_EXPONENT if double else 0
        for place in (SUM, ALONE):
            assert exact_sums.sum_double(at, place, exponent) == rounded(total)
            if not double:
                found, within = exact_sums.sum_long(at, place)
                assert within == (-(2**63) <= total < 2**63)
                assert not within or found == total
        if held:
            exact = (squares - total**2 / len(held)) / len(held)
            assert exact_sums.variance(at, SUM, SQUARES, len(held), exponent) == rounded(exact)
