"""Generate cases with Hypothesis: a few rules, valid by construction, and a stream of events for them.

The world is small, so that things meet: five types of events with the same attributes, one of each kind, and three
composite types, P, Q over P, R over both. Times are a few dozen microseconds and windows about as long, so that ties
are frequent. `cases()` is what tests use; everything shrinks towards one rule without clauses and no events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from hypothesis import strategies as st

from tocsin.events.formats import write_event
from tocsin.events.types import HEADER, Event, EventType, Kind, Value
from tocsin.language.syntax.ast import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
    Between,
    Clause,
    Comparison,
    Expression,
    Function,
    Literal,
    Negation,
    Negative,
    Not,
    Or,
    Parameter,
    Pattern,
    Policy,
    Rule,
    Scope,
    Selection,
    Test,
    Within,
)
from tocsin.language.syntax.expressions import print_rule

T = TypeVar("T")

KINDS = {
    "k": Kind.STRING,
    "n": Kind.LONG,
    "v": Kind.DOUBLE,
    "f": Kind.BOOL,
    "at": Kind.TIMESTAMP,
    "i": Kind.INT,
}
TYPES = tuple(EventType(name, tuple(KINDS.items())) for name in "ABCDE")
LEVELS = ("P", "Q", "R")
LAST_TS = 30
MATCHES_MAX = 1000
"""The largest possible number of matches of a case."""

VALUES: dict[str, list[Value]] = {
    "k": [None, "x", "x", "x", "y", "y", "", "Z", "é"],
    "n": [None, 0, 1, 2, 3, 0, 1, 2, 3, -1, 2**53 + 1, 2**62, 2**62],
    "v": [None, 0.5, 1.0, 1.5, 2.5, 0.5, 1.0, -0.5, 0.1, 0.2, 2.0**53, 1e16, -1e16, 1e308],
    "f": [None, False, True, True],
    "at": [None, *range(0, LAST_TS, 3)],
    "i": [None, 0, 1, 2, 3, 0, 1, 2, 2**31 - 1, -(2**31)],
}
LITERALS: dict[Kind, list[str | int | float | bool]] = {
    Kind.STRING: ["x", "y", "", "Z"],
    Kind.INT: [1, 0, 2, 3, -1, 5],
    Kind.DOUBLE: [1.0, 0.5, 1.5, 2.5, -0.5, 0.1, 2.0**53],
    Kind.BOOL: [True, False],
    Kind.TIMESTAMP: [10, 0, 20],
}
COMPARISONS = ["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, repr=False)
class Case:
    """Rules, the types of events, and unordered events."""

    rules: tuple[Rule, ...]
    events: tuple[Event, ...]
    types: tuple[EventType, ...] = TYPES

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print rules and events of a failing case as text."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        lines = [line for rule in self.rules for line in [*print_rule(rule).splitlines(), ""]]
        lines += [write_event(event) for event in self.events]
        return "\n".join(["Case(", *(f"    {line}".rstrip() for line in lines), ")"])


@st.composite
def cases(draw: st.DrawFn, events_max: int = 40, *, ids_shared: bool | None = None) -> Case:
    """Generate rules with all clauses and a stream for them."""
    alphabet = pick(draw, ["AB", "A", "ABC", "ABC", "ABCDE"])
    # Generate events first, as the last part is generated smallest, and a long stream matters more than many rules.
    stream = draw(streams(alphabet, events_max, ids_shared=ids_shared))
    rules = draw(rule_sets(alphabet))
    while stream and matches_max(rules, stream) > MATCHES_MAX:
        stream = stream[: len(stream) * 3 // 4]
    return Case(tuple(draw(st.permutations(rules))), tuple(stream))


@st.composite
def streams(
    draw: st.DrawFn, alphabet: str = "ABCDE", events_max: int = 40, *, ids_shared: bool | None = None
) -> list[Event]:
    """Events with all ids or none. They share a few sets of attributes, so that many are alike and some are equal.

    `ids_shared`: whether different events often have the same id; None for either.
    """
    contents = draw(st.lists(_CONTENTS, max_size=8)) or [{}]
    row = st.tuples(
        st.sampled_from(alphabet),
        _integers(LAST_TS),
        st.sampled_from([0, 0, 0, 1, 2]),
        _integers(len(contents) - 1),
        st.sampled_from(_LETTERS),
    )
    # A list of lists is longer than a list, and shrinks as well.
    rows = [row for some in draw(st.lists(st.lists(row, max_size=12), max_size=10)) for row in some][:events_max]
    named = draw(st.booleans())
    if ids_shared is None:
        ids_shared = draw(st.booleans())
    return [
        Event(type, ts, contents[content], seq, f"{letter}{number * (not ids_shared)}" if named else None)
        for number, (type, ts, seq, content, letter) in enumerate(rows)
    ]


_LETTERS = "aZ！𝄞"
"""Prefixes of ids, whose order by code point differs from that in UTF-16."""
_CONTENTS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}).map(
    lambda values: {name: value for name, value in values.items() if value is not None}
)


def pick(draw: st.DrawFn, choices: Sequence[T]) -> T:
    """Pick one of the choices; shrinks towards the first."""
    return choices[draw(_integers(len(choices) - 1))]


@lru_cache
def _integers(largest: int) -> st.SearchStrategy[int]:
    return st.integers(0, largest)


@st.composite
def rule_sets(draw: st.DrawFn, alphabet: str = "ABCDE") -> tuple[Rule, ...]:
    """One to four rules, over each other's composite events up to three levels deep."""
    emitted = pick(draw, ["P", "P", "PP", "PQ", "PQR", "PPQ", "PQQ", "PQRR"])
    known = {type.name: type for type in TYPES if type.name in alphabet}
    rules: list[Rule] = []
    names: Counter[str] = Counter()
    for type in emitted:
        composite = known.get(type) or EventType(type, _composite_attributes(draw))
        names[type] += 1
        name = type if names[type] == 1 else f"{type}_{names[type]}"
        inputs = {other: known[other] for other in known if other not in LEVELS or other < type}
        rules.append(_Draft(draw, inputs).rule(name, composite))
        known[type] = composite
    return tuple(rules)


def _composite_attributes(draw: st.DrawFn) -> tuple[tuple[str, Kind], ...]:
    names = draw(st.lists(st.sampled_from(list(KINDS)), unique=True, max_size=6))
    return tuple((name, KINDS[name]) for name in names)


Leaf = tuple[Expression, Kind]


@dataclass
class _Draft:
    """A rule that is generated clause by clause, and the roles and parameters it can refer to so far."""

    draw: st.DrawFn
    types: dict[str, EventType]
    roles: dict[str, EventType] = field(default_factory=dict)
    earlier: dict[str, set[str]] = field(default_factory=dict)
    """For each role, the roles that are known to precede it."""
    parameters: dict[str, Kind] = field(default_factory=dict)
    each_count: int = 0

    def rule(self, name: str, emits: EventType) -> Rule:
        anchor = self.pattern(named=True)
        self.enter(anchor, set(), set())
        clauses = tuple(self.clause() for _ in range(self.one_of([1, 0, 1, 2, 2, 3, 3, 4, 4])))
        where = tuple((attribute, self.output(kind)) for attribute, kind in emits.attributes)
        selected = list(self.roles)[1:]
        consuming: list[str] = []
        if selected and self.one_in(3):
            # The anchor may be consumed too, without effect.
            consuming = self.draw(st.lists(st.sampled_from([*selected, anchor.role]), unique=True, min_size=1))
        return Rule(name, emits, anchor, clauses, where, tuple(consuming))

    def one_of(self, choices: Sequence[T]) -> T:
        return pick(self.draw, choices)

    def one_in(self, number: int) -> bool:
        """True once in this many times; shrinks towards False."""
        return self.one_of(range(number)) == number - 1

    def enter(self, pattern: Pattern, before: set[str], after: set[str]) -> None:
        """Add the pattern as a role that precedes some roles and follows others."""
        role = pattern.role
        self.roles[role] = self.types[pattern.type]
        self.earlier[role] = after.union(*(self.earlier[other] for other in after))
        for other in self.earlier:
            if other in before or self.earlier[other] & before:
                self.earlier[other] |= {role} | self.earlier[role]

    def clause(self) -> Clause:
        kind = self.one_of(["selection"] * 3 + ["negation"] + ["aggregate"] * 2)
        if kind == "selection":
            return self.selection()
        scope = self.scope()
        if kind == "negation":
            return Negation(self.pattern(named=False), scope)
        return self.aggregate(scope)

    def selection(self) -> Selection:
        policies = [(Policy.LAST, 1), (Policy.FIRST, 1), (Policy.LAST, 2), (Policy.FIRST, 2), (Policy.LAST, 3)]
        if self.each_count < 2:
            policies = [(Policy.EACH, 0)] * 4 + policies
        policy, count = self.one_of(policies)
        self.each_count += policy == Policy.EACH
        scope = self.scope()
        pattern = self.pattern(named=True)
        if isinstance(scope, Within):
            self.enter(pattern, {scope.origin}, set())
        else:
            self.enter(pattern, {scope.end}, {scope.start})
        return Selection(policy, pattern, scope, count)

    def scope(self) -> Scope:
        known = sorted((x, y) for y in self.roles for x in self.earlier[y])
        possible = sorted((x, y) for y in self.roles for x in self.roles if x != y and y not in self.earlier[x])
        if known and self.one_in(2):
            return Between(*self.one_of(known))
        if possible and self.one_in(8):
            return Between(*self.one_of(possible))
        return Within(self.one_of([10, 5, 15, 20, 3, 40, 1]), self.one_of(list(self.roles)))

    def aggregate(self, scope: Scope) -> Aggregate:
        function = self.one_of([*Function, Function.SUM, Function.COUNT])
        pattern = self.pattern(named=False)
        attributes = self.attributes(self.types[pattern.type])
        if function in (Function.AVG, Function.SUM):
            attributes = [leaf for leaf in attributes if leaf[1].numeric]
        elif function in (Function.MIN, Function.MAX):
            attributes = [leaf for leaf in attributes if leaf[1].numeric or leaf[1] == Kind.TIMESTAMP]
        attribute, kind = self.one_of(attributes)
        assert isinstance(attribute, Attribute)
        name: str | None = attribute.name
        if function == Function.COUNT:
            name, kind = self.one_of([None, name]), Kind.LONG
        elif function == Function.AVG:
            kind = Kind.DOUBLE
        elif function == Function.SUM and kind == Kind.INT:
            kind = Kind.LONG
        test = None
        if self.one_in(3):
            bound = self.expression(kind, self.bound(), 1)
            test = Test(bound, self.one_of(["<", "<=", ">", ">=", "!=", "="]))
        parameter = None
        if not self.one_in(3):
            parameter = self.fresh(kind)
        return Aggregate(function, pattern, name, scope, parameter, test)

    def pattern(self, *, named: bool) -> Pattern:
        """A pattern; one that is to be named binds parameters, and has an alias where its type is a role already."""
        type = self.one_of([*self.types, *(name for name in self.types if name in LEVELS)])
        alias = None
        if named and (type in self.roles or self.one_in(6)):
            alias = f"{type.lower()}{len(self.roles) + 1}"
        constraints = [self.constraint(self.types[type], binds=named) for _ in range(self.one_of([0, 0, 0, 1, 1, 2]))]
        if named and self.one_in(2):
            constraints.append(self.binding(self.types[type]))
        return Pattern(type, tuple(constraints), alias)

    def constraint(self, type: EventType, *, binds: bool) -> Expression:
        shapes: list[Callable[[EventType], Expression]] = [self.comparison, self.join, self.join, self.logic]
        if binds:
            shapes = [self.binding, self.binding, *shapes]
        return self.one_of(shapes)(type)

    def binding(self, type: EventType) -> Expression:
        attribute, kind = self.one_of(self.attributes(type))
        return self.turned("=", attribute, Parameter(self.fresh(kind)))

    def join(self, type: EventType) -> Expression:
        """A comparison with a parameter, if there is one of a fitting kind: mostly an equality."""
        attributes = self.attributes(type)
        pairs = [(leaf, other) for leaf in attributes for other in self.bound() if leaf[1] == other[1]]
        if not pairs:
            return self.comparison(type)
        (attribute, kind), (parameter, _) = self.one_of(pairs)
        return self.turned(self.operator(kind, ["=", "=", "="]), attribute, parameter)

    def comparison(self, type: EventType) -> Expression:
        leaves = self.attributes(type)
        attribute, kind = self.one_of(leaves)
        if kind.numeric and self.one_in(3):
            attribute = self.arithmetic(kind, [(attribute, kind)], 0) or attribute
        if kind.integral and self.one_in(3):
            kind = Kind.DOUBLE
        other = self.expression(kind, leaves + self.bound(), 1)
        return self.turned(self.operator(kind), attribute, other)

    def logic(self, type: EventType, depth: int = 1) -> Expression:
        def operand() -> Expression:
            if depth and self.one_in(3):
                return self.logic(type, depth - 1)
            booleans = [leaf for leaf, kind in self.attributes(type) + self.bound() if kind == Kind.BOOL]
            if booleans and self.one_in(3):
                return self.one_of(booleans)
            return self.comparison(type)

        shape = self.one_of(["bare", "not", "or", "or", "and in or", "and in not"])
        if shape == "bare":
            return operand()
        if shape == "not":
            return Not(operand())
        if shape == "and in not":
            return Not(And((operand(), operand())))
        left = And((operand(), operand())) if shape == "and in or" else operand()
        return Or((*_unnested(left), *_unnested(operand())))

    def expression(self, kind: Kind, leaves: list[Leaf], depth: int) -> Expression:
        """Generate an operand of a kind, or an integer where a number is needed."""
        if depth and self.one_in(3):
            computed = self.arithmetic(kind, leaves, depth - 1)
            if computed is not None:
                return computed
        fitting = [leaf for leaf, other in leaves if other == kind or (kind.numeric and other.integral)]
        if fitting and not self.one_in(3):
            return self.one_of(fitting)
        literal = Kind.INT if kind.integral else kind
        return Literal(self.one_of(LITERALS[literal]), literal)

    def arithmetic(self, kind: Kind, leaves: list[Leaf], depth: int) -> Expression | None:
        def operand(kind: Kind) -> Expression:
            return self.expression(kind, leaves, depth)

        if kind == Kind.TIMESTAMP:
            return Arithmetic(self.one_of(["+", "-"]), operand(Kind.TIMESTAMP), operand(Kind.LONG))
        if kind == Kind.BOOL:
            compared = self.one_of([Kind.DOUBLE, Kind.STRING, Kind.TIMESTAMP])
            return Comparison(self.operator(compared), operand(compared), operand(compared))
        if kind.integral and self.one_in(3):
            return Arithmetic("-", operand(Kind.TIMESTAMP), operand(Kind.TIMESTAMP))
        if not kind.numeric:
            return None
        operator = self.one_of(["+", "-", "*", "negative"] + ["/"] * (kind == Kind.DOUBLE))
        left = operand(kind)
        if operator != "negative":
            return Arithmetic(operator, left, operand(kind))
        return None if isinstance(left, Literal) else Negative(left)

    def operator(self, kind: Kind, preferred: Sequence[str] = ()) -> str:
        return self.one_of([*preferred, *(COMPARISONS[:2] if kind == Kind.BOOL else COMPARISONS)])

    def turned(self, operator: str, left: Expression, right: Expression) -> Expression:
        """Return the comparison, or the same with swapped sides."""
        if self.one_in(4):
            return Comparison({"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator), right, left)
        return Comparison(operator, left, right)

    def attributes(self, type: EventType) -> list[Leaf]:
        return [(Attribute(name), kind) for name, kind in [*type.attributes, *HEADER.items()]]

    def bound(self) -> list[Leaf]:
        return [(Parameter(name), kind) for name, kind in self.parameters.items()]

    def output(self, kind: Kind) -> Expression:
        """Generate the `where` value of an attribute of a kind."""
        leaves = self.bound()
        if self.one_in(2):
            leaves += [
                (Attribute(name, role), kind)
                for role, type in self.roles.items()
                for name, kind in [*type.attributes, *HEADER.items()]
            ]
        return self.expression(kind, leaves, 2)

    def fresh(self, kind: Kind) -> str:
        name = f"p{len(self.parameters) + 1}"
        self.parameters[name] = kind
        return name


def _unnested(operand: Expression) -> tuple[Expression, ...]:
    """Flatten an operand of `or`, as the parser does."""
    return operand.operands if isinstance(operand, Or) else (operand,)


def matches_max(rules: Sequence[Rule], events: Sequence[Event]) -> int:
    """Return an upper bound for the number of matches, from the numbers of events at each time."""
    counts: dict[str, Counter[int]] = {}
    for event in events:
        counts.setdefault(event.type, Counter())[event.ts] += 1
    total = 0
    for rule in rules:
        horizons = {rule.anchor.role: 0}
        choices: list[tuple[Counter[int], int, int]] = []
        for clause in rule.clauses:
            if isinstance(clause, Selection):
                scope = clause.scope
                if isinstance(scope, Within):
                    horizon = horizons[scope.origin] + scope.window_us
                else:
                    horizon = horizons[scope.start]
                horizons[clause.pattern.role] = horizon
                choices.append((counts.get(clause.pattern.type, Counter()), horizon, clause.count))
        composites = counts.setdefault(rule.emits.name, Counter())
        for ts, anchors in counts.get(rule.anchor.type, Counter()).items():
            number = anchors
            for times, horizon, count in choices:
                candidates = sum(times[ts - age] for age in range(horizon))
                number *= min(count, candidates) if count else candidates
            composites[ts] += number
            total += number
    return total
