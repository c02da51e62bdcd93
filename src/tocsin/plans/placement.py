"""Track on which node each unit runs, and the load and the inputs of each node.

A *unit* is a query or a group of rules that runs on one node. A *placer* selects the node of each unit (see `placers`).
For this, it needs the load of each node, the types that each node already reads, and the additional events per second
that a unit would cause at each node. A placement stores them in matrices with one column for each node. To add, move or
remove a unit takes time linear in its inputs. The memory is (types + distinct filters) × nodes.

If a node has independent filters that pass the fractions p, q, … of the events of a type, it does not need the fraction
(1 − p)(1 − q)… of these events. The matrix stores the logarithm of this fraction, so that filters can be removed again.

The functions measure a placement by the copies of events, the variance of loads, and the throughput.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.errors import TocsinError


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a unit, which is the events of a type that pass a filter.

    `rate` is the number of events of the type per second, and `passing` is the fraction that the filter passes. If
    `passing` is 1, the dispatcher sends every event of the type. Equal filters of a type pass the same events, and
    different filters are assumed to be independent.
    """

    type: str
    rate: float = 1.0
    passing: float = 1.0
    filter: Hashable = None

    def __post_init__(self) -> None:
        if not 0 <= self.passing <= 1 or not 0 <= self.rate < float("inf"):
            raise ValueError("rate must not be negative, and passing must be between 0 and 1")


@dataclass(frozen=True, slots=True)
class Unit:
    """A query, or rules that run together, with its cost and its inputs."""

    name: str
    cost: float
    inputs: tuple[Input, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.cost < float("inf"):
            raise ValueError("a cost must be a finite number that is not negative")

    @property
    def types(self) -> tuple[str, ...]:
        """The distinct event types that the unit reads, in the order of its inputs."""
        return tuple(dict.fromkeys(source.type for source in self.inputs))


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a unit from one node to another."""

    unit: str
    source: str
    target: str


Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Matrix = npt.NDArray[Any]


class Placement:
    """An assignment of units to named nodes. Methods identify a node by its index in `nodes`."""

    def __init__(self, nodes: Sequence[str] | int) -> None:
        names = [f"node{number}" for number in range(1, nodes + 1)] if isinstance(nodes, int) else list(nodes)
        if not names or len(set(names)) != len(names):
            raise TocsinError("a placement needs nodes with distinct names")
        self.nodes: list[str] = names
        self.loads: Numbers = np.zeros(len(names))
        """The total cost of the units on each node."""
        self.counts: Counts = np.zeros(len(names), np.int64)
        """The number of units on each node."""
        self._members: list[dict[str, Unit]] = [{} for _ in names]
        self._assignment: dict[str, int] = {}
        self._types: dict[str, int] = {}
        self._filters: dict[tuple[str, Hashable], int] = {}
        self._rates: list[float] = []
        self._readers: Matrix = np.zeros((16, len(names)), np.int32)
        self._whole: Matrix = np.zeros((16, len(names)), np.int32)
        self._rest: Matrix = np.zeros((16, len(names)))
        self._filter_counts: Matrix = np.zeros((16, len(names)), np.int32)

    def __len__(self) -> int:
        return len(self._assignment)

    def __contains__(self, name: str) -> bool:
        return name in self._assignment

    @property
    def assignment(self) -> dict[str, str]:
        """The name of the node of each unit, by the name of the unit."""
        return {name: self.nodes[node] for name, node in self._assignment.items()}

    def units_of(self, node: int) -> list[Unit]:
        """Return the units on `node`, in the order in which they were added."""
        return list(self._members[node].values())

    def node_of(self, name: str) -> int:
        """Return the index of the node on which the unit `name` runs."""
        return self._assignment[name]

    def unit(self, name: str) -> Unit:
        """Return the placed unit with the name `name`."""
        return self._members[self._assignment[name]][name]

    def number(self, node: str) -> int:
        """Return the index of the node with the name `node`."""
        if node not in self.nodes:
            raise TocsinError(f"there is no node '{node}'")
        return self.nodes.index(node)

    def add(self, unit: Unit, node: int) -> None:
        """Place the new unit `unit` on `node`."""
        if unit.name in self._assignment:
            raise TocsinError(f"'{unit.name}' is placed already")
        self._assignment[unit.name] = node
        self._members[node][unit.name] = unit
        self.loads[node] += unit.cost
        self.counts[node] += 1
        for source in unit.inputs:
            row, filter_row = self._rows(source)
            self._rates[row] = source.rate
            self._readers[row, node] += 1
            self._filter_counts[filter_row, node] += 1
            if self._filter_counts[filter_row, node] == 1:
                if source.passing == 1:
                    self._whole[row, node] += 1
                else:
                    self._rest[row, node] += math.log1p(-source.passing)

    def remove(self, name: str) -> Unit:
        """Remove the unit `name` from its node, and return the unit."""
        node = self._assignment.pop(name)
        unit = self._members[node].pop(name)
        self.counts[node] -= 1
        self.loads[node] = self.loads[node] - unit.cost if self.counts[node] else 0.0
        for source in unit.inputs:
            row, filter_row = self._rows(source)
            self._readers[row, node] -= 1
            self._filter_counts[filter_row, node] -= 1
            if self._filter_counts[filter_row, node] == 0:
                if source.passing == 1:
                    self._whole[row, node] -= 1
                else:
                    self._rest[row, node] -= math.log1p(-source.passing)
            if self._readers[row, node] == 0:  # remove rounding errors of the sum of logarithms
                self._rest[row, node] = 0.0
        return unit

    def move(self, name: str, node: int) -> Move:
        """Move the unit `name` to `node`, and return the move."""
        source = self._assignment[name]
        self.add(self.remove(name), node)
        return Move(name, self.nodes[source], self.nodes[node])

    def update_costs(self, costs: Mapping[str, float]) -> None:
        """Set the costs of units to the measured `costs`. Other units keep their costs."""
        for name, cost in costs.items():
            node = self._assignment.get(name)
            if node is None:
                raise TocsinError(f"'{name}' is not placed")
            old = self._members[node][name]
            self._members[node][name] = Unit(name, cost, old.inputs)
        self.loads = np.array([math.fsum(unit.cost for unit in members.values()) for members in self._members])

    def join(self, node: str) -> int:
        """Add a node without units, and return its index."""
        if node in self.nodes:
            raise TocsinError(f"there is a node '{node}' already")
        self.nodes.append(node)
        self._members.append({})
        self.loads = np.append(self.loads, 0.0)
        self.counts = np.append(self.counts, 0)
        for matrix in ("_readers", "_whole", "_rest", "_filter_counts"):
            old = getattr(self, matrix)
            setattr(self, matrix, np.hstack([old, np.zeros((len(old), 1), old.dtype)]))
        return len(self.nodes) - 1

    def leave(self, node: str) -> list[Unit]:
        """Remove a node, and return the units that were on it."""
        number = self.number(node)
        if len(self.nodes) == 1:
            raise TocsinError("the last node cannot leave")
        units = [self.remove(name) for name in list(self._members[number])]
        del self.nodes[number], self._members[number]
        self._assignment = {name: home - (home > number) for name, home in self._assignment.items()}
        self.loads = np.delete(self.loads, number)
        self.counts = np.delete(self.counts, number)
        for matrix in ("_readers", "_whole", "_rest", "_filter_counts"):
            setattr(self, matrix, np.delete(getattr(self, matrix), number, axis=1))
        return units

    def common(self, types: Iterable[str]) -> Counts:
        """Return for each node how many of `types` it already reads."""
        rows = [self._types[type] for type in types if type in self._types]
        counts: Counts = (self._readers[rows] > 0).sum(axis=0)
        return counts

    def extra(self, units: Iterable[Unit]) -> Numbers:
        """Return for each node how many more events per second it would receive if it also ran `units`."""
        added: dict[int, Matrix] = {}
        seen: set[int] = set()
        for source in (source for unit in units for source in unit.inputs):
            row, filter_row = self._rows(source)
            if filter_row not in seen:
                seen.add(filter_row)
                share = math.log1p(-source.passing) if source.passing < 1 else -math.inf
                added[row] = added.get(row, 0.0) + np.where(self._filter_counts[filter_row] > 0, 0.0, share)
        total: Numbers = np.zeros(len(self.nodes))
        for row, logarithm in added.items():
            total += self._rates[row] * self._unsent(row) * -np.expm1(logarithm)
        return total

    def sent(self) -> dict[str, Numbers]:
        """Return for each type how many events per second each node receives."""
        return {type: self._rates[row] * (1 - self._unsent(row)) for type, row in self._types.items()}

    def readers(self) -> dict[str, int]:
        """Return for each type how many nodes read it. Types that no node reads are omitted."""
        readers = (self._readers > 0).sum(axis=1)
        return {type: int(readers[row]) for type, row in self._types.items() if readers[row]}

    def _unsent(self, row: int) -> Numbers:
        unsent: Numbers = np.where(self._whole[row] > 0, 0.0, np.exp(self._rest[row]))
        return unsent

    def _rows(self, source: Input) -> tuple[int, int]:
        """Return the matrix rows for the type and for the filter of an input.

        All inputs that read every event of a type have the same filter.
        """
        row = self._types.setdefault(source.type, len(self._types))
        if row == len(self._rates):
            self._rates.append(source.rate)
            if row == len(self._readers):
                self._readers, self._whole, self._rest = map(_doubled, (self._readers, self._whole, self._rest))
        key = (source.type, None if source.passing == 1 else (source.passing, source.filter))
        filter_row = self._filters.setdefault(key, len(self._filters))
        if filter_row == len(self._filter_counts):
            self._filter_counts = _doubled(self._filter_counts)
        return row, filter_row


def _doubled(matrix: Matrix) -> Matrix:
    return np.vstack([matrix, np.zeros_like(matrix)])


def duplication(placement: Placement) -> float:
    """Return the mean number of nodes that receive an event, over all types that are read; 1 means no duplication.

    As in the VISIRI paper (Sections 3.2 and 4.2), a node that reads a type receives all of its events, and all types
    have the same rate.

    >>> from tocsin.plans.placement import Input, Placement, Unit
    >>> placement = Placement(2)
    >>> for name, type, node in (("q1", "a", 0), ("q2", "a", 1), ("q3", "b", 1)):
    ...     placement.add(Unit(name, 1.0, (Input(type),)), node)
    >>> duplication(placement)
    1.5
    """
    readers = placement.readers()
    return sum(readers.values()) / len(readers) if readers else 0.0


def traffic(placement: Placement) -> float:
    """Return how many events per second the dispatcher sends to all nodes, based on the rates and filters of inputs."""
    return float(sum(sent.sum() for sent in placement.sent().values()))


def variance(placement: Placement) -> float:
    """Return the variance of the loads of the nodes."""
    return float(placement.loads.var())


def throughput(events: float, busy: Iterable[float]) -> float:
    """Return the number of events per unit of time, where `busy` are the times that each node needs for `events`.

    Nodes run in parallel, so the result is `events` divided by the time of the slowest node.
    """
    return events / float(np.max(list(busy)))
