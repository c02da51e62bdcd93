"""Find the keys by which the events of rules can be partitioned.

A *key* of a rule is one attribute of each of its events, if the conditions of the rule require that these attributes
are equal. Then events with different values of the key are never in the same match, so each value of the key can be
processed in a separate partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tocsin.events.types import FIELDS
from tocsin.language.siddhi.ast import Extent
from tocsin.plans.expressions import Field
from tocsin.plans.rules import QueryPlan, RulePlan

RoleAttribute = tuple[int, str]
"""A role index and an attribute of that role."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a rule.

    `attributes` has the attribute with the key for each role. `outputs` are the attributes of the composite event that
    have the value of the key.
    """

    attributes: tuple[str, ...]
    outputs: tuple[str, ...]


def keys(plan: RulePlan) -> tuple[Key, ...]:
    """Return all keys of a rule, a request or a query.

    A key does not change which events are selected or consumed, because all candidates for a role have the same value
    of the key.
    """
    if plan.context is not None:
        return ()  # a context combines events regardless of their attributes
    if plan.windowed is not None:
        return _grouped(plan, plan.windowed)
    links: list[tuple[RoleAttribute, RoleAttribute]] = []
    for lookup in plan.lookups:
        for here, there in zip(lookup.buffer.keys, lookup.keys, strict=True):
            if not isinstance(there, Field) or there.kind != here.kind:
                continue
            if here.is_own and there.is_own:
                links.append(((lookup.role_index, here.attribute), (there.role_index, there.attribute)))
    keys_of_rule: list[Key] = []
    for members in equality_classes(links):
        attributes = [
            min((name for role_index, name in members if role_index == p), default=None) for p in range(len(plan.types))
        ]
        if all(name is not None for name in attributes):
            outputs = tuple(
                name
                for name, _, value in plan.outputs
                if isinstance(value, Field) and (value.role_index, value.attribute) in members
            )
            keys_of_rule.append(Key(tuple(name for name in attributes if name is not None), outputs))
    return tuple(keys_of_rule)


def common_key(plans: Iterable[RulePlan], given: Mapping[str, str] | None = None) -> Mapping[str, str] | None:
    """Return a key that all rules in `plans` have in common, as one attribute for each event type; None if none exists.

    The rules may use the composite events of other rules in `plans`. `given` has the attributes of types whose key is
    already chosen.
    """
    chosen: dict[str, str] = dict(given or {})

    def fits(remaining: list[RulePlan], chosen: dict[str, str]) -> dict[str, str] | None:
        if not remaining:
            return chosen
        plan, *rest = remaining
        options = _alone(plan, chosen) if _looks_at_one(plan) else keys(plan)
        emits = plan.emits.name
        for key in options:
            wanted = dict(chosen)
            if any(
                wanted.setdefault(type, name) != name for type, name in zip(plan.types, key.attributes, strict=True)
            ):
                continue
            for output in key.outputs:
                if wanted.get(emits, output) == output:
                    result = fits(rest, {**wanted, emits: output})
                    if result is not None:
                        return result
            if not key.outputs and not any(emits in other.types for other in rest):
                result = fits(rest, wanted)
                if result is not None:
                    return result
        return None

    return fits(sorted(plans, key=lambda plan: -len(plan.types)), chosen)


def _looks_at_one(plan: RulePlan) -> bool:
    """Return whether a rule evaluates each event independently of other events."""
    if plan.windowed is not None:
        return plan.windowed.looks_at_one
    return len(plan.types) == 1 and plan.context is None


def _alone(plan: RulePlan, chosen: Mapping[str, str]) -> tuple[Key, ...]:
    """Return the keys of a rule that evaluates each event independently.

    Any attribute can be a key of such a rule. If `chosen` has an attribute for the type of the event, this attribute is
    the only key; else the keys are the attributes that the rule emits.
    """
    outputs = [(value.attribute, name) for name, _, value in plan.outputs if isinstance(value, Field)]
    names = {attribute: name for attribute, name in outputs if attribute not in FIELDS.values()}
    wanted = chosen.get(plan.types[0])
    if wanted is not None:
        return (Key((wanted,), tuple(name for source, name in names.items() if source == wanted)),)
    return tuple(Key((source,), (name,)) for source, name in names.items())


def _grouped(plan: RulePlan, windowed: QueryPlan) -> tuple[Key, ...]:
    """Return the keys of a query, which are its grouping attributes.

    A query has no keys if it emits expired rows, because these are numbered over all groups. It also has none if its
    window is not a sliding time window, because other windows depend on the events of all groups.
    """
    window = windowed.window
    if windowed.expired or window is None or window.extent != Extent.TIME:
        return ()
    names = [key.attribute for key in windowed.group_by if key.is_own]
    outputs = [(value.attribute, name) for name, _, value in plan.outputs if isinstance(value, Field)]
    return tuple(Key((key,), tuple(name for source, name in outputs if source == key)) for key in names)


def equality_classes(links: Iterable[tuple[RoleAttribute, RoleAttribute]]) -> list[set[RoleAttribute]]:
    """Return the equivalence classes of attributes, where `links` are pairs of attributes that must be equal."""
    groups: list[set[RoleAttribute]] = []
    for one, other in links:
        joined = {one, other}
        rest = []
        for members in groups:
            if members & joined:
                joined |= members
            else:
                rest.append(members)
        groups = [*rest, joined]
    return sorted(groups, key=min)
