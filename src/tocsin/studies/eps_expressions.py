"""Build the expressions and instances of the EPS study, and measure times.

An expression is a tree over eight event types, its leaves. It has one of two shapes:

    balanced   ((e1 & e2) & (e3 & e4)) & ((e5 & e6) & (e7 & e8))
    backbone   ((((((e1 & e2) & e3) & e4) & e5) & e6) & e7) & e8

An instance is an event of a leaf's type. `e1` is one of the deepest leaves, and its instance arrives last, so that the
notification follows.
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
"""The time from one instance to the next (µs)."""


class PrimitiveInstance(NamedTuple):
    """An instance of a leaf. Conditions that join leaves compare `k`, and conditions on one leaf compare `v`."""

    type: str
    ts: int
    k: int
    v: int = 0


def tree(shape: str, operator: str = "&", leaves: Sequence[str] = LEAVES) -> str:
    """Return an expression over `leaves` in the given shape. For `;` the order is reversed, so the first leaf is last.

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
    """Return declarations of the leaves' event types, so that no type is inferred during measurements."""
    return "".join(f"event {leaf}(k: long, v: long)\n" for leaf in leaves)


def equal(leaves: Sequence[str] = LEAVES) -> str:
    """Return the condition that all leaves have the same `k`."""
    return " and ".join(f"{leaves[0]}.k = {leaf}.k" for leaf in leaves[1:])


def stored(counts: Sequence[int]) -> list[PrimitiveInstance]:
    """Return instances of the leaves `e2` to `e8`, as many of each leaf as `counts` says.

    The instances of `e8` come first, and the instances of each leaf have `k` = 0, 1, 2, …
    """
    leaves = reversed([*zip(LEAVES[1:], counts, strict=True)])
    values = [(leaf, k) for leaf, count in leaves for k in range(count)]
    return [PrimitiveInstance(leaf, n * STEP_US, k) for n, (leaf, k) in enumerate(values)]


def requests(text: str) -> list[Request]:
    """Parse `text` and return its requests."""
    return [rule for rule in eps.parse(text).rules if isinstance(rule, Request)]


def facts(instances: Iterable[PrimitiveInstance]) -> list[Fact]:
    """Convert instances to facts, which the reference and the trees of `eps_tree` read."""
    return identified(Event(one.type, one.ts, {"k": one.k, "v": one.v}) for one in instances)


def table(instances: Sequence[PrimitiveInstance]) -> pa.Table:
    """Convert instances to a table, which a detector reads."""
    columns = list(zip(*instances, strict=True))
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.int64())
    return pa.table({name: pa.array(columns[n], kinds[n]) for n, name in enumerate(PrimitiveInstance._fields)})


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Run `call` and return its processor time in seconds, and its result."""
    gc.disable()
    try:
        start = process_time()
        result = call()
        return process_time() - start, result
    finally:
        gc.enable()
