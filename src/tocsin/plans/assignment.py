"""Which slots does an event go to, and which rules run there?

Rules that feed each other are one *unit*. A unit whose events all carry one key is *keyed*: it runs in every slot, and
the hash of the key says where an event goes. Any other unit is *placed*: it runs whole in one slot, and so does one
whose anchors other units need elsewhere. Where placed units go is for a placer to say, see `placing`: by default, as
few events are sent twice as an even load allows.
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

Keyed: TypeAlias = tuple[list[RulePlan], dict[str, str]]
"""Rules, and the attribute of each of their types by which they are partitioned."""

PLACER: Placer = Even(tolerance=0.10)
"""What places rules if nothing else is said."""


@dataclass(frozen=True, slots=True)
class RuleUnit:
    """Rules that stay together, by name: keyed by an attribute of each of their types, or placed in a slot."""

    rules: tuple[str, ...]
    key: Mapping[str, str] | None
    slot: int | None


@dataclass(frozen=True)
class Layout:
    """Where the rules run."""

    slots: int
    units: tuple[RuleUnit, ...]

    def rules_of(self, slot: int) -> frozenset[str]:
        """The names of the rules that run in a slot."""
        return frozenset(name for unit in self.units if unit.slot in (None, slot) for name in unit.rules)

    @cached_property
    def homes(self) -> dict[str, RuleUnit]:
        """The unit of each rule."""
        return {name: unit for unit in self.units for name in unit.rules}

    def as_data(self) -> dict[str, Any]:
        """The layout as plain data."""
        units = [{"rules": unit.rules, "key": unit.key, "slot": unit.slot} for unit in self.units]
        return {"slots": self.slots, "units": units}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Layout:
        """The layout behind plain data."""
        units = tuple(RuleUnit(tuple(unit["rules"]), unit["key"], unit["slot"]) for unit in data["units"])
        return cls(data["slots"], units)

    @cached_property
    def digest(self) -> str:
        """The same for equal layouts."""
        return hashlib.sha256(json.dumps(self.as_data(), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Forward:
    """Where events that pass a filter go: to the slot of each of these attributes' hashes, and to these slots."""

    keys: tuple[str, ...]
    slots: tuple[int, ...]


def lay_out(plan: Plan, slots: int, statistics: Statistics | None = None, placer: Placer = PLACER) -> Layout:
    """A layout of the plan's rules over that many slots."""
    statistics = statistics or Statistics()
    keyed, placed = _keyed(plan) if slots > 1 else ([], units(plan))
    everywhere = [RuleUnit(_names(rules), key, None) for rules, key in keyed]
    return Layout(slots, (*everywhere, *_placed(placed, slots, statistics, placer, plan.defined)))


def _keyed(plan: Plan) -> tuple[list[Keyed], list[list[RulePlan]]]:
    """The units that can be keyed, with the attribute of each type, and those that must be placed.

    An anchor that is seen in two slots would be answered twice. So a unit is keyed only if no other sends the types of
    its anchors elsewhere: to a slot of its own, or by another attribute.
    """
    keyed: list[Keyed] = []
    placed: list[list[RulePlan]] = []
    settled: dict[str, str] = {}
    for rules in sorted(units(plan), key=lambda rules: -max(len(rule.types) for rule in rules)):
        types = sorted({type for rule in rules for type in rule.types})
        given = {type: settled[type] for type in types if type in settled}
        key = (common_key(rules, given) if given else None) or common_key(rules)
        if key is None or not all(type in key for type in types):
            placed.append(rules)
            continue
        keyed.append((rules, {type: key[type] for type in types}))
        settled.update(keyed[-1][1] | given)
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
    return {rule.types[rule.combining.anchor if rule.combining else 0] for rule in rules}


def lay_out_live(plan: Plan, types: Iterable[str], slots: int) -> Layout:
    """A layout for rules that come and go: one key for all of them, by which more types are split too if that is the
    name of an attribute of theirs, or a single slot.
    """
    everything = tuple(rule.rule.name for rule in plan.rules)
    key: dict[str, str] = {}
    for unit in lay_out(plan, slots).units:
        if unit.key is None or any(key.setdefault(type, name) != name for type, name in unit.key.items()):
            return Layout(1, (RuleUnit(everything, None, 0),))
    names = set(key.values())
    if slots == 1 or not names:
        return Layout(1, (RuleUnit(everything, None, 0),))
    if len(names) == 1:
        key = {**dict.fromkeys(types, names.pop()), **key}
    return Layout(slots, (RuleUnit(everything, {type: key[type] for type in sorted(key)}, None),))


def check_fit(plan: Plan, layout: Layout) -> None:
    """Fails if some rules cannot run in a live layout."""
    (unit,) = layout.units
    if unit.key is None:
        return
    for rules in units(plan):
        missing = sorted({type for rule in rules for type in rule.types} - {*unit.key, *plan.defined})
        if missing:
            raise RuleError(f"events of type {missing[0]} are not kept by this query", hint="It must be started anew.")
        if common_key(rules, unit.key) is None:
            by = " and ".join(sorted(set(unit.key.values())))
            raise RuleError(
                f"{rules[0].rule.name} cannot be partitioned by {by}, as this query is",
                hint="It must be started anew, with this rule among the first.",
            )


def live_forwarding(layout: Layout, types: Iterable[str]) -> dict[Filter, Forward]:
    """The forwarding table of a live layout: by type alone."""
    (unit,) = layout.units
    if unit.key is None:
        return {Filter(type): Forward((), (0,)) for type in types}
    return {Filter(type): Forward((unit.key[type],), ()) for type in types if type in unit.key}


def _placed(
    groups: Iterable[Sequence[RulePlan]], slots: int, statistics: Statistics, placer: Placer, defined: Container[str]
) -> list[RuleUnit]:
    """Units in slots, the dearest first. What rules define is made in the slot, and not sent there."""
    given = []
    for rules in groups:
        cost = sum(rule_cost(rule, statistics).candidates for rule in rules)
        filters = {filter: None for rule in rules for filter in filters_of(rule) if filter.type not in defined}
        inputs = tuple(_input(filter, statistics) for filter in filters)
        given.append((PlacedUnit(json.dumps(_names(rules)), cost, inputs), _names(rules)))
    given.sort(key=lambda pair: (-pair[0].cost, pair[1]))
    placement = Placement(slots)
    placer.place([unit for unit, _ in given], placement)
    return [RuleUnit(names, None, placement.node_of(unit.name)) for unit, names in given]


def _input(filter: Filter, statistics: Statistics) -> Input:
    whole = statistics.rate(Filter(filter.type))
    return Input(filter.type, whole, statistics.rate(filter) / whole if whole else 1.0, filter.conditions)


def units(plan: Plan) -> list[list[RulePlan]]:
    """Rules that feed each other, together."""
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
    """The forwarding table: where events from outside go, by filter."""
    keys: dict[Filter, dict[str, None]] = {}
    slots: dict[Filter, set[int]] = {}
    for rule in plan.rules:
        unit = layout.homes[rule.rule.name]
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
    """What a rule lets in."""
    return list(rule.filters)


def _names(rules: Sequence[RulePlan]) -> tuple[str, ...]:
    return tuple(rule.rule.name for rule in rules)
