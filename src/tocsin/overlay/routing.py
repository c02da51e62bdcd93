"""Where do events go as they arrive? By their type: up to fathers at once, or aside until they are released.

A label says for which trees an event is meant, one bit for each; a table says for each type what happens in which tree.
It is the same until something is deployed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tocsin.language.rules import Pattern
from tocsin.overlay.evaluation import Types, passing
from tocsin.overlay.rows import Rows
from tocsin.overlay.timing import Array

if TYPE_CHECKING:
    from tocsin.overlay.membership import Membership

TREES_MAX = 64
"""An event's label has one bit for each tree."""


@dataclass
class Routes:
    """What happens to events of each type: bits of trees, in which they go up, go up if they pass a test, or are looked
    at; and the bits of each father's trees."""

    always: dict[str, int] = field(default_factory=dict)
    tested: dict[str, list[tuple[Pattern, int]]] = field(default_factory=dict)
    looked: dict[str, int] = field(default_factory=dict)
    fathers: dict[str, int] = field(default_factory=dict)

    def sort(self, batch: Rows, labels: Array, types: Types) -> tuple[Array, Array]:
        """For each event the trees in which it goes up, and those in which it is looked at."""
        names, codes = batch.types
        always = np.array([self.always.get(name, 0) for name in names], np.uint64)[codes]
        tested = [number for number, name in enumerate(names) if name in self.tested]
        if tested:
            order = np.argsort(codes, kind="stable")
            ends = np.searchsorted(codes[order], np.arange(len(names) + 1))
            for number in tested:
                rows = order[ends[number] : ends[number + 1]]
                some = batch.take(rows)
                for pattern, bit in self.tested[names[number]]:
                    always[rows[passing(pattern, some, types)]] |= np.uint64(bit)
        looked = np.array([self.looked.get(name, 0) for name in names], np.uint64)[codes]
        return always & labels, looked & labels


def routes(memberships: Iterable[Membership]) -> Routes:
    """The table of a processor's memberships, in the order of the bits."""
    found = Routes()
    for bit, membership in enumerate(memberships):
        mine = 1 << bit
        if membership.father is not None:
            found.fathers[membership.father] = found.fathers.get(membership.father, 0) | mine
            for type in membership.deployed.through_types:
                found.always[type] = found.always.get(type, 0) | mine
            for part in membership.uplink.relayed:
                pattern = part.rule.anchor
                if pattern.constraints:
                    found.tested.setdefault(pattern.type, []).append((pattern, mine))
                else:
                    found.always[pattern.type] = found.always.get(pattern.type, 0) | mine
        for type in membership.looked_at:
            found.looked[type] = found.looked.get(type, 0) | mine
    return found


def relabelled(labels: Array, theirs: Sequence[str], ours: Sequence[str]) -> Array:
    """Labels of a neighbour by our bits; trees that we are not in are left out."""
    if list(theirs) == list(ours):
        return labels
    moved = np.zeros(len(labels), np.uint64)
    for bit, tree in enumerate(theirs):
        if tree in ours:
            there = (labels >> np.uint64(bit)) & np.uint64(1)
            moved |= there << np.uint64(ours.index(tree))
    return moved
