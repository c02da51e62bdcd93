"""How kernels reach memory. Detection calls many small functions, and handing arrays to each would cost more than
what they do: Numba counts references. So they get one number, the address of an *environment*: a table of the
addresses of all arrays. The caller keeps the arrays alive.

Values of every kind are 64-bit words (a double by its bits, a string by its number in the dictionary, a boolean as 0
or 1), with a byte beside that says whether there is a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from tocsin.kernels.layout import MAX_COMPUTED, MAX_PARTIALS, MAX_PLACES, MAX_STACK, Lists

Array = np.ndarray[Any, Any]

jit = njit(cache=True, nogil=True, error_model="numpy")
small = njit(cache=True, nogil=True, error_model="numpy", forceinline=True)

# The environment: what stands at which place.
CODE, TS, SEQ, WORDS, PRESENT, STRIDE, RANKS = range(7)
FRAME, POSITION, COMPUTED, COMPUTED_KNOWN, STACK, STACK_KNOWN, PARTIALS, NEXT, END, LEFT = range(7, 17)
HASH_BUFFER, HASH_KEY, HASH_LIST, HASH_MASK = range(17, 21)
LIST_OFFSET, LIST_CAPACITY, LIST_LENGTH, POOL_ROW, POOL_TS = range(21, 26)
PLACES = 26


def _access(llvm_type: Any, numba_type: Any, *, writes: bool) -> Any:
    """An intrinsic that reads or writes the n-th value at an address."""
    word = types.int64

    def place(builder: Any, arguments: Any) -> Any:
        return builder.gep(builder.inttoptr(arguments[0], llvm_type.as_pointer()), [arguments[1]])

    def load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(place(builder, arguments))

    def store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], place(builder, arguments))
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


def _anywhere(context: Any, address: Any) -> Any:
    def load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), load


get_anywhere: Any = intrinsic(_anywhere)
"""The eight bytes at an address, which need not be a multiple of eight."""


def _lowest(context: Any, word: Any) -> Any:
    def count(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), count


lowest_bit: Any = intrinsic(_lowest)
"""The number of the lowest bit that is set in a word that is not 0."""


def _count(context: Any, word: Any) -> Any:
    def count(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), count


bit_count: Any = intrinsic(_count)
"""How many bits of a word are set."""


def _mark(context: Any) -> Any:
    def mark(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        attributes = builder.function.attributes
        attributes.discard("alwaysinline")  # which what is called by a small function inherits
        attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), mark


keep_apart: Any = intrinsic(_mark)
"""Called by a function, it says that this one is not to be copied into its callers. The compiler likes to, and through
several layers that made code of megabytes, which took minutes."""


class Scratch:
    """What one evaluation uses: the rows at the places, aggregates, the stack, the search at each place."""

    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {
            FRAME: np.zeros(MAX_PLACES, np.int64),
            POSITION: np.zeros(MAX_PLACES, np.int64),
            COMPUTED: np.zeros(MAX_COMPUTED, np.int64),
            COMPUTED_KNOWN: np.zeros(MAX_COMPUTED, np.uint8),
            STACK: np.zeros(MAX_STACK, np.int64),
            STACK_KNOWN: np.zeros(MAX_STACK, np.uint8),
            PARTIALS: np.zeros(MAX_PARTIALS, np.float64),
            NEXT: np.zeros(MAX_PLACES, np.int64),
            END: np.zeros(MAX_PLACES, np.int64),
            LEFT: np.zeros(MAX_PLACES, np.int64),
        }
        self.addresses = {place: array.ctypes.data for place, array in self.arrays.items()}


def environment(
    scratch: Scratch,
    code: Array,
    ts: Array,
    seq: Array,
    words: Array,
    present: Array,
    ranks: Array,
    lists: Lists | None,
) -> Array:
    """The environment of these arrays. They must live, and not move, as long as it is used."""
    table = np.zeros(PLACES, np.int64)
    for place, address in scratch.addresses.items():
        table[place] = address
    arrays = {CODE: code, TS: ts, SEQ: seq, WORDS: words, PRESENT: present, RANKS: ranks}
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
    for place, array in arrays.items():
        table[place] = array.__array_interface__["data"][0]
    table[STRIDE] = words.shape[1]
    return table
