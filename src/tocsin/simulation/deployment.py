"""From sources, sinks and rules to processors that are ready: trees are built, then tables, then rules go down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay import messages as m
from tocsin.overlay.processor import Processor
from tocsin.overlay.sites import Sites, place
from tocsin.overlay.strategies import Strategy
from tocsin.simulation.network import Network, Watch


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
        processors[name] = Processor(name, sites.links(name), strategy, types, rules, period_us=period_us)
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
