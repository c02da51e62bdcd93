"""Who is where? Links between sites, and the sources and sinks at them; data that all hosts of processors share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tocsin.language.rules import Pattern

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
