"""Where would VISIRI put a query, and where SCTXPF?

Algorithm 1 of the VISIRI paper (Section 3.2), one query after the other as they come:

    nodes ─► with too many queries, out ─► with too much cost, out ─► most input types in common ─► one by lot

"Too much" is a slack above the node that has least. SCTXPF is the same without the look at costs. Line 34 of the
printed algorithm compares the wrong way round, so that it would keep the nodes with the *fewest* inputs in common; this
is what its text says, the most.

Time for a unit is linear in nodes × its types. The lot of a unit is drawn from the seed and the number of units that
are placed already, so that units which come one by one get the nodes that they would get together.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.plans.placing.placement import Counts, Placement
from tocsin.plans.placing.units import Unit

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
