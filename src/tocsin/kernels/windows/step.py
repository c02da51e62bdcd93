# mypy: disable-error-code="no-untyped-def"
"""How do queries run? One after another, each over its new events in canonical order, with its timers in between.

A timer runs at its very moment, before the events of that moment. What happens then is in `windows`, `joins` and
`chains`; the commonest queries, which have no timers, are in `plain`.
"""

from __future__ import annotations

import numpy as np

from tocsin.kernels.core import CODE, SEQ, TS, get, jit, put, small
from tocsin.kernels.layout import C_ROWS, JOIN, NONE, Q_KIND, Q_SINCE, Q_STATE, S_DUE, WINDOW
from tocsin.kernels.sequences.step import chain_arrive, chain_due, chain_fire, chain_missing
from tocsin.kernels.windows.entries import (
    DONE,
    begin_chunk,
    end_chunks,
    timer_words,
    window_arrive,
    window_due,
    window_fire,
    window_missing,
)
from tocsin.kernels.windows.groups import COUNTS, STATES, STORE_FIRST, STORE_SECOND
from tocsin.kernels.windows.joins import join_arrive, join_due, join_fire, join_missing

TIMER_SEQ = np.int64(-(2**63))


@jit
def run(env, place, jobs, arrivals, bits, first_job, first_arrival, fire_to):
    """Lets each job (query, first arrival, last arrival) see its events, and timers up to the time `fire_to`.

    `bits` are the sides of a join, or the stages of an automaton, that each arrival comes to. Returns (job, arrival,
    why): where to go on when there is room, the job being their number when all is done.
    """
    code = get(env, CODE)
    for job in range(first_job, jobs.shape[0]):
        query = jobs[job, 0]
        state = get(place, STATES) + 8 * get(code, query + Q_STATE)
        since = get(code, query + Q_SINCE)
        at = first_arrival if job == first_job else jobs[job, 1]
        while True:
            while at < jobs[job, 2] and get(get(env, TS), arrivals[at]) < since:
                at += 1
            more = at < jobs[job, 2]
            ts = get(get(env, TS), arrivals[at]) if more else fire_to
            due = next_due(env, place, query, state)
            if due > ts and not more:
                put(state, S_DUE, due)
                break
            row = arrivals[at] if due > ts else np.int64(NONE)
            missing = _missing(env, place, query, state, row)
            if missing != DONE:
                return job, at, missing
            begin = begin_chunk(place, state)
            if due <= ts:
                _fire(env, place, query, state, due)
                a, b = np.uint64(0), np.uint64(0)
                if get(get(place, COUNTS), C_ROWS) > begin:
                    a, b = timer_words(due)
                end_chunks(env, place, query, state, begin, due, TIMER_SEQ, np.int64(a), np.int64(b))
            else:
                _arrive(env, place, query, state, row, bits[at])
                first, second = get(get(place, STORE_FIRST), row), get(get(place, STORE_SECOND), row)
                end_chunks(env, place, query, state, begin, ts, get(get(env, SEQ), row), first, second)
                at += 1
    return jobs.shape[0], 0, DONE


@small
def next_due(env, place, query, state):
    """When the next timer of a query is to run."""
    kind = get(get(env, CODE), query + Q_KIND)
    if kind == WINDOW:
        return window_due(env, place, query, state)
    return join_due(env, place, query) if kind == JOIN else chain_due(env, place, query)


@small
def _missing(env, place, query, state, row):
    kind = get(get(env, CODE), query + Q_KIND)
    if kind == WINDOW:
        return window_missing(env, place, query, state)
    return join_missing(env, place, query) if kind == JOIN else chain_missing(env, place, query, state, row)


@small
def _arrive(env, place, query, state, row, bits):
    kind = get(get(env, CODE), query + Q_KIND)
    if kind == WINDOW:
        window_arrive(env, place, query, state, row)
    elif kind == JOIN:
        join_arrive(env, place, query, state, row, bits)
    else:
        chain_arrive(env, place, query, state, row, bits)


@small
def _fire(env, place, query, state, due):
    kind = get(get(env, CODE), query + Q_KIND)
    if kind == WINDOW:
        window_fire(env, place, query, state, due)
    elif kind == JOIN:
        join_fire(env, place, query, state, due)
    else:
        chain_fire(env, place, query, state, due)


@jit
def set_due(env, place, query):
    """Notes when the next timer of a query is to run."""
    state = get(place, STATES) + 8 * get(get(env, CODE), query + Q_STATE)
    put(state, S_DUE, next_due(env, place, query, state))
