"""Where is a unit best, if few events are to be sent twice and every node is to carry the same?

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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.plans.placing.placement import Numbers, Placement
from tocsin.plans.placing.units import Unit

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
