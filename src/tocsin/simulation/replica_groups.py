"""Can f+1 replicas be simulated for the price of one? Those that have had the same inputs are in the same state.

The processor of a group runs once. Each replica is at a point of a tree of histories; one that takes inputs which
another took at the same point gets what came out then. A replica whose history differs, which only flawed replicas
have, gets a processor that is run again from the beginning. Nothing else is shared, and tests run both ways.

What do the groups of a replicated run begin with? Nothing but rules, types and links; commands do the rest.

The commands and their order are in `overlay.replicas.staging`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Rule
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.replica import Replica
from tocsin.overlay.replicas.state_machine import Commands, Inputs, Outputs, deploying, stages, stepped
from tocsin.overlay.strategies import Sites, Strategy


class History:
    """What a group's processor did after each sequence of inputs."""

    def __init__(self, begin: Callable[[], Processor]) -> None:
        self._begin = begin
        self._processors: dict[int, Processor] = {0: begin()}
        """By the point it stands at."""
        self._taken: list[tuple[int, Inputs]] = [(0, ())]
        """How each point was reached: from where, by what. Keeps inputs alive, so that they can be told apart."""
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, Outputs]] = {}

    def step(self, at: int, inputs: Inputs) -> tuple[int, Outputs]:
        """The point after these inputs, and what comes out."""
        key = (at, tuple(id(message) for _, message in inputs))
        if key not in self._known:
            processor = self._processors.pop(at, None) or self._again(at)
            outputs = stepped(processor, inputs)
            self._taken.append((at, tuple(inputs)))
            self._known[key] = (len(self._taken) - 1, outputs)
            self._processors[len(self._taken) - 1] = processor
        return self._known[key]

    def _again(self, at: int) -> Processor:
        path = []
        while at:
            at, inputs = self._taken[at]
            path.append(inputs)
        processor = self._begin()
        for inputs in reversed(path):
            stepped(processor, inputs)
        return processor


class Shared:
    """A replica's place in the history of its group."""

    def __init__(self, history: History) -> None:
        self.history, self.at = history, 0

    def step(self, inputs: Inputs) -> Outputs:
        self.at, outputs = self.history.step(self.at, inputs)
        return outputs

    def snapshot(self) -> bytes:
        return str(self.at).encode()

    def load(self, data: bytes) -> None:
        self.at = int(data)


class SharedReplica(Replica):
    """A replica whose states are handed over as they are, so that messages stay the same objects."""

    states: list[Mapping[str, Any]]

    def write(self, state: Mapping[str, Any]) -> bytes:
        self.states.append(state)
        return str(len(self.states) - 1).encode()

    def read(self, data: bytes) -> Mapping[str, Any]:
        return self.states[int(data)]


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
