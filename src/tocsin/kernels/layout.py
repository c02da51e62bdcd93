"""What the words of the tables mean.

`code` is one array of 64-bit words; a record is a run of words and refers to other records by their offset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

NONE = -1
OWNER = np.int64(1) << 40
"""An event that a request has used is request · OWNER + row + 1 in the set of these."""
MAX_PLACES = 64
MAX_COMPUTED = 64
MAX_STACK = 128
MAX_PARTIALS = 128

# A program: its number of instructions, then three words for each: (operation, a, b).
LOAD, LOAD_TS, LOAD_SEQ, LOAD_COMPUTED, LOAD_CONSTANT = range(5)
ADD, SUBTRACT, MULTIPLY, NEGATIVE, DIVIDE, REMAINDER = range(10, 16)
ADD_DOUBLE, SUBTRACT_DOUBLE, MULTIPLY_DOUBLE, DIVIDE_DOUBLE, NEGATIVE_DOUBLE, TO_DOUBLE, REMAINDER_DOUBLE = range(
    20, 27
)
EQUAL, EQUAL_DOUBLE, LESS_TEXT = 30, 40, 52
"""Comparisons: EQUAL + relation, EQUAL_DOUBLE + relation, and for the order of texts LESS_TEXT + relation - 2."""
AND, OR, NOT = range(60, 63)
TO_INT = 70

RELATIONS = {"=": 0, "!=": 1, "<": 2, "<=": 3, ">": 4, ">=": 5}

# A lookup: where candidates for a place are searched.
L_PLACE, L_BUFFER, L_KEY_COUNT, L_KEYS, L_END, L_WINDOW, L_START, L_CONDITION_COUNT, L_CONDITIONS = range(9)

# A guard: an absence or a reduction.
G_KIND, G_LOOKUP, G_FUNCTION, G_ARGUMENT, G_DOUBLE, G_INDEX, G_TEST = range(7)
# Of an absence: whether, if the event of its step is too early for it, all before that one are.
G_BARS_EARLIER = G_FUNCTION
GUARD_WORDS = 7
ABSENCE, REDUCTION = range(2)
AVG, SUM, MIN, MAX, COUNT = range(5)
ARGUMENT_TS, ARGUMENT_SEQ = -2, -3

# A step: a selected role.
S_LOOKUP, S_POLICY, S_COUNT, S_GUARD_COUNT, S_GUARDS, S_CONSUMED = range(6)
STEP_WORDS = 6
EACH, FIRST, LAST = range(3)

# A rule.
R_SINCE, R_STEP_COUNT, R_STEPS, R_GUARD_COUNT, R_GUARDS, R_COMPUTED_COUNT, R_CONSUMES = range(7)

# A variant of a request: one alternative, and the place of the event that arrives last.
V_SINCE, V_WINDOW, V_NUMBER, V_ANCHOR, V_STEP_COUNT, V_CONDITION_COUNT, V_CONDITIONS, V_PART_COUNT, V_PARTS = range(9)

# A part of its other places: the steps in the order in which they are usually taken, and where those stand that begin
# with each of them.
P_STEP_COUNT, P_STEPS, P_ORDERS, P_IN_TIME, P_DETACHED = range(5)
PART_WORDS = 5

# How one place is filled. Tests are those of the filter and the keys, for an event that is put there.
C_PLACE, C_BUFFER, C_TYPE, C_KEY_COUNT, C_KEYS, C_TEST_COUNT, C_TESTS, C_CONDITION_COUNT, C_CONDITIONS = range(9)
C_PAIR_COUNT, C_PAIRS, C_SEQUENCE_COUNT, C_SEQUENCES, C_KEY_MASK, C_TEST_MASK = range(9, 15)
"""The masks say, bit by bit, on which earlier steps the keys depend, and the conditions and the order."""
C_BRANCH, C_CONTEXT, C_AGE, C_DEPENDS, C_BEHIND = range(15, 20)
"""What depends on the step has a number, or NONE; with which one earlier step it has to do besides, or NONE; whether
only OLDER events can stand there, or only YOUNGER ones; its places, bit by bit; and the places that stand before this
one."""
OLDER, YOUNGER = 1, 2
COMBINE_WORDS = 20

# A node of an expression in one of Snoop's contexts, operands before what combines them.
N_OPERATOR, N_FIRST, N_COUNT, N_LIST, N_OPERANDS, N_ATTRIBUTE, N_SAME = range(7)
"""Its first leaf, how many operands or repetitions, the first list of what it keeps, where its operands stand."""
NODE_WORDS = 7
N_LEAF, N_ALL, N_THEN, N_EITHER, N_TIMES = range(5)
RECENT, CHRONOLOGICAL, CONTINUOUS, CUMULATIVE = range(4)

# A query over one stream: its window, and what it selects of what comes and goes.
Q_SINCE, Q_RULE, Q_STATE, Q_EXTENT, Q_SIZE, Q_AFTER_COUNT, Q_AFTER = range(7)
"""The number of its rule, where its words among the states stand, the window, the tests behind it."""
Q_KEY_COUNT, Q_KEYS, Q_CALL_COUNT, Q_CALLS, Q_OUTPUT_COUNT, Q_OUTPUTS, Q_HAVING_COUNT, Q_HAVING = range(7, 15)
Q_CURRENT, Q_EXPIRED, Q_GROUPED, Q_RECORD, Q_KIND = range(15, 20)
"""Which rows come out, whether there are records of groups, and how long one is; whether it has a WINDOW, is a JOIN, or
is an AUTOMATON."""
WINDOW, JOIN, AUTOMATON = range(3)
J_DROPS, J_ON_COUNT, J_ON, J_SIDES = range(20, 24)
"""Of a join besides: whether groups without events are dropped, the tests of a pair, then its two sides."""
J_LOOKS, J_OUTER = range(20, 22)
"""A side is like a query, whose groups are the events that it holds with one key; and whether its events look for
partners, and come out alone if they find none."""
J_SIDE_WORDS = 22
NO_WINDOW, LENGTH, LENGTH_BATCH, TIME, TIME_BATCH = range(5)
X_SEQUENCE, X_WITHIN, X_BEGINS, X_RECORD, X_ROOM, X_PLACES, X_ORDER, X_STAGE_COUNT, X_STAGES = range(20, 29)
"""Of an automaton besides: whether it is a sequence; how old an attempt can be, or NONE; whether another attempt begins
after the first; how long the record of one is, how many words it can need to go on, and how many places it has; the
order in which stages see an event; then the stages."""
STEP, COUNTING, ABSENT = range(3)
K_WHAT, K_TYPE, K_LEAST, K_MOST, K_DURATION, K_TEST_COUNT, K_TESTS, K_PLACE = range(8)
K_FRONT_COUNT, K_FRONTS, K_BACKS, K_FIRST, K_PARTNER, K_BOTH, K_NEXT, K_AGAIN, K_HOME, K_STARTS = range(8, 18)
K_KEYED, K_KEYS = 18, 19
"""A stage: STEP, COUNTING or ABSENT; what it waits for; where its event stands; of several events, which ones from the
first are kept, and how many from the last; the first stage of its state; the others that it leads to, see
`plans.graph`. Where its event must have the key of an earlier one, something like a query, whose groups are the
attempts of one key that wait here, and the slots of the event's own key."""
STAGE_WORDS = 20

# An aggregate: its function, the program of its argument, whether that is a double, where it stands in the record of a
# group, and in which of an entry's queues, or NONE without a window.
A_FUNCTION, A_ARGUMENT, A_DOUBLE, A_AT, A_QUEUE = range(5)
CALL_WORDS = 5
STD_DEV = 5
IN_LANES = -2
"""In the place of a queue: values leave in any order, and are in a list with so many lanes."""
LANES = 12

# What is counted: words of memory in use, groups, the first free entry and the number of them, rows that came out, and
# free nodes of lists of values, by the number of their lanes.
C_MEMORY, C_GROUPS, C_FREE, C_FREE_COUNT, C_ROWS, C_NODES = range(6)
COUNT_WORDS = C_NODES + LANES

# What is kept of a query: the first and last entry and the number of entries of its window, then of the batch that is
# coming; when its first event came and the batch ends; its groups; the number of its chunks.
S_HEAD, S_TAIL, S_COUNT, S_COMING, S_COMING_TAIL, S_COMING_COUNT, S_BEGUN, S_FIRST, S_NEXT = range(9)
S_GROUPS, S_FREE, S_EMPTY, S_CHUNK, S_DUE = range(9, 14)
STATE_WORDS = 16

# A plain query: from when on it sees events, its rule, its window, its aggregates and what it puts out; then what it
# keeps: how many events are in its window, and of a ring the first entry, how many it can have, where it is, and up to
# which entry least and greatest values are those of all behind.
P_SINCE, P_RULE, P_EXTENT, P_SIZE, P_CALL_COUNT, P_CALLS, P_OUTPUT_COUNT, P_OUTPUTS = range(8)
P_COUNT, P_HEAD, P_ROOM, P_BLOCK, P_CUT = range(8, 13)
PLAIN_WORDS = 13
# Its aggregates: the function, the slot of the argument, whether that is a double, and where the aggregate stands.
PC_FUNCTION, PC_ARGUMENT, PC_DOUBLE, PC_HELD = range(4)
PLAIN_CALL_WORDS = 4

# Of an automaton, in the place of a window: the oldest and the youngest attempt that has begun, how many attempts there
# are, free records of attempts and of entries, how many entries there have been, whether a first attempt began and
# another one may, entries that left, and the attempts that are complete.
M_OLDEST, M_YOUNGEST, M_COUNT, M_FREE, M_FREE_ENTRY, M_STAMP, M_BEGUN, M_RESTARTS, M_DEAD = range(9)
M_OUT, M_OUT_TAIL = 14, 15

# Of a stage: the entries that wait there as in a window, those from the next event on as in a batch that is coming; the
# first and the last of those that wait for time; what has been.
U_DUE, U_DUE_TAIL, U_FLAGS = 6, 7, 8
QUIET, OVER = 1, 2

# An attempt: its entries, when its last event came, whether what should be absent has come, when its first event came,
# its neighbours by that, then how many events each stage has, then the events by place.
T_ENTRY, T_SINCE, T_SPOILT, T_BORN, T_OLDER, T_YOUNGER, T_COUNTS = range(7)

# An entry: that an attempt waits at a stage.
E_ATTEMPT, E_STAGE, E_FRESH, E_NEXT, E_BEFORE, E_OWN, E_STAMP, E_DUE_NEXT, E_DUE_BEFORE = range(9)
E_GROUP, E_KEY_NEXT, E_KEY_BEFORE = range(9, 12)
ENTRY_WORDS = 12

# The record of a group, before its key and its aggregates: the next in its bucket, its hash, its neighbours among the
# groups of the query, how many events it has, its row in the chunk, the next group that became empty.
G_CHAIN, G_HASH, G_NEXT, G_BEFORE, G_ROWS, G_CHUNK, G_OUT, G_LAST, G_EMPTY, G_QUERY, G_KEY = range(11)


class Lists(NamedTuple):
    """Rows of each (buffer, key), in canonical order: the hash table, the lists, and the pool that holds them."""

    hash_buffer: Array
    hash_key: Array
    hash_list: Array
    offset: Array
    capacity: Array
    length: Array
    buffer: Array
    pool_row: Array
    pool_ts: Array


# A step of a filter that is tried: the type, the slot, or NONE if anything passes, the bits that are turned in a
# negative word so that words are in the order of values, the least and the greatest word, whether it is the last step,
# the filter, and the first step of the type's next filter. Behind the last step stands one that nothing passes.
TRY_TYPE, TRY_SLOT, TRY_TURNED, TRY_LEAST, TRY_GREATEST, TRY_LAST, TRY_FILTER, TRY_OTHER = range(8)
TRY_WORDS = 8


class Filters(NamedTuple):
    """The filter index: for each type a chain of blocks of filters, for each block the attributes that it tests.

    An axis holds the sorted constants that an attribute is compared with; the position of a value among them selects
    a row of bits, one for each filter of the block: those that this attribute does not rule out.
    """

    first_block: Array
    next_block: Array
    block_axes: Array
    block_axis_count: Array
    block_filters: Array
    block_filter_count: Array
    axis_slot: Array
    axis_double: Array
    axis_constants: Array
    axis_constant_count: Array
    axis_bits: Array
    constants: Array
    bits: Array
    filter_ids: Array
    residual: Array
    has_program: Array
    few: Array
    """Whether the filters of a block are tried one by one."""
    firsts: Array
    """For no type, and then for each, the place of the first step of its filters that are tried one by one."""
    filters_most: Array
    """How many of these a type has at most."""
    steps: Array
    """What is tried, the steps of a filter one behind the other."""
