"""Which unit is on which node, and what does each node carry and read?

Placers ask the same things of all nodes at once: how much each carries, which read a type already, how many more events
a second would be sent to each. So this is kept as matrices with a column for each node, and adding, moving or removing
a unit touches one column: time linear in its inputs. Memory is (types + distinct filters) × nodes.

Of the events of a type, a node that holds independent filters with shares p, q, … needs all but (1 − p)(1 − q)…; the
matrix keeps the logarithm of that rest, so that a filter can leave again.

What is placed? Units of work that stay whole, and what each of them reads.

How good is a placement? Copies of events, evenness of loads, and the throughput that follows from busy times.
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
    """Events that a unit reads: their type, how many there are a second, and the share that its filter lets pass.

    Equal filters of one type let the same events pass; different ones are taken to be independent. Without a share
    the dispatcher sends every event of the type.
    """

    type: str
    rate: float = 1.0
    passing: float = 1.0
    filter: Hashable = None

    def __post_init__(self) -> None:
        if not 0 <= self.passing <= 1 or not 0 <= self.rate < float("inf"):
            raise ValueError("rate must not be negative, and passing is a share between 0 and 1")


@dataclass(frozen=True, slots=True)
class Unit:
    """A query, or rules that stay together: a name, what it costs a node, and what it reads."""

    name: str
    cost: float
    inputs: tuple[Input, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.cost < float("inf"):
            raise ValueError("a cost is a number that is not negative")

    @property
    def types(self) -> tuple[str, ...]:
        """The event types that it reads, each once, in order."""
        return tuple(dict.fromkeys(source.type for source in self.inputs))


@dataclass(frozen=True, slots=True)
class Move:
    """A unit that leaves one node for another."""

    unit: str
    source: str
    target: str


Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Matrix = npt.NDArray[Any]


class Placement:
    """Units on named nodes. Nodes are asked for by number, their place in `nodes`."""

    def __init__(self, nodes: Sequence[str] | int) -> None:
        names = [f"node{number}" for number in range(1, nodes + 1)] if isinstance(nodes, int) else list(nodes)
        if not names or len(set(names)) != len(names):
            raise TocsinError("a placement needs nodes, each with a name of its own")
        self.nodes: list[str] = names
        self.loads: Numbers = np.zeros(len(names))
        """The total cost of each node's units."""
        self.counts: Counts = np.zeros(len(names), np.int64)
        """How many units each node has."""
        self._members: list[dict[str, Unit]] = [{} for _ in names]
        self._homes: dict[str, int] = {}
        self._types: dict[str, int] = {}
        self._filters: dict[tuple[str, Hashable], int] = {}
        self._rates: list[float] = []
        self._readers: Matrix = np.zeros((16, len(names)), np.int32)
        self._whole: Matrix = np.zeros((16, len(names)), np.int32)
        self._rest: Matrix = np.zeros((16, len(names)))
        self._held: Matrix = np.zeros((16, len(names)), np.int32)

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, name: str) -> bool:
        return name in self._homes

    @property
    def homes(self) -> dict[str, str]:
        """The node of each unit, by name."""
        return {name: self.nodes[node] for name, node in self._homes.items()}

    def units_of(self, node: int) -> list[Unit]:
        """The units on a node, in the order in which they came."""
        return list(self._members[node].values())

    def node_of(self, name: str) -> int:
        """The number of a unit's node."""
        return self._homes[name]

    def unit(self, name: str) -> Unit:
        """A unit that is placed."""
        return self._members[self._homes[name]][name]

    def number(self, node: str) -> int:
        """The number of a node."""
        if node not in self.nodes:
            raise TocsinError(f"there is no node '{node}'")
        return self.nodes.index(node)

    def add(self, unit: Unit, node: int) -> None:
        """Puts a new unit on a node."""
        if unit.name in self._homes:
            raise TocsinError(f"'{unit.name}' is placed already")
        self._homes[unit.name] = node
        self._members[node][unit.name] = unit
        self.loads[node] += unit.cost
        self.counts[node] += 1
        for source in unit.inputs:
            row, held = self._rows(source)
            self._rates[row] = source.rate
            self._readers[row, node] += 1
            self._held[held, node] += 1
            if self._held[held, node] == 1:
                if source.passing == 1:
                    self._whole[row, node] += 1
                else:
                    self._rest[row, node] += math.log1p(-source.passing)

    def remove(self, name: str) -> Unit:
        """Takes a unit away."""
        node = self._homes.pop(name)
        unit = self._members[node].pop(name)
        self.counts[node] -= 1
        self.loads[node] = self.loads[node] - unit.cost if self.counts[node] else 0.0
        for source in unit.inputs:
            row, held = self._rows(source)
            self._readers[row, node] -= 1
            self._held[held, node] -= 1
            if self._held[held, node] == 0:
                if source.passing == 1:
                    self._whole[row, node] -= 1
                else:
                    self._rest[row, node] -= math.log1p(-source.passing)
            if self._readers[row, node] == 0:  # no remainder of sums of logarithms
                self._rest[row, node] = 0.0
        return unit

    def move(self, name: str, node: int) -> Move:
        """Brings a unit to another node."""
        source = self._homes[name]
        self.add(self.remove(name), node)
        return Move(name, self.nodes[source], self.nodes[node])

    def cost_again(self, costs: Mapping[str, float]) -> None:
        """Gives units the costs that were measured; those that are not named keep theirs."""
        for name, cost in costs.items():
            node = self._homes.get(name)
            if node is None:
                raise TocsinError(f"'{name}' is not placed")
            old = self._members[node][name]
            self._members[node][name] = Unit(name, cost, old.inputs)
        self.loads = np.array([math.fsum(unit.cost for unit in members.values()) for members in self._members])

    def join(self, node: str) -> int:
        """A new node without units; its number."""
        if node in self.nodes:
            raise TocsinError(f"there is a node '{node}' already")
        self.nodes.append(node)
        self._members.append({})
        self.loads = np.append(self.loads, 0.0)
        self.counts = np.append(self.counts, 0)
        for matrix in ("_readers", "_whole", "_rest", "_held"):
            old = getattr(self, matrix)
            setattr(self, matrix, np.hstack([old, np.zeros((len(old), 1), old.dtype)]))
        return len(self.nodes) - 1

    def leave(self, node: str) -> list[Unit]:
        """Takes a node away; the units that it had."""
        number = self.number(node)
        if len(self.nodes) == 1:
            raise TocsinError("the last node cannot leave")
        units = [self.remove(name) for name in list(self._members[number])]
        del self.nodes[number], self._members[number]
        self._homes = {name: home - (home > number) for name, home in self._homes.items()}
        self.loads = np.delete(self.loads, number)
        self.counts = np.delete(self.counts, number)
        for matrix in ("_readers", "_whole", "_rest", "_held"):
            setattr(self, matrix, np.delete(getattr(self, matrix), number, axis=1))
        return units

    def common(self, types: Iterable[str]) -> Counts:
        """How many of these types each node reads already."""
        rows = [self._types[type] for type in types if type in self._types]
        found: Counts = (self._readers[rows] > 0).sum(axis=0)
        return found

    def extra(self, units: Iterable[Unit]) -> Numbers:
        """How many more events a second would be sent to each node if it had these units."""
        added: dict[int, Matrix] = {}
        seen: set[int] = set()
        for source in (source for unit in units for source in unit.inputs):
            row, held = self._rows(source)
            if held not in seen:
                seen.add(held)
                share = math.log1p(-source.passing) if source.passing < 1 else -math.inf
                added[row] = added.get(row, 0.0) + np.where(self._held[held] > 0, 0.0, share)
        total: Numbers = np.zeros(len(self.nodes))
        for row, logarithm in added.items():
            total += self._rates[row] * self._unsent(row) * -np.expm1(logarithm)
        return total

    def sent(self) -> dict[str, Numbers]:
        """How many events a second of each type are sent to each node."""
        return {type: self._rates[row] * (1 - self._unsent(row)) for type, row in self._types.items()}

    def readers(self) -> dict[str, int]:
        """How many nodes read each type that any node reads."""
        readers = (self._readers > 0).sum(axis=1)
        return {type: int(readers[row]) for type, row in self._types.items() if readers[row]}

    def _unsent(self, row: int) -> Numbers:
        unsent: Numbers = np.where(self._whole[row] > 0, 0.0, np.exp(self._rest[row]))
        return unsent

    def _rows(self, source: Input) -> tuple[int, int]:
        """The row of an input's type and that of its filter; every input that takes all of a type has one filter."""
        row = self._types.setdefault(source.type, len(self._types))
        if row == len(self._rates):
            self._rates.append(source.rate)
            if row == len(self._readers):
                self._readers, self._whole, self._rest = map(_doubled, (self._readers, self._whole, self._rest))
        key = (source.type, None if source.passing == 1 else (source.passing, source.filter))
        held = self._filters.setdefault(key, len(self._filters))
        if held == len(self._held):
            self._held = _doubled(self._held)
        return row, held


def _doubled(matrix: Matrix) -> Matrix:
    return np.vstack([matrix, np.zeros_like(matrix)])


def duplication(placement: Placement) -> float:
    """To how many nodes an event goes, on the average over the types that are read; 1 is none twice.

    As in the paper: a node that reads a type gets all of it, and all types come equally often (Sections 3.2 and 4.2).

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
    """How many events a second the dispatcher sends, with the inputs' rates and filters."""
    return float(sum(sent.sum() for sent in placement.sent().values()))


def variance(placement: Placement) -> float:
    """The variance of the nodes' total cost."""
    return float(placement.loads.var())


def throughput(events: float, busy: Iterable[float]) -> float:
    """Events ÷ the largest busy time of a node: all nodes work at once, and the slowest is waited for."""
    return events / float(np.max(list(busy)))
