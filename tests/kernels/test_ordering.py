"""The order of matches of many rules: the kernel against NumPy's sort."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tocsin import kernels

EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12)
MATCHES = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 4)), min_size=1, max_size=30)


@given(events=EVENTS, matches=MATCHES, before=st.integers(0, 3))
def test_matches_are_sorted_by_instant_and_rank_stably(
    events: list[tuple[int, int]], matches: list[tuple[int, int]], before: int
) -> None:
    instants = np.array([(9, 9)] * before + sorted(events), np.int64)  # rows before the first match are ignored
    ts, seq = np.ascontiguousarray(instants[:, 0]), np.ascontiguousarray(instants[:, 1])
    rows, ranks = np.array([(before + row % len(events), rank) for row, rank in matches], np.int64).T.copy()
    order = np.empty(len(rows), np.int64)
    assert kernels.ordering.order_matches(rows, ranks, 5, ts, seq, order)
    assert order.tolist() == np.lexsort((ranks, seq[rows], ts[rows])).tolist()


@given(events=EVENTS)
def test_rows_out_of_time_order_are_refused(events: list[tuple[int, int]]) -> None:
    instants = np.array(events, np.int64)
    ts, seq = np.ascontiguousarray(instants[:, 0]), np.ascontiguousarray(instants[:, 1])
    rows = np.arange(len(events))
    is_ordered = kernels.ordering.order_matches(rows, np.zeros_like(rows), 1, ts, seq, np.empty_like(rows))
    assert is_ordered == (events == sorted(events))
