"""Resolve the names in SiddhiQL queries.

If a query has several input events, `resolve_query` adds to every attribute its *role*, which is the name of the event
that has the attribute. It also replaces `*` by all attributes, collects the aggregates, and infers the kinds of the
attributes of the output stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import HEADER, EventType, Kind
from tocsin.language.siddhi.ast import (
    AbsentState,
    Call,
    Chain,
    Every,
    Input,
    Join,
    Output,
    Pair,
    Query,
    State,
    Step,
    StreamSource,
    indexed,
)
from tocsin.language.siddhi.kinds import check_truth, kind_of, kind_of_call
from tocsin.language.syntax.ast import (
    And,
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    Literal,
    Negative,
    Not,
    Or,
    Parameter,
    Pattern,
)

Types = Callable[[str, Span | None], EventType | None]
"""A function that returns the type of a stream, or None if the attributes of the stream are unknown.

It raises an error with the given span if there is no such stream.
"""


@dataclass(frozen=True, slots=True)
class AggregateReference(Parameter):
    """An aggregate in an expression that is not resolved yet. It becomes a `Parameter`."""

    call: Call = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class NullSubject(Attribute):
    """The operand of `is null`, which is the name of either an attribute or an event."""


@dataclass(frozen=True, slots=True)
class UnresolvedQuery:
    """A parsed query whose names are not resolved yet. `everything` says whether it selects all attributes."""

    name: str
    input: Input
    everything: bool
    items: tuple[tuple[str | None, Expression], ...]
    group_by: tuple[Attribute, ...]
    having: tuple[Expression, ...]
    output: Output
    into: str
    span: Span


def resolve_query(query: UnresolvedQuery, types: Types, defined: EventType | None) -> Query:
    """Return `query` with all names resolved.

    `types` finds the input streams. `defined` is the definition of the output stream, if the text has such a
    definition.
    """
    scope = _Scope(query.input, types)
    query_input = scope.resolve_input()
    items = scope.everything(query.span) if query.everything else _named(query.items)
    calls: dict[str, Call] = {}
    select = tuple((name, scope.resolved(value, calls)) for name, value in items)
    group_by = tuple(attribute for value in query.group_by if isinstance(attribute := scope.resolved(value), Attribute))
    kind_of_name = scope.kind_lookup(calls)
    kinds = {name: kind_of(value, kind_of_name) for name, value in select}
    for test in query.having:
        _check_having(test, kinds)
    having = tuple(rebuilt(test, lambda node: Attribute(node.name, span=node.span)) for test in query.having)
    emits = _emitted(query, kinds, defined)
    aggregates = tuple(calls.values())
    return Query(query.name, emits, query_input, select, aggregates, group_by, having, query.output, span=query.span)


def _named(items: Sequence[tuple[str | None, Expression]]) -> list[tuple[str, Expression]]:
    names: dict[str, Expression] = {}
    for name, value in items:
        if name is None and not isinstance(value, Attribute):
            raise RuleError("this needs a name", span=value.span, hint="Write … as name.")
        if name is None:
            assert isinstance(value, Attribute)
            name = value.name
        if name in names:
            raise RuleError(f"two values of this query are called '{name}'", span=value.span, hint="Write … as name.")
        names[name] = value
    return list(names.items())


def _emitted(query: UnresolvedQuery, kinds: Mapping[str, Kind | None], defined: EventType | None) -> EventType:
    if defined is None:
        return EventType(query.into, tuple((name, kind or Kind.DOUBLE) for name, kind in kinds.items()))
    attributes = dict(defined.attributes)
    if list(attributes) != list(kinds):
        message = f"{query.into} is defined with {', '.join(attributes)}, but the query has {', '.join(kinds)}"
        raise RuleError(message, span=query.span)
    for name, kind in kinds.items():
        if kind not in (None, attributes[name]):
            message = f"'{name}' of {query.into} is defined as {attributes[name]}, but the query's is {kind}"
            raise RuleError(message, span=query.span)
    return defined


class _Scope:
    """The input events that the expressions of a query can refer to by their roles."""

    def __init__(self, query_input: Input, types: Types) -> None:
        self._input = query_input
        self._types = types
        self._single = isinstance(query_input, StreamSource)
        self._tables = {table for source in _sources(query_input) for table in source.tables}
        self._roles: dict[str, str] = {}
        self._several: set[str] = set()
        if isinstance(query_input, Chain):
            for state in query_input.leaves:
                types(state.pattern.type, state.pattern.span)
        for pattern, several in _events(query_input):
            types(pattern.type, pattern.span)
            if pattern.role in self._roles:
                hint = "Give each a name of its own: e1=…." if isinstance(query_input, Chain) else "Write … as name."
                raise RuleError(f"two events of this query are called {pattern.role}", span=pattern.span, hint=hint)
            self._roles[pattern.role] = pattern.type
            if several:
                self._several.add(pattern.role)

    def resolve_input(self) -> Input:
        match self._input:
            case StreamSource():
                return self._source(self._input)
            case Join(left, right):
                query_input = replace(self._input, left=self._source(left), right=self._source(right))
                on = tuple(self.resolved(test) for test in query_input.on)
                for test in on:
                    check_truth(test, self.kind_lookup({}))
                return replace(query_input, on=on)
            case Chain(parts):
                return replace(self._input, parts=tuple(map(self._part, parts)))

    def everything(self, span: Span) -> list[tuple[str, Expression]]:
        """Return the names and values that `*` stands for."""
        items: dict[str, Expression] = {}
        for pattern, _ in _events(self._input):
            type = self._types(pattern.type, pattern.span)
            if type is None:
                hint = f"Write define stream {pattern.type} (…) before it, or name the attributes."
                raise RuleError(f"the attributes of {pattern.type} are not known", span=span, hint=hint)
            for name, _ in type.attributes:
                if name in items:
                    message = f"'*' would have two attributes called '{name}'"
                    raise RuleError(message, span=span, hint="Name them: select … as name.")
                items[name] = Attribute(name, None if self._single else pattern.role, span=span)
        return list(items.items())

    def resolved(
        self, expression: Expression, calls: dict[str, Call] | None = None, own: Pattern | None = None
    ) -> Expression:
        """Return `expression` with all attributes resolved, and add its aggregates to `calls`.

        If the expression is a test of one event, `own` is the pattern of this event, whose attributes get no role.
        """

        def leaf(node: Attribute | Parameter) -> Expression:
            if isinstance(node, AggregateReference):
                if calls is None:
                    raise RuleError("an aggregate is only allowed in 'select'", span=node.span)
                argument = node.call.argument
                inner = None if argument is None else self.resolved(argument)
                call = replace(node.call, argument=inner)
                calls.setdefault(call.name, call)
                return Parameter(call.name, span=node.span)
            assert isinstance(node, Attribute)
            if isinstance(node, NullSubject):
                event = node.role is None and node.name in self._roles and not self._single
                node = Attribute("ts", node.name, span=node.span) if event else Attribute(node.name, span=node.span)
            return self._resolve_role(node, own)

        return rebuilt(expression, leaf)

    def kind_lookup(
        self, calls: Mapping[str, Call], own: Pattern | None = None
    ) -> Callable[[Attribute | Parameter], Kind | None]:
        """Return a function that finds the kind of an attribute or an aggregate in a resolved expression."""

        def kind_of_name(node: Attribute | Parameter) -> Kind | None:
            if isinstance(node, Parameter):
                return kind_of_call(calls[node.name], kind_of_name)
            if node.role in self._tables:
                return None
            if node.role is not None:
                type = self._roles[indexed(node.role)[0]]
            else:
                type = own.type if own is not None else next(iter(self._roles.values()))
            return self._kind(type, node)

        return kind_of_name

    def _kind(self, type: str, node: Attribute) -> Kind | None:
        known_type = self._types(type, node.span)
        if node.name in HEADER:
            return (
                HEADER[node.name]
                if known_type is None or known_type.kind(node.name) is None
                else known_type.kind(node.name)
            )
        if known_type is None:
            return None
        kind = known_type.kind(node.name)
        if kind is None:
            names = [name for name, _ in known_type.attributes]
            raise RuleError(f"{type} has no attribute {node.name}", span=node.span, hint=nearest(node.name, names))
        return kind

    def _resolve_role(self, node: Attribute, own: Pattern | None) -> Attribute:
        if node.role is None:
            return node if own is not None else self._unqualified(node)
        if node.role in self._tables:
            return node
        name, index = indexed(node.role)
        if name not in self._roles:
            names = [*self._roles, *self._tables]
            raise RuleError(f"the query has no event called {name}", span=node.span, hint=nearest(name, names))
        if own is not None and index is None and name == own.role:
            return replace(node, role=None)
        if index is None and name in self._several:
            hint = f"Write {name}[0].{node.name} or {name}[last].{node.name}."
            raise RuleError(f"{name} can be several events", span=node.span, hint=hint)
        if index is not None and name not in self._several:
            message = f"{name} is one event and has no [{node.role.partition('[')[2]}"
            raise RuleError(message, span=node.span, hint=f"Write {name}.{node.name}.")
        return replace(node, role=None) if self._single and node.role is not None else node

    def _unqualified(self, node: Attribute) -> Attribute:
        if self._single:
            return node
        types = {role: self._types(type, node.span) for role, type in self._roles.items()}
        having = [role for role, type in types.items() if type is None or type.kind(node.name) is not None]
        if len(having) == 1 and types[having[0]] is not None:
            return self._resolve_role(replace(node, role=having[0]), None)
        if having or node.name in HEADER:
            hint = f"Write {next(iter(having), next(iter(types)))}.{node.name}."
            raise RuleError(f"'{node.name}' needs the name of its event", span=node.span, hint=hint)
        names = [name for type in types.values() if type is not None for name, _ in type.attributes]
        message = f"no event of this query has an attribute {node.name}"
        raise RuleError(message, span=node.span, hint=nearest(node.name, names))

    def _source(self, source: StreamSource) -> StreamSource:
        after, pattern = self._tests(source.after, source.pattern), self._pattern(source.pattern)
        same = after is source.after and pattern is source.pattern
        return source if same else replace(source, pattern=pattern, after=after)

    def _pattern(self, pattern: Pattern) -> Pattern:
        constraints = self._tests(pattern.constraints, pattern)
        return pattern if constraints is pattern.constraints else replace(pattern, constraints=constraints)

    def _tests(self, tests: tuple[Expression, ...], own: Pattern) -> tuple[Expression, ...]:
        """Return the tests of an event with all attributes resolved. If nothing changes, return `tests` itself."""
        kind_of_name = self.kind_lookup({}, own)
        made = tuple(self.resolved(test, own=own) for test in tests)
        for test in made:
            check_truth(test, kind_of_name)
            if isinstance(self._input, Join):  # in a query over one stream, there is no other stream to use
                _check_alone(test, self._tables)
        return tests if all(map(is_, made, tests)) else made

    def _part(self, part: State | Every) -> State | Every:
        match part:
            case Every(states):
                return replace(part, states=tuple(map(self._state, states)))
            case _:
                return self._state(part)

    def _state(self, state: State) -> State:
        match state:
            case Pair(left, right):
                return replace(state, left=self._leaf(left), right=self._leaf(right))
            case _:
                return self._leaf(state)

    def _leaf(self, leaf: Step | AbsentState) -> Step | AbsentState:
        return replace(leaf, pattern=self._pattern(leaf.pattern))


def _check_having(test: Expression, kinds: Mapping[str, Kind | None]) -> None:
    """Raise if a test of `having` uses anything but values of the output row, by their names in `select`."""

    def kind_of_name(node: Attribute | Parameter) -> Kind | None:
        if isinstance(node, Parameter):
            hint = "Write select … as name, and having name > …."
            raise RuleError("'having' must use the name of an aggregate", span=node.span, hint=hint)
        if node.role is not None or node.name not in kinds:
            name = f"{node.role}.{node.name}" if node.role else node.name
            raise RuleError(f"the query selects nothing called {name}", span=node.span, hint=nearest(name, kinds))
        return kinds[node.name]

    check_truth(test, kind_of_name)


def rebuilt(node: Expression, leaf: Callable[[Attribute | Parameter], Expression]) -> Expression:
    """Return a copy of an expression in which `leaf` replaces each attribute and each parameter."""
    match node:
        case Literal():
            return node
        case Attribute() | Parameter():
            return leaf(node)
        case Negative(operand) | Not(operand):
            made = rebuilt(operand, leaf)
            return node if made is operand else replace(node, operand=made)
        case Arithmetic(_, left, right) | Comparison(_, left, right):
            first, second = rebuilt(left, leaf), rebuilt(right, leaf)
            return node if first is left and second is right else replace(node, left=first, right=second)
        case And(operands) | Or(operands):
            all_made = tuple(rebuilt(operand, leaf) for operand in operands)
            same = all(made is operand for made, operand in zip(all_made, operands, strict=True))
            return node if same else replace(node, operands=all_made)


def _check_alone(test: Expression, tables: set[str]) -> None:
    """Raise if a test of one stream of a join uses the other stream."""

    def leaf(node: Attribute | Parameter) -> Expression:
        if isinstance(node, Attribute) and node.role is not None and node.role not in tables:
            message = f"a test of a stream cannot use {node.role}.{node.name}"
            raise RuleError(message, span=node.span, hint="Put it after 'on'.")
        return node

    rebuilt(test, leaf)


def _sources(query_input: Input) -> tuple[StreamSource, ...]:
    match query_input:
        case StreamSource():
            return (query_input,)
        case Join(left, right):
            return (left, right)
        case Chain():
            return ()


def _events(query_input: Input) -> Iterator[tuple[Pattern, bool]]:
    """Yield the pattern of each event that expressions can use, and whether several events can match the pattern.

    Absent states have no events, so their patterns are left out.
    """
    for source in _sources(query_input):
        yield source.pattern, False
    if isinstance(query_input, Chain):
        for leaf in query_input.leaves:
            if isinstance(leaf, Step):
                yield leaf.pattern, not leaf.single
