"""Merged partial results equal the reference, however the events are distributed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.events.types import Event, EventType, Kind
from tocsin.language import parse, print_rule
from tocsin.plans.partial_aggregates import PartialAggregate, accumulate, merge, split_aggregates, value
from tocsin.reference import patterns

TYPES = {
    "A": EventType("A", (("k", Kind.STRING), ("n", Kind.LONG))),
    "B": EventType("B", (("k", Kind.STRING), ("v", Kind.DOUBLE), ("n", Kind.LONG))),
}


def rule(text: str):  # type: ignore[no-untyped-def]
    return parse(text).rules[0]


def only(text: str) -> PartialAggregate:
    made = split_aggregates(rule(text), TYPES)
    assert made is not None
    (aggregate,) = made[2]
    return aggregate


def test_the_aggregate_becomes_an_attribute_of_the_anchor() -> None:
    made = split_aggregates(
        rule("define P(m: double) from A(k=$k) and 4 < $t = Avg(B(k=$k, n>0).v within 9 us from A) where m = $t"), TYPES
    )
    assert made is not None
    without, tested, (aggregate,) = made
    assert print_rule(without).splitlines()[1] == "from      A(k=$k)"
    assert print_rule(tested).splitlines()[1] == "from      A(k=$k, 4<tally0, tally0=$t)"
    assert (aggregate.window_us, aggregate.equal, str(aggregate.events)) == (9, (("k", "k"),), "B(n>0)")


@pytest.mark.parametrize(
    "text",
    [
        "define P() from A() and last B() within 9 us from A and 0 < Sum(A().n within 3 us from B)",
        "define P() from A() and $t = Avg(B().v within 9 us from A)",
        "define P() from A(n=$n) and 0 < Avg(B(n>$n).v within 9 us from A)",
        "define P() from A() and last B() as b within 9 us from A and 0 < Avg(B().v within 9 us from A)",
    ],
)
def test_other_aggregates_are_not_split(text: str) -> None:
    assert split_aggregates(rule(text), TYPES) is None


@given(
    st.lists(st.tuples(st.none() | st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 3)), max_size=12),
    st.sampled_from(["Avg", "Sum", "Min", "Max", "Count"]),
)
def test_any_distribution_gives_the_value_of_the_reference(
    values: list[tuple[float | None, int]], function: str
) -> None:
    text = f"define P(m: double) from A() and $t = {function}(B().v within 99 us from A) where m = $t"
    aggregate = only(text.replace("$t = ", "0 < $t = ", 1))
    partials = [accumulate([v for v, where in values if where == site], aggregate) for site in range(4)]
    events = [Event("B", at, {"v": v}, 0, f"b{at}") for at, (v, _) in enumerate(values)]
    found = patterns.detect([rule(text)], [*events, Event("A", 50, {}, 0, "a")])
    assert [match.attributes["m"] for match in found] == [value(aggregate, merge(partials))]
