"""When is it no use to look for garbage? While many objects are made and all kept, and among those that are known.

Rules by the thousand are made and kept. And PySpark's daemon has each of its workers look through all of its objects
after every task, which for the modules alone takes as long as the detection of a million events: `settle` spares it
those that were there before.

How does Prometheus read a number? As text: what it is, then its value, or one for each label.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar


def metric(name: str, kind: str, help: str, values: float | Mapping[Any, Any], label: str = "") -> Iterator[str]:
    """The lines of one metric; of a mapping, one for each key.

    >>> print(*metric("rules", "gauge", "Rules deployed.", 3), sep="", end="")
    # HELP tocsin_rules Rules deployed.
    # TYPE tocsin_rules gauge
    tocsin_rules 3
    """
    yield f"# HELP tocsin_{name} {help}\n# TYPE tocsin_{name} {kind}\n"
    if not isinstance(values, Mapping):
        yield f"tocsin_{name} {values}\n"
        return
    for key, value in sorted(values.items()):
        escaped = str(key).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'tocsin_{name}{{{label}="{escaped}"}} {value}\n'


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
