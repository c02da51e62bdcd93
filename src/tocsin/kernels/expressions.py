# mypy: disable-error-code="no-untyped-def"
"""A stack machine that evaluates expressions over the rows of a match.

An expression is compiled to a program of three-word instructions (see `layout`). A program reads the frame, which holds
the row of each role.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import (
    CODE,
    COMPUTED,
    COMPUTED_VALID,
    FRAME,
    RANKS,
    SEQ,
    STACK,
    STACK_VALID,
    STRIDE,
    TS,
    VALID,
    VALUES,
    get,
    get_byte,
    get_double,
    jit,
    put,
    put_byte,
    put_double,
    small,
)
from tocsin.kernels.layout import (
    ADD,
    ADD_DOUBLE,
    AND,
    DIVIDE,
    EQUAL,
    EQUAL_DOUBLE,
    LESS_TEXT,
    LOAD,
    LOAD_CONSTANT,
    LOAD_SEQ,
    LOAD_TS,
    MULTIPLY_DOUBLE,
    NEGATIVE,
    NEGATIVE_DOUBLE,
    NOT,
    OR,
    REMAINDER,
    REMAINDER_DOUBLE,
    SUBTRACT,
    SUBTRACT_DOUBLE,
    TO_DOUBLE,
)

INT64_MIN = np.int64(-(2**63))


@jit
def evaluate(env, at):
    """Run the program at `at`, leave its result at the bottom of the stack, and return whether the result is valid.

    Takes time linear in the length of the program.
    """
    code, stack, valid = get(env, CODE), get(env, STACK), get(env, STACK_VALID)
    end = at + 1 + 3 * get(code, at)
    at += 1
    top = np.int64(-1)
    while at < end:
        op, a = get(code, at), get(code, at + 1)
        if op <= LOAD_CONSTANT:
            top += 1
            _load(env, op, a, get(code, at + 2), stack, valid, top)
        elif op < EQUAL:
            if op == NEGATIVE:
                if get(stack, top) == INT64_MIN:
                    put_byte(valid, top, 0)
                put(stack, top, -get(stack, top))
            elif op == NEGATIVE_DOUBLE:
                put_double(stack, top, 0.0 - get_double(stack, top))
            elif op == TO_DOUBLE:
                put_double(stack, top, np.float64(get(stack, top)))
            else:
                top -= 1
                both = get_byte(valid, top) & get_byte(valid, top + 1)
                put_byte(valid, top, both)
                if both:
                    _calculate(op, stack, valid, top)
        elif op < AND:
            top -= 1
            truth = False
            if get_byte(valid, top) & get_byte(valid, top + 1):
                truth = _compare(env, op, stack, top)
            put(stack, top, np.int64(truth))
            put_byte(valid, top, 1)
        elif op == AND:
            top -= 1
            put(stack, top, get(stack, top) & get(stack, top + 1))
        elif op == OR:
            top -= 1
            put(stack, top, get(stack, top) | get(stack, top + 1))
        elif op == NOT:
            put(stack, top, 1 - get(stack, top))
        elif get(stack, top) < -2147483648 or get(stack, top) > 2147483647:  # TO_INT
            put_byte(valid, top, 0)
        at += 3
    return get_byte(valid, 0) != 0


@small
def _load(env, op, a, b, stack, valid, top):
    """Push the value of an attribute, a time, a computed value or a constant onto the stack."""
    if op == LOAD:
        row = get(get(env, FRAME), a)
        if row < 0:  # a role that the event expression left empty
            put(stack, top, np.int64(0))
            put_byte(valid, top, 0)
            return
        at = b * get(env, STRIDE) + row
        put(stack, top, get(get(env, VALUES), at))
        put_byte(valid, top, get_byte(get(env, VALID), at))
        return
    if op == LOAD_CONSTANT:
        put(stack, top, a)
    elif op in (LOAD_TS, LOAD_SEQ):
        row = get(get(env, FRAME), a)
        if row < 0:
            put(stack, top, np.int64(0))
            put_byte(valid, top, 0)
            return
        put(stack, top, get(get(env, TS if op == LOAD_TS else SEQ), row))
    else:
        put(stack, top, get(get(env, COMPUTED), a))
        put_byte(valid, top, get_byte(get(env, COMPUTED_VALID), a))
        return
    put_byte(valid, top, 1)


@jit
def _calculate(op, stack, valid, top):
    """Replace the two topmost values of the stack by the result of `op`, or by null if the result is out of range."""
    if op >= ADD_DOUBLE:
        x, y = get_double(stack, top), get_double(stack, top + 1)
        if op == ADD_DOUBLE:
            z = x + y
        elif op == SUBTRACT_DOUBLE:
            z = x - y
        elif op == MULTIPLY_DOUBLE:
            z = x * y
        elif y == 0.0:
            z = np.nan
        elif op == REMAINDER_DOUBLE:
            z = np.fmod(x, y)
        else:
            z = x / y
        put_double(stack, top, z + 0.0)
        if not np.isfinite(z):
            put_byte(valid, top, 0)
        return
    a, b = get(stack, top), get(stack, top + 1)
    if op in (DIVIDE, REMAINDER):
        if b == 0 or (a == INT64_MIN and b == -1 and op == DIVIDE):
            put_byte(valid, top, 0)
        elif b == -1:
            put(stack, top, -a if op == DIVIDE else np.int64(0))
        else:
            whole = a // b
            if whole < 0 and whole * b != a:  # towards zero
                whole += 1
            put(stack, top, whole if op == DIVIDE else a - whole * b)
        return
    # Unsigned arithmetic wraps around; signed overflow is undefined for the compiler.
    if op == ADD:
        c = np.int64(np.uint64(a) + np.uint64(b))
        beyond = ((a ^ c) & (b ^ c)) < 0
    elif op == SUBTRACT:
        c = np.int64(np.uint64(a) - np.uint64(b))
        beyond = ((a ^ b) & (a ^ c)) < 0
    else:
        c = np.int64(np.uint64(a) * np.uint64(b))
        if a == 0:
            beyond = False
        elif a == -1:
            beyond = b == INT64_MIN
        else:
            beyond = c // a != b or c % a != 0
    put(stack, top, c)
    if beyond:
        put_byte(valid, top, 0)


@small
def _compare(env, op, stack, top):
    """Return whether the comparison `op` of the two topmost values of the stack holds."""
    if op < EQUAL_DOUBLE:
        a, b = get(stack, top), get(stack, top + 1)
        return order_holds(op - EQUAL, a < b, a == b)
    if op < LESS_TEXT:
        x, y = get_double(stack, top), get_double(stack, top + 1)
        return order_holds(op - EQUAL_DOUBLE, x < y, x == y)
    ranks = get(env, RANKS)
    i, j = get(ranks, get(stack, top)), get(ranks, get(stack, top + 1))
    return order_holds(op - LESS_TEXT + 2, i < j, i == j)


@small
def order_holds(relation, less, equal):
    """Return whether a relation holds, given whether left < right (`less`) and left = right (`equal`).

    The relations are 0 (=), 1 (!=), 2 (<), 3 (<=), 4 (>) and 5 (>=).
    """
    if relation == 0:
        return equal
    if relation == 1:
        return not equal
    if relation == 2:
        return less
    if relation == 3:
        return less or equal
    if relation == 4:
        return not less and not equal
    return not less


@jit
def all_hold(env, at, count):
    """Return whether all `count` programs are true whose offsets are listed at `at`."""
    code, stack = get(env, CODE), get(env, STACK)
    for i in range(count):
        evaluate(env, get(code, at + i))
        if get(stack, 0) == 0:
            return False
    return True
