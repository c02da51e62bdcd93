"""All rules of a deployment as one plan: checked against each other, put in order, with what they share counted.

Rules that use other rules' composite events come after them: a rule's *level* is one more than the highest of the
rules that define its types.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

from tocsin.errors import RuleError
from tocsin.events.types import SEQ, TS, EventType, Kind
from tocsin.language.eps.ast import Clock, Request, Statement, clocks
from tocsin.language.siddhi.ast import Query
from tocsin.language.syntax.ast import Rule
from tocsin.plans.bind.patterns import bind, located
from tocsin.plans.bind.queries import bind_query
from tocsin.plans.bind.requests import bind_request
from tocsin.plans.expressions import Field, Typed, leaves
from tocsin.plans.rules import Buffer, Filter, Reduction, RulePlan
from tocsin.plans.typing import Catalog, a


@dataclass(frozen=True)
class Plan:
    """The operator graph of all rules. Equal filters and buffers are one node."""

    given: Catalog
    """What is known of event types, apart from those that the rules define."""
    rules: tuple[RulePlan, ...]
    levels: Mapping[str, int]
    """The level of each rule, by name."""
    _latest: Plan | None = field(default=None, compare=False, repr=False)

    @cached_property
    def sources(self) -> tuple[Statement, ...]:
        """The rules as they were written."""
        return tuple({plan.rule.name: plan.rule for plan in self.rules}.values())

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The event types that rules read, numbered in the order of the rules."""
        return _numbered({}, self.rules)

    @cached_property
    def buffers(self) -> dict[Buffer, int]:
        """Every buffer, with how long events are kept in it, in microseconds."""
        kept: dict[Buffer, int] = {}
        for rule in self.rules:
            for buffer, horizon_us in rule.buffers.items():
                kept[buffer] = max(kept.get(buffer, 0), horizon_us)
        return kept

    @cached_property
    def filters(self) -> dict[Filter, None]:
        """Every filter, in the order of the rules."""
        found: dict[Filter, None] = {}
        for rule in self.rules:
            found |= rule.filters
        return found

    @cached_property
    def columns(self) -> dict[str, dict[str, Kind | None]]:
        """The attributes that the rules need, by event type; everything else is pruned."""
        needed: dict[str, dict[str, Kind | None]] = {}
        for rule in self.rules:
            for type, columns in needed_columns(rule).items():
                needed.setdefault(type, {}).update(columns)
        return needed

    @cached_property
    def emitted(self) -> Emitted:
        """What the rules define."""
        return Emitted(by_kind=self.given.by_kind).with_rules(self.sources)

    @property
    def defined(self) -> Mapping[str, EventType]:
        """The types that rules define."""
        return self.emitted.types

    @cached_property
    def complete(self) -> dict[str, int]:
        """The level at which all events of a composite type are there: one more than the last rule that defines it."""
        return _completed({}, self.sources, self.levels)

    @cached_property
    def tells_expired(self) -> bool:
        """Whether some query puts out events that leave their window, so that matches say which these are."""
        return any(rule.windowed is not None and rule.windowed.expired for rule in self.rules)

    def level(self, rule: RulePlan) -> int:
        """The level at which one of its plans runs."""
        return self.levels[rule.rule.name] - rule.early

    @property
    def is_timed(self) -> bool:
        """Whether something happens by time alone."""
        return any(
            rule.clock is not None or rule.clocks or (rule.windowed and rule.windowed.is_timed) for rule in self.rules
        )

    def bound_to(self, catalog: Catalog) -> Plan:
        """The same rules bound to what is known now.

        The last such plan is kept, for the next detector of these rules.
        """
        if self.given == catalog:
            return self
        if self._latest is None or self._latest.given != catalog:
            if catalog.closed and self.given.closed and catalog.types == self.given.types:
                # Every kind was declared: what events showed is no news to any rule.
                latest = copy(self)
                latest.__dict__.update(given=catalog, _latest=None)
            else:
                latest = plan(self.sources, catalog)
            object.__setattr__(self, "_latest", latest)
        assert self._latest is not None
        return self._latest

    def extended(self, rules: Sequence[Statement]) -> Plan:
        """This plan with more rules. The old ones are not bound again."""
        emitted = self.emitted.with_rules(rules)
        _check_undeclared(rules, self.given)
        if any(rule.emits.name in self.numbers for rule in rules):
            levels = order([*self.sources, *rules])
            complete = _completed({}, [*self.sources, *rules], levels)
        else:
            levels = {**self.levels, **order(rules, self.complete)}
            complete = _completed(self.complete, rules, levels)
        bound = _bound(rules, self.given, emitted)
        numbers = _numbered(self.numbers, bound)
        plan = Plan(self.given, (*self.rules, *bound), levels)
        return _remembering(plan, emitted, (*self.sources, *rules), complete=complete, numbers=numbers)

    def without(self, names: Collection[str]) -> Plan | None:
        """This plan with fewer rules, the others as they are; None if some rule uses what those define.

        Types keep their numbers. Time linear in the rules, of which none is bound again.
        """
        rest = tuple(rule for rule in self.sources if rule.name not in names)
        defined = {rule.emits.name for rule in self.sources if rule.name in names}
        if any(not defined.isdisjoint(rule.uses) for rule in self.sources):
            return None
        plan = Plan(
            self.given,
            tuple(rule for rule in self.rules if rule.rule.name not in names),
            {name: level for name, level in self.levels.items() if name not in names},
        )
        return _remembering(
            plan, Emitted(by_kind=self.given.by_kind).with_rules(rest), rest, numbers=dict(self.numbers)
        )


MATCH_COLUMNS = ("rule", "type", "ts", "seq", "id", "expired", "parts")
"""Columns that matches have besides the attributes of composite events."""


def column_names(
    attributes: Iterable[str], known: Mapping[str, str] | None = None, taken: Iterable[str] = MATCH_COLUMNS
) -> dict[str, str]:
    """The column of each attribute in a table of matches: its name, with `_1`, `_2`, … behind if that is `taken`.

    Names that differ in nothing but case are one name, as they are for Spark. `known`: columns that are settled.

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
    """What rules define, by name: types, kinds of attributes, and the rules themselves."""

    types: Mapping[str, EventType] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """By attribute: its name, or `name:kind`. `column_names` has what columns of matches are called."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The rule that named each attribute first."""
    names: frozenset[str] = frozenset()
    fills: Mapping[str, bool] = field(default_factory=dict)
    """For each type, whether queries define it: their rows stand in an order of their own."""
    by_kind: bool = False
    """See `Catalog`."""

    def key(self, attribute: str, kind: Kind) -> str:
        """The key of an attribute in `kinds`."""
        return f"{attribute}:{kind}" if self.by_kind else attribute

    def attribute(self, key: str) -> str:
        """The attribute of a key."""
        return key.rpartition(":")[0] if self.by_kind else key

    def with_rules(self, rules: Iterable[Statement]) -> Emitted:
        """This and what more rules define: one shape for a type, one kind for an attribute name, unique rule names."""
        types, kinds, names, fills = dict(self.types), dict(self.kinds), set(self.names), dict(self.fills)
        owners = dict(self.owners)
        for rule in rules:
            types |= {clock.type: EventType(clock.type) for clock in _clocks(rule)}
            if rule.name in names:
                message = f"two rules are called {rule.name}"
                raise located(RuleError(message, span=rule.span, hint="Name one: rule OtherName"), rule)
            names.add(rule.name)
            known = types.setdefault(rule.emits.name, rule.emits)
            if isinstance(rule, Query) is not fills.setdefault(rule.emits.name, isinstance(rule, Query)):
                message = f"a query and a rule that is none cannot both define {known.name}"
                raise located(RuleError(message, span=rule.span, hint="Let them define two types."), rule)
            if known != rule.emits:
                hint = "Rules that define one type give it the same attributes."
                message = f"another rule defines {known}, here it is {rule.emits}"
                raise located(RuleError(message, span=rule.span, hint=hint), rule)
            for attribute, kind in rule.emits.attributes:
                column = self.key(attribute, kind)
                owner = owners.setdefault(column, rule.name)
                if kinds.setdefault(column, kind) != kind:
                    hint = f"Matches of all rules share one table: rename {attribute} in one of the two rules."
                    message = f"{attribute} is {a(kind)} in {rule.name} and {a(kinds[column])} in {owner}"
                    raise located(RuleError(message, span=rule.span, hint=hint), rule)
        return Emitted(types, kinds, owners, frozenset(names), fills, self.by_kind)


def plan(rules: Sequence[Statement], catalog: Catalog) -> Plan:
    """Binds all rules; they may use each other's composite events.

    Time linear in the rules: sharing is by hashing.
    """
    emitted = Emitted(by_kind=catalog.by_kind).with_rules(rules)
    _check_undeclared(rules, catalog)
    levels = order(rules)
    bound = _bound(rules, catalog, emitted)
    return _remembering(Plan(catalog, bound, levels), emitted, tuple(rules))


def _bound(rules: Iterable[Statement], given: Catalog, emitted: Emitted) -> tuple[RulePlan, ...]:
    catalog = given.with_types(emitted.types)
    plans: list[RulePlan] = []
    for rule in rules:
        try:
            plans += _bound_rule(rule, catalog)
        except RuleError as error:
            # A rule that makes no sense of a header field may mean an attribute that hides it: events will show that.
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
    """The plan, with what is known about it already."""
    plan.__dict__.update(emitted=emitted, sources=sources, **more)
    return plan


def _completed(before: Mapping[str, int], rules: Iterable[Statement], levels: Mapping[str, int]) -> dict[str, int]:
    complete = dict(before)
    for rule in rules:
        complete[rule.emits.name] = max(complete.get(rule.emits.name, 0), levels[rule.name] + 1)
        for clock in _clocks(rule):
            complete[clock.type] = levels[rule.name] - _depth(rule) + clock.height
    return complete


def _numbered(before: Mapping[str, int], rules: Iterable[RulePlan]) -> dict[str, int]:
    numbers = dict(before)
    for rule in rules:
        for type in (*rule.types, *(filter.type for filter in rule.own)):
            numbers.setdefault(type, len(numbers))
    return numbers


def order(rules: Sequence[Statement], ready: Mapping[str, int] | None = None) -> dict[str, int]:
    """The level of each rule by name;

    `ready` says from which level on other rules' types are there. A cycle is an error.
    """
    producers: dict[str, list[Statement]] = defaultdict(list)
    for rule in rules:
        producers[rule.emits.name].append(rule)
    levels: dict[str, int] = {}

    def used(rule: Statement) -> Iterator[Statement]:
        return (producer for type in rule.uses for producer in producers.get(type, ()))

    for first in rules:
        # A path from rule to rule that uses it, and what is still to be looked at of each; rules nest without limit.
        path = {first.name: (first, used(first))} if first.name not in levels else {}
        while path:
            rule, waiting = path[next(reversed(path))]
            producer = next((one for one in waiting if one.name not in levels), None)
            if producer is None:
                given = (ready.get(type, 0) if ready else 0 for type in rule.uses)
                highest = max((*given, *(1 + levels[one.name] for one in used(rule))), default=0)
                levels[rule.name] = highest + _depth(rule)
                path.popitem()
            elif producer.name in path:
                names = list(path)
                links = [path[name][0].emits.name for name in names[names.index(producer.name) :]]
                circle = [*links, producer.emits.name] if len(links) < 12 else [*links[:6], "…", *links[-3:], links[0]]
                message = "a composite event cannot be made from itself: " + " ← ".join(circle)
                raise located(RuleError(message, span=producer.span), producer)
            else:
                path[producer.name] = producer, used(producer)
    return levels


def _clocks(rule: Statement) -> tuple[Clock, ...]:
    return clocks(rule) if isinstance(rule, Request) else ()


def _depth(rule: Statement) -> int:
    return max((clock.height for clock in _clocks(rule)), default=0)


def needed_columns(rule: RulePlan) -> dict[str, dict[str, Kind | None]]:
    """The attributes that one rule reads, by event type; a type of which it reads nothing is there too."""
    needed: dict[str, dict[str, Kind | None]] = {type: {} for type in rule.types}

    def read(expressions: Iterable[Typed], type: str | None = None) -> None:
        for expression in expressions:
            for leaf in leaves(expression):
                if isinstance(leaf, Field) and leaf.attribute not in (TS, SEQ):
                    needed[type or rule.types[leaf.place]][leaf.attribute] = leaf.kind

    for filter in (rule.anchor, *rule.own):
        needed.setdefault(filter.type, {})
        read(filter.conditions, filter.type)
    if rule.combining is not None:
        read(rule.combining.conditions)
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
    for guard in [*rule.guards, *(guard for step in rule.steps for guard in step.guards)]:
        if isinstance(guard, Reduction):
            read(expression for expression in (guard.argument, guard.test) if expression is not None)
    read(value for _, _, value in rule.outputs)
    return needed
