"""The reduced order of `;` allows the same combinations as the full order."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tocsin.plans.bind.structure import Precedence, SequencePair, precedences

Tree = int | tuple["Tree", "Tree", bool]


def _read(tree: Tree) -> tuple[tuple[int, ...], list[SequencePair]]:
    """Return the role indexes of an expression, and its sequences."""
    if isinstance(tree, int):
        return (tree,), []
    left, right, ordered = tree
    (some, first), (others, second) = _read(left), _read(right)
    return (*some, *others), [*first, *second, *([(some, others)] if ordered else [])]


@st.composite
def _trees(draw: st.DrawFn, count: int = 5) -> Tree:
    nodes: list[Tree] = list(range(draw(st.integers(2, count))))
    while len(nodes) > 1:
        at = draw(st.integers(0, len(nodes) - 2))
        nodes[at : at + 2] = [(nodes[at], nodes[at + 1], draw(st.booleans()))]
    return nodes[0]


@given(tree=_trees(), data=st.data())
def test_removed_relations_are_implied(tree: Tree, data: st.DataObject) -> None:
    places, sequences = _read(tree)
    last = [place for place in places if not any(place in left for left, _ in sequences)]
    anchor = data.draw(st.sampled_from(last))
    reduced = precedences(sequences, [], anchor)
    for times in product(range(4), repeat=len(places)):
        if times[anchor] != max(times):
            continue
        whole = all(max(times[p] for p in left) < max(times[p] for p in right) for left, right in sequences)
        assert whole == all(times[one.before] < max(times[p] for p in one.after) for one in reduced)


def test_only_roles_that_can_be_last_are_in_a_relation() -> None:
    """In `A ; (B ; C)` the last of B and C is C."""
    found = precedences([((1,), (2,)), ((0,), (1, 2))], [], 2)
    assert found == (Precedence(0, (2,), True), Precedence(1, (2,), True))
