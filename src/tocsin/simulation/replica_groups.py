"""Simulate a group of replicas for the cost of one replica, by sharing a processor.

Replicas are deterministic, so replicas with the same inputs have the same outputs. The inputs that replicas have taken
form a tree, and each replica is at a *point* of this tree. If another replica has already taken the same inputs at the
same point, its outputs are used again. Only flawed replicas take different inputs. Such a replica gets a processor of
its own, which repeats all inputs from the beginning. Nothing else is shared. Tests run with and without sharing.

The groups of a replicated run start with rules, types and links only. Commands set up trees, tables and partial rules
(`deployment_stages`).
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
from tocsin.overlay.replicas.state_machine import (
    Commands,
    Inputs,
    Outputs,
    deployment_batches,
    deployment_stages,
    run_processor,
)
from tocsin.overlay.strategies import Sites, Strategy


class History:
    """The tree of the inputs that the replicas of a group have taken, with the outputs of the group's processor."""

    def __init__(self, begin: Callable[[], Processor]) -> None:
        self._begin = begin
        self._processors: dict[int, Processor] = {0: begin()}
        """The processors that have run, by the point that each processor has reached."""
        self._taken: list[tuple[int, Inputs]] = [(0, ())]
        """The previous point and the inputs that led to each point.

        This list keeps the inputs alive, so that their Python ids stay unique.
        """
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, Outputs]] = {}

    def step(self, at: int, inputs: Inputs) -> tuple[int, Outputs]:
        """Return the point that follows the point `at` after `inputs`, and the outputs for these inputs."""
        key = (at, tuple(id(message) for _, message in inputs))
        if key not in self._known:
            processor = self._processors.pop(at, None) or self._again(at)
            outputs = run_processor(processor, inputs)
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
            run_processor(processor, inputs)
        return processor


class SharedMachine:
    """The state machine of a replica that shares its processor, and stores only its point in the group's history."""

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
    """A replica that passes states to its peers as objects, so that messages in the states stay the same objects."""

    states: list[Mapping[str, Any]]

    def write(self, state: Mapping[str, Any]) -> bytes:
        self.states.append(state)
        return str(len(self.states) - 1).encode()

    def read(self, data: bytes) -> Mapping[str, Any]:
        return self.states[int(data)]


@dataclass(frozen=True)
class ReplicatedSetup:
    """The sites of a replicated run, and the rules to deploy at the sites. Several runs can share one setup."""

    sites: Sites
    strategy: Strategy
    types: Mapping[str, EventType]
    rules: Sequence[Rule]
    _histories: dict[str, History] = field(default_factory=dict)

    def links(self, group: str) -> dict[str, int]:
        return self.sites.links(group)

    def begin(self, group: str) -> Callable[[], Processor]:
        """Return a function that creates the processor of `group`."""
        return lambda: Processor(group, self.links(group), self.strategy, self.types, self.rules)

    def history(self, group: str) -> History:
        """Return the history that all replicas of `group` share."""
        if group not in self._histories:
            self._histories[group] = History(self.begin(group))
        return self._histories[group]

    @cached_property
    def stages(self) -> list[Commands]:
        return deployment_stages(self.sites, self.strategy)

    def deploying(self, rounds: int) -> list[Commands]:
        return deployment_batches(self.sites, self.strategy, rounds)
