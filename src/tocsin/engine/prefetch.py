"""Work that may be done elsewhere, on another core, before its result is asked for. Who has such a core says how; here
work is done when it is its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

AHEAD = 2
"""How many pieces may be worked on before their turn."""

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
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


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    came: T

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return False

    def result(self) -> T:
        return self.came


def at_its_turn(work: Callable[[], T]) -> Coming[T]:
    """Does the work when its result is asked for."""
    return _InTurn(work)


class Work(Protocol[P_contra, T_co]):
    """Some work on a piece; `ahead`: elsewhere, while the same may be done here for another one."""

    def __call__(self, piece: P_contra, /, *, ahead: bool = False) -> T_co: ...


def through(work: Work[P, T], pieces: Sequence[P], ahead: Ahead) -> Iterator[T]:
    """What comes of each piece. While somebody else is still at the one that is due, the next one is done here."""
    coming: dict[int, Coming[T]] = {}
    for number in range(len(pieces)):
        for later in range(number, min(number + AHEAD + 1, len(pieces))):
            if later not in coming:
                coming[later] = ahead(partial(work, pieces[later], ahead=True))
        following = coming.get(number + 1)
        if following is not None and not coming[number].done() and following.cancel():
            coming[number + 1] = _Done(work(pieces[number + 1]))
        yield coming.pop(number).result()
