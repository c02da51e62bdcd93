"""Which trees are there, what goes down them, and are events sent at once or when asked for? (T-Rex, 3.2, 3.5 and 4)

The protocol is one; a strategy is three words of data.

Who is where? Links between sites, and the sources and sinks at them; data that all hosts of processors share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tocsin.errors import TocsinError, nearest
from tocsin.language.syntax.ast import Pattern

Link = tuple[str, str]
"""The processor that sends, the one that receives."""


@dataclass(frozen=True)
class Sites:
    """Who is where: delays of links in both directions (µs), the types that sources at each processor publish, what
    sinks want (several sinks at a processor are told apart by what comes after a slash)."""

    delays_us: Mapping[Link, int]
    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sinks: Mapping[str, tuple[Pattern, ...]] = field(default_factory=dict)

    @property
    def processors(self) -> list[str]:
        return sorted(
            {name for link in self.delays_us for name in link} | {*self.sources} | {place(s) for s in self.sinks}
        )

    def links(self, name: str) -> dict[str, int]:
        """The neighbours of a processor, with the delays to them."""
        return {there: delay for (here, there), delay in self.delays_us.items() if here == name}

    @cached_property
    def reach(self) -> int:
        """The most links of any shortest way."""
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


def place(sink: str) -> str:
    """The processor of a sink: `7/door` is at 7."""
    return sink.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Strategy:
    """`single`: one tree, of an elected leader, else one for each processor with sinks. `splits`: rules are split and
    decided on the way, else all events go to the root. `pulls`: events of slave rules stay until they are asked for.
    `eager`: there is always a master, the one with the lowest rate, even where pushing everything would cost less.
    `tallies`: aggregates are worked out where the events are (`plans.tallies`).
    """

    name: str
    single: bool
    splits: bool
    pulls: bool
    eager: bool = False
    tallies: bool = False


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
"""The five that the paper compares."""
TALLY = "+tally"


def strategy(name: str) -> Strategy:
    """The strategy of a name, in any case; with `+tally` behind it aggregates are worked out on the way.

    >>> strategy("mt+tally").name
    'MT+tally'
    """
    base, tallies = name.lower().removesuffix(TALLY), name.lower().endswith(TALLY)
    found = {known.lower(): value for known, value in STRATEGIES.items()}.get(base)
    if found is not None and tallies and not found.splits:
        raise TocsinError(f"{found.name} sends all events to one place, so nothing is worked out on the way")
    if found is not None and tallies:
        return replace(found, name=found.name + TALLY, tallies=True)
    if found is None:
        raise TocsinError(f"there is no strategy '{name}'. {nearest(name, STRATEGIES)}")
    return found
