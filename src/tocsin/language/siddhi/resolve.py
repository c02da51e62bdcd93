"""Whose attribute does a name in a query mean, and what stream does the query make?

`settled` takes a query as its text has it and gives the query as `queries` describes it: every attribute with its role
where there is more than one event, `*` written out, aggregates apart, kinds of the output found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import HEADER, EventType, Kind
from tocsin.language.siddhi.ast import (
    Absence,
    Call,
    Chain,
    Every,
    Input,
    Join,
    Output,
    Pair,
    Query,
    Source,
    State,
    Step,
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
"""What is known of a stream; fails if there is none of that name."""


@dataclass(frozen=True, slots=True)
class Called(Parameter):
    """An aggregate in the place where the text has it."""

    call: Call = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Subject(Attribute):
    """What is asked to be null: an attribute, or an event by its name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A query as its text has it."""

    name: str
    input: Input
    everything: bool
    items: tuple[tuple[str | None, Expression], ...]
    group_by: tuple[Attribute, ...]
    having: tuple[Expression, ...]
    output: Output
    into: str
    span: Span


def settled(asked: Asked, types: Types, defined: EventType | None) -> Query:
    """The query; `defined` is the definition of its output stream, if the text has one."""
    scope = _Scope(asked.input, types)
    given = scope.settled_input()
    items = scope.everything(asked.span) if asked.everything else _named(asked.items)
    calls: dict[str, Call] = {}
    select = tuple((name, scope.resolved(value, calls)) for name, value in items)
    group_by = tuple(attribute for value in asked.group_by if isinstance(attribute := scope.resolved(value), Attribute))
    known = scope.knowing(calls)
    kinds = {name: kind_of(value, known) for name, value in select}
    for test in asked.having:
        _check_having(test, kinds)
    having = tuple(rebuilt(test, lambda node: Attribute(node.name, span=node.span)) for test in asked.having)
    emits = _emitted(asked, kinds, defined)
    aggregates = tuple(calls.values())
    return Query(asked.name, emits, given, select, aggregates, group_by, having, asked.output, span=asked.span)


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


def _emitted(asked: Asked, kinds: Mapping[str, Kind | None], defined: EventType | None) -> EventType:
    if defined is None:
        return EventType(asked.into, tuple((name, kind or Kind.DOUBLE) for name, kind in kinds.items()))
    attributes = dict(defined.attributes)
    if list(attributes) != list(kinds):
        message = f"{asked.into} is defined with {', '.join(attributes)}, and the query has {', '.join(kinds)}"
        raise RuleError(message, span=asked.span)
    for name, kind in kinds.items():
        if kind not in (None, attributes[name]):
            message = f"'{name}' of {asked.into} is defined as {attributes[name]}, and the query's is {kind}"
            raise RuleError(message, span=asked.span)
    return defined


class _Scope:
    """The events that a query can speak of."""

    def __init__(self, given: Input, types: Types) -> None:
        self._given = given
        self._types = types
        self._single = isinstance(given, Source)
        self._tables = {table for source in _sources(given) for table in source.tables}
        self._roles: dict[str, str] = {}
        self._several: set[str] = set()
        if isinstance(given, Chain):
            for state in given.leaves:
                types(state.pattern.type, state.pattern.span)
        for pattern, several in _events(given):
            types(pattern.type, pattern.span)
            if pattern.role in self._roles:
                hint = "Give each a name of its own: e1=…." if isinstance(given, Chain) else "Write … as name."
                raise RuleError(f"two events of this query are called {pattern.role}", span=pattern.span, hint=hint)
            self._roles[pattern.role] = pattern.type
            if several:
                self._several.add(pattern.role)

    def settled_input(self) -> Input:
        match self._given:
            case Source():
                return self._source(self._given)
            case Join(left, right):
                given = replace(self._given, left=self._source(left), right=self._source(right))
                on = tuple(self.resolved(test) for test in given.on)
                for test in on:
                    check_truth(test, self.knowing({}))
                return replace(given, on=on)
            case Chain(parts):
                return replace(self._given, parts=tuple(map(self._part, parts)))

    def everything(self, span: Span) -> list[tuple[str, Expression]]:
        """What `*` stands for."""
        items: dict[str, Expression] = {}
        for pattern, _ in _events(self._given):
            held = self._types(pattern.type, pattern.span)
            if held is None:
                hint = f"Write define stream {pattern.type} (…) before it, or name the attributes."
                raise RuleError(f"it is not known which attributes {pattern.type} has", span=span, hint=hint)
            for name, _ in held.attributes:
                if name in items:
                    message = f"'*' would have two attributes called '{name}'"
                    raise RuleError(message, span=span, hint="Name them: select … as name.")
                items[name] = Attribute(name, None if self._single else pattern.role, span=span)
        return list(items.items())

    def resolved(
        self, expression: Expression, calls: dict[str, Call] | None = None, own: Pattern | None = None
    ) -> Expression:
        """An expression with attributes that say whose they are; its aggregates go to `calls`.

        `own` is the event whose test this is: its attributes stand without a role.
        """

        def leaf(node: Attribute | Parameter) -> Expression:
            if isinstance(node, Called):
                if calls is None:
                    raise RuleError("an aggregate stands in 'select'", span=node.span)
                argument = node.call.argument
                inner = None if argument is None else self.resolved(argument)
                call = replace(node.call, argument=inner)
                calls.setdefault(call.name, call)
                return Parameter(call.name, span=node.span)
            assert isinstance(node, Attribute)
            if isinstance(node, Subject):
                event = node.role is None and node.name in self._roles and not self._single
                node = Attribute("ts", node.name, span=node.span) if event else Attribute(node.name, span=node.span)
            return self._whose(node, own)

        return rebuilt(expression, leaf)

    def knowing(
        self, calls: Mapping[str, Call], own: Pattern | None = None
    ) -> Callable[[Attribute | Parameter], Kind | None]:
        """What is known of the attributes in resolved expressions."""

        def known(node: Attribute | Parameter) -> Kind | None:
            if isinstance(node, Parameter):
                return kind_of_call(calls[node.name], known)
            if node.role in self._tables:
                return None
            if node.role is not None:
                type = self._roles[indexed(node.role)[0]]
            else:
                type = own.type if own is not None else next(iter(self._roles.values()))
            return self._kind(type, node)

        return known

    def _kind(self, type: str, node: Attribute) -> Kind | None:
        held = self._types(type, node.span)
        if node.name in HEADER:
            return HEADER[node.name] if held is None or held.kind(node.name) is None else held.kind(node.name)
        if held is None:
            return None
        kind = held.kind(node.name)
        if kind is None:
            names = [name for name, _ in held.attributes]
            raise RuleError(f"{type} has no attribute {node.name}", span=node.span, hint=nearest(node.name, names))
        return kind

    def _whose(self, node: Attribute, own: Pattern | None) -> Attribute:
        if node.role is None:
            return node if own is not None else self._unqualified(node)
        if node.role in self._tables:
            return node
        name, index = indexed(node.role)
        if name not in self._roles:
            known = [*self._roles, *self._tables]
            raise RuleError(f"the query has no event called {name}", span=node.span, hint=nearest(name, known))
        if own is not None and index is None and name == own.role:
            return replace(node, role=None)
        if index is None and name in self._several:
            hint = f"Write {name}[0].{node.name} or {name}[last].{node.name}."
            raise RuleError(f"{name} can be several events: say which one", span=node.span, hint=hint)
        if index is not None and name not in self._several:
            message = f"{name} is one event, it has no [{node.role.partition('[')[2]}"
            raise RuleError(message, span=node.span, hint=f"Write {name}.{node.name}.")
        return replace(node, role=None) if self._single and node.role is not None else node

    def _unqualified(self, node: Attribute) -> Attribute:
        if self._single:
            return node
        held = {role: self._types(type, node.span) for role, type in self._roles.items()}
        having = [role for role, type in held.items() if type is None or type.kind(node.name) is not None]
        if len(having) == 1 and held[having[0]] is not None:
            return self._whose(replace(node, role=having[0]), None)
        if having or node.name in HEADER:
            hint = f"Write {next(iter(having), next(iter(held)))}.{node.name}."
            raise RuleError(f"say whose '{node.name}' is meant", span=node.span, hint=hint)
        names = [name for type in held.values() if type is not None for name, _ in type.attributes]
        message = f"no event of this query has an attribute {node.name}"
        raise RuleError(message, span=node.span, hint=nearest(node.name, names))

    def _source(self, source: Source) -> Source:
        after, pattern = self._tests(source.after, source.pattern), self._pattern(source.pattern)
        same = after is source.after and pattern is source.pattern
        return source if same else replace(source, pattern=pattern, after=after)

    def _pattern(self, pattern: Pattern) -> Pattern:
        constraints = self._tests(pattern.constraints, pattern)
        return pattern if constraints is pattern.constraints else replace(pattern, constraints=constraints)

    def _tests(self, tests: tuple[Expression, ...], own: Pattern) -> tuple[Expression, ...]:
        """The tests of an event, the same tuple if they are as they were."""
        known = self.knowing({}, own)
        made = tuple(self.resolved(test, own=own) for test in tests)
        for test in made:
            check_truth(test, known)
            if isinstance(self._given, Join):  # alone, a stream has no other beside it
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

    def _leaf(self, leaf: Step | Absence) -> Step | Absence:
        return replace(leaf, pattern=self._pattern(leaf.pattern))


def _check_having(test: Expression, kinds: Mapping[str, Kind | None]) -> None:
    """Fails unless a test is about values of the row, by their names in `select`."""

    def known(node: Attribute | Parameter) -> Kind | None:
        if isinstance(node, Parameter):
            hint = "Write select … as name, and having name > …."
            raise RuleError("'having' speaks of an aggregate by its name", span=node.span, hint=hint)
        if node.role is not None or node.name not in kinds:
            name = f"{node.role}.{node.name}" if node.role else node.name
            raise RuleError(f"the query selects nothing called {name}", span=node.span, hint=nearest(name, kinds))
        return kinds[node.name]

    check_truth(test, known)


def rebuilt(node: Expression, leaf: Callable[[Attribute | Parameter], Expression]) -> Expression:
    """The expression with its attributes and parameters replaced."""
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
    """Fails if the test of a stream speaks of another one."""

    def leaf(node: Attribute | Parameter) -> Expression:
        if isinstance(node, Attribute) and node.role is not None and node.role not in tables:
            message = f"a test of a stream cannot speak of {node.role}.{node.name}"
            raise RuleError(message, span=node.span, hint="Put it after 'on'.")
        return node

    rebuilt(test, leaf)


def _sources(given: Input) -> tuple[Source, ...]:
    match given:
        case Source():
            return (given,)
        case Join(left, right):
            return (left, right)
        case Chain():
            return ()


def _events(given: Input) -> Iterator[tuple[Pattern, bool]]:
    """The events that can be spoken of, and whether there can be several: of an absence there is none."""
    for source in _sources(given):
        yield source.pattern, False
    if isinstance(given, Chain):
        for leaf in given.leaves:
            if isinstance(leaf, Step):
                yield leaf.pattern, not leaf.single
