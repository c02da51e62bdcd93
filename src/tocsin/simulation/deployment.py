"""From sources, sinks and rules to processors that are ready: trees are built, then tables, then rules go down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.events.types import EventType
from tocsin.language.rules import Pattern, Rule
from tocsin.overlay import messages as m
from tocsin.overlay.processor import Processor
from tocsin.overlay.strategies import Strategy
from tocsin.simulation.network import Link, Network, Watch


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


def place(sink: str) -> str:
    """The processor of a sink: `7/door` is at 7."""
    return sink.partition("/")[0]


def deployed(
    sites: Sites,
    strategy: Strategy,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    *,
    watch: Watch = lambda sender, receiver, message: None,
    through: Callable[[m.Message], m.Message] = lambda message: message,
    period_us: int = 60_000_000,
) -> Network:
    """A network in which every rule that somebody wants is deployed."""
    processors = {}
    for name in sites.processors:
        links = {there: delay_us for (here, there), delay_us in sites.delays_us.items() if here == name}
        processors[name] = Processor(name, links, strategy, types, rules, period_us=period_us)
    network = Network(processors, sites.delays_us, watch, through)
    if strategy.single:
        for processor in processors.values():
            processor.start()
        network.run()
        leader = min(processor.leader for processor in processors.values())[-1]
        processors[leader].root()
    else:
        for name in sorted({place(sink) for sink in sites.sinks}):
            processors[name].root()
    network.run()
    for name, offered in sorted(sites.sources.items()):
        processors[name].advertise("", offered)
    network.run()
    for sink, wanted in sorted(sites.sinks.items()):
        processors[place(sink)].subscribe(sink, wanted)
    network.run()
    return network
