"""Bind all rules that are deployed together into one plan, and check that they do not contradict each other.

A rule that uses composite events runs after the rules that define these events. So its *stratum* is one more than the
highest stratum of the rules that define them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

from tocsin.errors import RuleError
from tocsin.events.types import SEQ, TS, EventType, Kind
from tocsin.language.eps.ast import Request, RequestTimer, Statement, request_timers
from tocsin.language.siddhi.ast import Query
from tocsin.language.syntax.ast import Rule
from tocsin.plans.bind.patterns import bind, located
from tocsin.plans.bind.queries import bind_query
from tocsin.plans.bind.requests import bind_request
from tocsin.plans.expressions import Field, Typed, leaves
from tocsin.plans.rules import AggregateCondition, Buffer, Filter, RulePlan
from tocsin.plans.typing import Catalog, with_article


@dataclass(frozen=True)
class Plan:
    """The operator graph of all rules, where equal filters and equal buffers are one node."""

    catalog: Catalog
    """The known event types, except the types that the rules define."""
    rules: tuple[RulePlan, ...]
    strata: Mapping[str, int]
    """The stratum of each rule, by the name of the rule."""
    _latest: Plan | None = field(default=None, compare=False, repr=False)

    @cached_property
    def sources(self) -> tuple[Statement, ...]:
        """The rules as they were written."""
        return tuple({plan.rule.name: plan.rule for plan in self.rules}.values())

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each event type that the rules read. Types are numbered in the order of the rules."""
        return _numbered({}, self.rules)

    @cached_property
    def buffers(self) -> dict[Buffer, int]:
        """The time (µs) for which each buffer retains events."""
        retentions_us: dict[Buffer, int] = {}
        for rule in self.rules:
            for buffer, retention_us in rule.buffers.items():
                retentions_us[buffer] = max(retentions_us.get(buffer, 0), retention_us)
        return retentions_us

    @cached_property
    def filters(self) -> dict[Filter, None]:
        """All filters, in the order of the rules."""
        filters: dict[Filter, None] = {}
        for rule in self.rules:
            filters |= rule.filters
        return filters

    @cached_property
    def columns(self) -> dict[str, dict[str, Kind | None]]:
        """The attributes that the rules need, by event type; other attributes are pruned."""
        needed: dict[str, dict[str, Kind | None]] = {}
        for rule in self.rules:
            for type, columns in needed_columns(rule).items():
                needed.setdefault(type, {}).update(columns)
        return needed

    @cached_property
    def emitted(self) -> Emitted:
        """The types and attributes that the rules define."""
        return Emitted(by_kind=self.catalog.by_kind).with_rules(self.sources)

    @property
    def defined(self) -> Mapping[str, EventType]:
        """The types that rules define."""
        return self.emitted.types

    @cached_property
    def complete(self) -> dict[str, int]:
        """The stratum at which all events of a composite type are known, by type.

        It is one more than the highest stratum of the rules that define the type.
        """
        return _completed({}, self.sources, self.strata)

    @cached_property
    def emits_expired(self) -> bool:
        """Whether a query emits rows for expired events, so that matches have the column `expired`."""
        return any(rule.windowed is not None and rule.windowed.expired for rule in self.rules)

    def stratum(self, rule: RulePlan) -> int:
        """Return the stratum in which the rule plan `rule` runs."""
        return self.strata[rule.rule.name] - rule.early

    @property
    def is_timed(self) -> bool:
        """Whether the passage of time alone can cause matches."""
        return any(
            rule.timer is not None or rule.timers or (rule.windowed and rule.windowed.is_timed) for rule in self.rules
        )

    def bound_to(self, catalog: Catalog) -> Plan:
        """Return a plan of the same rules bound to `catalog`.

        The latest result is cached, because the next detector of these rules often needs the same plan.
        """
        if self.catalog == catalog:
            return self
        if self._latest is None or self._latest.catalog != catalog:
            if catalog.closed and self.catalog.closed and catalog.types == self.catalog.types:
                # Every kind was declared, so the events change no binding.
                latest = copy(self)
                latest.__dict__.update(catalog=catalog, _latest=None)
            else:
                latest = plan(self.sources, catalog)
            object.__setattr__(self, "_latest", latest)
        assert self._latest is not None
        return self._latest

    def extended(self, rules: Sequence[Statement]) -> Plan:
        """Return a plan with the rules of this plan and the additional `rules`. Only `rules` are bound."""
        emitted = self.emitted.with_rules(rules)
        _check_undeclared(rules, self.catalog)
        if any(rule.emits.name in self.numbers for rule in rules):
            strata = order([*self.sources, *rules])
            complete = _completed({}, [*self.sources, *rules], strata)
        else:
            strata = {**self.strata, **order(rules, self.complete)}
            complete = _completed(self.complete, rules, strata)
        bound = _bound(rules, self.catalog, emitted)
        numbers = _numbered(self.numbers, bound)
        plan = Plan(self.catalog, (*self.rules, *bound), strata)
        return _remembering(plan, emitted, (*self.sources, *rules), complete=complete, numbers=numbers)

    def without(self, names: Collection[str]) -> Plan | None:
        """Return a plan without the rules in `names`; None if a rule uses a type that one of these rules defines.

        Types keep their numbers. No rule is bound again, and the time is linear in the number of rules.
        """
        rest = tuple(rule for rule in self.sources if rule.name not in names)
        defined = {rule.emits.name for rule in self.sources if rule.name in names}
        if any(not defined.isdisjoint(rule.uses) for rule in self.sources):
            return None
        plan = Plan(
            self.catalog,
            tuple(rule for rule in self.rules if rule.rule.name not in names),
            {name: stratum for name, stratum in self.strata.items() if name not in names},
        )
        return _remembering(
            plan, Emitted(by_kind=self.catalog.by_kind).with_rules(rest), rest, numbers=dict(self.numbers)
        )


MATCH_COLUMNS = ("rule", "type", "ts", "seq", "id", "expired", "parts")
"""The columns of matches, apart from the attributes of composite events."""


def column_names(
    attributes: Iterable[str], known: Mapping[str, str] | None = None, taken: Iterable[str] = MATCH_COLUMNS
) -> dict[str, str]:
    """Return the name of the column of each attribute in a table of matches.

    It is the name of the attribute, followed by `_1`, `_2`, … if another column or `taken` has this name. Names that
    differ only in case are the same name, as in Spark. `known` has the columns of attributes that are already assigned.

    >>> column_names(["area", "ts", "Area"])
    {'area': 'area', 'ts': 'ts_1', 'Area': 'Area_1'}
    """
    names = dict(known or {})
    used = {name.lower() for name in (*taken, *names.values())}
    for attribute in attributes:
        if attribute in names:
            continue
        name, number = attribute, 0
        while name.lower() in used:
            number += 1
            name = f"{attribute}_{number}"
        used.add(name.lower())
        names[attribute] = name
    return names


@dataclass(frozen=True, slots=True)
class Emitted:
    """The types and attributes that rules define, and the names of the rules."""

    types: Mapping[str, EventType] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """The kind of each attribute, by the name of the attribute or by `name:kind` (if `by_kind`)."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The name of the first rule that defines each attribute, by the same keys as `kinds`."""
    names: frozenset[str] = frozenset()
    fills: Mapping[str, bool] = field(default_factory=dict)
    """Whether queries define a type, and not rules, by type. The rows of queries have an order of their own."""
    by_kind: bool = False
    """Whether rules may give an attribute name different kinds (see `Catalog`)."""

    def key(self, attribute: str, kind: Kind) -> str:
        """Return the key of `attribute` with the kind `kind` in `kinds`."""
        return f"{attribute}:{kind}" if self.by_kind else attribute

    def attribute(self, key: str) -> str:
        """Return the name of the attribute that has the key `key` in `kinds`."""
        return key.rpartition(":")[0] if self.by_kind else key

    def with_rules(self, rules: Iterable[Statement]) -> Emitted:
        """Return these definitions together with those of `rules`.

        Raise if definitions of a type or of the kind of an attribute conflict, or if two rules have the same name.
        """
        types, kinds, names, fills = dict(self.types), dict(self.kinds), set(self.names), dict(self.fills)
        owners = dict(self.owners)
        for rule in rules:
            types |= {timer.type: EventType(timer.type) for timer in _timers(rule)}
            if rule.name in names:
                message = f"two rules are called {rule.name}"
                raise located(RuleError(message, span=rule.span, hint="Name one: rule OtherName"), rule)
            names.add(rule.name)
            known = types.setdefault(rule.emits.name, rule.emits)
            if isinstance(rule, Query) is not fills.setdefault(rule.emits.name, isinstance(rule, Query)):
                message = f"a query and a rule cannot both define {known.name}"
                raise located(RuleError(message, span=rule.span, hint="Define two types."), rule)
            if known != rule.emits:
                hint = "All rules that define a type must give it the same attributes."
                message = f"another rule defines {known}, this one defines {rule.emits}"
                raise located(RuleError(message, span=rule.span, hint=hint), rule)
            for attribute, kind in rule.emits.attributes:
                column = self.key(attribute, kind)
                owner = owners.setdefault(column, rule.name)
                if kinds.setdefault(column, kind) != kind:
                    hint = f"Matches of all rules share one table: rename {attribute} in one of the two rules."
                    other = with_article(kinds[column])
                    message = f"{attribute} is {with_article(kind)} in {rule.name} and {other} in {owner}"
                    raise located(RuleError(message, span=rule.span, hint=hint), rule)
        return Emitted(types, kinds, owners, frozenset(names), fills, self.by_kind)


def plan(rules: Sequence[Statement], catalog: Catalog) -> Plan:
    """Return the plan of `rules`, bound to `catalog`. A rule may use the composite events of another rule.

    The time is linear in the number of rules, because equal nodes are found by hashing.
    """
    emitted = Emitted(by_kind=catalog.by_kind).with_rules(rules)
    _check_undeclared(rules, catalog)
    strata = order(rules)
    bound = _bound(rules, catalog, emitted)
    return _remembering(Plan(catalog, bound, strata), emitted, tuple(rules))


def _bound(rules: Iterable[Statement], given: Catalog, emitted: Emitted) -> tuple[RulePlan, ...]:
    catalog = given.with_types(emitted.types)
    plans: list[RulePlan] = []
    for rule in rules:
        try:
            plans += _bound_rule(rule, catalog)
        except RuleError as error:
            # Before the first events, a name of a header field may mean an attribute that has the same name.
            if not catalog.blank:
                raise
            try:
                plans += _bound_rule(rule, replace(catalog, expects=True))
            except RuleError:
                raise error from None
    return tuple(plans)


def _bound_rule(rule: Statement, catalog: Catalog) -> tuple[RulePlan, ...]:
    if isinstance(rule, Query):
        return (bind_query(rule, catalog),)
    return (bind(rule, catalog),) if isinstance(rule, Rule) else bind_request(rule, catalog)


def _check_undeclared(rules: Iterable[Statement], catalog: Catalog) -> None:
    for rule in rules:
        if rule.emits.name in catalog.types:
            message = f"{rule.emits.name} is declared as an event from outside, a rule cannot define it"
            raise located(RuleError(message, span=rule.span), rule)


def _remembering(plan: Plan, emitted: Emitted, sources: tuple[Statement, ...], **more: dict[str, int]) -> Plan:
    """Store properties that are already computed in the plan, so that they are not computed again. Return the plan."""
    plan.__dict__.update(emitted=emitted, sources=sources, **more)
    return plan


def _completed(before: Mapping[str, int], rules: Iterable[Statement], strata: Mapping[str, int]) -> dict[str, int]:
    complete = dict(before)
    for rule in rules:
        complete[rule.emits.name] = max(complete.get(rule.emits.name, 0), strata[rule.name] + 1)
        for timer in _timers(rule):
            complete[timer.type] = strata[rule.name] - _depth(rule) + timer.height
    return complete


def _numbered(before: Mapping[str, int], rules: Iterable[RulePlan]) -> dict[str, int]:
    numbers = dict(before)
    for rule in rules:
        for type in (*rule.types, *(filter.type for filter in rule.own)):
            numbers.setdefault(type, len(numbers))
    return numbers


def order(rules: Sequence[Statement], ready: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the stratum of each rule, by the name of the rule. Raise if rules use each other in a cycle.

    `ready` has the stratum at which a type is complete, for the types that other rules define.
    """
    producers: dict[str, list[Statement]] = defaultdict(list)
    for rule in rules:
        producers[rule.emits.name].append(rule)
    strata: dict[str, int] = {}

    def used(rule: Statement) -> Iterator[Statement]:
        return (producer for type in rule.uses for producer in producers.get(type, ()))

    for first in rules:
        # The current path from a rule to its producers, with the producers of each rule that are not visited yet. There
        # is no recursion, because the depth of rules is unlimited.
        path = {first.name: (first, used(first))} if first.name not in strata else {}
        while path:
            rule, waiting = path[next(reversed(path))]
            producer = next((one for one in waiting if one.name not in strata), None)
            if producer is None:
                ready_strata = (ready.get(type, 0) if ready else 0 for type in rule.uses)
                highest = max((*ready_strata, *(1 + strata[one.name] for one in used(rule))), default=0)
                strata[rule.name] = highest + _depth(rule)
                path.popitem()
            elif producer.name in path:
                names = list(path)
                links = [path[name][0].emits.name for name in names[names.index(producer.name) :]]
                circle = [*links, producer.emits.name] if len(links) < 12 else [*links[:6], "…", *links[-3:], links[0]]
                message = "a composite event cannot be made from itself: " + " ← ".join(circle)
                raise located(RuleError(message, span=producer.span), producer)
            else:
                path[producer.name] = producer, used(producer)
    return strata


def _timers(rule: Statement) -> tuple[RequestTimer, ...]:
    return request_timers(rule) if isinstance(rule, Request) else ()


def _depth(rule: Statement) -> int:
    return max((timer.height for timer in _timers(rule)), default=0)


def needed_columns(rule: RulePlan) -> dict[str, dict[str, Kind | None]]:
    """Return the attributes that a rule reads and their kinds, by event type.

    Types of which the rule reads no attributes are included.
    """
    needed: dict[str, dict[str, Kind | None]] = {type: {} for type in rule.types}

    def read(expressions: Iterable[Typed], type: str | None = None) -> None:
        for expression in expressions:
            for leaf in leaves(expression):
                if isinstance(leaf, Field) and leaf.attribute not in (TS, SEQ):
                    needed[type or rule.types[leaf.role_index]][leaf.attribute] = leaf.kind

    for filter in (rule.anchor, *rule.own):
        needed.setdefault(filter.type, {})
        read(filter.conditions, filter.type)
    if rule.request_join is not None:
        read(rule.request_join.conditions)
    if rule.context is not None:
        read(rule.context.conditions)
        read(node.attribute for node in rule.context.nodes if node.attribute is not None)
        for filter in rule.context.filters:
            read(filter.conditions, filter.type)
    if rule.windowed is not None:
        read((*rule.windowed.after, *rule.windowed.group_by))
        if rule.windowed.joined is not None:
            read((*rule.windowed.joined.on, *(field for key in rule.windowed.joined.keys for field in key)))
        if rule.windowed.chained is not None:
            for stage in rule.windowed.chained.stages:
                read((*stage.tests, *(field for key in stage.keys for field in key)))
        for filter in rule.windowed.filters:
            read(filter.conditions, filter.type)
        read(call.argument for call in rule.windowed.calls if call.argument is not None)
    for lookup in rule.lookups:
        read((*lookup.buffer.filter.conditions, *lookup.buffer.keys), lookup.buffer.filter.type)
        read((*lookup.conditions, *lookup.keys))
    for role_condition in [
        *rule.role_conditions,
        *(role_condition for step in rule.steps for role_condition in step.role_conditions),
    ]:
        if isinstance(role_condition, AggregateCondition):
            read(expression for expression in (role_condition.argument, role_condition.test) if expression is not None)
    read(value for _, _, value in rule.outputs)
    return needed
