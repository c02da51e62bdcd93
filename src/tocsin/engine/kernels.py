"""The loops: everything that is done once for each event, candidate or match, over primitive arrays.

Rules are tables here, never code. `code` is one array of 64-bit words; a record is a run of words whose meaning is given by the constants below, and
refers to other records by their offset. Values of every kind are 64-bit words too (a double by its bits, a string by its number in the dictionary,
a boolean as 0 or 1), with a byte beside that says whether there is a value.

The same memory is passed twice where both integers and doubles live in it: `x.words` and `x.doubles` are views of one array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

# ruff: noqa: SIM102

Array = np.ndarray[Any, Any]


class Rows(NamedTuple):
    """Events in columns: `words[slot, row]`, and whether there is a value."""

    ts: Array
    seq: Array
    words: Array
    doubles: Array
    present: Array


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


class Scratch(NamedTuple):
    """What one evaluation uses: the rows at the places, aggregate values, and the stack of the expression machine."""

    frame: Array
    position: Array
    words: Array
    doubles: Array
    known: Array
    stack: Array
    stack_doubles: Array
    stack_known: Array
    partials: Array


class Filters(NamedTuple):
    """The filter index: for each type a chain of blocks of filters, for each block the attributes that it tests.

    An axis holds the sorted constants that an attribute is compared with; the position of a value among them selects a row of bits, one for
    each filter of the block: those that this attribute does not rule out.
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
    constants_doubles: Array
    bits: Array
    filter_ids: Array
    residual: Array


# Instructions of the expression machine: (operation, a, b).
LOAD, LOAD_TS, LOAD_SEQ, LOAD_COMPUTED, LOAD_CONSTANT = 0, 1, 2, 3, 4
ADD, SUBTRACT, MULTIPLY, NEGATIVE = 10, 11, 12, 13
ADD_DOUBLE, SUBTRACT_DOUBLE, MULTIPLY_DOUBLE, DIVIDE_DOUBLE, NEGATIVE_DOUBLE, TO_DOUBLE = 20, 21, 22, 23, 24, 25
EQUAL, UNEQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL = 30, 31, 32, 33, 34, 35
EQUAL_DOUBLE, UNEQUAL_DOUBLE, LESS_DOUBLE, LESS_EQUAL_DOUBLE, GREATER_DOUBLE, GREATER_EQUAL_DOUBLE = 40, 41, 42, 43, 44, 45
LESS_TEXT, LESS_EQUAL_TEXT, GREATER_TEXT, GREATER_EQUAL_TEXT = 52, 53, 54, 55
AND, OR, NOT = 60, 61, 62
TO_INT = 70

# A program: its number of instructions, then three words for each.

# A lookup: where candidates for a place are searched.
L_PLACE, L_BUFFER, L_KEY_COUNT, L_KEYS, L_END, L_WINDOW, L_START, L_CONDITION_COUNT, L_CONDITIONS = range(9)
LOOKUP_WORDS = 9

# A guard: an absence or a reduction.
G_KIND, G_LOOKUP, G_FUNCTION, G_ARGUMENT, G_DOUBLE, G_INDEX, G_TEST = range(7)
GUARD_WORDS = 7
ABSENCE, REDUCTION = 0, 1
AVG, SUM, MIN, MAX, COUNT = range(5)

# A step: a selected role.
S_LOOKUP, S_POLICY, S_COUNT, S_GUARD_COUNT, S_GUARDS, S_CONSUMED = range(6)
STEP_WORDS = 6
EACH, FIRST, LAST = range(3)

# A rule.
R_SINCE, R_STEP_COUNT, R_STEPS, R_GUARD_COUNT, R_GUARDS, R_COMPUTED_COUNT, R_CONSUMES = range(7)
RULE_WORDS = 7

NONE = -1
MAX_PLACES = 64
MAX_COMPUTED = 64
MAX_STACK = 128
MAX_PARTIALS = 128

INT64_MIN = np.int64(-(2**63))
INT64_MAX = np.int64(2**63 - 1)
ONE = np.uint64(1)

jit = njit(cache=True, nogil=True, error_model="numpy")
inlined = njit(cache=True, nogil=True, error_model="numpy", inline="never")


def scratch() -> Scratch:
    """Fresh scratch space for one thread."""
    words = np.zeros(MAX_COMPUTED, np.int64)
    stack = np.zeros(MAX_STACK, np.int64)
    return Scratch(
        np.zeros(MAX_PLACES, np.int64),
        np.zeros(MAX_PLACES, np.int64),
        words,
        words.view(np.float64),
        np.zeros(MAX_COMPUTED, np.uint8),
        stack,
        stack.view(np.float64),
        np.zeros(MAX_STACK, np.uint8),
        np.zeros(MAX_PARTIALS, np.float64),
    )


# ---- expressions


@jit
def evaluate(code, at, rows, s, ranks):  # type: ignore[no-untyped-def]
    """Runs the program at `at`; the result is at the bottom of the stack, and whether there is one is returned.

    Time linear in the program.
    """
    top = -1
    end = at + 1 + 3 * code[at]
    at += 1
    st, sd, sk = s.stack, s.stack_doubles, s.stack_known
    while at < end:
        op, a, b = code[at], code[at + 1], code[at + 2]
        at += 3
        if op <= LOAD_CONSTANT:
            top += 1
            if op == LOAD:
                row = s.frame[a]
                st[top] = rows.words[b, row]
                sk[top] = rows.present[b, row]
            elif op == LOAD_CONSTANT:
                st[top] = a
                sk[top] = 1
            elif op == LOAD_TS:
                st[top] = rows.ts[s.frame[a]]
                sk[top] = 1
            elif op == LOAD_SEQ:
                st[top] = rows.seq[s.frame[a]]
                sk[top] = 1
            else:
                st[top] = s.words[a]
                sk[top] = s.known[a]
        elif op < EQUAL:
            if op == NEGATIVE:
                if st[top] == INT64_MIN:
                    sk[top] = 0
                st[top] = -st[top]
            elif op == NEGATIVE_DOUBLE:
                sd[top] = 0.0 - sd[top]
            elif op == TO_DOUBLE:
                sd[top] = np.float64(st[top])
            else:
                top -= 1
                sk[top] = sk[top] & sk[top + 1]
                if sk[top]:
                    arithmetic(op, st, sd, sk, top)
        elif op < AND:
            top -= 1
            truth = False
            if sk[top] & sk[top + 1]:
                truth = compare(op, st, sd, top, ranks)
            st[top] = np.int64(truth)
            sk[top] = 1
        elif op == AND:
            top -= 1
            st[top] = st[top] & st[top + 1]
        elif op == OR:
            top -= 1
            st[top] = st[top] | st[top + 1]
        elif op == NOT:
            st[top] = 1 - st[top]
        else:  # TO_INT
            if st[top] < -2147483648 or st[top] > 2147483647:
                sk[top] = 0
    return sk[0] != 0


@jit
def arithmetic(op, st, sd, sk, top):  # type: ignore[no-untyped-def]
    if op >= ADD_DOUBLE:
        x, y = sd[top], sd[top + 1]
        if op == ADD_DOUBLE:
            z = x + y
        elif op == SUBTRACT_DOUBLE:
            z = x - y
        elif op == MULTIPLY_DOUBLE:
            z = x * y
        else:
            z = np.nan if y == 0.0 else x / y
        sd[top] = z + 0.0
        if not np.isfinite(z):
            sk[top] = 0
        return
    a, b = st[top], st[top + 1]
    if op == ADD:
        c = a + b
        if ((a ^ c) & (b ^ c)) < 0:
            sk[top] = 0
    elif op == SUBTRACT:
        c = a - b
        if ((a ^ b) & (a ^ c)) < 0:
            sk[top] = 0
    else:
        c = a * b
        if a != 0:
            if (a == -1 and b == INT64_MIN) or (a != -1 and floor_divide(c, a) != b) or (a != -1 and c % a != 0):
                sk[top] = 0
    st[top] = c


@jit
def floor_divide(a, b):  # type: ignore[no-untyped-def]
    return a // b


@jit
def compare(op, st, sd, top, ranks):  # type: ignore[no-untyped-def]
    if op < EQUAL_DOUBLE:
        a, b = st[top], st[top + 1]
        return order_holds(op - EQUAL, a < b, a == b)
    if op < LESS_TEXT:
        x, y = sd[top], sd[top + 1]
        return order_holds(op - EQUAL_DOUBLE, x < y, x == y)
    i, j = ranks[st[top]], ranks[st[top + 1]]
    return order_holds(op - LESS_TEXT + 2, i < j, i == j)


@jit
def order_holds(relation, less, equal):  # type: ignore[no-untyped-def]
    """relation: 0 = , 1 != , 2 < , 3 <= , 4 > , 5 >=."""
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
def all_hold(code, at, count, rows, s, ranks):  # type: ignore[no-untyped-def]
    """Whether every one of the programs, whose offsets stand at `at`, is true."""
    for i in range(count):
        evaluate(code, code[at + i], rows, s, ranks)
        if s.stack[0] == 0:
            return False
    return True


# ---- hashing


@jit
def mix(word):  # type: ignore[no-untyped-def]
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@jit
def fold(first, second, word):  # type: ignore[no-untyped-def]
    """`events.ids.fold` on machine words."""
    first = mix(first ^ word)
    second = mix(second + word * np.uint64(0x9E3779B97F4A7C15) + first)
    return first, second


@jit
def fold_text(first, second, data, start, end):  # type: ignore[no-untyped-def]
    """Takes the identity of a text, `events.ids.text_words`, into a state."""
    a, b = np.uint64(0x746F6373696E2D61), np.uint64(0x746F6373696E2D62)
    at = start
    while at < end:
        word = np.uint64(0)
        stop = min(at + 8, end)
        for i in range(at, stop):
            word |= np.uint64(data[i]) << np.uint64(8 * (i - at))
        a, b = fold(a, b, word)
        at += 8
    a, b = fold(a, b, np.uint64(end - start))
    first, second = fold(first, second, a)
    return fold(first, second, b)


@jit
def fold_start(first, second, type_words, type_ids, ts, seq):  # type: ignore[no-untyped-def]
    """Begins the content identities: type, ts, seq."""
    for i in range(len(first)):
        a, b = np.uint64(0x746F6373696E2D61), np.uint64(0x746F6373696E2D62)
        a, b = fold(a, b, type_words[type_ids[i], 0])
        a, b = fold(a, b, type_words[type_ids[i], 1])
        a, b = fold(a, b, np.uint64(ts[i]))
        first[i], second[i] = fold(a, b, np.uint64(seq[i]))


@jit
def fold_words(first, second, name, words, present, source):  # type: ignore[no-untyped-def]
    """Takes a column of one-word values into the states of the rows that have one."""
    for i in range(len(first)):
        j = source[i]
        if present[j]:
            a, b = fold(first[i], second[i], name[0])
            a, b = fold(a, b, name[1])
            first[i], second[i] = fold(a, b, np.uint64(words[j]))


@jit
def fold_texts(first, second, name, offsets, data, present, source):  # type: ignore[no-untyped-def]
    """Takes a column of texts into the states of the rows that have one."""
    for i in range(len(first)):
        j = source[i]
        if present[j]:
            a, b = fold(first[i], second[i], name[0])
            a, b = fold(a, b, name[1])
            first[i], second[i] = fold_text(a, b, data, offsets[j], offsets[j + 1])


@jit
def text_identities(first, second, offsets, data, source):  # type: ignore[no-untyped-def]
    """The identities of texts themselves: for ids that the source gave."""
    for i in range(len(first)):
        j = source[i]
        a, b = np.uint64(0x746F6373696E2D61), np.uint64(0x746F6373696E2D62)
        at, end = offsets[j], offsets[j + 1]
        start = at
        while at < end:
            word = np.uint64(0)
            stop = min(at + 8, end)
            for k in range(at, stop):
                word |= np.uint64(data[k]) << np.uint64(8 * (k - at))
            a, b = fold(a, b, word)
            at += 8
        first[i], second[i] = fold(a, b, np.uint64(end - start))


@jit
def match_identities(rule_words, rules, parts, counts, first, second, out_first, out_second):  # type: ignore[no-untyped-def]
    """`events.ids.match_words` for each match."""
    for m in range(len(rules)):
        a, b = np.uint64(0x746F6373696E2D61), np.uint64(0x746F6373696E2D62)
        a, b = fold(a, b, rule_words[rules[m], 0])
        a, b = fold(a, b, rule_words[rules[m], 1])
        for p in range(counts[rules[m]]):
            a, b = fold(a, b, first[parts[m, p]])
            a, b = fold(a, b, second[parts[m, p]])
        out_first[m], out_second[m] = a, b


@jit
def hexadecimal(first, second, out):  # type: ignore[no-untyped-def]
    """Identities as 32 hexadecimal digits each, into a flat array of bytes."""
    for i in range(len(first)):
        for lane in range(2):
            word = first[i] if lane == 0 else second[i]
            for k in range(16):
                digit = np.int64((word >> np.uint64(60 - 4 * k)) & np.uint64(15))
                out[32 * i + 16 * lane + k] = 48 + digit if digit < 10 else 87 + digit


# ---- from a batch to the rows that some rule needs


@jit
def load_column(words, present, base, column, has, types, slot_of_type):  # type: ignore[no-untyped-def]
    """Copies a column of the batch to where each event's type keeps that attribute."""
    for i in range(len(column)):
        t = types[i]
        if t >= 0:
            slot = slot_of_type[t]
            if slot >= 0:
                words[slot, base + i] = column[i]
                present[slot, base + i] = has[i]


@jit
def classify(f, code, rows, row_type, base, start, count, to, source, s, ranks, pair_filter, pair_row):  # type: ignore[no-untyped-def]
    """Tests the batch's events, loaded at `base`, against all filters of their types, and moves those that pass any down to `base`.

    Goes from event `start` until the pairs (filter, row) are full. Returns (next event, rows kept, pairs). For one event: a binary search for
    each attribute that some filter tests, and one word for every 64 filters of its type.
    """
    kept, pairs = to, 0
    room = len(pair_filter)
    width = rows.words.shape[0]
    acc = np.zeros(8, np.uint64)
    for i in range(start, count):
        row = base + i
        t = row_type[row]
        if t < 0:
            continue
        first_pair = pairs
        block = f.first_block[t]
        while block >= 0:
            filters = f.block_filter_count[block]
            if pairs + filters > room:
                return i, kept, first_pair
            words = (filters + 63) >> 6
            for w in range(words):
                left = filters - 64 * w
                acc[w] = ~np.uint64(0) if left >= 64 else (ONE << np.uint64(left)) - ONE
            for axis in range(f.block_axes[block], f.block_axes[block] + f.block_axis_count[block]):
                slot = f.axis_slot[axis]
                constants = f.axis_constant_count[axis]
                if rows.present[slot, row] == 0:
                    at = 2 * constants + 1
                else:
                    lo = f.axis_constants[axis]
                    hi = lo + constants
                    if f.axis_double[axis]:
                        x = rows.doubles[slot, row]
                        while lo < hi:
                            mid = (lo + hi) >> 1
                            if f.constants_doubles[mid] < x:
                                lo = mid + 1
                            else:
                                hi = mid
                        hit = lo < f.axis_constants[axis] + constants and f.constants_doubles[lo] == x
                    else:
                        v = rows.words[slot, row]
                        while lo < hi:
                            mid = (lo + hi) >> 1
                            if f.constants[mid] < v:
                                lo = mid + 1
                            else:
                                hi = mid
                        hit = lo < f.axis_constants[axis] + constants and f.constants[lo] == v
                    at = 2 * (lo - f.axis_constants[axis]) + np.int64(hit)
                bits = f.axis_bits[axis] + at * words
                for w in range(words):
                    acc[w] &= f.bits[bits + w]
            for w in range(words):
                rest = acc[w]
                while rest != 0:
                    low = rest & (~rest + ONE)
                    rest ^= low
                    k = 64 * w + bit_number(low)
                    filter_id = f.filter_ids[f.block_filters[block] + k]
                    if f.residual[filter_id] >= 0:
                        s.frame[0] = row
                        evaluate(code, f.residual[filter_id], rows, s, ranks)
                        if s.stack[0] == 0:
                            continue
                    pair_filter[pairs] = filter_id
                    pair_row[pairs] = base + kept
                    pairs += 1
            block = f.next_block[block]
        if pairs > first_pair:
            target = base + kept
            source[kept] = i
            if target != row:
                rows.ts[target] = rows.ts[row]
                rows.seq[target] = rows.seq[row]
                row_type[target] = t
                for slot in range(width):
                    rows.words[slot, target] = rows.words[slot, row]
                    rows.present[slot, target] = rows.present[slot, row]
            kept += 1
    return count, kept, pairs


@jit
def bit_number(bit):  # type: ignore[no-untyped-def]
    """Which bit it is, of a word with one bit set."""
    n = 0
    if bit & np.uint64(0xFFFFFFFF00000000):
        n += 32
    if bit & np.uint64(0xFFFF0000FFFF0000):
        n += 16
    if bit & np.uint64(0xFF00FF00FF00FF00):
        n += 8
    if bit & np.uint64(0xF0F0F0F0F0F0F0F0):
        n += 4
    if bit & np.uint64(0xCCCCCCCCCCCCCCCC):
        n += 2
    if bit & np.uint64(0xAAAAAAAAAAAAAAAA):
        n += 1
    return n


@jit
def fill_axis(bits, at, words, positions, filters, starts, relations, ranks_):  # type: ignore[no-untyped-def]
    """Writes an axis's rows of bits: at each position, the filters whose conditions on it all hold there.

    Condition c of filter k (`starts[k] <= c < starts[k+1]`) relates the value to constant `ranks_[c]`. Positions: 2r below constant r and
    above r-1, 2r+1 at constant r, the last one for null.
    """
    for position in range(positions):
        null = position == positions - 1
        for k in range(filters):
            holds = True
            for c in range(starts[k], starts[k + 1]):
                constant = 2 * ranks_[c] + 1
                if null or not order_holds(relations[c], position < constant, position == constant):
                    holds = False
                    break
            if holds:
                bits[at + position * words + (k >> 6)] |= ONE << np.uint64(k & 63)


# ---- buffers


@jit
def key_of(code, at, count, rows, row):  # type: ignore[no-untyped-def]
    """The chain that a row belongs to, from the slots at `at`: the value itself if there is one, else a mixture.

    Returns (key, whether every part has a value).
    """
    if count == 0:
        return np.int64(0), True
    if count == 1:
        slot = code[at]
        return rows.words[slot, row], rows.present[slot, row] != 0
    key = np.uint64(0)
    for i in range(count):
        slot = code[at + i]
        if rows.present[slot, row] == 0:
            return np.int64(0), False
        key = mix(key ^ np.uint64(rows.words[slot, row]))
    return np.int64(key), True


@jit
def find_list(lists, buffer, key):  # type: ignore[no-untyped-def]
    """The list of a (buffer, key), or the complement of the free place in the hash table."""
    mask = len(lists.hash_list) - 1
    at = np.int64(mix(np.uint64(key) + np.uint64(buffer) * np.uint64(0x9E3779B97F4A7C15)) & np.uint64(mask))
    while lists.hash_list[at] >= 0:
        if lists.hash_key[at] == key and lists.hash_buffer[at] == buffer:
            return lists.hash_list[at]
        at = (at + 1) & mask
    return ~at


@jit
def rehash(old, new):  # type: ignore[no-untyped-def]
    """Enters the lists of one hash table into another, empty one."""
    for h in range(len(old.hash_list)):
        if old.hash_list[h] >= 0:
            at = ~find_list(new, old.hash_buffer[h], old.hash_key[h])
            new.hash_list[at] = old.hash_list[h]
            new.hash_key[at] = old.hash_key[h]
            new.hash_buffer[at] = old.hash_buffer[h]


@jit
def assign_lists(lists, count, limit, start, code, rows, pair_filter, pair_row, fan_out, buffers_of, buffer_next, buffer_keys, entries, out_list, out_row, added):  # type: ignore[no-untyped-def]
    """For each pair and buffer of its filter, the list that the row goes to; new lists are made.

    Goes from pair `start` until there may be more than `limit` lists. Returns (next pair, entries, lists). `added[list]` counts what comes to each.
    """
    for p in range(start, len(pair_filter)):
        if count + fan_out[pair_filter[p]] > limit:
            return p, entries, count
        buffer = buffers_of[pair_filter[p]]
        while buffer >= 0:
            keys = buffer_keys[buffer]
            key, known = key_of(code, keys + 1, code[keys], rows, pair_row[p])
            if known:
                found = find_list(lists, buffer, key)
                if found < 0:
                    at = ~found
                    found = count
                    count += 1
                    lists.hash_list[at] = found
                    lists.hash_key[at] = key
                    lists.hash_buffer[at] = buffer
                    lists.buffer[found] = buffer
                    lists.offset[found] = 0
                    lists.capacity[found] = 0
                    lists.length[found] = 0
                added[found] += 1
                out_list[entries] = found
                out_row[entries] = pair_row[p]
                entries += 1
            buffer = buffer_next[buffer]
    return len(pair_filter), entries, count


@jit
def room_needed(lists, out_list, entries, added):  # type: ignore[no-untyped-def]
    """How much of the pool the lists that must grow will take."""
    total = 0
    for e in range(entries):
        n = out_list[e]
        if added[n] > 0 and lists.length[n] + added[n] > lists.capacity[n]:
            total += 2 * (lists.length[n] + added[n])
            added[n] = -added[n]
    for e in range(entries):
        n = out_list[e]
        if added[n] < 0:
            added[n] = -added[n]
    return total


@jit
def append(lists, used, out_list, out_row, entries, added, ts):  # type: ignore[no-untyped-def]
    """Puts the rows at the ends of their lists; a list that is full moves to the end of the pool, with as much room again. Clears `added`."""
    for e in range(entries):
        n = out_list[e]
        if added[n] > 0:
            need = lists.length[n] + added[n]
            if need > lists.capacity[n]:
                old = lists.offset[n]
                for i in range(lists.length[n]):
                    lists.pool_row[used + i] = lists.pool_row[old + i]
                    lists.pool_ts[used + i] = lists.pool_ts[old + i]
                lists.offset[n] = used
                lists.capacity[n] = 2 * need
                used += 2 * need
            added[n] = 0
        at = lists.offset[n] + lists.length[n]
        lists.pool_row[at] = out_row[e]
        lists.pool_ts[at] = ts[out_row[e]]
        lists.length[n] += 1
    return used


@jit
def trim(lists, count, horizon, now, live):  # type: ignore[no-untyped-def]
    """Drops from every list what is too old for its buffer at time `now` and what was consumed; marks the rows that stay.

    Returns (lists that stay, entries that stay).
    """
    stay, total = 0, 0
    for n in range(count):
        at, end = lists.offset[n], lists.offset[n] + lists.length[n]
        limit = now - horizon[lists.buffer[n]]
        to = at
        for i in range(at, end):
            row = lists.pool_row[i]
            if row >= 0 and lists.pool_ts[i] > limit:
                lists.pool_row[to] = row
                lists.pool_ts[to] = lists.pool_ts[i]
                live[row] = 1
                to += 1
        lists.length[n] = to - at
        if to > at:
            stay += 1
            total += to - at
    return stay, total


@jit
def rebuild(old, hash_size, new, new_row):  # type: ignore[no-untyped-def]
    """Moves the lists that are not empty into fresh tables, with rows under their new numbers. Returns (lists, pool used)."""
    count, used = 0, 0
    for h in range(hash_size):
        n = old.hash_list[h]
        if n < 0 or old.length[n] == 0:
            continue
        length = old.length[n]
        at = ~find_list(new, old.hash_buffer[h], old.hash_key[h])
        new.hash_list[at] = count
        new.hash_key[at] = old.hash_key[h]
        new.hash_buffer[at] = old.hash_buffer[h]
        new.buffer[count] = old.buffer[n]
        new.offset[count] = used
        new.capacity[count] = 2 * length
        new.length[count] = length
        for i in range(length):
            new.pool_row[used + i] = new_row[old.pool_row[old.offset[n] + i]]
            new.pool_ts[used + i] = old.pool_ts[old.offset[n] + i]
        used += 2 * length
        count += 1
    return count, used


# ---- detection


@jit
def first_at_or_after(lists, rows, lo, hi, ts, seq):  # type: ignore[no-untyped-def]
    """The first position in [lo, hi) whose event does not precede (ts, seq). Logarithmic."""
    while lo < hi:
        mid = (lo + hi) >> 1
        t = lists.pool_ts[mid]
        less = t < ts
        if t == ts:
            row = lists.pool_row[mid]
            less = rows.seq[row if row >= 0 else ~row] < seq
        if less:
            lo = mid + 1
        else:
            hi = mid
    return lo


@jit
def first_after(lists, rows, lo, hi, ts, seq):  # type: ignore[no-untyped-def]
    """The first position in [lo, hi) whose event (ts, seq) precedes. Logarithmic."""
    while lo < hi:
        mid = (lo + hi) >> 1
        t = lists.pool_ts[mid]
        above = t > ts
        if t == ts:
            row = lists.pool_row[mid]
            above = rows.seq[row if row >= 0 else ~row] > seq
        if above:
            hi = mid
        else:
            lo = mid + 1
    return lo


@jit
def reach(code, at, rows, lists, s, ranks, since):  # type: ignore[no-untyped-def]
    """The positions in the pool where candidates of the lookup at `at` stand: [lo, hi)."""
    key = np.int64(0)
    count = code[at + L_KEY_COUNT]
    if count > 0:
        mixed = np.uint64(0)
        for i in range(count):
            if not evaluate(code, code[code[at + L_KEYS] + i], rows, s, ranks):
                return 0, 0
            key = s.stack[0]
            mixed = mix(mixed ^ np.uint64(key))
        if count > 1:
            key = np.int64(mixed)
    n = find_list(lists, code[at + L_BUFFER], key)
    if n < 0:
        return 0, 0
    lo = lists.offset[n]
    hi = lo + lists.length[n]
    end = s.frame[code[at + L_END]]
    start = code[at + L_START]
    if start >= 0:
        event = s.frame[start]
        after_ts, after_seq = rows.ts[event], rows.seq[event]
        if after_ts < since:
            after_ts, after_seq = since - 1, INT64_MAX
        lo = first_after(lists, rows, lo, hi, after_ts, after_seq)
    else:
        oldest = max(rows.ts[end] - code[at + L_WINDOW], since - 1)
        lo = first_after(lists, rows, lo, hi, oldest, INT64_MAX)
    hi = first_at_or_after(lists, rows, lo, hi, rows.ts[end], rows.seq[end])
    return lo, hi


@jit
def exists(code, at, rows, lists, s, ranks, since):  # type: ignore[no-untyped-def]
    """Whether the lookup at `at` has a candidate."""
    lo, hi = reach(code, at, rows, lists, s, ranks, since)
    conditions = code[at + L_CONDITION_COUNT]
    if conditions == 0:
        return hi > lo
    place = code[at + L_PLACE]
    for i in range(hi - 1, lo - 1, -1):
        s.frame[place] = lists.pool_row[i]
        if all_hold(code, code[at + L_CONDITIONS], conditions, rows, s, ranks):
            return True
    return False


@jit
def add_exactly(partials, count, x):  # type: ignore[no-untyped-def]
    """Adds x to a sum kept as doubles that do not overlap (Shewchuk). Returns how many there are now."""
    i = 0
    for j in range(count):
        y = partials[j]
        if abs(x) < abs(y):
            x, y = y, x
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            partials[i] = low
            i += 1
        x = high
    partials[i] = x
    return i + 1


@jit
def rounded(partials, count):  # type: ignore[no-untyped-def]
    """The exact sum as the nearest double, ties to even, as `math.fsum`."""
    if count == 0:
        return 0.0
    n = count - 1
    high = partials[n]
    low = 0.0
    while n > 0:
        x = high
        n -= 1
        y = partials[n]
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            break
    if n > 0 and ((low < 0.0 and partials[n - 1] < 0.0) or (low > 0.0 and partials[n - 1] > 0.0)):
        y = low * 2.0
        x = high + y
        if y == x - high:
            high = x
    return high


@jit
def reduce(code, at, rows, lists, s, ranks, since):  # type: ignore[no-untyped-def]
    """Computes the aggregate of the guard at `at` into its place. Linear in the candidates."""
    lookup = code[at + G_LOOKUP]
    function = code[at + G_FUNCTION]
    slot = code[at + G_ARGUMENT]
    double = code[at + G_DOUBLE] != 0
    index = code[at + G_INDEX]
    lo, hi = reach(code, lookup, rows, lists, s, ranks, since)
    place = code[lookup + L_PLACE]
    conditions = code[lookup + L_CONDITION_COUNT]
    count = 0
    partials = 0
    high, low = np.int64(0), np.int64(0)
    best, best_double = np.int64(0), 0.0
    for i in range(lo, hi):
        row = lists.pool_row[i]
        if conditions > 0:
            s.frame[place] = row
            if not all_hold(code, code[lookup + L_CONDITIONS], conditions, rows, s, ranks):
                continue
        value, x = np.int64(0), 0.0
        if slot >= 0:
            if rows.present[slot, row] == 0:
                continue
            value, x = rows.words[slot, row], rows.doubles[slot, row]
        elif slot == -2:
            value = rows.ts[row]
        elif slot == -3:
            value = rows.seq[row]
        if function == AVG or function == SUM:
            if double:
                partials = add_exactly(s.partials, partials, x)
            else:
                high += value >> 32
                low += value & 0xFFFFFFFF
        elif count == 0:
            best, best_double = value, x
        elif function == MIN:
            best = min(best, value)
            best_double = min(best_double, x)
        elif function == MAX:
            best = max(best, value)
            best_double = max(best_double, x)
        count += 1
    s.known[index] = 1
    if function == COUNT:
        s.words[index] = count
        return
    if count == 0:
        s.known[index] = 0
        return
    if function == MIN or function == MAX:
        if double:
            s.doubles[index] = best_double
        else:
            s.words[index] = best
        return
    if double:
        total = rounded(s.partials, partials)
        if function == AVG:
            total = total / count
        s.doubles[index] = total + 0.0
        if not np.isfinite(total):
            s.known[index] = 0
        return
    high += low >> 32
    low &= 0xFFFFFFFF
    if high > 2147483647 or high < -2147483648:
        s.known[index] = 0
        return
    whole = (high << 32) | low
    if function == AVG:
        s.doubles[index] = np.float64(whole) / count
    else:
        s.words[index] = whole


@jit
def guards_hold(code, at, count, rows, lists, s, ranks, since):  # type: ignore[no-untyped-def]
    """Whether the negations and aggregate tests of a role let it pass; aggregates are left computed."""
    for g in range(count):
        guard = at + g * GUARD_WORDS
        if code[guard + G_KIND] == ABSENCE:
            if exists(code, code[guard + G_LOOKUP], rows, lists, s, ranks, since):
                return False
        else:
            reduce(code, guard, rows, lists, s, ranks, since)
            test = code[guard + G_TEST]
            if test >= 0:
                evaluate(code, test, rows, s, ranks)
                if s.stack[0] == 0:
                    return False
    return True


@jit
def accept(code, step, place, position, rows, lists, s, ranks, since):  # type: ignore[no-untyped-def]
    """Whether the event at a position of the pool can fill the step's role, and if so puts it there."""
    row = lists.pool_row[position]
    if row < 0:
        return False
    s.frame[place] = row
    s.position[place] = position
    lookup = code[step + S_LOOKUP]
    conditions = code[lookup + L_CONDITION_COUNT]
    if conditions > 0:
        if not all_hold(code, code[lookup + L_CONDITIONS], conditions, rows, s, ranks):
            return False
    count = code[step + S_GUARD_COUNT]
    return count == 0 or guards_hold(code, code[step + S_GUARDS], count, rows, lists, s, ranks, since)


@jit
def open_step(code, step, place, rows, lists, s, ranks, since, next_, end, left):  # type: ignore[no-untyped-def]
    """Prepares the search for a role: where to go on, where to end, how many to take.

    `last` is looked up from behind; the search then starts at the farthest event that will be taken.
    """
    lo, hi = reach(code, code[step + S_LOOKUP], rows, lists, s, ranks, since)
    count = code[step + S_COUNT]
    if code[step + S_POLICY] == LAST:
        found = 0
        at = hi
        for i in range(hi - 1, lo - 1, -1):
            if accept(code, step, place, i, rows, lists, s, ranks, since):
                at = i
                found += 1
                if found == count:
                    break
        lo = at
    next_[place] = lo
    end[place] = hi
    left[place] = count if count > 0 else INT64_MAX


@jit
def detect(code, jobs, anchors, first_job, first_anchor, rows, lists, s, ranks, out_job, out_rows, out_position, out_words, out_known):  # type: ignore[no-untyped-def]
    """Finds the matches of each job (rule offset, first and last anchor) in anchor order, places compared from left to right.

    Stops when the output is full, before an anchor whose matches do not all fit. Returns (job, anchor, matches): where to go on, the job being
    the number of jobs when all is done, and how many matches were written.
    """
    next_ = np.zeros(MAX_PLACES, np.int64)
    end = np.zeros(MAX_PLACES, np.int64)
    left = np.zeros(MAX_PLACES, np.int64)
    room = out_rows.shape[0]
    matches = 0
    for job in range(first_job, jobs.shape[0]):
        rule = jobs[job, 0]
        since = code[rule + R_SINCE]
        steps = code[rule + R_STEP_COUNT]
        first_step = code[rule + R_STEPS]
        guards = code[rule + R_GUARD_COUNT]
        computed = code[rule + R_COMPUTED_COUNT]
        start = first_anchor if job == first_job else jobs[job, 1]
        for a in range(start, jobs[job, 2]):
            anchor = anchors[a]
            if rows.ts[anchor] < since:
                continue
            s.frame[0] = anchor
            if guards > 0:
                if not guards_hold(code, code[rule + R_GUARDS], guards, rows, lists, s, ranks, since):
                    continue
            before = matches
            place = 1
            if steps > 0:
                open_step(code, first_step, 1, rows, lists, s, ranks, since, next_, end, left)
            while True:
                if place > steps:
                    if matches == room:
                        return job, a, before
                    out_job[matches] = job
                    for p in range(steps + 1):
                        out_rows[matches, p] = s.frame[p]
                        out_position[matches, p] = s.position[p]
                    for c in range(computed):
                        out_words[matches, c] = s.words[c]
                        out_known[matches, c] = s.known[c]
                    matches += 1
                    place -= 1
                    if place == 0:
                        break
                    continue
                step = first_step + (place - 1) * STEP_WORDS
                taken = False
                while left[place] > 0 and next_[place] < end[place]:
                    position = next_[place]
                    next_[place] += 1
                    if accept(code, step, place, position, rows, lists, s, ranks, since):
                        left[place] -= 1
                        taken = True
                        break
                if taken:
                    place += 1
                    if place <= steps:
                        open_step(
                            code, step + STEP_WORDS, place, rows, lists, s, ranks, since, next_, end, left
                        )
                else:
                    place -= 1
                    if place == 0:
                        break
            if code[rule + R_CONSUMES] != 0 and matches > before:
                consume(code, first_step, steps, lists, out_position, before, matches)
    return jobs.shape[0], 0, matches


@jit
def consume(code, first_step, steps, lists, out_position, before, matches):  # type: ignore[no-untyped-def]
    """Takes the chosen events of consumed roles out of their buffers: a consumed entry is the row's complement."""
    for p in range(1, steps + 1):
        if code[first_step + (p - 1) * STEP_WORDS + S_CONSUMED] == 0:
            continue
        for m in range(before, matches):
            at = out_position[m, p]
            if lists.pool_row[at] >= 0:
                lists.pool_row[at] = ~lists.pool_row[at]


@jit
def project(code, rules, program_starts, programs, roles, parts, words, known, rows, s, ranks, out, out_known):  # type: ignore[no-untyped-def]
    """Computes the attributes of matches: `out[k, m]` is the k-th attribute of match m, by the k-th program of its rule."""
    for m in range(len(rules)):
        rule = rules[m]
        for p in range(roles[rule]):
            s.frame[p] = parts[m, p]
        for c in range(words.shape[1]):
            s.words[c] = words[m, c]
            s.known[c] = known[m, c]
        first = program_starts[rule]
        for k in range(program_starts[rule + 1] - first):
            ok = evaluate(code, programs[first + k], rows, s, ranks)
            out[k, m] = s.stack[0]
            out_known[k, m] = ok
