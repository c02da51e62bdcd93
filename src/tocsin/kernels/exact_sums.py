# mypy: disable-error-code="no-untyped-def"
"""Exact sums of values that come and go, as fixed-point numbers.

A sum is *narrow*, with 128 bits, while its values have similar magnitudes. Otherwise it is *wide*: it consists of limbs
of 32 bits with delayed carries.

    NARROW  base  low  high          (high · 2^64 + low) · 2^base; base -1: nothing was added yet
    lo  hi  limb 0  limb 1  …        only limbs from lo to hi can differ from 0; lo > hi: the sum is 0

The lowest bit of limb 0 is worth 2^exponent. The exponent is 0 for integers, -1074 for doubles, and twice that for sums
of squares of doubles. Sums of squares are always wide. Adding and subtracting a value therefore leaves no error, and
changes only the limbs at the magnitude of the value. A limb is a signed 64-bit word, so many values can be added before
carries must be propagated. Reading a sum rounds it once.

Memory is given by its address. Its first SCRATCH words are scratch memory.
"""

from __future__ import annotations

import math

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros

from tocsin.kernels.core import get, jit, never_inline, put, small

LIMBS_LONG, LIMBS_LONG_SQUARES = 5, 8
LIMBS_DOUBLE, LIMBS_DOUBLE_SQUARES = 70, 137
DOUBLE_EXPONENT = -1074
MASK = np.int64(0xFFFFFFFF)
NARROW = -1
"""The first word of a narrow sum. A wide sum has the index of its lowest limb there."""
_BELOW, _ABOVE = 32, 22
"""How many bits the digits of other values may lie below and above those of the first value in a narrow sum."""
_ALMOST_FULL = np.int64(1 << 61)

# Offsets in the scratch memory.
_MAGNITUDE, _SECOND, _PRODUCT, SCRATCH = 0, 256, 512, 1024


@small
def clear_sum(memory, at):
    """Set the sum at `at` to zero, as a narrow sum."""
    put(memory, at, np.int64(NARROW))
    put(memory, at + 1, np.int64(-1))
    put(memory, at + 2, np.int64(0))
    put(memory, at + 3, np.int64(0))


@small
def clear_wide(memory, at, limbs):
    """Set the sum at `at` to zero, as a wide sum of `limbs` limbs."""
    put(memory, at, np.int64(limbs))
    put(memory, at + 1, np.int64(-1))
    for i in range(limbs):
        put(memory, at + 2 + i, np.int64(0))


@small
def _add_bits(memory, at, bits, position, sign):
    """Add sign · bits · 2^position to a wide sum."""
    limb, shift = position >> 5, np.uint64(position & 31)
    low = (bits & np.uint64(0xFFFFFFFF)) << shift
    high = (bits >> np.uint64(32)) << shift
    cell = at + 2 + limb
    put(memory, cell, get(memory, cell) + sign * np.int64(low & np.uint64(0xFFFFFFFF)))
    middle = np.int64(low >> np.uint64(32)) + np.int64(high & np.uint64(0xFFFFFFFF))
    put(memory, cell + 1, get(memory, cell + 1) + sign * middle)
    put(memory, cell + 2, get(memory, cell + 2) + sign * np.int64(high >> np.uint64(32)))
    if limb < get(memory, at):
        put(memory, at, np.int64(limb))
    if limb + 2 > get(memory, at + 1):
        put(memory, at + 1, np.int64(limb + 2))


@small
def _decompose(word, double):
    """Return the sign of a value, its digits, and the position of the lowest digit."""
    if double:
        bits = np.uint64(word)
        exponent = np.int64((bits >> np.uint64(52)) & np.uint64(0x7FF))
        digits = bits & np.uint64(0xFFFFFFFFFFFFF)
        if exponent > 0:
            digits |= np.uint64(1) << np.uint64(52)
            exponent -= 1
        return np.int64(-1 if word < 0 else 1), digits, exponent
    if word < 0:
        return np.int64(-1), np.uint64(0) - np.uint64(word), np.int64(0)
    return np.int64(1), np.uint64(word), np.int64(0)


@jit
def add_value(memory, at, word, double, sign):
    """Add sign · value to a sum. The value is given by its word, as a double if `double` is true."""
    own, digits, position = _decompose(word, double)
    if get(memory, at) == NARROW:
        if digits == 0:
            return
        base = get(memory, at + 1)
        if base < 0:
            base = max(position - _BELOW, np.int64(0))
            put(memory, at + 1, base)
        if base <= position <= base + _BELOW + _ABOVE:
            _add_narrow(memory, at, digits, np.uint64(position - base), sign * own)
            if -_ALMOST_FULL < get(memory, at + 3) < _ALMOST_FULL:
                return
            widen(memory, at, LIMBS_DOUBLE if double else LIMBS_LONG)
            return
        widen(memory, at, LIMBS_DOUBLE if double else LIMBS_LONG)
    _add_bits(memory, at, digits, position, sign * own)


@small
def _add_narrow(memory, at, digits, shift, sign):
    """Add sign · digits · 2^shift to a narrow sum."""
    low, high = np.uint64(get(memory, at + 2)), np.uint64(get(memory, at + 3))
    more = digits << shift
    above = (digits >> np.uint64(1)) >> (np.uint64(63) - shift)
    if sign > 0:
        total = low + more
        high += above + np.uint64(total < low)
    else:
        total = low - more
        high -= above + np.uint64(total > low)
    put(memory, at + 2, np.int64(total))
    put(memory, at + 3, np.int64(high))


@small
def _narrow_magnitude(memory, at):
    """Return the low and the high word of the absolute value of a narrow sum, and the sign of the sum."""
    low, high = np.uint64(get(memory, at + 2)), np.uint64(get(memory, at + 3))
    if get(memory, at + 3) >= 0:
        return low, high, np.int64(1)
    return np.uint64(0) - low, ~high + np.uint64(low == 0), np.int64(-1)


@jit
def widen(memory, at, limbs):
    """Convert a narrow sum to a wide sum of the same value."""
    never_inline()
    base = max(get(memory, at + 1), np.int64(0))
    low, high, sign = _narrow_magnitude(memory, at)
    clear_wide(memory, at, limbs)
    if low:
        _add_bits(memory, at, low, base, sign)
    if high:
        _add_bits(memory, at, high, base + 64, sign)


@jit
def add_square(memory, at, word, double, sign):
    """Add sign · value² to a wide sum."""
    _, digits, position = _decompose(word, double)
    low, high = digits & np.uint64(0xFFFFFFFF), digits >> np.uint64(32)
    _add_bits(memory, at, low * low, 2 * position, sign)
    if high:
        _add_bits(memory, at, np.uint64(2) * high * low, 2 * position + 32, sign)
        _add_bits(memory, at, high * high, 2 * position + 64, sign)


@jit
def _carry(memory, at):
    """Propagate the carries of a wide sum. Afterwards only its highest limb can be negative or exceed 32 bits."""
    low, high, carry = get(memory, at), get(memory, at + 1), np.int64(0)
    for i in range(low, high + 1):
        value = get(memory, at + 2 + i) + carry
        if i == high and -0x80000000 <= value < 0x80000000:
            put(memory, at + 2 + i, value)
            carry = np.int64(0)
        else:
            put(memory, at + 2 + i, value & MASK)
            carry = value >> 32
    if carry != 0:
        high += 1
        put(memory, at + 2 + high, carry)
    while high >= low and get(memory, at + 2 + high) == 0:
        high -= 1
    # A highest limb of -1 only carries the sign. Drop it if the limb below can be negative itself.
    while high > low and get(memory, at + 2 + high) == -1 and get(memory, at + 1 + high) >= 0x80000000:
        put(memory, at + 2 + high, np.int64(0))
        high -= 1
        put(memory, at + 2 + high, get(memory, at + 2 + high) - (np.int64(1) << 32))
    while low <= high and get(memory, at + 2 + low) == 0:
        low += 1
    put(memory, at, low)
    put(memory, at + 1, high)


@small
def _magnitude(memory, at, to):
    """Write the limbs of the absolute value of a wide sum to `to`. The sum must have no pending carries.

    Returns the number of limbs and the sign of the sum.
    """
    low, high = get(memory, at), get(memory, at + 1)
    if low > high:
        return np.int64(0), np.int64(1)
    count = high - low + 1
    if get(memory, at + 2 + high) >= 0:
        for i in range(count):
            put(memory, to + i, get(memory, at + 2 + low + i))
        return count, np.int64(1)
    borrow = np.int64(0)
    for i in range(count):
        value = -get(memory, at + 2 + low + i) + borrow
        put(memory, to + i, value & MASK)
        borrow = value >> 32
    return count, np.int64(-1)


@small
def _length(limb):
    """Return the number of binary digits of a limb."""
    bits = np.int64(0)
    while limb:
        limb >>= 1
        bits += 1
    return bits


@small
def _window(memory, at, count, position, bits):
    """Return `bits` bits (at most 53) of the number at `at`, starting with the bit at `position`."""
    limb, shift = position >> 5, np.uint64(position & 31)
    window = np.uint64(get(memory, at + limb))
    if limb + 1 < count:
        window |= np.uint64(get(memory, at + limb + 1)) << np.uint64(32)
    window >>= shift
    if limb + 2 < count and shift > 0:
        window |= np.uint64(get(memory, at + limb + 2)) << (np.uint64(64) - shift)
    return np.int64(window & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1)))


@jit
def _rounded(memory, at, count, exponent, rest):
    """Return the double nearest to number · 2^exponent, with ties to even.

    `rest` says whether the number was truncated.
    """
    while count > 0 and get(memory, at + count - 1) == 0:
        count -= 1
    if count == 0:
        return 0.0
    bits = 32 * (count - 1) + _length(get(memory, at + count - 1))
    precision = min(np.int64(53), bits + exponent - DOUBLE_EXPONENT)
    if precision < 0:
        return 0.0
    dropped = bits - precision
    if dropped <= 0:
        return math.ldexp(np.float64(_window(memory, at, count, np.int64(0), bits)), exponent)
    digits = _window(memory, at, count, dropped, precision) if precision > 0 else np.int64(0)
    half = _window(memory, at, count, dropped - 1, 1)
    if half:
        below = dropped - 1
        if not rest:
            for i in range(below >> 5):
                if get(memory, at + i) != 0:
                    rest = True
                    break
        if not rest and below & 31:
            rest = _window(memory, at, count, below & ~31, below & 31) != 0
        if rest or digits & 1:
            digits += 1
    return math.ldexp(np.float64(digits), exponent + dropped)


@jit
def sum_double(memory, at, exponent):
    """Return the sum as a double, rounded once."""
    if get(memory, at) == NARROW:
        low, high, sign = _narrow_magnitude(memory, at)
        above = np.int64(0)
        if high:  # the last of these 64 digits is also set if a digit below it is: enough to round once
            above = np.int64(64) - np.int64(leading_zeros(high))
            below = low << np.uint64(64 - above)
            low = (low >> np.uint64(above)) | (high << np.uint64(64 - above)) | np.uint64(below != 0)
        return sign * math.ldexp(np.float64(low), max(get(memory, at + 1), np.int64(0)) + above + exponent)
    _carry(memory, at)
    count, sign = _magnitude(memory, at, np.int64(_MAGNITUDE))
    return sign * _rounded(memory, np.int64(_MAGNITUDE), count, exponent + 32 * get(memory, at), False)


@jit
def sum_long(memory, at):
    """Return the sum of integers, and whether the sum fits into 64 bits."""
    if get(memory, at) == NARROW:
        total = get(memory, at + 2)
        return total, get(memory, at + 3) == (total >> 63)
    _carry(memory, at)
    low, high = get(memory, at), get(memory, at + 1)
    if low > high:
        return np.int64(0), True
    top = get(memory, at + 2 + high)
    if high == 0:
        return top, True
    if high > 1 or not -0x80000000 <= top < 0x80000000:
        return np.int64(0), False
    return (top << 32) | get(memory, at + 2), True


@jit
def variance(memory, sums, squares, number, exponent):
    """Return (squares − sum² / number) / number, rounded once. `exponent` is the exponent of the sum."""
    if get(memory, sums) == NARROW:
        widen(memory, sums, LIMBS_LONG if exponent == 0 else LIMBS_DOUBLE)
    _carry(memory, sums)
    _carry(memory, squares)
    count, _ = _magnitude(memory, sums, np.int64(_MAGNITUDE))
    more, _ = _magnitude(memory, squares, np.int64(_SECOND))
    if more == 0:
        return 0.0
    first, second = 2 * get(memory, sums), get(memory, squares)
    base = second if count == 0 else min(first, second)
    # The limbs of number · squares − sum², without those below the limb `base`.
    size = max(second + more, first + 2 * count if count else second) - base + 3
    for i in range(size):
        put(memory, _PRODUCT + i, np.int64(0))
    carry = np.uint64(0)
    for i in range(more):
        value = np.uint64(get(memory, _SECOND + i)) * np.uint64(number) + carry
        put(memory, _PRODUCT + second - base + i, np.int64(value & np.uint64(0xFFFFFFFF)))
        carry = value >> np.uint64(32)
    put(memory, _PRODUCT + second - base + more, np.int64(carry))
    for i in range(count):
        factor, carry = np.uint64(get(memory, _MAGNITUDE + i)), np.uint64(0)
        cell = _PRODUCT + first - base + i
        for j in range(count):
            value = factor * np.uint64(get(memory, _MAGNITUDE + j)) + carry
            carry = value >> np.uint64(32)
            put(memory, cell + j, get(memory, cell + j) - np.int64(value & np.uint64(0xFFFFFFFF)))
        put(memory, cell + count, get(memory, cell + count) - np.int64(carry))
    borrow = np.int64(0)
    for i in range(size):
        value = get(memory, _PRODUCT + i) + borrow
        put(memory, _PRODUCT + i, value & MASK)
        borrow = value >> 32
    # Divide twice, with four limbs after the point.
    for i in range(size - 1, -1, -1):
        put(memory, _PRODUCT + 4 + i, get(memory, _PRODUCT + i))
    for i in range(4):
        put(memory, _PRODUCT + i, np.int64(0))
    size += 4
    rest = False
    for _ in range(2):
        remainder = np.int64(0)
        for i in range(size - 1, -1, -1):
            value = (remainder << 32) | get(memory, _PRODUCT + i)
            put(memory, _PRODUCT + i, value // number)
            remainder = value % number
        rest = rest or remainder != 0
    return _rounded(memory, np.int64(_PRODUCT), size, 2 * exponent + 32 * (base - 4), rest)
