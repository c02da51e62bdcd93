# mypy: disable-error-code="no-untyped-def"
"""Run queries one after another, each over its new events in canonical order, with its timers in between.

A timer runs at its exact time, before the events of that time. The effects of events and timers are in `entries`,
`joins` and `sequences.step`. The commonest queries have no timers and are in `projections`.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, SEQ, TS, get, jit, put, small
from tocsin.kernels.layout import C_ROWS, JOIN, NONE, Q_KIND, Q_SINCE, Q_STATE, S_DUE, WINDOW
from tocsin.kernels.sequences.step import sequence_arrive, sequence_due, sequence_fire, sequence_shortage
from tocsin.kernels.windows.entries import (
    DONE,
    begin_chunk,
    end_chunks,
    timer_words,
    window_arrive,
    window_due,
    window_fire,
    window_shortage,
)
from tocsin.kernels.windows.groups import COUNTS, STATES, STORE_ID_HIGH, STORE_ID_LOW
from tocsin.kernels.windows.joins import join_arrive, join_due, join_fire, join_shortage

TIMER_SEQ = np.int64(-(2**63))


@jit
def run(env, table, jobs, arrivals, bits, first_job, first_arrival, fire_to):
    """Run each job (query, first arrival, last arrival) over its events, and its timers up to the time `fire_to`.

    The set `bits` of an arrival are the sides of a join, or the stages of an automaton, that the event goes to. Returns
    (job, arrival, reason). If the reason is not DONE, a capacity did not suffice: the caller must enlarge it and
    continue at that job and arrival. When all jobs are done, `job` is the number of jobs.
    """
    code = get(env, CODE)
    for job in range(first_job, jobs.shape[0]):
        query = jobs[job, 0]
        state = get(table, STATES) + 8 * get(code, query + Q_STATE)
        since = get(code, query + Q_SINCE)
        at = first_arrival if job == first_job else jobs[job, 1]
        while True:
            while at < jobs[job, 2] and get(get(env, TS), arrivals[at]) < since:
                at += 1
            more = at < jobs[job, 2]
            ts = get(get(env, TS), arrivals[at]) if more else fire_to
            due = next_due(env, table, query, state)
            if due > ts and not more:
                put(state, S_DUE, due)
                break
            row = arrivals[at] if due > ts else np.int64(NONE)
            missing = _shortage(env, table, query, state, row)
            if missing != DONE:
                return job, at, missing
            begin = begin_chunk(table, state)
            if due <= ts:
                _fire(env, table, query, state, due)
                a, b = np.uint64(0), np.uint64(0)
                if get(get(table, COUNTS), C_ROWS) > begin:
                    a, b = timer_words(due)
                end_chunks(env, table, query, state, begin, due, TIMER_SEQ, np.int64(a), np.int64(b))
            else:
                _arrive(env, table, query, state, row, bits[at])
                high, low = get(get(table, STORE_ID_HIGH), row), get(get(table, STORE_ID_LOW), row)
                end_chunks(env, table, query, state, begin, ts, get(get(env, SEQ), row), high, low)
                at += 1
    return jobs.shape[0], 0, DONE


@small
def next_due(env, table, query, state):
    """Return the time at which the next timer of a query is due."""
    kind = get(get(env, CODE), query + Q_KIND)
    if kind == WINDOW:
        return window_due(env, table, query, state)
    return join_due(env, table, query) if kind == JOIN else sequence_due(env, table, query)


@small
def _shortage(env, table, query, state, row):
    """Return which capacity does not suffice for the event `row`, or for a timer if `row` is NONE.

    Returns DONE if every capacity suffices.
    """
    kind = get(get(env, CODE), query + Q_KIND)
    if kind == WINDOW:
        return window_shortage(env, table, query, state)
    return join_shortage(env, table, query) if kind == JOIN else sequence_shortage(env, table, query, state, row)


@small
def _arrive(env, table, query, state, row, bits):
    """Process the event `row` in a query."""
    kind = get(get(env, CODE), query + Q_KIND)
    if kind == WINDOW:
        window_arrive(env, table, query, state, row)
    elif kind == JOIN:
        join_arrive(env, table, query, state, row, bits)
    else:
        sequence_arrive(env, table, query, state, row, bits)


@small
def _fire(env, table, query, state, due):
    """Run the timer of a query that is due at the time `due`."""
    kind = get(get(env, CODE), query + Q_KIND)
    if kind == WINDOW:
        window_fire(env, table, query, state, due)
    elif kind == JOIN:
        join_fire(env, table, query, state, due)
    else:
        sequence_fire(env, table, query, state, due)


@jit
def set_due(env, table, query):
    """Store the time at which the next timer of a query is due in the query's state."""
    state = get(table, STATES) + 8 * get(get(env, CODE), query + Q_STATE)
    put(state, S_DUE, next_due(env, table, query, state))
