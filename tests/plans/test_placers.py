"""Every unit is placed once and within the thresholds, and few units move."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.errors import TocsinError
from tocsin.plans.placement import Input, Placement, Unit, duplication, throughput, traffic, variance
from tocsin.plans.placers import (
    ARRIVING,
    PLACERS,
    Even,
    Placer,
    Random,
    Sctxpf,
    Visiri,
    add_node,
    imbalance,
    placer,
    random_node,
    rebalance,
    remove_node,
)

COSTS = st.integers(0, 40).map(lambda cost: cost / 4)
SHARES = st.sampled_from((0.0, 0.1, 0.5, 1.0))
MAKERS: dict[str, Callable[[int], Placer]] = {
    "even": lambda seed: Even(),
    "arriving": lambda seed: ARRIVING,
    "visiri": lambda seed: Visiri(3, 12.0, seed),
    "sctxpf": lambda seed: Sctxpf(3, seed),
    "random": lambda seed: Random(seed),
}


@st.composite
def inputs(draw: st.DrawFn) -> Input:
    type = draw(st.sampled_from("abcdef"))
    return Input(type, rate=1.0 + ord(type) % 3, passing=draw(SHARES), filter=draw(st.integers(0, 2)))


@st.composite
def units(draw: st.DrawFn, most: int = 30) -> list[Unit]:
    given = draw(st.lists(st.tuples(COSTS, st.lists(inputs(), min_size=1, max_size=3)), max_size=most))
    return [Unit(f"u{number}", cost, tuple(read)) for number, (cost, read) in enumerate(given)]


def checked(placement: Placement) -> None:
    """Check that an incrementally updated placement equals one built from scratch."""
    expected = Placement(placement.nodes)
    for node in range(len(placement.nodes)):
        for unit in placement.units_of(node):
            expected.add(unit, node)
    assert expected.assignment == placement.assignment
    np.testing.assert_allclose(placement.loads, expected.loads, atol=1e-9)
    assert placement.counts.tolist() == expected.counts.tolist()
    assert placement.readers() == expected.readers()
    for type, sent in expected.sent().items():
        np.testing.assert_allclose(placement.sent()[type], sent, atol=1e-9)


def placed(given: list[Unit], nodes: int, by: Placer) -> Placement:
    placement = Placement(nodes)
    by.place(given, placement)
    return placement


@pytest.mark.parametrize("name", MAKERS)
@given(given=units(), nodes=st.integers(1, 5), seed=st.integers(0, 3))
def test_each_unit_is_placed_once_and_deterministically(name: str, given: list[Unit], nodes: int, seed: int) -> None:
    placement = placed(given, nodes, MAKERS[name](seed))
    assert sorted(placement.assignment) == sorted(unit.name for unit in given)
    assert placement.assignment == placed(given, nodes, MAKERS[name](seed)).assignment
    assert placement.counts.sum() == len(given)
    checked(placement)


@pytest.mark.parametrize("name", ["visiri", "sctxpf", "random"])
@given(given=units(), nodes=st.integers(1, 5), split=st.integers(0, 30))
def test_any_split_into_batches_gives_the_same_nodes(name: str, given: list[Unit], nodes: int, split: int) -> None:
    by = MAKERS[name](1)
    placement = placed(given[:split], nodes, by)
    by.place(given[split:], placement)
    assert placement.assignment == placed(given, nodes, by).assignment


@given(given=units(), nodes=st.integers(1, 5), chance=st.randoms(use_true_random=False))
def test_order_does_not_matter_to_even(given: list[Unit], nodes: int, chance: random.Random) -> None:
    shuffled = chance.sample(given, len(given))
    assert placed(shuffled, nodes, Even()).assignment == placed(given, nodes, Even()).assignment


@given(given=units(), nodes=st.integers(1, 5), seed=st.integers(0, 3))
def test_thresholds_and_common_inputs(given: list[Unit], nodes: int, seed: int) -> None:
    """Algorithm 1 for each choice: within both slacks, with most inputs in common."""
    for costs in (True, False):
        placement = Placement(nodes)
        by = Visiri(3, 12.0, seed) if costs else Sctxpf(3, seed)
        for unit in given:
            counts = [len(placement.units_of(node)) for node in range(nodes)]
            loads = [sum(other.cost for other in placement.units_of(node)) for node in range(nodes)]
            read = [{type for other in placement.units_of(node) for type in other.types} for node in range(nodes)]
            left = [node for node in range(nodes) if counts[node] <= min(counts) + 3]
            if costs:
                least = min(loads[node] for node in left)
                left = [node for node in left if loads[node] <= least + 12.0]
            common = {node: len(read[node] & set(unit.types)) for node in left}
            by.place([unit], placement)
            assert common[placement.node_of(unit.name)] == max(common.values())


def test_the_most_inputs_in_common_wins() -> None:
    """The example of the paper's Section 3.2: node A reads s2 and s3 of a query's inputs s1, s2 and s3."""
    placement = Placement(["B", "A", "C"])
    placement.add(Unit("first", 1.0, (Input("s2"), Input("s3"), Input("s4"))), 1)
    placement.add(Unit("second", 1.0, (Input("s1"),)), 2)
    query = Unit("query", 1.0, (Input("s1"), Input("s2"), Input("s3")))
    assert placement.common(query.types).tolist() == [0, 2, 1]
    for by in (Visiri(), Sctxpf(), Even(tolerance=9.0)):
        other = Placement(["B", "A", "C"])
        for name, node in placement.assignment.items():
            other.add(placement.unit(name), other.number(node))
        by.place([query], other)
        assert other.assignment["query"] == "A"


def test_visiri_uses_costs_and_sctxpf_does_not() -> None:
    given = [Unit(f"dear{n}", 300.0, (Input("a"),)) for n in range(3)]
    assert len(set(placed(given, 2, Sctxpf()).assignment.values())) == 1
    assert len(set(placed(given, 2, Visiri()).assignment.values())) == 2


def test_measures() -> None:
    placement = Placement(2)
    placement.add(Unit("q1", 1.0, (Input("a", 4.0),)), 0)
    placement.add(Unit("q2", 2.0, (Input("a", 4.0, 0.5, "x"),)), 1)
    placement.add(Unit("q3", 3.0, (Input("a", 4.0, 0.5, "x"), Input("b", 2.0))), 1)
    assert duplication(placement) == 1.5
    assert traffic(placement) == pytest.approx(4 + 2 + 2)
    assert variance(placement) == 4
    assert throughput(100, [2.0, 5.0]) == 20
    assert imbalance(placement) == pytest.approx(5 / 3 - 1)
    # The same filter again adds nothing, another one half of what is left.
    assert placement.extra([Unit("q4", 1.0, (Input("a", 4.0, 0.5, "x"),))]).tolist() == [0, 0]
    assert placement.extra([Unit("q4", 1.0, (Input("a", 4.0, 0.5, "y"),))]) == pytest.approx([0, 1])
    assert placement.extra([Unit("q4", 1.0, (Input("c", 3.0),))]).tolist() == [3, 3]


@given(given=units(), nodes=st.integers(1, 5))
def test_extra_is_the_additional_traffic(given: list[Unit], nodes: int) -> None:
    placement = placed(given[1:], nodes, Random())
    for unit in given[:1]:
        for node, extra in enumerate(placement.extra([unit])):
            before = traffic(placement)
            placement.add(unit, node)
            assert traffic(placement) - before == pytest.approx(extra, abs=1e-9)
            placement.remove(unit.name)


@given(given=units(), nodes=st.integers(1, 5), tolerance=st.sampled_from((0.0, 0.05, 0.5)))
def test_even_respects_its_load_bound(given: list[Unit], nodes: int, tolerance: float) -> None:
    """A node above the limit received a unit when it was among the least loaded: Graham's bound for list scheduling."""
    placement = placed(given, nodes, Even(tolerance))
    dearest = max((unit.cost for unit in given), default=0)
    mean = float(placement.loads.mean())
    assert placement.loads.max() <= (mean + dearest) * (1 + tolerance) + 1e-9


def test_tolerance_trades_imbalance_for_copies() -> None:
    given = [Unit(f"u{n}", 1.0, (Input("a" if n < 12 else "b"),)) for n in range(20)]
    strict, loose = placed(given, 2, Even(0.0)), placed(given, 2, Even(0.25))
    assert (duplication(strict), variance(strict)) == (1.5, 0)
    assert (duplication(loose), variance(loose)) == (1, 4)


def test_filters_affect_the_number_of_copies() -> None:
    """Most of `a` is sent to the second node already, so a unit that reads much of it fits there best."""
    placement = Placement(2)
    placement.add(Unit("q1", 1.0, (Input("a", 1.0, 0.1, "few"),)), 0)
    placement.add(Unit("q2", 1.0, (Input("a", 1.0, 0.9, "most"),)), 1)
    Even(tolerance=1.0).place([Unit("q3", 0.5, (Input("a", 1.0, 0.8, "many"),))], placement)
    assert placement.assignment["q3"] == "node2"


@given(
    given=units(),
    nodes=st.integers(1, 5),
    name=st.sampled_from(sorted(MAKERS)),
    drift=st.dictionaries(st.integers(0, 29), COSTS, max_size=5),
    tolerance=st.sampled_from((None, 0.0, 0.1)),
    moves_max=st.sampled_from((None, 0, 2)),
)
def test_rebalance(
    given: list[Unit],
    nodes: int,
    name: str,
    drift: dict[int, float],
    tolerance: float | None,
    moves_max: int | None,
) -> None:
    placement = placed(given, nodes, MAKERS[name](0))
    assignment = placement.assignment
    assert rebalance(placement) == []  # nothing drifted
    assert placement.assignment == assignment
    costs = {f"u{number}": cost for number, cost in drift.items() if number < len(given)}
    drifted = placed(given, nodes, MAKERS[name](0))
    drifted.update_costs(costs)
    before, fullest = variance(drifted), drifted.loads.max()
    moves = rebalance(placement, costs, tolerance=tolerance, moves_max=moves_max)
    assert len(moves) <= (math.inf if moves_max is None else moves_max)
    assert placement.loads.max() <= fullest + 1e-9
    assert variance(placement) < before if moves else placement.assignment == assignment
    assert {name: node for name, node in placement.assignment.items() if node != assignment[name]}.keys() <= {
        move.unit for move in moves
    }
    checked(placement)


def test_rebalance_moves_one_unit_if_that_suffices() -> None:
    given = [Unit(f"u{n}", 1.0, (Input("abcd"[n % 4]),)) for n in range(40)]
    placement = placed(given, 4, Even())
    assert variance(placement) == 0
    moves = rebalance(placement, {"u0": 3.0}, tolerance=0.1)
    assert [move.source for move in moves] == [placed(given, 4, Even()).assignment["u0"]]
    assert imbalance(placement) <= 0.1 + 1e-9


@given(given=units(), nodes=st.integers(1, 5), name=st.sampled_from(sorted(MAKERS)))
def test_a_new_node_is_filled_up_to_the_mean_from_others(given: list[Unit], nodes: int, name: str) -> None:
    placement = placed(given, nodes, MAKERS[name](0))
    assignment = placement.assignment
    spread = variance(placement_with_empty(placement, nodes))
    moves = add_node(placement, "new")
    assert all(move.target == "new" for move in moves)
    assert {unit for unit, node in placement.assignment.items() if node != assignment[unit]} == {
        move.unit for move in moves
    }
    assert placement.loads[-1] <= placement.loads.mean() + 1e-9
    assert variance(placement) <= spread + 1e-9
    checked(placement)


def placement_with_empty(placement: Placement, nodes: int) -> Placement:
    """Return the same placement with an additional empty node."""
    wider = Placement([*placement.nodes, "new"])
    for node in range(nodes):
        for unit in placement.units_of(node):
            wider.add(unit, node)
    return wider


def test_a_new_node_gets_its_share_without_copies() -> None:
    given = [Unit(f"u{n}", 1.0, (Input(f"s{n % 60}"),)) for n in range(240)]
    placement = placed(given, 5, Even())
    add_node(placement, "new")
    assert (duplication(placement), placement.loads[-1]) == (1, 40)


@given(given=units(), nodes=st.integers(2, 5), name=st.sampled_from(sorted(MAKERS)), gone=st.integers(0, 4))
def test_only_units_of_a_removed_node_move(given: list[Unit], nodes: int, name: str, gone: int) -> None:
    placement = placed(given, nodes, MAKERS[name](0))
    assignment, node = placement.assignment, placement.nodes[gone % nodes]
    moves = remove_node(placement, node, MAKERS[name](0))
    assert sorted(move.unit for move in moves) == sorted(unit for unit, home in assignment.items() if home == node)
    assert node not in placement.assignment.values()
    assert {unit: home for unit, home in placement.assignment.items() if assignment[unit] != node} == {
        unit: home for unit, home in assignment.items() if home != node
    }
    checked(placement)


def test_placers_by_name() -> None:
    assert [type(placer(name)).__name__.lower() for name in PLACERS] == list(PLACERS)
    with pytest.raises(TocsinError, match=r"no placer 'vsiri'\. Did you mean 'visiri'"):
        placer("vsiri")


def test_mistakes() -> None:
    placement = Placement(["a"])
    placement.add(Unit("u", 1.0, ()), 0)
    with pytest.raises(TocsinError, match="'u' is placed already"):
        placement.add(Unit("u", 1.0, ()), 0)
    with pytest.raises(TocsinError, match="last node"):
        remove_node(placement, "a")
    with pytest.raises(TocsinError, match="no node 'b'"):
        remove_node(placement, "b")
    with pytest.raises(TocsinError, match="'v' is not placed"):
        rebalance(placement, {"v": 1.0})
    with pytest.raises(TocsinError, match="distinct names"):
        Placement(["a", "a"])
    with pytest.raises(ValueError, match="between 0 and 1"):
        Input("a", passing=1.5)
    with pytest.raises(ValueError, match="not negative"):
        Unit("u", float("nan"), ())


def test_random_nodes_are_uniform() -> None:
    """Chi-squared by its expectation, 1, from which a hundred seeds are 0.04 apart."""
    nodes, turns = 16, 5_000
    found = []
    for seed in range(100):
        counts = np.bincount([random_node(range(nodes), seed, turn) for turn in range(turns)], minlength=nodes)
        found.append(((counts - turns / nodes) ** 2).sum() / (turns / nodes) / (nodes - 1))
    assert np.mean(found) == pytest.approx(1, abs=0.1)
