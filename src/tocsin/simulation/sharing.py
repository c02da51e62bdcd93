"""Can f+1 replicas be simulated for the price of one? Those that have had the same inputs are in the same state.

The processor of a group runs once. Each replica is at a point of a tree of histories; one that takes inputs which
another took at the same point gets what came out then. A replica whose history differs, which only flawed replicas
have, gets a processor that is run again from the beginning. Nothing else is shared, and tests run both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.machines import Inputs, Outputs, stepped
from tocsin.overlay.replicas.replica import Replica


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
