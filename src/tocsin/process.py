"""Tune garbage collection for bulk loads and Spark workers, and format Prometheus metrics.

`gc_paused` is for bulk loads, such as thousands of rules: there is no garbage to find while all new objects are kept.
`freeze_gc` is for Spark workers. PySpark's daemon makes each worker traverse all of its objects after every task. For
the imported modules alone, this takes as long as the detection of a million events. So existing objects are excluded.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar


def metric(name: str, kind: str, help: str, values: float | Mapping[Any, Any], label: str = "") -> Iterator[str]:
    """Yield the lines of one metric. If `values` is a mapping, each key gives one sample, with the key as `label`.

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

UNFROZEN_MAX = 10_000
"""The number of objects that need not be frozen, because traversing them takes a millisecond or two."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector, so that thousands of rules are read, bound and sent in half the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def freeze_gc() -> None:
    """Collect garbage and freeze all remaining objects, if many objects are not frozen yet.

    Do nothing if garbage collection is disabled.
    """
    if gc.isenabled() and _many():
        gc.collect()
        if _many():
            gc.unfreeze()
            gc.collect()
            gc.freeze()


def _many() -> bool:
    return len(gc.get_objects()) > UNFROZEN_MAX


def freezing_gc(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Wrap the function of a Spark task, so that all objects are frozen when the task ends."""

    def run(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        yield from function(*args, **kwargs)
        freeze_gc()

    return run
