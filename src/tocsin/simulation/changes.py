"""What does each processor have to be told when sites change? Who leaves, whose trees are concerned, what is new there.

In a single tree every change concerns the tree. Otherwise a sink concerns the tree of its processor, a link those trees
whose shortest paths it changes, and a source or a processor that comes or goes all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from tocsin.errors import TocsinError
from tocsin.language.rules import Pattern
from tocsin.overlay.sites import Link, Sites, place
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.versions import Change


def announced(number: int, at_us: int, before: Sites, after: Sites, strategy: Strategy) -> dict[str, Change]:
    """The change from one state of the sites to another, for each processor that is there before or after."""
    old, new = set(before.processors), set(after.processors)
    left = frozenset(old - new)
    for name in sorted(left):
        if not any(here == name and there in new for here, there in before.delays_us):
            raise TocsinError(f"{name} cannot leave: none of its neighbours stays")
    roots = frozenset(place(sink) for sink in after.sinks)
    trees = None if strategy.single else _concerned(before, after)
    built = frozenset() if strategy.single else roots if trees is None else roots & trees
    told = {}
    for name in sorted(old | new):
        links = {there: delay_us for (here, there), delay_us in after.delays_us.items() if here == name}
        offers = {"": after.sources[name]} if name in after.sources else {}
        told[name] = Change(number, at_us, links, offers, _at(after, name), left, trees, built)
    return told


def _at(sites: Sites, name: str) -> dict[str, tuple[Pattern, ...]]:
    return {sink: wanted for sink, wanted in sites.sinks.items() if place(sink) == name}


def _concerned(before: Sites, after: Sites) -> frozenset[str] | None:
    if before.processors != after.processors or before.sources != after.sources:
        return None
    roots = {place(sink) for sites in (before, after) for sink in sites.sinks}
    return frozenset(
        root
        for root in roots
        if _at(before, root) != _at(after, root) or fathers(before.delays_us, root) != fathers(after.delays_us, root)
    )


def fathers(delays_us: Mapping[Link, int], root: str) -> dict[str, tuple[str, int]]:
    """The shortest paths to a root as the protocol finds them: the father of each processor, and how far the root is.

    >>> fathers({("a", "b"): 1, ("b", "a"): 1, ("b", "c"): 2, ("c", "b"): 2}, "a")
    {'b': ('a', 1), 'c': ('b', 3)}
    """
    found: dict[str, tuple[str, int]] = {}
    waiting = [(0, "", root)]
    neighbours: dict[str, list[tuple[str, int]]] = {}
    for (here, there), delay_us in delays_us.items():
        neighbours.setdefault(here, []).append((there, delay_us))
    while waiting:
        distance_us, father, name = heapq.heappop(waiting)
        if name in found:
            continue
        found[name] = (father, distance_us)
        for there, delay_us in neighbours.get(name, ()):
            if there not in found:
                heapq.heappush(waiting, (distance_us + delay_us, name, there))
    del found[root]
    return found
