"""What is a placer? Something that adds units to a placement; here they are by name.

Where is a unit best, if few events are to be sent twice and every node is to carry the same?

    units ─► bundles that read the same types ─► the dearest first ─► of the nodes that stay below the limit,
                                                                      the one that needs fewest events more,
                                                                      then the least loaded

Three things differ from VISIRI. Costs and rates are those that are given, measured if they were, and what a node would
be sent is counted after the dispatcher's filters. The limit is relative: the mean load with the units that are placed
now, and a tolerance. And nothing is drawn by lot: what no node reads yet goes to the least loaded one, the largest
bundles first, which is what makes loads even.

A bundle that fits nowhere is split, its units going one by one, the dearest first. Units that come one by one leave no
mean to look at in the beginning; `ahead` says how many units more than its share a node may have then, as others will
come for the rest.

Time: sorting, and for each bundle, or unit of a split one, nodes × inputs.

Where would VISIRI put a query, and where SCTXPF?

Algorithm 1 of the VISIRI paper (Section 3.2), one query after the other as they come:

    nodes ─► with too many queries, out ─► with too much cost, out ─► most input types in common ─► one by lot

"Too much" is a slack above the node that has least. SCTXPF is the same without the look at costs. Line 34 of the
printed algorithm compares the wrong way round, so that it would keep the nodes with the *fewest* inputs in common; this
is what its text says, the most.

Time for a unit is linear in nodes × its types. The lot of a unit is drawn from the seed and the number of units that
are placed already, so that units which come one by one get the nodes that they would get together.

What moves when costs drift, or when a node comes or goes?

A query that moves takes its windows with it, so as little as possible does:

- `rebalance` relieves nodes that carry too much, the fullest first. If moving one unit is enough, the one that makes
  fewest copies goes; else the dearest that fits elsewhere. Every move makes loads more even.
- `add_node` fills a new node up to the mean, from nodes above it: whole bundles, which make no copies, before
  single units. Nothing moves between old nodes.
- `remove_node` places what the node had; nothing else moves.

The fewest moves possible are as hard to find as the best placement; these are the moves that a greedy choice makes.
Time: for each move of `rebalance`, the units of a node × nodes; the others take about as long as placing what moves.
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
"""Numbers of events that differ by less are equal: they are sums of estimates."""


@dataclass(frozen=True, slots=True)
class Even:
    """As few copies as an even load allows.

    `tolerance`: how far above the mean a node's load may be where that saves copies, 0.05 for five percent; `ahead`:
    and by how many units of average cost.
    """

    tolerance: float = TOLERANCE
    ahead: float = 0.0

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Adds units to a placement; the order in which they are given does not matter."""
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
        if len(bundle) == 1:  # must go somewhere, if need be to a full node
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
"""For units that come one by one: room for a number of units, which does not grow with what is there."""


def bundled(units: Iterable[Unit]) -> list[list[Unit]]:
    """Units that read the same types, together: the dearest bundle first, and the dearest unit first in each."""
    bundles: dict[tuple[str, ...], list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: (-unit.cost, unit.name)):
        bundles.setdefault(tuple(sorted(unit.types)), []).append(unit)
    return [bundles[types] for types in sorted(bundles, key=lambda types: (-cost_of(bundles[types]), types))]


def cost_of(units: Iterable[Unit]) -> float:
    """What units cost together."""
    return sum(unit.cost for unit in units)


def best(extra: Numbers, loads: Numbers) -> int:
    """The place of the smallest load among those with the smallest extra; the first of equal ones."""
    fewest = extra <= extra.min() + TIE * max(1.0, float(extra.max()))
    return int(np.argmin(np.where(fewest, loads, np.inf)))


QUERIES_SLACK = 80
COST_SLACK = 400.0
"""The thresholds of the paper's evaluation (Section 4.2)."""


@dataclass(frozen=True, slots=True)
class Visiri:
    """VISIRI's algorithm, with its two thresholds: how far above the least loaded node one may be."""

    queries_slack: int = QUERIES_SLACK
    cost_slack: float = COST_SLACK
    seed: int = 0

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Adds units to a placement."""
        for unit in units:
            left = few_queries(placement, self.queries_slack)
            loads = placement.loads[left]
            left = left[loads <= loads.min() + self.cost_slack]
            placement.add(unit, drawn(most_common(unit, placement, left), self.seed, len(placement)))


@dataclass(frozen=True, slots=True)
class Sctxpf:
    """SCTXPF's algorithm: queries are counted, not weighed."""

    queries_slack: int = QUERIES_SLACK
    seed: int = 0

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Adds units to a placement."""
        for unit in units:
            left = few_queries(placement, self.queries_slack)
            placement.add(unit, drawn(most_common(unit, placement, left), self.seed, len(placement)))


@dataclass(frozen=True, slots=True)
class Random:
    """Any node, by lot."""

    seed: int = 0

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Adds units to a placement."""
        for unit in units:
            placement.add(unit, drawn(range(len(placement.nodes)), self.seed, len(placement)))


def few_queries(placement: Placement, slack: int) -> Counts:
    """The nodes that have at most so many queries more than the one with the fewest (lines 3 to 9)."""
    return np.flatnonzero(placement.counts <= placement.counts.min() + slack)


def most_common(unit: Unit, placement: Placement, nodes: Counts) -> Counts:
    """Those of the nodes that read most of the unit's types already (lines 26 to 40)."""
    common = placement.common(unit.types)[nodes]
    found: Counts = nodes[common == common.max()]
    return found


def drawn(nodes: Sequence[int] | Counts, seed: int, turn: int) -> int:
    """One of the nodes by lot, the same for the same seed and turn.

    The seed of each lot is a text, which is hashed. Numbers are not, and lots of one number after the other are more
    even than chance.
    """
    return int(nodes[random.Random(f"{seed} {turn}").randrange(len(nodes))])


class Placer(Protocol):
    """Decides where units go. The same placement, units and settings give the same nodes."""

    def place(self, units: Iterable[Unit], placement: Placement) -> None:
        """Adds units to a placement, which may have some already. None of these moves."""


PLACERS = ("even", "visiri", "sctxpf", "random")


def placer(name: str = "even", seed: int = 0) -> Placer:
    """The placer of a name, as its paper sets it; `even` is this project's own and draws no lots.

    >>> placer("visiri").cost_slack
    400.0
    """
    found: dict[str, Placer] = {
        "even": Even(),
        "visiri": Visiri(seed=seed),
        "sctxpf": Sctxpf(seed=seed),
        "random": Random(seed=seed),
    }
    if name not in found:
        raise TocsinError(f"there is no placer '{name}'. {nearest(name, PLACERS)}")
    return found[name]


ROUNDING = 1e-9


def rebalance(
    placement: Placement,
    costs: Mapping[str, float] | None = None,
    *,
    tolerance: float | None = None,
    moves_max: int | None = None,
) -> list[Move]:
    """Moves units off nodes that carry too much at their measured costs.

    Too much is more than the mean and the tolerance; without one, more than the fullest node had, compared with the
    mean, at the costs until now.
    """
    before = imbalance(placement)
    placement.cost_again(costs or {})
    limit = float(placement.loads.mean()) * (1 + (before if tolerance is None else tolerance)) * (1 + ROUNDING)
    moves: list[Move] = []
    while moves_max is None or len(moves) < moves_max:
        for source in np.argsort(-placement.loads, kind="stable"):
            found = _relief(placement, int(source), limit) if placement.loads[source] > limit else None
            if found is not None:
                moves.append(placement.move(*found))
                break
        else:
            break
    return moves


def add_node(placement: Placement, node: str) -> list[Move]:
    """A new node, filled up to the mean load."""
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
    """Takes a node away and places what it had on the others."""
    units = placement.leave(node)
    (placer or Even()).place(units, placement)
    return [Move(unit.name, node, placement.nodes[placement.node_of(unit.name)]) for unit in units]


def imbalance(placement: Placement) -> float:
    """By how much, compared with the mean, the fullest node is above it."""
    mean = float(placement.loads.mean())
    return max(float(placement.loads.max()) / mean - 1, 0.0) if mean > 0 else 0.0


def _relief(placement: Placement, source: int, limit: float) -> tuple[str, int] | None:
    """The unit that is to leave a node, and where to."""
    load = float(placement.loads[source])
    others = np.array([node for node in range(len(placement.nodes)) if node != source], np.int64)
    if not len(others):
        return None
    least = float(placement.loads[others].min())
    units = [unit for unit in placement.units_of(source) if unit.cost > 0]
    fitting = [unit for unit in units if least + unit.cost <= limit]
    enough = [unit for unit in fitting if unit.cost >= load - limit]
    if enough:
        ways = [(*_way(placement, unit, others, limit), unit.cost, unit.name) for unit in enough]
        fewest = min(copies for copies, *_ in ways)
        _, node, _, name = min(
            (way for way in ways if way[0] <= fewest + TIE * max(1.0, abs(fewest))), key=lambda way: way[2:]
        )
        return name, node
    if fitting:
        unit = min(fitting, key=lambda unit: (-unit.cost, unit.name))
        return unit.name, _way(placement, unit, others, limit)[1]
    # Nobody can take a unit and stay below the limit: go half way to the least loaded node, if that helps.
    gap = load - least
    better = [unit for unit in units if unit.cost < gap * (1 - ROUNDING)]
    if not better:
        return None
    unit = min(better, key=lambda unit: (abs(unit.cost - gap / 2), unit.name))
    return unit.name, int(others[np.argmin(placement.loads[others])])


def _way(placement: Placement, unit: Unit, others: Counts, limit: float) -> tuple[float, int]:
    """Where a unit makes fewest copies below the limit, and how many events a second these are."""
    able = others[placement.loads[others] + unit.cost <= limit]
    extra = placement.extra([unit])[able]
    place = best(extra, placement.loads[able])
    return float(extra[place]), int(able[place])
