"""What are rules called, and the parts and attributes of their matches? By the numbers of rules, made once for all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from tocsin.engine.kernels import Array
from tocsin.events.types import Kind
from tocsin.language.requests import shown_type
from tocsin.plans.graph import RulePlan


class Labels:
    """The names of some rules and of what their matches have."""

    def __init__(self, plans: Sequence[RulePlan]) -> None:
        self._plans = plans
        self._attributes: dict[str, tuple[Array, Kind] | None] = {}

    def __len__(self) -> int:
        return len(self._plans)

    @cached_property
    def names(self) -> pa.Array:
        """The name of each rule."""
        return pa.array([plan.rule.name for plan in self._plans], pa.string())

    @cached_property
    def ranks(self) -> Array:
        """The place of each rule in the order of their names."""
        return np.unique(np.array([plan.rule.name for plan in self._plans]), return_inverse=True)[1]

    @cached_property
    def types(self) -> pa.Array:
        """What each rule defines."""
        return pa.array([plan.rule.emits.name for plan in self._plans], pa.string())

    @cached_property
    def expired(self) -> Array:
        """Whether matches say if they are of an event that left its window."""
        return np.array([plan.windowed is not None and plan.windowed.expired for plan in self._plans])

    @cached_property
    def role_counts(self) -> Array:
        """How many roles each rule has."""
        return np.array([_role_count(plan) for plan in self._plans], np.int64)

    @cached_property
    def role_starts(self) -> Array:
        """Where the roles of each rule begin in `roles` and `role_types`."""
        return np.cumsum(self.role_counts) - self.role_counts

    @cached_property
    def roles(self) -> pa.Array:
        """The names of all rules' roles."""
        return pa.array([name for plan in self._plans for name in plan.names[: _role_count(plan)]], pa.string())

    @cached_property
    def role_types(self) -> pa.Array:
        """The types of the events at these roles."""
        types = [shown_type(type) for plan in self._plans for type in plan.types[: _role_count(plan)]]
        return pa.array(types, pa.string())

    def attribute(self, name: str) -> tuple[Array, Kind] | None:
        """For each rule, which of its attributes has this name (or `name:kind`), or -1, and its kind; None if no rule
        has it.
        """
        if name not in self._attributes:
            places = np.full(len(self), -1, np.int64)
            kind: Kind | None = None
            for number, plan in enumerate(self._plans):
                for place, (attribute, attribute_kind) in enumerate(plan.rule.emits.attributes):
                    if name in (attribute, f"{attribute}:{attribute_kind}"):
                        places[number], kind = place, attribute_kind
            self._attributes[name] = None if kind is None else (places, kind)
        return self._attributes[name]


def _role_count(plan: RulePlan) -> int:
    if plan.context is not None:
        return len(plan.names)
    return 0 if plan.windowed is not None else 1 + len(plan.steps)
