"""Processors and replicas send each other the recorded messages."""

from __future__ import annotations

import pytest

from tests.guards.internals import sample_messages
from tests.guards.traces import RUNS, SORTS, Trace, kind_and_digest, line, recorded

PARTS = 5
PARTLY = [pytest.param(sort, part, marks=pytest.mark.slow if part and sort == "replicated" else ())
          for sort in SORTS for part in range(PARTS)]  # fmt: skip
"""`make test` runs all runs without replicas and a fifth of those with them."""


@pytest.mark.parametrize(("sort", "part"), PARTLY)
def test_messages_are_as_recorded(sort: str, part: int) -> None:
    runs = recorded(sort)
    assert len(runs) == RUNS
    for number, expected in runs[part::PARTS]:
        again = "if this is on purpose: python -m tests.guards.record messages"
        assert line(sort, number) == expected, again


def test_a_trace_depends_on_each_message_and_on_their_order() -> None:
    first, second = sample_messages()
    assert kind_and_digest(first)[0] == "CreateTree"
    traces = []
    for sent in ([("a", "b", first), ("a", "c", second)], [("a", "c", second), ("a", "b", first)], [("a", "b", first)]):
        trace = Trace()
        for one in sent:
            trace.watch(*one)
        traces.append(str(trace))
    assert len(set(traces)) == 3
