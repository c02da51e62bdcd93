"""The layout of the tables that kernels read and write.

`code` is one array of 64-bit words. A record in it is a series of words, and refers to other records by their offsets.
The constants below are the offsets of words in records. Constants with the same prefix mostly belong to one record, for
example R_ to a rule, L_ to a lookup, Q_ to a query and K_ to a stage.

A *slot* is the number of an attribute's column in the store. A *row* is the number of an event there. A *test* is a
program whose result is true or false, and a *lookup* says where the candidates for a role are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

NONE = -1
OWNER = np.int64(1) << 40
"""The factor of the request in keys of used events. If `request` used the event at `row`, its key is request · OWNER +
row + 1."""
MAX_ROLES = 64
MAX_COMPUTED = 64
MAX_STACK = 128
MAX_PARTIALS = 128

# A program: the number of its instructions, then three words (operation, a, b) for each instruction.
LOAD, LOAD_TS, LOAD_SEQ, LOAD_COMPUTED, LOAD_CONSTANT = range(5)
ADD, SUBTRACT, MULTIPLY, NEGATIVE, DIVIDE, REMAINDER = range(10, 16)
ADD_DOUBLE, SUBTRACT_DOUBLE, MULTIPLY_DOUBLE, DIVIDE_DOUBLE, NEGATIVE_DOUBLE, TO_DOUBLE, REMAINDER_DOUBLE = range(
    20, 27
)
EQUAL, EQUAL_DOUBLE, LESS_TEXT = 30, 40, 52
"""Comparisons. Their operation codes are EQUAL + relation, EQUAL_DOUBLE + relation, and for the order of strings
LESS_TEXT + relation - 2."""
AND, OR, NOT = range(60, 63)
TO_INT = 70

RELATIONS = {"=": 0, "!=": 1, "<": 2, "<=": 3, ">": 4, ">=": 5}

# A lookup: the role, the buffer and the key of its candidates, the bounds of their times, and their tests.
L_ROLE, L_BUFFER, L_KEY_COUNT, L_KEYS, L_END, L_WINDOW, L_START, L_TEST_COUNT, L_TESTS = range(9)

# A condition: a negation or an aggregate.
COND_KIND, COND_LOOKUP, COND_FUNCTION, COND_ARGUMENT, COND_DOUBLE, COND_INDEX, COND_TEST = range(7)
# For a negation: whether, if it fails for an event of its step, it also fails for all earlier events.
COND_BARS_EARLIER = COND_FUNCTION
CONDITION_WORDS = 7
NEGATION, AGGREGATE = range(2)
AVG, SUM, MIN, MAX, COUNT = range(5)
ARGUMENT_TS, ARGUMENT_SEQ = -2, -3

# A step: how a role besides the anchor is filled.
S_LOOKUP, S_POLICY, S_COUNT, S_CONDITION_COUNT, S_CONDITIONS, S_CONSUMED = range(6)
STEP_WORDS = 6
EACH, FIRST, LAST = range(3)

# A rule.
R_SINCE, R_STEP_COUNT, R_STEPS, R_CONDITION_COUNT, R_CONDITIONS, R_COMPUTED_COUNT, R_CONSUMES = range(7)

# A variant of a request: one alternative, and the role of the event that arrives last.
V_SINCE, V_WINDOW, V_NUMBER, V_ANCHOR, V_STEP_COUNT, V_CONDITION_COUNT, V_CONDITIONS = range(7)
V_COMPONENT_COUNT, V_COMPONENTS = range(7, 9)

# A connected component of the other roles of a variant: the steps in the usual join order, and for each step the join
# order that begins with it.
P_STEP_COUNT, P_STEPS, P_ORDERS, P_IN_TIME, P_DETACHED = range(5)
COMPONENT_WORDS = 5

# A step of a join order: how one role is filled. An event that is fixed in its role must also meet the tests of the
# filter and of the keys.
C_ROLE, C_BUFFER, C_TYPE, C_KEY_COUNT, C_KEYS, C_TEST_COUNT, C_TESTS, C_CONDITION_COUNT, C_CONDITIONS = range(9)
C_PAIR_COUNT, C_PAIRS, C_SEQUENCE_COUNT, C_SEQUENCES, C_KEY_MASK, C_TEST_MASK = range(9, 15)
"""The masks are sets of earlier steps: those on which the keys depend, and those on which the conditions and the order
of events depend."""
C_SUBTREE, C_CONTEXT, C_AGE, C_DEPENDS, C_EARLIER = range(15, 20)
"""The subtree of roles that depends on the step, or NONE. The one earlier step on which that subtree depends too, or
NONE. Whether only OLDER or only YOUNGER events can be in the subtree. The set of its roles. The roles that precede this
one."""
OLDER, YOUNGER = 1, 2
JOIN_STEP_WORDS = 20

# A node of an expression in one of Snoop's contexts. Operands come before the operator that combines them.
N_OPERATOR, N_FIRST, N_COUNT, N_LIST, N_OPERANDS, N_ATTRIBUTE, N_SAME = range(7)
"""The operator, the first leaf of the node, the number of operands or repetitions, the first list of the node's state,
and the offset of its operands. For repetitions also the program of the attribute, and whether its values must be equal.
"""
NODE_WORDS = 7
N_LEAF, N_ALL, N_THEN, N_EITHER, N_TIMES = range(5)
RECENT, CHRONOLOGICAL, CONTINUOUS, CUMULATIVE = range(4)

# A query over one stream: its window, and what it selects from the events that enter and leave the window.
Q_SINCE, Q_RULE, Q_STATE, Q_EXTENT, Q_SIZE, Q_AFTER_COUNT, Q_AFTER = range(7)
"""The time from which the query sees events, the number of its rule, the offset of its state, its window, and the tests
after the window."""
Q_KEY_COUNT, Q_KEYS, Q_CALL_COUNT, Q_CALLS, Q_OUTPUT_COUNT, Q_OUTPUTS, Q_HAVING_COUNT, Q_HAVING = range(7, 15)
Q_CURRENT, Q_EXPIRED, Q_GROUPED, Q_RECORD, Q_KIND = range(15, 20)
"""Whether rows of current and of expired events are emitted; whether there are records of groups, and how long a record
is; and the kind of the query: WINDOW, JOIN or AUTOMATON."""
WINDOW, JOIN, AUTOMATON = range(3)
J_DROPS, J_ON_COUNT, J_ON, J_SIDES = range(20, 24)
"""Further words of a join: whether groups without events are dropped, the tests of a pair, then the two sides."""
J_PROBES, J_OUTER = range(20, 22)
"""Further words of a side: whether its events look for partners, and whether an event without partners is emitted
alone. A side has the words of a query. Its groups are the events of its window with equal keys."""
J_SIDE_WORDS = 22
NO_WINDOW, LENGTH, LENGTH_BATCH, TIME, TIME_BATCH = range(5)
X_SEQUENCE, X_WITHIN, X_BEGINS, X_RECORD, X_ROOM, X_ROLES, X_ORDER, X_STAGE_COUNT, X_STAGES = range(20, 29)
"""Further words of an automaton: whether it is a sequence; how old a run may be, or NONE; whether another run begins
after the first; the length of a run's record; how many words a run may need to advance; the number of roles; the order
in which stages see an event; the number of stages, then the stages."""
STEP, COUNTING, ABSENT = range(3)
K_KIND, K_TYPE, K_LEAST, K_MOST, K_DURATION, K_TEST_COUNT, K_TESTS, K_ROLE = range(8)
K_FRONT_COUNT, K_FRONTS, K_BACKS, K_FIRST, K_PARTNER, K_BOTH, K_NEXT, K_RESTART, K_EVERY, K_STARTS = range(8, 18)
K_KEYED, K_KEYS = 18, 19
"""The words of a stage, from K_KIND to K_KEYS: its kind (STEP, COUNTING or ABSENT), the type it waits for, and the role
of its event. If it takes several events: which are retained, counted from the first, and how many of the last. Then the
first stage of its state, and the stages it leads to (see `plans`). If its event must have the key of an earlier event:
a query record whose groups are the runs of one key that wait here, and the slots of the event's own key."""
STAGE_WORDS = 20

# An aggregate: its function, the program of its argument, whether the argument is a double, the offset of the aggregate
# in the record of a group, and which of an entry's queues it uses, or NONE without a window.
A_FUNCTION, A_ARGUMENT, A_DOUBLE, A_AT, A_QUEUE = range(5)
CALL_WORDS = 5
STD_DEV = 5
IN_SKIP_LIST = -2
"""Stored instead of a queue if values leave in any order and are therefore in a skip list."""
LEVELS = 12

# Counters: words of memory in use, number of groups, first free entry, number of free entries, number of emitted rows,
# and the free nodes of skip lists by their number of levels.
C_MEMORY, C_GROUPS, C_FREE, C_FREE_COUNT, C_ROWS, C_NODES = range(6)
COUNT_WORDS = C_NODES + LEVELS

# The state of a query: the first entry, last entry and number of entries of its window, then the same of its next
# batch; whether an event has come, when the first event came, and when the batch ends; its groups, the free records of
# groups and the groups that became empty; the number of its chunks; when its next timer is due.
S_HEAD, S_TAIL, S_COUNT, S_BATCH, S_BATCH_TAIL, S_BATCH_COUNT, S_BEGUN, S_FIRST, S_NEXT = range(9)
S_GROUPS, S_FREE, S_EMPTY, S_CHUNK, S_DUE = range(9, 14)
STATE_WORDS = 16

# A projection or count-window query: the time from which it sees events, its rule, its window, its aggregates and its
# outputs. Then its state: the number of events in its window, and the first entry, the capacity, the offset and the cut
# of its ring buffer. Up to the cut, the least or greatest value of an entry is that of all entries from it to the cut.
P_SINCE, P_RULE, P_EXTENT, P_SIZE, P_CALL_COUNT, P_CALLS, P_OUTPUT_COUNT, P_OUTPUTS = range(8)
P_COUNT, P_HEAD, P_CAPACITY, P_BLOCK, P_CUT = range(8, 13)
PROJECTION_WORDS = 13
# An aggregate of such a query: the function, the slot of the argument, whether the argument is a double, and the offset
# of the state.
PC_FUNCTION, PC_ARGUMENT, PC_DOUBLE, PC_STATE = range(4)
PROJECTION_CALL_WORDS = 4

# The state of an automaton, which has no window: the oldest and the youngest run that have begun, the number of runs,
# the free records of runs and of waiting runs, how many waiting runs there have been, whether the first run has begun,
# whether another run may begin, the waiting runs that left, and the complete runs.
M_OLDEST, M_YOUNGEST, M_COUNT, M_FREE, M_FREE_WAITING, M_STAMP, M_BEGUN, M_RESTARTS, M_LEFT = range(9)
M_OUT, M_OUT_TAIL = 14, 15

# The state of a stage: the waiting runs in place of a window's entries, the new runs in place of the next batch, the
# first and the last waiting run with a timer, and the flags.
U_DUE, U_DUE_TAIL, U_FLAGS = 6, 7, 8
QUIET, OVER = 1, 2

# A run (a partial match): where it waits, the time of its last event, whether an event came that should be absent, the
# time of its first event, its neighbours in the order of that time, the number of events of each stage, and then the
# events by role.
T_WAITING, T_LAST_TS, T_VIOLATED, T_FIRST_TS, T_OLDER, T_YOUNGER, T_COUNTS = range(7)

# A waiting run: a run at a stage, where it waits for an event.
E_RUN, E_STAGE, E_NEW, E_NEXT, E_BEFORE, E_RUN_NEXT, E_STAMP, E_DUE_NEXT, E_DUE_BEFORE = range(9)
E_GROUP, E_KEY_NEXT, E_KEY_BEFORE = range(9, 12)
WAITING_WORDS = 12

# The record of a group, before its key and its aggregates: the next group of the bucket, the hash, the neighbours
# among the groups of the query, the number of events, the last chunk with a row of the group and that row, the last
# entry, the next group that became empty, and the query.
G_CHAIN, G_HASH, G_NEXT, G_BEFORE, G_ROWS, G_CHUNK, G_OUT, G_LAST, G_EMPTY, G_QUERY, G_KEY = range(11)


class Lists(NamedTuple):
    """The rows of each (buffer, key) in canonical order: the hash table, the lists, and the pool of their entries."""

    hash_buffer: Array
    hash_key: Array
    hash_list: Array
    offset: Array
    capacity: Array
    length: Array
    buffer: Array
    pool_row: Array
    pool_ts: Array


# A step of a filter that is scanned: the type; the slot, or NONE if every event passes; the bits to flip in a negative
# word so that words are in the order of values; the least and the greatest word; whether the step is the last of its
# filter; the filter; and the first step of the type's next filter. A step that no event passes follows the last step.
SCAN_TYPE, SCAN_SLOT, SCAN_FLIP, SCAN_LEAST, SCAN_GREATEST, SCAN_LAST, SCAN_FILTER, SCAN_NEXT_FILTER = range(8)
SCAN_WORDS = 8


class PredicateTables(NamedTuple):
    """The predicate index.

    Each type has a chain of blocks of filters, and each block has a bitmap index for each attribute that its filters
    test. The bitmap index of an attribute has the sorted constants that the attribute is compared with. The position of
    a value among these constants selects a bitmap, which has a bit for each filter of the block. The set bits are the
    filters that this attribute does not rule out.
    """

    first_block: Array
    next_block: Array
    block_bitmaps: Array
    block_bitmap_count: Array
    block_filters: Array
    block_filter_count: Array
    bitmap_slot: Array
    bitmap_double: Array
    bitmap_constants: Array
    bitmap_constant_count: Array
    bitmap_start: Array
    constants: Array
    bits: Array
    filter_ids: Array
    residual: Array
    has_program: Array
    scanned: Array
    """Whether the filters of each block are scanned instead of looked up."""
    scan_starts: Array
    """The offset of the first step of the scanned filters, for events without a type and then for each type."""
    scan_filters_max: Array
    """The largest number of scanned filters that one type has."""
    scan_steps: Array
    """The steps of the scanned filters, one filter after another."""
