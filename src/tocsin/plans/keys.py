"""By what can a rule be partitioned? By attributes that equality joins over all of its events.

If every event that a rule looks at carries one and the same value, somewhere, then events with different values never
meet in a match: they can be kept apart, and each part detected by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tocsin.events.types import FIELDS
from tocsin.language.siddhi.ast import Extent
from tocsin.plans.expressions import Field
from tocsin.plans.rules import RulePlan, Windowed

Joint = tuple[int, str]
"""A place and an attribute there."""


@dataclass(frozen=True, slots=True)
class Key:
    """For each place of a rule the attribute that carries the key, and the composite's own attributes that do."""

    attributes: tuple[str, ...]
    outputs: tuple[str, ...]


def keys(plan: RulePlan) -> tuple[Key, ...]:
    """All ways to partition a rule, in the order in which its anchor's attributes are first used.

    A consumed or chosen event is still found within its part, since all candidates for a place carry the key.
    """
    if plan.context is not None:
        return ()  # what operators combine does not depend on any attribute
    if plan.windowed is not None:
        return _grouped(plan, plan.windowed)
    links: list[tuple[Joint, Joint]] = []
    for lookup in plan.lookups:
        for here, there in zip(lookup.buffer.keys, lookup.keys, strict=True):
            if not isinstance(there, Field) or there.kind != here.kind:
                continue
            if here.is_own and there.is_own:
                links.append(((lookup.place, here.attribute), (there.place, there.attribute)))
    found: list[Key] = []
    for members in classes(links):
        attributes = [
            min((name for place, name in members if place == p), default=None) for p in range(len(plan.types))
        ]
        if all(name is not None for name in attributes):
            outputs = tuple(
                name
                for name, _, value in plan.outputs
                if isinstance(value, Field) and (value.place, value.attribute) in members
            )
            found.append(Key(tuple(name for name in attributes if name is not None), outputs))
    return tuple(found)


def common_key(plans: Iterable[RulePlan], given: Mapping[str, str] | None = None) -> Mapping[str, str] | None:
    """One attribute for each event type by which rules that feed each other can be partitioned, if there is one.

    `given`: the attributes of types for which that is settled.
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
    """Whether it answers each event by itself."""
    if plan.windowed is not None:
        return plan.windowed.looks_at_one
    return len(plan.types) == 1 and plan.context is None


def _alone(plan: RulePlan, chosen: Mapping[str, str]) -> tuple[Key, ...]:
    """A rule of one event can be partitioned by any of its attributes that it hands on, or as the others want."""
    outputs = [(value.attribute, name) for name, _, value in plan.outputs if isinstance(value, Field)]
    names = {attribute: name for attribute, name in outputs if attribute not in FIELDS.values()}
    wanted = chosen.get(plan.types[0])
    if wanted is not None:
        return (Key((wanted,), tuple(name for source, name in names.items() if source == wanted)),)
    return tuple(Key((source,), (name,)) for source, name in names.items())


def _grouped(plan: RulePlan, windowed: Windowed) -> tuple[Key, ...]:
    """A query whose window is one of time can be partitioned by what it groups by, if time alone brings no rows, as
    these are numbered over all groups. A window that counts events, and a batch, which begins with the first event,
    depend on all of them.
    """
    window = windowed.window
    if windowed.expired or window is None or window.extent != Extent.TIME:
        return ()
    names = [key.attribute for key in windowed.group_by if key.is_own]
    outputs = [(value.attribute, name) for name, _, value in plan.outputs if isinstance(value, Field)]
    return tuple(Key((key,), tuple(name for source, name in outputs if source == key)) for key in names)


def classes(links: Iterable[tuple[Joint, Joint]]) -> list[set[Joint]]:
    """What equalities make one value, also by way of others."""
    found: list[set[Joint]] = []
    for one, other in links:
        joined = {one, other}
        rest = []
        for members in found:
            if members & joined:
                joined |= members
            else:
                rest.append(members)
        found = [*rest, joined]
    return sorted(found, key=min)
