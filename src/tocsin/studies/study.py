"""What is a study made of? Figures; each of these of independent runs that are measured, drawn and judged.

A run is plain data (`Settings`) and what is measured is plain data too (`Row`), so that runs can be sent anywhere and
the CSV of a figure has all that its picture and its claims are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

T = TypeVar("T")
Value = str | int | float | bool
Settings = Mapping[str, Value]
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run: `quick` for a look, `full` for the paper's own sizes, neither for what lies between."""

    quick: bool = False
    full: bool = False
    seeds: int = 3
    trace: str | None = None
    """A file with the ways of cars, where a study would draw them."""

    def pick(self, quick: T, usual: T, full: T) -> T:
        """The one of three that this scale asks for."""
        return quick if self.quick else full if self.full else usual


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that a paper, or this project, says, and what was measured."""

    id: str
    holds: bool
    measured: str

    def __str__(self) -> str:
        return f"CLAIM {self.id}  {'holds' if self.holds else 'fails'}  measured {self.measured}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its runs, how one is measured, and what its rows are drawn and judged as.

    `measure` is a function of a module, so that workers can find it. `alone`: it takes times, so nothing runs beside
    it; others are spread over Spark's tasks.
    """

    name: str
    title: str
    claims: tuple[str, ...]
    runs: Callable[[Scale], Sequence[Settings]]
    measure: Callable[[Settings], Sequence[Row]]
    draw: Callable[[Sequence[Row], Canvas], None]
    judge: Callable[[Sequence[Row]], Iterable[Claim]]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Study:
    """The evaluation of one paper."""

    name: str
    title: str
    figures: tuple[Figure, ...]
