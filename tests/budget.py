"""How many cases does a test generate, and which?

`make test` generates the same cases on every machine. A sweep (`make sweeps SEED=7 EXAMPLES=1500`) generates others:
`--sweep-seed` says which, `--examples` how many for each test that asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

SEEDS_APART = 1_000_000
"""How far the seeds of two sweeps are apart."""

T = TypeVar("T")

_sweep_seed: int | None = None
_examples: int | None = None


def configure(sweep_seed: int | None, examples: int | None) -> None:
    """Set the options of this run. Test modules are imported later, so their decorators see them."""
    global _sweep_seed, _examples
    _sweep_seed, _examples = sweep_seed, examples


def examples(usual: int) -> int:
    """The number of cases for a test that usually generates so many: `@settings(max_examples=examples(60))`."""
    return usual if _examples is None else _examples


def seeds(usual: range) -> range:
    """The seeds for a test that usually goes through these."""
    first = usual.start if _sweep_seed is None else SEEDS_APART * (1 + _sweep_seed)
    return range(first, first + examples(len(usual)))


def queries(usual: Sequence[T], generated: Callable[[int], T]) -> Sequence[T]:
    """The queries on Spark that a test runs: the usual ones, and in a sweep one generated from each seed."""
    return usual if _sweep_seed is None else [generated(seed) for seed in seeds(range(len(usual)))]
