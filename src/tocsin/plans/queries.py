"""Binds a query of SiddhiQL to what is known of its events: filter, window, tests behind it, what is selected. Patterns
and sequences are bound in `chains`.

Aggregates become `Computed` values by their number, and what `having` speaks of, the values of a row, `Computed` ones
behind these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.errors import RuleError
from tocsin.events.types import Kind
from tocsin.language.queries import Call as Called
from tocsin.language.queries import Chain, Join, Output, Query, Source, Summary, Window
from tocsin.language.queries import Side as Outer
from tocsin.language.rules import Attribute, Parameter, Pattern
from tocsin.plans.bind import located
from tocsin.plans.catalog import Catalog
from tocsin.plans.chains import bind_chain, placed
from tocsin.plans.expressions import Computed, Field, Typed, equal_fields, ordered
from tocsin.plans.graph import Call, Chained, Filter, Joined, RulePlan, Side, Windowed
from tocsin.plans.typing import Resolve, a, truth, typed, widened

COMPUTED_MAX = 64
"""How many aggregates and selected values a query can have together."""


def bind_query(query: Query, catalog: Catalog) -> RulePlan:
    """The plan of one query, or a `RuleError` that points at the mistake."""
    try:
        return _Binding(query, catalog).plan()
    except RuleError as error:
        raise located(error, query) from None


@dataclass(slots=True)
class _Binding:
    query: Query
    catalog: Catalog
    unseen: bool = False

    def plan(self) -> RulePlan:
        query = self.query
        match query.input:
            case Join() as join:
                return self._joined(join)
            case Chain() as chain:
                return self._chained(chain)
            case Source() as source:
                return self._windowed(source)

    def _windowed(self, source: Source) -> RulePlan:
        anchor, resolve = self._filter(source), self._resolve_roles((source.pattern,))
        after = tuple(truth(test, resolve) for test in source.after)
        return self._plan((source.role,), (source.pattern.type,), resolve, anchor, source.window, after)

    def _joined(self, join: Join) -> RulePlan:
        patterns = (join.left.pattern, join.right.pattern)
        sides: list[Side] = []
        for source, own in ((join.left, Outer.LEFT), (join.right, Outer.RIGHT)):
            looks, outer = join.triggers in (own, Outer.BOTH), join.outer in (own, Outer.BOTH)
            sides.append(Side(self._filter(source), source.window, looks, outer))
        resolve = self._resolve_roles(patterns)
        on = {truth(test, resolve): None for test in join.on}
        keys = {test: key for test in on if (key := equal_fields(test)) is not None}
        rest = tuple(test for test in on if test not in keys)
        pairs = tuple((one, other) if one.place == 0 else (other, one) for one, other in keys.values())
        joined = Joined((sides[0], sides[1]), rest, pairs)
        names, types = tuple(pattern.role for pattern in patterns), tuple(pattern.type for pattern in patterns)
        return self._plan(names, types, resolve, sides[0].filter, joined=joined)

    def _chained(self, chain: Chain) -> RulePlan:
        for leaf in chain.leaves:
            self.catalog.check_type(leaf.pattern.type, leaf.pattern.span)
        places = placed(self.query, chain)
        alone = [self._resolve((leaf.pattern.type,), {}, 0) for leaf in chain.leaves]
        own = [self._resolve(places.types, places.roles, place) for place in places.own]
        chained = bind_chain(chain, places, alone, own)
        anchor = chained.stages[0].filter
        return self._plan(
            places.names, places.types, self._resolve(places.types, places.roles), anchor, chained=chained
        )

    def _filter(self, source: Source) -> Filter:
        pattern = source.pattern
        if source.tables:
            raise RuleError("there are no tables: a query with 'in' cannot run", span=source.span)
        self.catalog.check_type(pattern.type, pattern.span)
        resolve = self._resolve_roles((pattern,))
        return Filter(pattern.type, ordered(truth(test, resolve) for test in pattern.constraints))

    def _plan(
        self,
        names: tuple[str, ...],
        types: tuple[str, ...],
        resolve: Resolve,
        anchor: Filter,
        window: Window | None = None,
        after: tuple[Typed, ...] = (),
        joined: Joined | None = None,
        chained: Chained | None = None,
    ) -> RulePlan:
        query = self.query
        calls = tuple(self._call(call, resolve) for call in query.aggregates)
        outputs = self._outputs(calls, resolve)
        windowed = Windowed(
            window,
            after,
            calls,
            tuple(self._key(attribute, resolve) for attribute in query.group_by),
            tuple(truth(test, self._row(len(calls), outputs)) for test in query.having),
            current=query.output != Output.EXPIRED,
            expired=query.output != Output.CURRENT,
            joined=joined,
            chained=chained,
        )
        return RulePlan(query, anchor, (), (), outputs, names, types, self.unseen, windowed=windowed)

    def _resolve_roles(self, patterns: tuple[Pattern, ...]) -> Resolve:
        """What a name stands for; without a role it is of the only event."""
        roles = {pattern.role: place for place, pattern in enumerate(patterns)}
        return self._resolve(tuple(pattern.type for pattern in patterns), roles)

    def _resolve(self, types: tuple[str, ...], roles: Mapping[str, int], own: int = 0) -> Resolve:
        """What a name stands for; `own` is the place of what has no role."""

        def resolve(leaf: Attribute | Parameter) -> Typed:
            assert isinstance(leaf, Attribute)
            place = own if leaf.role is None else roles[leaf.role]
            field = Field(place, *self.catalog.field(types[place], leaf.name, leaf.span))
            self.unseen = self.unseen or field.kind is None
            return field

        return resolve

    def _key(self, attribute: Attribute, resolve: Resolve) -> Field:
        key = resolve(attribute)
        assert isinstance(key, Field)
        return key

    def _call(self, call: Called, resolve: Resolve) -> Call:
        argument = None if call.argument is None else typed(call.argument, resolve)
        kind = None if argument is None else argument.kind
        if call.function == Summary.COUNT:
            return Call(call.function, None, Kind.LONG)
        if kind is not None and not kind.numeric:
            raise RuleError(f"'{call.function}' needs numbers, this is {a(kind)}", span=call.span)
        if call.function in (Summary.AVG, Summary.STD_DEV):
            kind = Kind.DOUBLE
        elif call.function == Summary.SUM and kind == Kind.INT:
            kind = Kind.LONG
        return Call(call.function, argument, kind)

    def _outputs(self, calls: tuple[Call, ...], resolve: Resolve) -> tuple[tuple[str, Kind, Typed], ...]:
        query = self.query
        numbers = {call.name: number for number, call in enumerate(query.aggregates)}
        if len(calls) + len(query.select) > COMPUTED_MAX:
            message = f"a query can have {COMPUTED_MAX} aggregates and selected values together"
            raise RuleError(f"{message}, this one has {len(calls) + len(query.select)}", span=query.span)

        def value(leaf: Attribute | Parameter) -> Typed:
            if isinstance(leaf, Parameter):
                number = numbers[leaf.name]
                return Computed(number, calls[number].kind)
            return resolve(leaf)

        kinds, outputs = dict(query.emits.attributes), list[tuple[str, Kind, Typed]]()
        for name, expression in query.select:
            kind = kinds[name]
            found = typed(expression, value)
            integral = found.kind is not None and found.kind.integral
            if found.kind not in (kind, None) and not (integral and kind.numeric):
                message = f"{query.emits.name}.{name} is {a(kind)}, its value is {a(found.kind)}"
                raise RuleError(message, span=expression.span)
            outputs.append((name, kind, widened(found, kind)))
        return tuple(outputs)

    @staticmethod
    def _row(calls: int, outputs: tuple[tuple[str, Kind, Typed], ...]) -> Resolve:
        """What a name stands for in a test of a row."""
        values: dict[str, Typed] = {
            name: Computed(calls + number, kind) for number, (name, kind, _) in enumerate(outputs)
        }
        return lambda leaf: values[leaf.name]
