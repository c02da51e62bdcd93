# mypy: disable-error-code="no-untyped-def"
"""Search for a combination of events that fills the roles of a request.

Combinations are searched, not enumerated, for each connected component of the roles by itself (see `plans`), one role
after another. Each step of the search fills one role. If a step has no candidate left, the search jumps back to the
latest step in its *conflict set*, the steps whose events ruled out candidates. Unrelated events are therefore not tried
in all combinations. If only that step's event is in conflict, it is a *no-good*: an event that cannot fill the role,
because the subtree of roles that depends on it cannot be filled. If the roles form a tree, each event is tried at most
once in each role.

A table stores no-goods as (subtree and row, context row, epoch). The *epoch* says how long a no-good holds. A search
without restrictions uses the epoch of its arrival, whose no-goods hold for all searches of that arrival. A search with
fixed events has an epoch of its own for the no-goods that involve them. No-goods that depend only on older events are
PERMANENT, because the set of unused older events only shrinks. When the table has no room, it replaces entries.

The *front* of a subtree is the row up to which all rows are permanent no-goods or used, so that searches skip them.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, FRAME, LIST_LENGTH, LIST_OFFSET, POOL_ROW, POOL_TS, STACK, get, jit, put, small
from tocsin.kernels.expressions import all_hold, evaluate
from tocsin.kernels.identity import mix
from tocsin.kernels.layout import (
    C_AGE,
    C_BUFFER,
    C_CONDITION_COUNT,
    C_CONDITIONS,
    C_CONTEXT,
    C_DEPENDS,
    C_KEY_COUNT,
    C_KEY_MASK,
    C_KEYS,
    C_PAIR_COUNT,
    C_PAIRS,
    C_ROLE,
    C_SEQUENCE_COUNT,
    C_SEQUENCES,
    C_SUBTREE,
    C_TEST_COUNT,
    C_TEST_MASK,
    C_TESTS,
    C_TYPE,
    JOIN_STEP_WORDS,
    OLDER,
    OWNER,
    V_ANCHOR,
    V_SINCE,
    V_WINDOW,
    YOUNGER,
)
from tocsin.kernels.patterns import list_of

PERMANENT = np.int64(1)
"""The epoch of permanent no-goods. The epochs of searches are greater."""


@small
def _slot(no_goods, subtree, row, context_row):
    """Return the position in the table at which a no-good is stored."""
    mixed = mix(np.uint64(subtree * OWNER + row) ^ mix(np.uint64(context_row)))
    return np.int64(mixed & np.uint64(len(no_goods) - 2))


@small
def is_no_good(no_goods, subtree, row, context_row, arrival_epoch, own_epoch):
    """Return whether `row` is a no-good for `subtree` in one of the given epochs or permanently."""
    key = subtree * OWNER + row
    at = _slot(no_goods, subtree, row, context_row)
    for i in range(at, at + 2):
        if no_goods[i, 0] == key and no_goods[i, 1] == context_row:
            epoch = no_goods[i, 2]
            if epoch in (PERMANENT, arrival_epoch, own_epoch):
                return True
    return False


@jit
def add_no_good(no_goods, subtree, row, context_row, epoch):
    """Store a no-good in the table, in place of an entry that is outdated or less useful."""
    key = subtree * OWNER + row
    at = _slot(no_goods, subtree, row, context_row)
    chosen = at
    for i in range(at, at + 2):
        if no_goods[i, 0] == key and no_goods[i, 1] == context_row:
            if no_goods[i, 2] == PERMANENT:
                return
            chosen = i
            break
        if no_goods[i, 2] != PERMANENT and (no_goods[chosen, 2] == PERMANENT or no_goods[i, 2] < no_goods[chosen, 2]):
            chosen = i
    no_goods[chosen, 0], no_goods[chosen, 1], no_goods[chosen, 2] = key, context_row, epoch


@small
def is_used(used, key):
    """Return whether `key` is in the set of used events."""
    mask = np.int64(len(used) - 1)
    at = np.int64(mix(np.uint64(key))) & mask
    while used[at] != 0:
        if used[at] == key:
            return True
        at = (at + 1) & mask
    return False


@jit
def mark_used(used, keys):
    """Add `keys` to the set of used events. No key may be in the set yet, and there must be room."""
    mask = np.int64(len(used) - 1)
    for key in keys:
        at = np.int64(mix(np.uint64(key))) & mask
        while used[at] != 0:
            at = (at + 1) & mask
        used[at] = key


@small
def before(x, y, ts, seq, types, ranks):
    """Return whether row `x` precedes row `y` in canonical order. Rows of one type are already in that order."""
    if ts[x] != ts[y]:
        return ts[x] < ts[y]
    if seq[x] != seq[y]:
        return seq[x] < seq[y]
    if types[x] != types[y]:
        return ranks[types[x]] < ranks[types[y]]
    return x < y


@jit
def _open(
    env,
    step,
    s,
    arrival,
    floor,
    low,
    high,
    fixed,
    unconfined,
    begin,
    end,
    conflicts,
    fronts,
    clean,
    ts,
    seq,
    types,
    ranks,
):
    """Find the range of the pool that holds the candidates of a step. Takes logarithmic time.

    Sets `clean` to 1 if permanent no-goods at the start of the range advance the front. Only an unrestricted search may
    advance it.
    """
    code = get(env, CODE)
    role = get(code, step + C_ROLE)
    begin[s], end[s] = 0, 0
    front = np.int64(-1)
    clean[s] = 0
    if get(code, step + C_AGE) == OLDER and get(code, step + C_KEY_COUNT) == 0 and get(code, step + C_CONTEXT) < 0:
        front = fronts[get(code, step + C_SUBTREE)]
        clean[s] = unconfined and low < 0 and fixed[role] < 0
    if fixed[role] >= 0:
        end[s] = 1
        return
    key = np.int64(0)
    count = get(code, step + C_KEY_COUNT)
    if count > 0:
        mixed = np.uint64(0)
        for i in range(count):
            if not evaluate(env, get(code, get(code, step + C_KEYS) + i)):
                return
            key = get(get(env, STACK), 0)
            mixed = mix(mixed ^ np.uint64(key))
        if count > 1:
            key = np.int64(mixed)
    n = list_of(env, get(code, step + C_BUFFER), key)
    if n < 0:
        return
    start = get(get(env, LIST_OFFSET), n)
    stop = start + get(get(env, LIST_LENGTH), n)
    rows, times = get(env, POOL_ROW), get(env, POOL_TS)
    lo, hi = start, stop
    while lo < hi:
        mid = (lo + hi) >> 1
        row = get(rows, mid)
        if get(times, mid) < floor or row <= front or (low >= 0 and not before(low, row, ts, seq, types, ranks)):
            lo = mid + 1
        else:
            hi = mid
    start, hi = lo, stop
    limit = high[role] if high[role] >= 0 else arrival
    while lo < hi:
        mid = (lo + hi) >> 1
        if before(get(rows, mid), limit, ts, seq, types, ranks):
            lo = mid + 1
        else:
            hi = mid
    begin[s], end[s] = start, lo
    _narrow(env, step, s, begin, end, conflicts, clean, ts, seq, types, ranks)


@jit
def _narrow(env, step, s, begin, end, conflicts, clean, ts, seq, types, ranks):
    """Drop candidates that are too early or too late for the events that must precede or follow them."""
    code, frame, rows = get(env, CODE), get(env, FRAME), get(env, POOL_ROW)
    at = get(code, step + C_PAIRS)
    for _ in range(get(code, step + C_PAIR_COUNT)):
        other, q = get(frame, get(code, at)), get(code, at + 1)
        later, strictly = get(code, at + 2) != 0, get(code, at + 3) != 0
        at += 4
        lo, hi = begin[s], end[s]
        while lo < hi:
            mid = (lo + hi) >> 1
            row = get(rows, mid)
            if strictly and ts[row] == ts[other] and seq[row] == seq[other]:
                left = later
            else:
                left = before(row, other, ts, seq, types, ranks)
            if left:
                lo = mid + 1
            else:
                hi = mid
        if later and lo > begin[s]:
            # With a later event at q, these candidates stay too early. Only the conflicts that ruled out an earlier
            # event at q count.
            conflicts[s] |= conflicts[q]
            begin[s] = lo
            clean[s] = 0
        elif not later and lo < end[s]:
            if q >= 0:
                conflicts[s] |= np.int64(1) << q
            end[s] = lo


@small
def _latest(env, at, count, ts, seq):
    """Return the time (ts, seq) of the latest event in the `count` roles listed at `at`."""
    code, frame = get(env, CODE), get(env, FRAME)
    row = get(frame, get(code, at))
    best_ts, best_seq = ts[row], seq[row]
    for i in range(1, count):
        row = get(frame, get(code, at + i))
        if ts[row] > best_ts or (ts[row] == best_ts and seq[row] > best_seq):
            best_ts, best_seq = ts[row], seq[row]
    return best_ts, best_seq


@jit
def _conflicts_of(env, step, s, first, row, arrival, is_fixed, conflicts, ts, seq, types, ranks):
    """Return -1 if `row` can fill the role of a step, or else the set of earlier steps in conflict, as bits.

    If `is_fixed` is true, the row was not looked up as a candidate of the step, so all tests are made.
    """
    code, frame = get(env, CODE), get(env, FRAME)
    if row == arrival:
        return np.int64(0)
    for q in range(s):
        if get(frame, get(code, first + q * JOIN_STEP_WORDS + C_ROLE)) == row:
            return np.int64(1) << q
    role = get(code, step + C_ROLE)
    if is_fixed and types[row] != get(code, step + C_TYPE):
        return np.int64(0)
    put(frame, role, row)
    if (is_fixed or get(code, step + C_KEY_COUNT) > 1) and not all_hold(
        env, get(code, step + C_TESTS), get(code, step + C_TEST_COUNT)
    ):
        return get(code, step + C_KEY_MASK)
    mask = get(code, step + C_TEST_MASK)
    count = get(code, step + C_CONDITION_COUNT)
    if count > 0 and not all_hold(env, get(code, step + C_CONDITIONS), count):
        return mask
    at = get(code, step + C_PAIRS)
    for _ in range(get(code, step + C_PAIR_COUNT)):
        other, q = get(frame, get(code, at)), get(code, at + 1)
        later, strictly = get(code, at + 2) != 0, get(code, at + 3) != 0
        x, y = (other, row) if later else (row, other)
        if strictly:
            in_order = ts[x] < ts[y] or (ts[x] == ts[y] and seq[x] < seq[y])
        else:
            in_order = before(x, y, ts, seq, types, ranks)
        if not in_order:
            if q < 0:
                return np.int64(0)
            # With a later event at q, the row stays too early. Only the conflicts that ruled out an earlier event at q
            # count.
            return conflicts[q] if later else np.int64(1) << q
        at += 4
    at = get(code, step + C_SEQUENCES)
    for _ in range(get(code, step + C_SEQUENCE_COUNT)):
        count = get(code, at)
        left = get(frame, get(code, at + 1))
        right_ts, right_seq = _latest(env, at + 2, count, ts, seq)
        if ts[left] > right_ts or (ts[left] == right_ts and seq[left] >= right_seq):
            return mask
        at += 2 + count
    return np.int64(-1)


@small
def _context_row(env, first, step):
    """Return the event at the context step of a subtree, or -1 if the subtree has no such step."""
    code = get(env, CODE)
    context = get(code, step + C_CONTEXT)
    if context < 0:
        return np.int64(-1)
    return get(get(env, FRAME), get(code, first + context * JOIN_STEP_WORDS + C_ROLE))


@small
def _is_confined(code, step, low, high, fixed):
    """Return whether `fixed`, `low` or `high` restrict the subtree of a step.

    Roles that are younger than an event that is not fixed are after `low` anyway, because that event is.
    """
    if low >= 0 and (get(code, step + C_AGE) != YOUNGER or fixed[get(code, step + C_ROLE)] >= 0):
        return True
    roles, role = get(code, step + C_DEPENDS), 0
    while roles != 0:
        if roles & 1 != 0 and (fixed[role] >= 0 or high[role] >= 0):
            return True
        roles >>= 1
        role += 1
    return False


@jit
def search(
    env, v, steps, first, arrival, low, high, fixed, begin, end, conflicts, clean, no_goods, fronts, arrival_epoch,
    own_epoch, used, owner, ts, seq, types, ranks, budget,
):  # fmt: skip
    """Fill the roles of a component in the order of the steps at `first`.

    Events that are not in `fixed` must be after `low`, and before the `high` of their role. No-goods count if they are
    of `arrival_epoch` or `own_epoch`, and new ones get `own_epoch`. Returns 1 with the rows in the frame, 0 if it is
    impossible, or -1 if out of budget.
    """
    code, frame = get(env, CODE), get(env, FRAME)
    put(frame, get(code, v + V_ANCHOR), arrival)
    floor = max(ts[arrival] - get(code, v + V_WINDOW), get(code, v + V_SINCE))
    s = 0
    conflicts[0] = 0
    _open(
        env, first, 0, arrival, floor, low, high, fixed, own_epoch == arrival_epoch, begin, end, conflicts, fronts,
        clean, ts, seq, types, ranks,
    )  # fmt: skip
    while s < steps:
        step = first + s * JOIN_STEP_WORDS
        role, subtree = get(code, step + C_ROLE), get(code, step + C_SUBTREE)
        is_fixed = fixed[role] >= 0
        context_row = _context_row(env, first, step)
        moved = False
        while begin[s] < end[s]:
            row = fixed[role] if is_fixed else get(get(env, POOL_ROW), begin[s])
            begin[s] += 1
            budget[0] -= 1
            if budget[0] < 0:
                return -1
            if subtree >= 0 and is_no_good(no_goods, subtree, row, context_row, arrival_epoch, own_epoch):
                if context_row >= 0:
                    conflicts[s] |= np.int64(1) << get(code, step + C_CONTEXT)
                if clean[s] != 0:
                    fronts[subtree] = row
                continue
            if is_used(used, owner + row + 1):
                if clean[s] != 0:
                    fronts[subtree] = row
                continue
            conflict = _conflicts_of(env, step, s, first, row, arrival, is_fixed, conflicts, ts, seq, types, ranks)
            if conflict < 0:
                moved = True
                break
            clean[s] = 0
            conflicts[s] |= conflict
        if not moved:
            mask = conflicts[s]
            if mask == 0:
                return 0
            s -= 1
            while (mask >> s) & 1 == 0:
                s -= 1
            mask &= ~(np.int64(1) << s)
            conflicts[s] |= mask
            step = first + s * JOIN_STEP_WORDS
            subtree = get(code, step + C_SUBTREE)
            lasting = own_epoch == arrival_epoch and get(code, step + C_AGE) == OLDER
            # The subtree of this event has failed. Other steps are in conflict because they ruled out an earlier event.
            if subtree >= 0 and (get(code, step + C_DEPENDS) >> role) & 1 != 0:
                row = get(frame, get(code, step + C_ROLE))
                epoch = PERMANENT if lasting else own_epoch
                if own_epoch != arrival_epoch and not _is_confined(code, step, low, high, fixed):
                    epoch = arrival_epoch
                add_no_good(no_goods, subtree, row, _context_row(env, first, step), epoch)
                if lasting and clean[s] != 0:
                    fronts[subtree] = row
                    continue
            clean[s] = 0
            continue
        s += 1
        if s < steps:
            following = first + s * JOIN_STEP_WORDS
            conflicts[s] = get(code, following + C_KEY_MASK)
            _open(
                env, following, s, arrival, floor, low, high, fixed, own_epoch == arrival_epoch, begin, end,
                conflicts, fronts, clean, ts, seq, types, ranks,
            )  # fmt: skip
    return 1
