"""What is measured? Trees of the same leaves in two shapes, instances spread over their leaves, and a clock.

    balanced   ((e1 & e2) & (e3 & e4)) & ((e5 & e6) & (e7 & e8))
    backbone   ((((((e1 & e2) & e3) & e4) & e5) & e6) & e7) & e8

`e1` is as deep as a leaf can be, and arrives last: it is what the notification waits for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from time import process_time
from typing import NamedTuple, TypeVar

import pyarrow as pa

from tocsin.events.types import Event
from tocsin.language.eps import text as eps
from tocsin.language.eps.ast import Request
from tocsin.reference.patterns import Fact, identified

T = TypeVar("T")

LEAVES = tuple(f"e{number}" for number in range(1, 9))
SHAPES = ("balanced", "backbone")
STEP_US = 1_000
"""The time from one instance to the next."""


class Instance(NamedTuple):
    """A primitive instance: `k` is what equalities join, `v` what tests on one leaf look at."""

    type: str
    ts: int
    k: int
    v: int = 0


def tree(shape: str, operator: str = "&", leaves: Sequence[str] = LEAVES) -> str:
    """The expression of a shape. For `;` it is turned round, so that the first leaf is the last to occur.

    >>> tree("balanced", leaves=("a", "b", "c", "d"))
    '(a & b) & (c & d)'
    >>> tree("backbone", ";", ("a", "b", "c"))
    'c ; (b ; a)'
    """
    if len(leaves) == 1:
        return leaves[0]
    middle = len(leaves) // 2 if shape == "balanced" else len(leaves) - 1
    parts = [_grouped(tree(shape, operator, some)) for some in (leaves[:middle], leaves[middle:])]
    return f" {operator} ".join(reversed(parts) if operator == ";" else parts)


def _grouped(text: str) -> str:
    return f"({text})" if " " in text else text


def declared(leaves: Iterable[str] = LEAVES) -> str:
    """The event types of the leaves, so that nothing is learned about them while times are taken."""
    return "".join(f"event {leaf}(k: long, v: long)\n" for leaf in leaves)


def equal(leaves: Sequence[str] = LEAVES) -> str:
    """The condition that all leaves have the same `k`."""
    return " and ".join(f"{leaves[0]}.k = {leaf}.k" for leaf in leaves[1:])


def stored(counts: Sequence[int]) -> list[Instance]:
    """So many instances at `e2`, `e3`, …, those of `e8` first; those of a leaf have the `k` 0, 1, 2, …"""
    leaves = reversed([*zip(LEAVES[1:], counts, strict=True)])
    values = [(leaf, k) for leaf, count in leaves for k in range(count)]
    return [Instance(leaf, n * STEP_US, k) for n, (leaf, k) in enumerate(values)]


def requests(text: str) -> list[Request]:
    """The requests of a text."""
    return [rule for rule in eps.parse(text).rules if isinstance(rule, Request)]


def facts(instances: Iterable[Instance]) -> list[Fact]:
    """Instances as the reference and the trees take them."""
    return identified(Event(one.type, one.ts, {"k": one.k, "v": one.v}) for one in instances)


def table(instances: Sequence[Instance]) -> pa.Table:
    """Instances as a detector takes them."""
    columns = list(zip(*instances, strict=True))
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.int64())
    return pa.table({name: pa.array(columns[n], kinds[n]) for n, name in enumerate(Instance._fields)})


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """How long a call takes, in seconds of this process: others that use the machine do not count."""
    gc.disable()
    try:
        start = process_time()
        result = call()
        return process_time() - start, result
    finally:
        gc.enable()
