"""When is it no use to look for garbage? While many objects are made and all kept, and among those that are known.

Rules by the thousand are made and kept. And PySpark's daemon has each of its workers look through all of its objects
after every task, which for the modules alone takes as long as the detection of a million events: `settle` spares it
those that were there before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

UNSETTLED_MAX = 10_000
"""So many objects are looked through within a millisecond or two."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Without looking for cycles, thousands of rules are read, bound and sent in half the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def settle() -> None:
    """Takes all objects out of later searches for garbage, after one that looks at all of them, if many are new.

    Not where nobody looks for garbage.
    """
    if gc.isenabled() and _many():
        gc.collect()
        if _many():
            gc.unfreeze()
            gc.collect()
            gc.freeze()


def _many() -> bool:
    return len(gc.get_objects()) > UNSETTLED_MAX


def settling(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """The function of a task, after which all settles."""

    def run(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        yield from function(*args, **kwargs)
        settle()

    return run
