"""The reference semantics of TESLA rules, as plain Python that is short, slow, and easy to check against the paper.

Every other way of running rules must give the answers of `detect`. Rules run in an order in which composite events are
produced before they are used. The *anchor* is the event from which a rule looks back. For each anchor, in canonical
order, the clauses are resolved from left to right, with a search through all events for each clause.

The engine and the reference share only the classes of rules and the ids of events. Rules must be checked before, and
events must have values of their declared kinds, so that a double is a Python float.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from graphlib import TopologicalSorter

from tocsin.errors import EventError
from tocsin.events.types import (
    HEADER,
    LABEL,
    Event,
    Kind,
    Value,
    Words128,
    content_words,
    hexadecimal,
    match_words,
    occurrence_words,
)
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.siddhi.ast import Query
from tocsin.language.syntax.ast import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
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
    Within,
)


@dataclass(frozen=True, slots=True)
class MatchPart:
    """An event that fills a role of a match."""

    role: str
    type: str
    ts: int
    seq: int
    id: str
    words: Words128 = field(default=(0, 0), compare=False, repr=False)
    """The identity of the event, which orders matches if events share an id."""


@dataclass(frozen=True, slots=True)
class Match:
    """A composite event and the events that it consists of. These are in role order, with the anchor first."""

    rule: str
    type: str
    ts: int
    seq: int
    id: str
    attributes: Mapping[str, Value]
    parts: tuple[MatchPart, ...]
    expired: bool = False
    """Whether this is the row of a query for an event that left its window."""


def detect(
    rules: Sequence[Statement],
    events: Iterable[Event],
    since: Mapping[str, int] | None = None,
    last_ts: int | None = None,
) -> list[Match]:
    """Return all matches of the rules over the events, which may come in any order.

    A rule named in `since` sees only events with `ts` at or after that time, in microseconds. Timers run up to
    `last_ts`, or to the last event.

    >>> from tocsin.events.types import EventType
    >>> rule = Rule("Fire", EventType("Fire"), Pattern("Smoke"))
    >>> [(match.type, match.ts) for match in detect([rule], [Event("Smoke", 7)])]
    [('Fire', 7)]
    """
    facts = identified(events)
    if last_ts is None:
        last_ts = max((fact.ts for fact in facts), default=-(2**62))
    for fact in facts:
        if any(fact.type == rule.emits.name for rule in rules):
            raise EventError(f"events of type {fact.type} come from a rule, they are not accepted from outside")
    matches = []
    for rule in _in_order_of_use(rules):
        start = (since or {}).get(rule.name, -math.inf)
        visible = sorted((fact for fact in facts if fact.ts >= start), key=lambda fact: fact.key)
        if isinstance(rule, Request):
            from tocsin.reference.requests import notifications

            composites = notifications(rule, visible, last_ts, start)
        elif isinstance(rule, Query):
            from tocsin.reference.windows import composed

            composites = composed(rule, visible, last_ts)
        else:
            composites = matches_of(rule, visible)
        for composite, match in composites:
            facts.append(composite)
            matches.append(match)
    return sorted(matches, key=_output_key)


def _output_key(match: Match) -> tuple[object, ...]:
    return (
        match.ts,
        match.seq,
        match.rule,
        [(part.ts, part.seq, part.type, part.id, part.words) for part in match.parts],
    )


@dataclass(frozen=True, eq=False)
class Fact:
    """An event, from outside or composite, with its identity. Two events with equal contents are two facts."""

    type: str
    ts: int
    seq: int
    id: str
    words: Words128
    attributes: Mapping[str, Value]

    @cached_property
    def key(self) -> tuple[int, int, str, str, Words128]:
        """The position in the canonical order. The content decides between events that share an id."""
        return self.ts, self.seq, self.type, self.id, content_words(self.type, self.ts, self.seq, self.attributes)

    @property
    def identity(self) -> str:
        """The id of this event alone, even if other events have the same source id."""
        return hexadecimal(self.words)

    def precedes(self, other: Fact) -> bool:
        return (self.ts, self.seq) < (other.ts, other.seq)

    def value(self, name: str) -> Value:
        header: dict[str, Value] = {"ts": self.ts, "seq": self.seq, "id": self.attributes.get(LABEL, self.id)}
        return self.attributes[name] if name in self.attributes else header.get(name)


def identified(events: Iterable[Event]) -> list[Fact]:
    """Return the events with their identities.

    An identity is the hash of an event's content, including its id, plus the event's number among events of equal
    content.
    """
    facts = []
    occurrences: Counter[Words128] = Counter()
    events = list(events)
    # If some event has an attribute called ts, seq or id, the name means that attribute, which is null in other events.
    hidden = [name for name in HEADER if any(name in event.attributes for event in events)]
    for event in events:
        attributes = {name: normalized(value) for name, value in event.attributes.items()}
        attributes |= {name: None for name in hidden if name not in attributes}
        attributes |= {} if event.id is None else {LABEL: event.id}
        content = content_words(event.type, event.ts, event.seq, attributes)
        words = occurrence_words(content, occurrences[content])
        occurrences[content] += 1
        id = hexadecimal(words) if event.id is None else event.id
        facts.append(Fact(event.type, event.ts, event.seq, id, words, attributes))
    return facts


def _in_order_of_use(rules: Sequence[Statement]) -> list[Statement]:
    """Return the rules in an order in which each comes after the rules that define the types it uses."""
    uses = TopologicalSorter[str]()
    for rule in rules:
        uses.add(rule.emits.name, *rule.uses)
    order = list(uses.static_order())
    return sorted(rules, key=lambda rule: order.index(rule.emits.name))


Condition = Negation | Aggregate
RoleFacts = Mapping[str | None, Fact]
"""The event of each role. The event that a constraint is about has the role None."""
Bound = Mapping[str, Value]
"""The value of each parameter that is bound."""


def conditions_of(rule: Rule) -> dict[str, list[Condition]]:
    """Return the negations and aggregates that belong to each role, in the order of the text.

    A condition belongs to the last of the roles that its scope names or that bind the parameters it mentions.
    """
    roles = [pattern.role for pattern in rule.roles]
    belonging: dict[str, list[Condition]] = {role: [] for role in roles}
    binder = dict.fromkeys(_equated(rule.anchor), rule.anchor.role)
    for clause in rule.clauses:
        if isinstance(clause, Selection):
            for name in _equated(clause.pattern):
                binder.setdefault(name, clause.pattern.role)
            continue
        expressions = clause.pattern.constraints
        if isinstance(clause, Aggregate) and clause.test is not None:
            expressions += (clause.test.bound,)
        scope = clause.scope
        mentioned = [scope.origin] if isinstance(scope, Within) else [scope.start, scope.end]
        mentioned += [binder[name] for name in _parameters(*expressions)]
        owner = max(mentioned, key=roles.index)
        belonging[owner].append(clause)
        if isinstance(clause, Aggregate) and clause.parameter is not None:
            binder[clause.parameter] = owner
    return belonging


def _equated(pattern: Pattern) -> list[str]:
    """Return the parameters that the pattern equates with an attribute, and so binds unless they are bound already."""
    return [equation[1] for constraint in pattern.constraints if (equation := equation_of(constraint))]


def equation_of(constraint: Expression) -> tuple[str, str] | None:
    """Return (attribute, parameter) if the constraint equates an attribute with a parameter, else None."""
    match constraint:
        case Comparison("=", Attribute(attribute), Parameter(parameter)):
            return attribute, parameter
        case Comparison("=", Parameter(parameter), Attribute(attribute)):
            return attribute, parameter
    return None


def _parameters(*expressions: Expression) -> list[str]:
    names = []
    for expression in expressions:
        match expression:
            case Parameter(name):
                names.append(name)
            case Negative(operand) | Not(operand):
                names += _parameters(operand)
            case Arithmetic(_, left, right) | Comparison(_, left, right):
                names += _parameters(left, right)
            case And(operands) | Or(operands):
                names += _parameters(*operands)
    return names


def matches_of(rule: Rule, facts: Sequence[Fact]) -> Iterator[tuple[Fact, Match]]:
    """Yield the composite events of one rule. `facts` are the events that the rule sees, in canonical order."""
    search = Search(rule, facts, conditions_of(rule), set())
    for fact in facts:
        if fact.type != rule.anchor.type:
            continue
        bound = search.admitted(rule.anchor, fact, {}, {})
        if bound is None:
            continue
        complete = list(search.completed(0, {rule.anchor.role: fact}, bound))
        for chosen, bound in complete:
            yield _composed(rule, chosen, bound)
        search.consumed.update((role, chosen[role]) for chosen, _ in complete for role in rule.consuming)


@dataclass(frozen=True, slots=True)
class Search:
    """The events among which one rule searches, and the (role, event) pairs that the rule has consumed so far."""

    rule: Rule
    facts: Sequence[Fact]
    conditions: Mapping[str, list[Condition]]
    consumed: set[tuple[str, Fact]]

    def completed(self, position: int, chosen: RoleFacts, bound: Bound) -> Iterator[tuple[RoleFacts, Bound]]:
        """Yield every way to select events for the selections from `position` to the last."""
        selections = [clause for clause in self.rule.clauses if isinstance(clause, Selection)]
        if position == len(selections):
            yield chosen, bound
            return
        selection = selections[position]
        role = selection.pattern.role
        candidates = []
        for fact in self.in_scope(selection.pattern.type, selection.scope, chosen):
            after = self.admitted(selection.pattern, fact, chosen, bound)
            if after is not None and (role, fact) not in self.consumed:
                candidates.append((fact, after))
        if selection.policy == Policy.FIRST:
            candidates = candidates[: selection.count]
        elif selection.policy == Policy.LAST:
            candidates = candidates[-selection.count :]
        for fact, after in candidates:
            yield from self.completed(position + 1, {**chosen, role: fact}, after)

    def in_scope(self, type: str, scope: Scope, chosen: RoleFacts) -> list[Fact]:
        """Return the events of a type that are in a scope, in canonical order."""
        facts = [fact for fact in self.facts if fact.type == type]
        if isinstance(scope, Within):
            x = chosen[scope.origin]
            return [fact for fact in facts if fact.precedes(x) and x.ts - fact.ts < scope.window_us]
        x, y = chosen[scope.start], chosen[scope.end]
        return [fact for fact in facts if x.precedes(fact) and fact.precedes(y)]

    def admitted(self, pattern: Pattern, fact: Fact, chosen: RoleFacts, bound: Bound) -> Bound | None:
        """Return the bound parameters after `fact` fills the role of `pattern`.

        Returns None if `fact` fails a condition of the role.
        """
        for constraint in pattern.constraints:
            equation = equation_of(constraint)
            if equation and equation[1] not in bound:
                bound = {**bound, equation[1]: fact.value(equation[0])}
            elif not holds(constraint, {None: fact}, bound):
                return None
        chosen = {**chosen, pattern.role: fact}
        for condition in self.conditions[pattern.role]:
            facts = [
                other
                for other in self.in_scope(condition.pattern.type, condition.scope, chosen)
                if all(holds(constraint, {None: other}, bound) for constraint in condition.pattern.constraints)
            ]
            if isinstance(condition, Negation):
                if facts:
                    return None
                continue
            value = aggregated(condition, facts)
            if condition.parameter is not None:
                bound = {**bound, condition.parameter: value}
            test = condition.test
            if test is not None and not compared(test.operator, value_of(test.bound, {}, bound), value):
                return None
        return bound


def _composed(rule: Rule, chosen: RoleFacts, bound: Bound) -> tuple[Fact, Match]:
    """Return the composite event of a complete match.

    It has the time of its anchor, and an id made from rule and events.
    """
    anchor = chosen[rule.anchor.role]
    kinds = dict(rule.emits.attributes)
    attributes = {name: converted(value_of(value, chosen, bound), kinds[name]) for name, value in rule.where}
    filled = [(pattern.role, chosen[pattern.role]) for pattern in rule.roles]
    parts = tuple(MatchPart(role, fact.type, fact.ts, fact.seq, fact.id, fact.words) for role, fact in filled)
    words = match_words(rule.name, (fact.words for _, fact in filled))
    match = Match(rule.name, rule.emits.name, anchor.ts, anchor.seq, hexadecimal(words), attributes, parts)
    return Fact(match.type, match.ts, match.seq, match.id, words, attributes), match


def value_of(expression: Expression, events: RoleFacts, bound: Bound) -> Value:
    """Return the value of an expression, given the events of its roles and the values of its parameters."""
    match expression:
        case Literal(value):
            return value
        case Attribute(name, role):
            return events[role].value(name)
        case Parameter(name):
            return bound[name]
        case Negative(operand):
            return _calculated("-", 0, value_of(operand, events, bound))
        case Arithmetic(sign, left, right):
            return _calculated(sign, value_of(left, events, bound), value_of(right, events, bound))
        case Comparison(sign, left, right):
            return compared(sign, value_of(left, events, bound), value_of(right, events, bound))
        case Not(operand):
            return not holds(operand, events, bound)
        case And(operands):
            return all(holds(operand, events, bound) for operand in operands)
        case Or(operands):
            return any(holds(operand, events, bound) for operand in operands)


def holds(constraint: Expression, events: RoleFacts, bound: Bound) -> bool:
    """Return whether a constraint is met. Logic has two values, and null counts as false."""
    return value_of(constraint, events, bound) is True


_COMPARED = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compared(sign: str, left: Value, right: Value) -> bool:
    """Return whether a comparison of two values holds. A comparison with null is false.

    An integer that is compared with a double is converted first.
    """
    if left is None or right is None:
        return False
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    return bool(_COMPARED[sign](left, right))


def _calculated(sign: str, left: Value, right: Value) -> Value:
    """Return the result of an operation, which is null if an operand is null.

    `/` always divides doubles, and division by zero gives null. `//` of two integers is an integer, rounded towards
    zero, and `%` has the sign of the dividend.
    """
    if left is None or right is None:
        return None
    assert not isinstance(left, str)
    assert not isinstance(right, str)
    if sign == "/" or isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    if sign in ("//", "%") and right == 0:
        return None
    if sign == "%":
        return normalized(
            math.fmod(left, right) if isinstance(left, float) else left - right * _quotient(left, int(right))
        )
    if sign == "//" and not isinstance(left, float):
        return normalized(_quotient(left, int(right)))
    match sign:
        case "+":
            return normalized(left + right)
        case "-":
            return normalized(left - right)
        case "*":
            return normalized(left * right)
    return None if right == 0 else normalized(left / right)


def _quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def aggregated(aggregate: Aggregate, facts: Sequence[Fact]) -> Value:
    """Return the value of an aggregate over `facts`. Nulls are skipped, and sums are exact and rounded once.

    If there are no values, Count is 0 and every other aggregate is null.
    """
    if aggregate.attribute is None:
        return len(facts)
    values = [value for fact in facts if (value := fact.value(aggregate.attribute)) is not None]
    if aggregate.function == Function.COUNT:
        return len(values)
    numbers = [value for value in values if not isinstance(value, str)]
    if not numbers:
        return None
    if aggregate.function == Function.MIN:
        return min(numbers)
    if aggregate.function == Function.MAX:
        return max(numbers)
    exact = sum(map(Fraction, numbers))
    if aggregate.function == Function.SUM and all(isinstance(number, int) for number in numbers):
        return normalized(int(exact))
    try:
        rounded = float(exact)
    except OverflowError:
        return None
    return normalized(rounded if aggregate.function == Function.SUM else rounded / len(numbers))


def normalized(value: Value) -> Value:
    """Return a value as it is stored. It is null if outside 64 bits or not finite, and negative zero becomes zero."""
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    return value


def converted(value: Value, kind: Kind) -> Value:
    """Return a value converted to `kind`.

    An integer becomes a double if needed, and an `int` outside 32 bits is null.
    """
    if kind == Kind.DOUBLE and value is not None:
        return float(value)
    if kind == Kind.INT and isinstance(value, int) and not -(2**31) <= value < 2**31:
        return None
    return value
