"""What moves when costs drift, or when a node comes or goes?

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

from collections.abc import Mapping

import numpy as np

from tocsin.plans.placing.even import TIE, Even, best, bundled, cost_of
from tocsin.plans.placing.placement import Counts, Placement
from tocsin.plans.placing.placers import Placer
from tocsin.plans.placing.units import Move, Unit

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
