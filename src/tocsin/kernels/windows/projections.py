# mypy: disable-error-code="no-untyped-def"
"""How do the commonest queries run, by the thousand? Attributes of events that pass a filter, or aggregates of them
over the last n events or over n at a time, of which only the new rows come out: no groups, no tests behind the window,
no timers.

Such a query reads its events where they are, in the columns of a batch, and keeps values, not events. Its record has
what it does and what it keeps together; see `layout`. A window that fills up and empties has its aggregates, one
that slides a ring of entries besides:

    a bit for each aggregate that has a value  value of the first aggregate  value of the second  …

Sums are those of `sums`. For a least or greatest value the ring is cut in two: of the entries up to the cut the values
are replaced, once, by the least of all from there to the cut, and behind it the least so far is kept. So the least of
all is that of the first entry or that one.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import get, get_double, get_half, jit, keep_apart, put, small
from tocsin.kernels.exact_sums import (
    DOUBLE_EXPONENT,
    LIMBS_DOUBLE,
    LIMBS_LONG,
    NARROW,
    add_value,
    clear_sum,
    clear_wide,
    sum_double,
    sum_long,
)
from tocsin.kernels.identity import FIRST_SEED, SECOND_SEED, fold
from tocsin.kernels.layout import (
    AVG,
    COUNT,
    LENGTH,
    MAX,
    MIN,
    NO_WINDOW,
    P_BLOCK,
    P_CALL_COUNT,
    P_CALLS,
    P_COUNT,
    P_CUT,
    P_EXTENT,
    P_HEAD,
    P_OUTPUT_COUNT,
    P_OUTPUTS,
    P_ROOM,
    P_RULE,
    P_SINCE,
    P_SIZE,
    PC_ARGUMENT,
    PC_DOUBLE,
    PC_FUNCTION,
    PC_HELD,
    PLAIN_CALL_WORDS,
    SUM,
)
from tocsin.kernels.lists import beats
from tocsin.kernels.predicate_scan import BITS, COLUMN_BYTES, DOUBLE, FIRST_BIT, VALUES, is_there

DONE, MORE_ROWS, MORE_MEMORY = range(3)
"""Why a run stopped."""
_FIRST_ROOM = 8


@jit
def plain_run(
    memory, used, limit, starts, queries, filters, events, pair, turn, columns, column_of, width, types, ts, rules,
    sources, words, known,
):  # fmt: skip
    """Lets queries see events: for each pair (filter, event), from `pair` on, all queries of the filter, the first time
    from `turn` on.

    `memory`, `columns`, `column_of` (of `width` for each type), `types` and `ts` are addresses, `used` says how many
    words of memory are in use, of `limit`. Rows go to `rules`, `sources` (their events), `words` and `known`. Returns
    where it stopped, how many rows there are, and why.
    """
    rows = np.int64(0)
    for p in range(pair, len(filters)):
        i = events[p]
        own = column_of + 8 * width * np.int64(get_half(types, i))
        first, end = starts[filters[p]], starts[filters[p] + 1]
        for n in range(first + turn, end):
            query = queries[n]
            if get(ts, i) < get(memory, query + P_SINCE):
                continue
            if rows == len(rules):
                return p, n - first, rows, MORE_ROWS
            extent = get(memory, query + P_EXTENT)
            if extent != NO_WINDOW:
                count, size = get(memory, query + P_COUNT), get(memory, query + P_SIZE)
                if extent == LENGTH:
                    if not _has_room(memory, used, limit, query, count, size):
                        return p, n - first, rows, MORE_MEMORY
                    if count == size:
                        _leave(memory, query)
                        count -= 1
                _come(memory, query, extent == LENGTH, count, columns, own, i)
                put(memory, query + P_COUNT, count + 1)
                if extent != LENGTH and count + 1 < size:
                    continue
            outputs = get(memory, query + P_OUTPUTS)
            for k in range(get(memory, query + P_OUTPUT_COUNT)):
                what = get(memory, outputs + k)
                if what < 0:
                    words[k, rows], known[k, rows] = _aggregate(memory, query, -what - 1)
                else:
                    words[k, rows], known[k, rows] = _value(columns, own, what, i)
            rules[rows], sources[rows] = get(memory, query + P_RULE), i
            rows += 1
            if extent != NO_WINDOW and extent != LENGTH:
                clear(memory, query)
        turn = np.int64(0)
    return np.int64(len(filters)), np.int64(0), rows, DONE


@small
def _value(columns, own, slot, i):
    """The word of an attribute of an event, whose type's columns are at `own`, and whether there is one."""
    c = get(own, slot)
    if c < 0:
        return np.int64(0), False
    column = columns + COLUMN_BYTES * c
    bits, values = get(column, BITS), get(column, VALUES)
    there = bits == 0 or is_there(bits, get(column, FIRST_BIT) + i)
    if get(column, DOUBLE) == 0:
        return get(values, i), there
    x = get_double(values, i)
    return np.float64(x + 0.0).view(np.int64), there and x - x == 0.0  # which what is not finite is not


@small
def _entry_words(memory, query):
    """How long an entry of a ring is."""
    return np.int64(1) + get(memory, query + P_CALL_COUNT)


@small
def _has_room(memory, used, limit, query, count, size):
    """Makes room for one entry more, if there is memory for it."""
    room = get(memory, query + P_ROOM)
    return count < room or room == size or _grown(memory, used, limit, query, count + 1)


@jit
def _grown(memory, used, limit, query, needed):
    """Moves a ring to where there is room for more entries; false if there is not enough memory."""
    keep_apart()
    size, room, count = get(memory, query + P_SIZE), get(memory, query + P_ROOM), get(memory, query + P_COUNT)
    width, wanted = _entry_words(memory, query), min(size, max(np.int64(_FIRST_ROOM), 2 * room, needed))
    block = used[0]
    if block + wanted * width > limit:
        return False
    used[0] += wanted * width
    old, head = get(memory, query + P_BLOCK), get(memory, query + P_HEAD)
    for n in range(count):
        for k in range(width):
            put(memory, block + n * width + k, get(memory, old + (head + n) % room * width + k))
    put(memory, query + P_BLOCK, block)
    put(memory, query + P_HEAD, np.int64(0))
    put(memory, query + P_ROOM, wanted)
    return True


@jit
def clear(memory, query):
    """Empties a window."""
    put(memory, query + P_HEAD, np.int64(0))
    put(memory, query + P_COUNT, np.int64(0))
    put(memory, query + P_CUT, np.int64(0))
    call = get(memory, query + P_CALLS)
    for _ in range(get(memory, query + P_CALL_COUNT)):
        function, held = get(memory, call + PC_FUNCTION), get(memory, call + PC_HELD)
        if function != COUNT:
            put(memory, held, np.int64(0))
        if function in (SUM, AVG):
            clear_sum(memory, held + 1)
        call += PLAIN_CALL_WORDS


@small
def _take(memory, call, word):
    """An aggregate takes a value."""
    function, held, double = get(memory, call + PC_FUNCTION), get(memory, call + PC_HELD), get(memory, call + PC_DOUBLE)
    if function in (SUM, AVG):
        put(memory, held, get(memory, held) + 1)
        add_value(memory, held + 1, word, double, np.int64(1))
    elif get(memory, held) == 0 or beats(word, get(memory, held + 1), double, function == MIN):
        put(memory, held, np.int64(1))
        put(memory, held + 1, word)


@small
def _come(memory, query, slides, count, columns, own, i):
    """An event comes, behind so many others. There is room for it."""
    entry = np.int64(0)
    if slides:
        spot, room = get(memory, query + P_HEAD) + count, get(memory, query + P_ROOM)
        entry = get(memory, query + P_BLOCK) + (spot - room if spot >= room else spot) * _entry_words(memory, query)
    call, bits = get(memory, query + P_CALLS), np.int64(0)
    for n in range(get(memory, query + P_CALL_COUNT)):
        if get(memory, call + PC_FUNCTION) != COUNT:
            word, there = _value(columns, own, get(memory, call + PC_ARGUMENT), i)
            if there:
                bits |= np.int64(1) << n
                if slides:
                    put(memory, entry + 1 + n, word)
                _take(memory, call, word)
        call += PLAIN_CALL_WORDS
    if slides:
        put(memory, entry, bits)


@jit
def _leave(memory, query):
    """The first event leaves a window that slides."""
    head, room = get(memory, query + P_HEAD), get(memory, query + P_ROOM)
    if get(memory, query + P_CUT) == 0:
        _cut(memory, query)
    entry = get(memory, query + P_BLOCK) + head * _entry_words(memory, query)
    bits, call = get(memory, entry), get(memory, query + P_CALLS)
    for n in range(get(memory, query + P_CALL_COUNT)):
        if get(memory, call + PC_FUNCTION) in (SUM, AVG) and bits >> n & 1:
            held = get(memory, call + PC_HELD)
            put(memory, held, get(memory, held) - 1)
            add_value(memory, held + 1, get(memory, entry + 1 + n), get(memory, call + PC_DOUBLE), np.int64(-1))
        call += PLAIN_CALL_WORDS
    put(memory, query + P_HEAD, np.int64(0) if head + 1 == room else head + 1)
    put(memory, query + P_COUNT, get(memory, query + P_COUNT) - 1)
    put(memory, query + P_CUT, get(memory, query + P_CUT) - 1)


@jit
def _cut(memory, query):
    """Puts the cut behind the last entry."""
    keep_apart()
    count, head, room = get(memory, query + P_COUNT), get(memory, query + P_HEAD), get(memory, query + P_ROOM)
    block, width = get(memory, query + P_BLOCK), _entry_words(memory, query)
    put(memory, query + P_CUT, count)
    call = get(memory, query + P_CALLS)
    for n in range(get(memory, query + P_CALL_COUNT)):
        function, double = get(memory, call + PC_FUNCTION), get(memory, call + PC_DOUBLE)
        held = get(memory, call + PC_HELD)
        call += PLAIN_CALL_WORDS
        if function not in (MIN, MAX):
            continue
        put(memory, held, np.int64(0))
        there, best = False, np.int64(0)
        for k in range(count - 1, -1, -1):
            entry = block + (head + k) % room * width
            bits, value = get(memory, entry), get(memory, entry + 1 + n)
            if bits >> n & 1 and (not there or beats(value, best, double, function == MIN)):
                there, best = True, value
            if there:
                put(memory, entry, bits | np.int64(1) << n)
                put(memory, entry + 1 + n, best)


@jit
def _aggregate(memory, query, n):
    """The value of an aggregate, and whether there is one."""
    call = get(memory, query + P_CALLS) + n * PLAIN_CALL_WORDS
    function, double = get(memory, call + PC_FUNCTION), get(memory, call + PC_DOUBLE)
    if function == COUNT:
        return get(memory, query + P_COUNT), True
    held = get(memory, call + PC_HELD)
    if function in (MIN, MAX):
        there, best = get(memory, held) != 0, get(memory, held + 1)
        if get(memory, query + P_CUT) > 0:
            entry = get(memory, query + P_BLOCK) + get(memory, query + P_HEAD) * _entry_words(memory, query)
            first = get(memory, entry + 1 + n)
            if get(memory, entry) >> n & 1 and (not there or beats(first, best, double, function == MIN)):
                there, best = True, first
        return best, there
    number = get(memory, held)
    if number == 0:
        return np.int64(0), False
    if function == SUM and not double:
        return sum_long(memory, held + 1)
    value = sum_double(memory, held + 1, np.int64(DOUBLE_EXPONENT if double else 0))
    if function == AVG:
        value /= number
    return np.float64(value + 0.0).view(np.int64), np.isfinite(value)


# ---- among others


@jit
def order_rows(sources, rules, ranks, ts, seq, most, order):
    """How to put rows, which are in the order of events, into that of time and then of their rules' ranks.

    Returns whether `order` says it; not so if the rows are in order already, or if more than `most` are of one instant.
    """
    begin, wrong = 0, False
    for row in range(len(rules)):
        i, first = sources[row], sources[begin]
        order[row] = row
        if i != first and (get(ts, i) != get(ts, first) or get(seq, i) != get(seq, first)):
            begin = row
        place = row
        while place > begin and ranks[rules[order[place - 1]]] > ranks[rules[row]]:
            wrong = True
            if row - begin >= most:
                return False
            order[place] = order[place - 1]
            place -= 1
        order[place] = row
    return wrong


@jit
def in_order(sources, rules, ranks, ts, seq):
    """Whether rows of one instant are in the order of their rules' ranks."""
    for row in range(1, len(rules)):
        i, before = sources[row], sources[row - 1]
        same = i == before or (get(ts, i) == get(ts, before) and get(seq, i) == get(seq, before))
        if same and ranks[rules[row]] < ranks[rules[row - 1]]:
            return False
    return True


@jit
def row_identities(rule_words, rules, first, second):
    """The identities of rows from those of their events, in their place."""
    for row in range(len(rules)):
        a, b = fold(FIRST_SEED, SECOND_SEED, rule_words[rules[row], 0])
        a, b = fold(a, b, rule_words[rules[row], 1])
        a, b = fold(a, b, first[row])
        first[row], second[row] = fold(a, b, second[row])


# ---- what is kept


@jit
def words_kept(memory, query):
    """At most how many words say what a query keeps."""
    if get(memory, query + P_EXTENT) == LENGTH:
        return 1 + get(memory, query + P_COUNT) * _entry_words(memory, query)
    return 1 + get(memory, query + P_CALL_COUNT) * (3 + LIMBS_DOUBLE)


@jit
def write_kept(memory, query, out):
    """What a query keeps: how many events are in its window, then its entries, or the aggregates. Returns how long."""
    count, call, at = get(memory, query + P_COUNT), get(memory, query + P_CALLS), 1
    out[0] = count
    if get(memory, query + P_EXTENT) == LENGTH:
        room, width = get(memory, query + P_ROOM), _entry_words(memory, query)
        for n in range(count):
            entry = get(memory, query + P_BLOCK) + (get(memory, query + P_HEAD) + n) % room * width
            for k in range(width):
                out[at] = get(memory, entry + k)
                at += 1
        return at
    for _ in range(get(memory, query + P_CALL_COUNT)):
        function, held = get(memory, call + PC_FUNCTION), get(memory, call + PC_HELD)
        call += PLAIN_CALL_WORDS
        if function == COUNT:
            continue
        length = 2 if function in (MIN, MAX) else 5
        if length == 5 and get(memory, held + 1) != NARROW:
            length = max(3 + get(memory, held + 2) + 1, np.int64(3))
        for k in range(length):
            out[at] = get(memory, held + k)
            at += 1
    return at


@jit
def read_kept(memory, used, limit, query, given):
    """Gives a query what it kept. There is memory for it."""
    clear(memory, query)
    count, call, at = given[0], get(memory, query + P_CALLS), 1
    if get(memory, query + P_EXTENT) == LENGTH:
        width = _entry_words(memory, query)
        if count > get(memory, query + P_ROOM) and not _grown(memory, used, limit, query, count):
            return
        for n in range(count):
            entry = get(memory, query + P_BLOCK) + n * width
            for k in range(width):
                put(memory, entry + k, given[at + n * width + k])
            for k in range(width - 1):
                mine = call + k * PLAIN_CALL_WORDS
                if given[at + n * width] >> k & 1 and get(memory, mine + PC_FUNCTION) != COUNT:
                    _take(memory, mine, given[at + n * width + 1 + k])
        put(memory, query + P_COUNT, count)
        return
    for _ in range(get(memory, query + P_CALL_COUNT)):
        function, held = get(memory, call + PC_FUNCTION), get(memory, call + PC_HELD)
        double = get(memory, call + PC_DOUBLE)
        call += PLAIN_CALL_WORDS
        if function == COUNT:
            continue
        length = 2 if function in (MIN, MAX) else 5
        if length == 5 and given[at + 1] != NARROW:
            clear_wide(memory, held + 1, LIMBS_DOUBLE if double else LIMBS_LONG)
            length = max(3 + given[at + 2] + 1, np.int64(3))
        for k in range(length):
            put(memory, held + k, given[at + k])
        at += length
    put(memory, query + P_COUNT, count)
