"""What do the groups of a replicated run begin with? Nothing but rules, types and links; commands do the rest.

The commands and their order are in `overlay.replicas.staging`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.staging import Commands, deploying, stages
from tocsin.overlay.sites import Sites
from tocsin.overlay.strategies import Strategy
from tocsin.simulation.sharing import History


@dataclass(frozen=True)
class Setup:
    """Sites, and what is to be deployed at them. Runs can share one."""

    sites: Sites
    strategy: Strategy
    types: Mapping[str, EventType]
    rules: Sequence[Rule]
    _histories: dict[str, History] = field(default_factory=dict)

    def links(self, group: str) -> dict[str, int]:
        return self.sites.links(group)

    def begin(self, group: str) -> Callable[[], Processor]:
        """Makes the processor of a group."""
        return lambda: Processor(group, self.links(group), self.strategy, self.types, self.rules)

    def history(self, group: str) -> History:
        """The group's processor for all replicas that share one."""
        if group not in self._histories:
            self._histories[group] = History(self.begin(group))
        return self._histories[group]

    @cached_property
    def stages(self) -> list[Commands]:
        return stages(self.sites, self.strategy)

    def deploying(self, rounds: int) -> list[Commands]:
        return deploying(self.sites, self.strategy, rounds)
