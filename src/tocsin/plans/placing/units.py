"""What is placed? Units of work that stay whole, and what each of them reads."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


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
