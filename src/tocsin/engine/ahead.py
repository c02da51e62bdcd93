"""Work that may be done elsewhere, on another core, before its result is asked for. Who has such a core says how; here
work is done when it is its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Coming(Protocol[T_co]):
    """What comes of some work; a `concurrent.futures.Future` is one."""

    def done(self) -> bool:
        """Whether nobody is at it any more."""
        ...

    def cancel(self) -> bool:
        """Sees to it that the work is not done, unless somebody is at it; whether that is so."""
        ...

    def result(self) -> T_co:
        """What came of it; waits, if need be."""
        ...


class Ahead(Protocol):
    """Begins some work as soon as what it began before is done."""

    def __call__(self, work: Callable[[], T], /) -> Coming[T]: ...


@dataclass(frozen=True, slots=True)
class _InTurn(Generic[T]):
    result: Callable[[], T]

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return True


def at_its_turn(work: Callable[[], T]) -> Coming[T]:
    """Does the work when its result is asked for."""
    return _InTurn(work)
