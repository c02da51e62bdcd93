"""Define the topology of sites, and the deployment strategies of T-Rex (Sections 3.2, 3.5 and 4).

A `Strategy` says which processing trees are built, whether rules are split over the processors of a tree, and whether
events are pushed or pulled. Processors use the same protocol for all strategies. `Sites` describes the links, sources
and sinks of a topology.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tocsin.errors import TocsinError, nearest
from tocsin.language.syntax.ast import Pattern

Link = tuple[str, str]
"""The names of the sender and the receiver."""


@dataclass(frozen=True)
class Sites:
    """A topology of processors with sources and sinks.

    `delays_us` has the delay (µs) of each link, in both directions. `sources` has the event types that sources at each
    processor publish. `sinks` has the subscriptions of each sink. A sink has the name of its processor, or, if the
    processor has several sinks, the names of processor and sink with a slash in between.
    """

    delays_us: Mapping[Link, int]
    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sinks: Mapping[str, tuple[Pattern, ...]] = field(default_factory=dict)

    @property
    def processors(self) -> list[str]:
        return sorted(
            {name for link in self.delays_us for name in link} | {*self.sources} | {processor_of(s) for s in self.sinks}
        )

    def links(self, name: str) -> dict[str, int]:
        """Return the delay (µs) from processor `name` to each neighbour."""
        return {there: delay for (here, there), delay in self.delays_us.items() if here == name}

    @cached_property
    def diameter(self) -> int:
        """The largest number of links on a path with the shortest delay between two processors."""
        most = 0
        for root in self.processors:
            best = {root: (0, 0)}
            for _ in self.processors:
                for (here, there), delay_us in self.delays_us.items():
                    if here in best:
                        way = (best[here][0] + delay_us, best[here][1] - 1)
                        best[there] = min(best.get(there, way), way)
            most = max(most, *(-links for _, links in best.values()))
        return most


def processor_of(sink: str) -> str:
    """Return the name of the processor of a sink, for example `7` for the sink `7/door`."""
    return sink.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A deployment strategy.

    If `single`, there is one tree whose root is an elected leader; otherwise each processor with sinks is the root of a
    tree. If `splits`, rules are split into partial rules that processors on the path to the root decide; otherwise all
    events go to the root. If `pulls`, events of slaves are retained until an event of the master requests them. If
    `eager`, each rule has a master, the partial rule with the lowest rate, even if pushing all events costs less. If
    `aggregates`, processors on the path to the root combine partial results (`plans.partial_aggregates`).
    """

    name: str
    single: bool
    splits: bool
    pulls: bool
    eager: bool = False
    aggregates: bool = False


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("Centr", single=True, splits=False, pulls=False),
        Strategy("ST", single=True, splits=True, pulls=False),
        Strategy("MT", single=False, splits=True, pulls=False),
        Strategy("STpp", single=True, splits=True, pulls=True),
        Strategy("MTpp", single=False, splits=True, pulls=True),
    )
}
"""The five strategies that the paper compares."""
AGGREGATES = "+aggregates"


def strategy(name: str) -> Strategy:
    """Return the strategy called `name`, in upper or lower case.

    With the suffix `+aggregates`, the strategy also computes partial aggregates at each processor.

    >>> strategy("mt+aggregates").name
    'MT+aggregates'
    """
    base, aggregates = name.lower().removesuffix(AGGREGATES), name.lower().endswith(AGGREGATES)
    value = {known.lower(): value for known, value in STRATEGIES.items()}.get(base)
    if value is not None and aggregates and not value.splits:
        raise TocsinError(f"{value.name} sends all events to the root, so no aggregate is computed on the way")
    if value is not None and aggregates:
        return replace(value, name=value.name + AGGREGATES, aggregates=True)
    if value is None:
        raise TocsinError(f"there is no strategy '{name}'. {nearest(name, STRATEGIES)}")
    return value
