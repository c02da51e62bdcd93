"""Place units on nodes, and move units when costs or nodes change.

`Even` duplicates few events and keeps loads even. It groups units into *bundles* that read the same types:

    units ─► bundles ─► most expensive bundle first ─► nodes whose load stays below the limit
          ─► nodes with the fewest additional events ─► least loaded node

`Even` differs from VISIRI in three ways. It uses given or measured costs and rates, and it counts the events of a node
after the dispatcher's filters. Its limit of the load is relative: the mean load including the new units, plus a
tolerance. It is not random. If no node reads the types of a bundle, the bundle goes to the least loaded node. Because
large bundles are placed first, this evens out loads.

A bundle that fits on no node is split into its units, which are placed one by one, the most expensive unit first. If
units arrive one by one, the mean load is small at first. So a node may exceed its share by `ahead` units. The time is
that of sorting, plus nodes × inputs for each bundle or split unit.

`Visiri` is Algorithm 1 of the VISIRI paper (Section 3.2). It places queries in the order of arrival:

    nodes ─► without too many queries ─► without too much cost ─► most input types in common ─► a random node

The limits are given as the difference from the least loaded node. `Sctxpf` is the same algorithm without costs. Line 34
of the printed algorithm has a reversed comparison, which would select the nodes with the *fewest* inputs in common. The
text of the paper and this implementation select the nodes with the most inputs in common. The time is linear in nodes ×
types of a unit. The random choice depends on the seed and the number of placed units. So units that arrive one by one
get the same nodes as units that arrive together.

A query that moves takes the state of its windows along. So these functions move few units:

- `rebalance` moves units off overloaded nodes, the fullest node first. If one move is enough for a node, it moves the
  unit that adds the fewest copies of events, else the most expensive unit that fits on another node. Each move makes
  loads more even.
- `add_node` fills a new node up to the mean load, with units of nodes above the mean. It moves whole bundles first,
  because they add no copies of events, and then single units. Nothing moves between old nodes.
- `remove_node` places the units of the removed node on other nodes. Nothing else moves.

The minimum number of moves is as hard to find as the best placement, so the choice is greedy. Each move of `rebalance`
takes time proportional to the units of a node × nodes. The other functions take about as long as `Even` needs to place
the moved units.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tocsin.errors import TocsinError, nearest
from tocsin.plans.placement import Counts, Move, Numbers, Placement, Unit

TOLERANCE = 0.05
TIE = 1e-9
"""The relative difference below which event rates are considered equal, because they are sums of estimates."""


@dataclass(frozen=True, slots=True)
class Even:
    """The default placer, which makes as few copies of events as an even load allows.

    The load of a node may exceed the mean load by the fraction `tolerance` if this saves copies; 0.05 is five percent.
    In addition, it may exceed the mean load by `ahead` units of average cost.
    """

    tolerance: float = TOLERANCE
    ahead: float = 0.0

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Add `units` to `placement`. The result does not depend on the order of `units`."""
        bundles = bundled(units)
        if not bundles:
            return
        total = placement.loads.sum() + sum(cost_of(bundle) for bundle in bundles)
        average = total / (len(placement) + sum(map(len, bundles)))
        limit = total / len(placement.nodes) * (1 + self.tolerance) + self.ahead * average
        for bundle in bundles:
            self._put(bundle, placement, limit)

    def _put(self, bundle: Sequence[Unit], placement: Placement, limit: float) -> None:
        cost = cost_of(bundle)
        after = placement.loads + cost
        if len(bundle) == 1:  # a single unit must be placed, if necessary on a full node
            limit = max(limit, after.min() * (1 + self.tolerance))
        fitting = np.flatnonzero(after <= limit)
        if not len(fitting):
            for unit in bundle:
                self._put([unit], placement, limit)
            return
        node = int(fitting[best(placement.extra(bundle)[fitting], placement.loads[fitting])])
        for unit in bundle:
            placement.add(unit, node)


ARRIVING = Even(tolerance=0.0, ahead=15)
"""The placer for units that arrive one by one. Its tolerance is a constant number of units, not a fraction."""


def bundled(units: Iterable[Unit]) -> list[list[Unit]]:
    """Group units into bundles that read the same types.

    The most expensive bundle comes first, and in each bundle the most expensive unit.
    """
    bundles: dict[tuple[str, ...], list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: (-unit.cost, unit.name)):
        bundles.setdefault(tuple(sorted(unit.types)), []).append(unit)
    return [bundles[types] for types in sorted(bundles, key=lambda types: (-cost_of(bundles[types]), types))]


def cost_of(units: Iterable[Unit]) -> float:
    """Return the total cost of `units`."""
    return sum(unit.cost for unit in units)


def best(extra: Numbers, loads: Numbers) -> int:
    """Return the index of the node with the smallest load among the nodes with the smallest `extra`.

    If several nodes have the same load, return the first index.
    """
    fewest = extra <= extra.min() + TIE * max(1.0, float(extra.max()))
    return int(np.argmin(np.where(fewest, loads, np.inf)))


QUERIES_SLACK = 80
COST_SLACK = 400.0
"""The thresholds in the evaluation of the VISIRI paper (Section 4.2)."""


@dataclass(frozen=True, slots=True)
class Visiri:
    """VISIRI's algorithm.

    A unit goes to a node with at most `queries_slack` queries and at most `cost_slack` load above the minimum.
    """

    queries_slack: int = QUERIES_SLACK
    cost_slack: float = COST_SLACK
    seed: int = 0

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Add units to a placement, in order."""
        for unit in units:
            left = few_queries(placement, self.queries_slack)
            loads = placement.loads[left]
            left = left[loads <= loads.min() + self.cost_slack]
            placement.add(unit, random_node(most_common(unit, placement, left), self.seed, len(placement)))


@dataclass(frozen=True, slots=True)
class Sctxpf:
    """SCTXPF's algorithm, which limits the number of queries of a node and ignores costs."""

    queries_slack: int = QUERIES_SLACK
    seed: int = 0

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Add units to a placement, in order."""
        for unit in units:
            left = few_queries(placement, self.queries_slack)
            placement.add(unit, random_node(most_common(unit, placement, left), self.seed, len(placement)))


@dataclass(frozen=True, slots=True)
class Random:
    """A placer that selects a random node for each unit."""

    seed: int = 0

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Add units to a placement, in order."""
        for unit in units:
            placement.add(unit, random_node(range(len(placement.nodes)), self.seed, len(placement)))


def few_queries(placement: Placement, slack: int) -> Counts:
    """Return the nodes with at most `slack` queries more than the node with the fewest queries (lines 3 to 9)."""
    return np.flatnonzero(placement.counts <= placement.counts.min() + slack)


def most_common(unit: Unit, placement: Placement, nodes: Counts) -> Counts:
    """Return the nodes in `nodes` that already read the largest number of the unit's types (lines 26 to 40)."""
    common = placement.common(unit.types)[nodes]
    preferred: Counts = nodes[common == common.max()]
    return preferred


def random_node(nodes: Sequence[int] | Counts, seed: int, turn: int) -> int:
    """Return a random node of `nodes`. The same seed and turn give the same node.

    The generator gets a string as its seed, because strings are hashed. Random choices are not independent if the seeds
    are consecutive integers.
    """
    return int(nodes[random.Random(f"{seed} {turn}").randrange(len(nodes))])


class Placer(Protocol):
    """An algorithm that selects the nodes of units. The same placement, units and settings give the same nodes."""

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Add `units` to `placement`. Units that are already placed do not move."""


PLACERS = ("even", "visiri", "sctxpf", "random")


def placer(name: str = "even", seed: int = 0) -> Placer:
    """Return the placer with the name `name`, with the parameters in its paper.

    The placer `even` is this project's own; it is not random and does not use `seed`.

    >>> placer("visiri").cost_slack
    400.0
    """
    placers: dict[str, Placer] = {
        "even": Even(),
        "visiri": Visiri(seed=seed),
        "sctxpf": Sctxpf(seed=seed),
        "random": Random(seed=seed),
    }
    if name not in placers:
        raise TocsinError(f"there is no placer '{name}'. {nearest(name, PLACERS)}")
    return placers[name]


ROUNDING = 1e-9


def rebalance(
    placement: Placement,
    costs: Mapping[str, float] | None = None,
    *,
    tolerance: float | None = None,
    moves_max: int | None = None,
) -> list[Move]:
    """Set the measured `costs` of units, and move units off overloaded nodes. Return the moves.

    A node is overloaded if its load exceeds the mean load by more than the fraction `tolerance`. The default tolerance
    is the imbalance with the previous costs. There are at most `moves_max` moves.
    """
    before = imbalance(placement)
    placement.update_costs(costs or {})
    limit = float(placement.loads.mean()) * (1 + (before if tolerance is None else tolerance)) * (1 + ROUNDING)
    moves: list[Move] = []
    while moves_max is None or len(moves) < moves_max:
        for source in np.argsort(-placement.loads, kind="stable"):
            move = _relieving_move(placement, int(source), limit) if placement.loads[source] > limit else None
            if move is not None:
                moves.append(placement.move(*move))
                break
        else:
            break
    return moves


def add_node(placement: Placement, node: str) -> list[Move]:
    """Add a node, and move units to it until its load is about the mean. Return the moves."""
    new = placement.join(node)
    mean = float(placement.loads.mean())
    moves: list[Move] = []
    for whole in (True, False):
        for source in np.argsort(-placement.loads, kind="stable"):
            if source == new:
                continue
            for bundle in bundled(placement.units_of(int(source))):
                for part in [bundle] if whole else [[unit] for unit in bundle]:
                    room = min(placement.loads[source] - mean, mean - placement.loads[new])
                    if 0 < cost_of(part) <= room:
                        moves += [placement.move(unit.name, new) for unit in part]
    return moves


def remove_node(placement: Placement, node: str, placer: Placer | None = None) -> list[Move]:
    """Remove a node, and place its units on the other nodes by `placer` (default: `Even`). Return the moves."""
    units = placement.leave(node)
    (placer or Even()).place(units, placement)
    return [Move(unit.name, node, placement.nodes[placement.node_of(unit.name)]) for unit in units]


def imbalance(placement: Placement) -> float:
    """Return the fraction of the mean load by which the load of the fullest node exceeds it."""
    mean = float(placement.loads.mean())
    return max(float(placement.loads.max()) / mean - 1, 0.0) if mean > 0 else 0.0


def _relieving_move(placement: Placement, source: int, limit: float) -> tuple[str, int] | None:
    """Return the unit that should move from the node `source`, and its target node; None if no move helps."""
    load = float(placement.loads[source])
    others = np.array([node for node in range(len(placement.nodes)) if node != source], np.int64)
    if not len(others):
        return None
    least = float(placement.loads[others].min())
    units = [unit for unit in placement.units_of(source) if unit.cost > 0]
    fitting = [unit for unit in units if least + unit.cost <= limit]
    enough = [unit for unit in fitting if unit.cost >= load - limit]
    if enough:
        ways = [(*_cheapest_node(placement, unit, others, limit), unit.cost, unit.name) for unit in enough]
        fewest = min(copies for copies, *_ in ways)
        _, node, _, name = min(
            (way for way in ways if way[0] <= fewest + TIE * max(1.0, abs(fewest))), key=lambda way: way[2:]
        )
        return name, node
    if fitting:
        unit = min(fitting, key=lambda unit: (-unit.cost, unit.name))
        return unit.name, _cheapest_node(placement, unit, others, limit)[1]
    # No node can take a unit within the limit: move about half of the difference to the least loaded node, if possible.
    gap = load - least
    better = [unit for unit in units if unit.cost < gap * (1 - ROUNDING)]
    if not better:
        return None
    unit = min(better, key=lambda unit: (abs(unit.cost - gap / 2), unit.name))
    return unit.name, int(others[np.argmin(placement.loads[others])])


def _cheapest_node(placement: Placement, unit: Unit, others: Counts, limit: float) -> tuple[float, int]:
    """Return the node where `unit` adds the fewest copies of events, among the nodes whose load stays within `limit`.

    The result is the number of copies per second, and the index of the node.
    """
    able = others[placement.loads[others] + unit.cost <= limit]
    extra = placement.extra([unit])[able]
    index = best(extra, placement.loads[able])
    return float(extra[index]), int(able[index])
