"""What does a change cost? A network whose sites become others at one event time, and what that took.

Everything before that time has been published. Messages that follow from the change alone are counted: what sets up
trees, tables and rules, and events that are sent again for windows that reach back. The time is that until nothing is
under way any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay import messages as m
from tocsin.overlay.processor import Processor
from tocsin.overlay.sites import Sites
from tocsin.overlay.strategies import Strategy
from tocsin.simulation.changes import announced
from tocsin.simulation.network import Network

SECOND_US = 1_000_000


@dataclass(frozen=True)
class Repair:
    """When it was, how many messages set things up, how many times an event went over a link again, and how long it
    took."""

    at_s: float
    messages: int
    events: int
    time_ms: float


def repaired(
    network: Network,
    number: int,
    at_us: int,
    before: Sites,
    after: Sites,
    strategy: Strategy,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
    period_us: int,
) -> Repair:
    """Changes a network that has published everything before a time."""
    counts: Counter[str] = Counter()
    watch = network.watch

    def counting(sender: str, receiver: str, message: m.Message) -> None:
        watch(sender, receiver, message)
        counts[type(message).__name__] += message.batch.num_rows if isinstance(message, m.Events) else 1

    network.watch = counting
    network.delays_us = {**network.delays_us, **after.delays_us}
    told = announced(number, at_us, before, after, strategy)
    start_us = network.now_us
    for name, change in told.items():
        if name not in network.processors:
            network.processors[name] = Processor(
                name, {}, strategy, types, rules, period_us=period_us, joins=number
            )  # fmt: skip
        network.processors[name].change(change)
    network.run()
    network.watch = watch
    aside = ("Events", "Matches", "Progress")
    messages = sum(count for kind, count in counts.items() if kind not in aside)
    return Repair(at_us / SECOND_US, messages, counts["Events"], (network.now_us - start_us) / 1000)
