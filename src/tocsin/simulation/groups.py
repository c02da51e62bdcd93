"""What do the groups of a replicated run begin with, and what is asked of them until rules are deployed?

Replicas begin with nothing but rules, types and links. Trees, tables and partial rules come about as everywhere else,
by what processors say to each other, here in rounds and among failures. The host's part is commands, which feeds hand
over like events:

    start, if there is a single tree ─► lead ─► advertise ─► subscribe          or root ─► advertise ─► subscribe

Rounds are the same everywhere, so a host knows without asking when a flood has come to its end: after as many rounds as
the longest of the shortest ways has links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.messages import Command
from tocsin.overlay.strategies import Strategy
from tocsin.simulation.deployment import Sites, place
from tocsin.simulation.sharing import History

Commands = Mapping[str, tuple[Command, ...]]
"""By group."""


@dataclass(frozen=True)
class Setup:
    """Sites, and what is to be deployed at them. Runs can share one."""

    sites: Sites
    strategy: Strategy
    types: Mapping[str, EventType]
    rules: Sequence[Rule]
    _histories: dict[str, History] = field(default_factory=dict)

    def links(self, group: str) -> dict[str, int]:
        return {there: delay for (here, there), delay in self.sites.delays_us.items() if here == group}

    def begin(self, group: str) -> Callable[[], Processor]:
        """Makes the processor of a group."""
        return lambda: Processor(group, self.links(group), self.strategy, self.types, self.rules)

    def history(self, group: str) -> History:
        """The group's processor for all replicas that share one."""
        if group not in self._histories:
            self._histories[group] = History(self.begin(group))
        return self._histories[group]

    @cached_property
    def reach(self) -> int:
        """The most links of any shortest way."""
        most = 0
        for root in self.sites.processors:
            best = {root: (0, 0)}
            for _ in self.sites.processors:
                for (here, there), delay_us in self.sites.delays_us.items():
                    if here in best:
                        way = (best[here][0] + delay_us, best[here][1] - 1)
                        best[there] = min(best.get(there, way), way)
            most = max(most, *(-links for _, links in best.values()))
        return most

    @cached_property
    def stages(self) -> list[Commands]:
        """What hosts ask of their processors, one after another."""
        sites = self.sites
        sinks: dict[str, list[Command]] = {}
        for sink, wanted in sorted(sites.sinks.items()):
            sinks.setdefault(place(sink), []).append(Command("subscribe", (sink, wanted)))
        everywhere = sites.processors
        if self.strategy.single:
            trees: list[Commands] = [{name: (Command(word),) for name in everywhere} for word in ("start", "lead")]
        else:
            trees = [{name: (Command("root"),) for name in sorted(sinks)}]
        offers = {
            name: (Command("advertise", ("", tuple(sorted(types)))),) for name, types in sorted(sites.sources.items())
        }
        return [*trees, offers, {name: tuple(wishes) for name, wishes in sinks.items()}]

    def deploying(self, rounds: int) -> list[Commands]:
        """The stages with pauses, for so many rounds an epoch: down a tree, up and down again, and acknowledgements."""
        pause = -(-(3 * self.reach + 2) // rounds) - 1
        return [commands for stage in self.stages for commands in (stage, *({},) * pause)]
