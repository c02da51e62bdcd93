"""Access to memory for kernels.

Detection calls many small functions. Passing arrays to each of them would cost more than their work, because Numba
counts references. They take one integer instead, the address of an *environment*. An environment is a table of the
addresses of all arrays that an evaluation uses. The caller keeps the arrays alive.

Every value consists of a 64-bit word and a byte that says whether the value is valid. The word has the bits of a
double, the dictionary code of a string, or 0 or 1 for a boolean.

The *frame* is the array with the row of the event in each role of the match that is being evaluated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from tocsin.kernels.layout import MAX_COMPUTED, MAX_PARTIALS, MAX_ROLES, MAX_STACK, Lists

Array = np.ndarray[Any, Any]

jit = njit(cache=True, nogil=True, error_model="numpy")
small = njit(cache=True, nogil=True, error_model="numpy", forceinline=True)

# Indexes into the environment.
CODE, TS, SEQ, VALUES, VALID, STRIDE, RANKS = range(7)
FRAME, POSITION, COMPUTED, COMPUTED_VALID, STACK, STACK_VALID, PARTIALS, NEXT, END, LEFT = range(7, 17)
HASH_BUFFER, HASH_KEY, HASH_LIST, HASH_MASK = range(17, 21)
LIST_OFFSET, LIST_CAPACITY, LIST_LENGTH, POOL_ROW, POOL_TS = range(21, 26)
ENVIRONMENT_WORDS = 26


def _access(llvm_type: Any, numba_type: Any, *, writes: bool) -> Any:
    """Return an intrinsic that reads or writes the n-th value at an address. `writes` selects which."""
    word = types.int64

    def address_of(builder: Any, arguments: Any) -> Any:
        return builder.gep(builder.inttoptr(arguments[0], llvm_type.as_pointer()), [arguments[1]])

    def load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(address_of(builder, arguments))

    def store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], address_of(builder, arguments))
        return context.get_dummy_value()

    if writes:
        return intrinsic(lambda context, address, index, value: (types.void(word, word, numba_type), store))
    return intrinsic(lambda context, address, index: (numba_type(word, word), load))


get = _access(ir.IntType(64), types.int64, writes=False)
get_double = _access(ir.DoubleType(), types.float64, writes=False)
get_half = _access(ir.IntType(32), types.int32, writes=False)
get_byte = _access(ir.IntType(8), types.uint8, writes=False)
put = _access(ir.IntType(64), types.int64, writes=True)
put_double = _access(ir.DoubleType(), types.float64, writes=True)
put_half = _access(ir.IntType(32), types.int32, writes=True)
put_byte = _access(ir.IntType(8), types.uint8, writes=True)


def _unaligned(context: Any, address: Any) -> Any:
    def load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), load


get_unaligned: Any = intrinsic(_unaligned)
"""Return the eight bytes at an address that need not be a multiple of eight."""


def _lowest(context: Any, word: Any) -> Any:
    def count(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), count


lowest_bit: Any = intrinsic(_lowest)
"""Return the index of the lowest set bit of a word, which must not be 0."""


def _count(context: Any, word: Any) -> Any:
    def count(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), count


bit_count: Any = intrinsic(_count)
"""Return the number of set bits of a word."""


def _never_inline(context: Any) -> Any:
    def mark(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        attributes = builder.function.attributes
        attributes.discard("alwaysinline")  # inherited by callees of functions with forceinline
        attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), mark


never_inline: Any = intrinsic(_never_inline)
"""Keep the function that calls `never_inline` from being inlined.

Without it, LLVM would inline through several layers, which made megabytes of code and took minutes to compile.
"""


class Scratch:
    """The scratch arrays of an evaluation: the frame, aggregates, the stack, and the search position of each role."""

    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {
            FRAME: np.zeros(MAX_ROLES, np.int64),
            POSITION: np.zeros(MAX_ROLES, np.int64),
            COMPUTED: np.zeros(MAX_COMPUTED, np.int64),
            COMPUTED_VALID: np.zeros(MAX_COMPUTED, np.uint8),
            STACK: np.zeros(MAX_STACK, np.int64),
            STACK_VALID: np.zeros(MAX_STACK, np.uint8),
            PARTIALS: np.zeros(MAX_PARTIALS, np.float64),
            NEXT: np.zeros(MAX_ROLES, np.int64),
            END: np.zeros(MAX_ROLES, np.int64),
            LEFT: np.zeros(MAX_ROLES, np.int64),
        }
        self.addresses = {index: array.ctypes.data for index, array in self.arrays.items()}


def environment(
    scratch: Scratch,
    code: Array,
    ts: Array,
    seq: Array,
    values: Array,
    valid: Array,
    ranks: Array,
    lists: Lists | None,
) -> Array:
    """Return an environment with the addresses of the given arrays and of the arrays of `scratch`.

    The arrays must not be freed or moved while the environment is in use.
    """
    table = np.zeros(ENVIRONMENT_WORDS, np.int64)
    for index, address in scratch.addresses.items():
        table[index] = address
    arrays = {CODE: code, TS: ts, SEQ: seq, VALUES: values, VALID: valid, RANKS: ranks}
    if lists is not None:
        arrays |= {
            HASH_BUFFER: lists.hash_buffer,
            HASH_KEY: lists.hash_key,
            HASH_LIST: lists.hash_list,
            LIST_OFFSET: lists.offset,
            LIST_CAPACITY: lists.capacity,
            LIST_LENGTH: lists.length,
            POOL_ROW: lists.pool_row,
            POOL_TS: lists.pool_ts,
        }
        table[HASH_MASK] = len(lists.hash_list) - 1
    for index, array in arrays.items():
        table[index] = array.__array_interface__["data"][0]
    table[STRIDE] = values.shape[1]
    return table
