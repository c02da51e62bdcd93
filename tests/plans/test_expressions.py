"""The canonical order of expressions, and their leaves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.events.types import Kind
from tocsin.plans.expressions import Apply, Computed, Constant, Field, Typed, leaves, order, ordered

KINDS = st.sampled_from([None, *Kind])
LEAVES = st.one_of(
    st.builds(Field, st.integers(0, 3), st.text(max_size=3), KINDS),
    st.builds(Computed, st.integers(0, 3), KINDS),
    st.builds(Constant, st.text(max_size=3) | st.integers() | st.floats(allow_nan=False) | st.booleans(), KINDS),
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        Apply, st.sampled_from(["+", "and", "not"]), st.lists(inner, min_size=1, max_size=3).map(tuple), KINDS
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_the_sort_key_is_the_repr(expression: Typed) -> None:
    assert order(expression) == repr(expression)


@given(st.lists(EXPRESSIONS, max_size=5))
def test_ordered_expressions_are_sorted_and_distinct(expressions: list[Typed]) -> None:
    found = ordered([*expressions, *reversed(expressions)])
    assert [repr(one) for one in found] == sorted({repr(one) for one in expressions})


@given(EXPRESSIONS)
def test_leaves_are_from_left_to_right(expression: Typed) -> None:
    def walk(node: Typed) -> list[Typed]:
        return [leaf for operand in node.operands for leaf in walk(operand)] if isinstance(node, Apply) else [node]

    assert [repr(leaf) for leaf in leaves(expression)] == [repr(leaf) for leaf in walk(expression)]
