"""How good is a placement? Copies of events, evenness of loads, and the throughput that follows from busy times."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tocsin.plans.placing.placement import Placement


def duplication(placement: Placement) -> float:
    """To how many nodes an event goes, on the average over the types that are read; 1 is none twice.

    As in the paper: a node that reads a type gets all of it, and all types come equally often (Sections 3.2 and 4.2).

    >>> from tocsin.plans.placing import Input, Placement, Unit
    >>> placement = Placement(2)
    >>> for name, type, node in (("q1", "a", 0), ("q2", "a", 1), ("q3", "b", 1)):
    ...     placement.add(Unit(name, 1.0, (Input(type),)), node)
    >>> duplication(placement)
    1.5
    """
    readers = placement.readers()
    return sum(readers.values()) / len(readers) if readers else 0.0


def traffic(placement: Placement) -> float:
    """How many events a second the dispatcher sends, with the inputs' rates and filters."""
    return float(sum(sent.sum() for sent in placement.sent().values()))


def variance(placement: Placement) -> float:
    """The variance of the nodes' total cost."""
    return float(placement.loads.var())


def throughput(events: float, busy: Iterable[float]) -> float:
    """Events ÷ the largest busy time of a node: all nodes work at once, and the slowest is waited for."""
    return events / float(np.max(list(busy)))
