"""Assign rules to slots, and find out which events each slot needs.

A *slot* is a unit of parallel work, which has a detector of its own. Rules that use each other's composite events form
a *unit*, which always runs as a whole:

- A *keyed* unit runs in every slot. All of its events have the same key (see `keys`), and the hash of the key selects
  the slot of an event.
- Any other unit is *placed* in one slot. So is a unit if other units need its anchors in other slots.

A placer selects the slots of placed units (see `placers`). The default placer duplicates as few events as an even load
allows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from tocsin.errors import RuleError
from tocsin.plans.cost import Statistics, rule_cost
from tocsin.plans.keys import common_key
from tocsin.plans.placement import Input, Placement
from tocsin.plans.placement import Unit as PlacedUnit
from tocsin.plans.placers import Even, Placer
from tocsin.plans.plan import Plan
from tocsin.plans.rules import Filter, RulePlan

KeyedRules: TypeAlias = tuple[list[RulePlan], dict[str, str]]
"""The rules of a keyed unit, and the key attribute of each type that they read."""

PLACER: Placer = Even(tolerance=0.10)
"""The placer that `assign_rules` uses by default."""


@dataclass(frozen=True, slots=True)
class RuleUnit:
    """A unit: the names of rules that run together.

    If the unit is keyed, `key` has the key attribute of each type, and `slot` is None. If it is placed in `slot`, `key`
    is None.
    """

    rules: tuple[str, ...]
    key: Mapping[str, str] | None
    slot: int | None


@dataclass(frozen=True)
class Layout:
    """The assignment of rules to slots."""

    slots: int
    units: tuple[RuleUnit, ...]

    def rules_of(self, slot: int) -> frozenset[str]:
        """Return the names of the rules that run in a slot."""
        return frozenset(name for unit in self.units if unit.slot in (None, slot) for name in unit.rules)

    @cached_property
    def units_by_rule(self) -> dict[str, RuleUnit]:
        """The unit of each rule, by the name of the rule."""
        return {name: unit for unit in self.units for name in unit.rules}

    def as_data(self) -> dict[str, Any]:
        """Return the layout as a dict that can be written as JSON."""
        units = [{"rules": unit.rules, "key": unit.key, "slot": unit.slot} for unit in self.units]
        return {"slots": self.slots, "units": units}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Layout:
        """Return the layout that `as_data` converted to `data`."""
        units = tuple(RuleUnit(tuple(unit["rules"]), unit["key"], unit["slot"]) for unit in data["units"])
        return cls(data["slots"], units)

    @cached_property
    def digest(self) -> str:
        """The hash of the layout, which is the same for equal layouts."""
        return hashlib.sha256(json.dumps(self.as_data(), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Forward:
    """The slots that need the events that pass a filter.

    An event goes to all `slots`, and for each key attribute in `keys` to the slot that the hash of its value selects.
    """

    keys: tuple[str, ...]
    slots: tuple[int, ...]


def assign_rules(plan: Plan, slots: int, statistics: Statistics | None = None, placer: Placer = PLACER) -> Layout:
    """Return an assignment of the rules in `plan` to `slots` slots. `placer` selects the slots of placed units."""
    statistics = statistics or Statistics()
    keyed, placed = _split_keyed(plan) if slots > 1 else ([], units(plan))
    everywhere = [RuleUnit(_names(rules), key, None) for rules, key in keyed]
    return Layout(slots, (*everywhere, *_assign_slots(placed, slots, statistics, placer, plan.defined)))


def _split_keyed(plan: Plan) -> tuple[list[KeyedRules], list[list[RulePlan]]]:
    """Return the keyed units of a plan, with the key attribute of each type, and the placed units.

    If an anchor were sent to two slots, both would find its matches. So a unit is keyed only if no other unit needs the
    types of its anchors in a fixed slot, or by another key attribute.
    """
    keyed: list[KeyedRules] = []
    placed: list[list[RulePlan]] = []
    type_keys: dict[str, str] = {}
    for rules in sorted(units(plan), key=lambda rules: -max(len(rule.types) for rule in rules)):
        types = sorted({type for rule in rules for type in rule.types})
        known_keys = {type: type_keys[type] for type in types if type in type_keys}
        key = (common_key(rules, known_keys) if known_keys else None) or common_key(rules)
        if key is None or not all(type in key for type in types):
            placed.append(rules)
            continue
        keyed.append((rules, {type: key[type] for type in types}))
        type_keys.update(keyed[-1][1] | known_keys)
    while True:
        ways: dict[str, set[str | None]] = {}
        for _, key in keyed:
            for type, attribute in key.items():
                ways.setdefault(type, set()).add(attribute)
        for type in {type for rules in placed for rule in rules for type in rule.types}:
            ways.setdefault(type, set()).add(None)
        clear = [all(type in plan.defined or len(ways[type]) == 1 for type in _anchors(rules)) for rules, _ in keyed]
        if all(clear):
            return keyed, placed
        placed += [rules for (rules, _), free in zip(keyed, clear, strict=True) if not free]
        keyed = [unit for unit, free in zip(keyed, clear, strict=True) if free]


def _anchors(rules: Iterable[RulePlan]) -> set[str]:
    return {rule.types[rule.request_join.anchor if rule.request_join else 0] for rule in rules}


def assign_live_rules(plan: Plan, types: Iterable[str], slots: int) -> Layout:
    """Return an assignment of rules that can be changed while a stream runs (a live layout).

    If all rules have one key in common, they are keyed by it; otherwise all rules run in a single slot. Types in
    `types` that no rule uses yet are keyed by the attribute with the same name.
    """
    everything = tuple(rule.rule.name for rule in plan.rules)
    key: dict[str, str] = {}
    for unit in assign_rules(plan, slots).units:
        if unit.key is None or any(key.setdefault(type, name) != name for type, name in unit.key.items()):
            return Layout(1, (RuleUnit(everything, None, 0),))
    names = set(key.values())
    if slots == 1 or not names:
        return Layout(1, (RuleUnit(everything, None, 0),))
    if len(names) == 1:
        key = {**dict.fromkeys(types, names.pop()), **key}
    return Layout(slots, (RuleUnit(everything, {type: key[type] for type in sorted(key)}, None),))


def check_fit(plan: Plan, layout: Layout) -> None:
    """Raise if a rule in `plan` cannot run in the live layout `layout`."""
    (unit,) = layout.units
    if unit.key is None:
        return
    for rules in units(plan):
        missing = sorted({type for rule in rules for type in rule.types} - {*unit.key, *plan.defined})
        if missing:
            raise RuleError(f"this query does not retain events of type {missing[0]}", hint="Restart the query.")
        if common_key(rules, unit.key) is None:
            by = " and ".join(sorted(set(unit.key.values())))
            raise RuleError(
                f"{rules[0].rule.name} cannot be partitioned by {by}, as this query is",
                hint="Restart the query with this rule.",
            )


def live_forwarding(layout: Layout, types: Iterable[str]) -> dict[Filter, Forward]:
    """Return the slots that need the events of each type in `types`, for a live layout."""
    (unit,) = layout.units
    if unit.key is None:
        return {Filter(type): Forward((), (0,)) for type in types}
    return {Filter(type): Forward((unit.key[type],), ()) for type in types if type in unit.key}


def _assign_slots(
    groups: Iterable[Sequence[RulePlan]], slots: int, statistics: Statistics, placer: Placer, defined: Container[str]
) -> list[RuleUnit]:
    """Place units in slots, the most expensive unit first.

    The types in `defined` are no inputs of a unit, because the slot of the unit produces their events.
    """
    named_units = []
    for rules in groups:
        cost = sum(rule_cost(rule, statistics).candidates for rule in rules)
        filters = {filter: None for rule in rules for filter in filters_of(rule) if filter.type not in defined}
        inputs = tuple(_input(filter, statistics) for filter in filters)
        named_units.append((PlacedUnit(json.dumps(_names(rules)), cost, inputs), _names(rules)))
    named_units.sort(key=lambda pair: (-pair[0].cost, pair[1]))
    placement = Placement(slots)
    placer.place([unit for unit, _ in named_units], placement)
    return [RuleUnit(names, None, placement.node_of(unit.name)) for unit, names in named_units]


def _input(filter: Filter, statistics: Statistics) -> Input:
    whole = statistics.rate(Filter(filter.type))
    return Input(filter.type, whole, statistics.rate(filter) / whole if whole else 1.0, filter.conditions)


def units(plan: Plan) -> list[list[RulePlan]]:
    """Group the rules of a plan into units. Rules are in the same unit if one uses composite events of the other."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for rule in plan.rules:
        for type in (*rule.types, rule.emits.name):
            if type in plan.defined and type in plan.numbers:
                leader[find(rule.rule.name)] = find("\0" + type)
    groups: dict[str, list[RulePlan]] = {}
    for rule in plan.rules:
        groups.setdefault(find(rule.rule.name), []).append(rule)
    return list(groups.values())


def forwarding(plan: Plan, layout: Layout) -> dict[Filter, Forward]:
    """Return the slots that need the events that pass each filter. Only filters of primary events are included."""
    keys: dict[Filter, dict[str, None]] = {}
    slots: dict[Filter, set[int]] = {}
    for rule in plan.rules:
        unit = layout.units_by_rule[rule.rule.name]
        for filter in filters_of(rule):
            if filter.type in plan.defined:
                continue
            keys.setdefault(filter, {})
            slots.setdefault(filter, set())
            if unit.slot is not None:
                slots[filter].add(unit.slot)
            else:
                assert unit.key is not None
                keys[filter][unit.key[filter.type]] = None
    return {filter: Forward(tuple(keys[filter]), tuple(sorted(slots[filter]))) for filter in keys}


def filters_of(rule: RulePlan) -> list[Filter]:
    """Return the filters of all events that a rule reads."""
    return list(rule.filters)


def _names(rules: Sequence[RulePlan]) -> tuple[str, ...]:
    return tuple(rule.rule.name for rule in rules)
