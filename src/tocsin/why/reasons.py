"""Why did a rule match at an event, or why not? Each thing that the rule asks, as it is tried, and what was found.
`accounts` answers for requests and queries.

A rule is tried at one anchor as the reference does it, clause by clause. Where several events fit a clause, all ways
are followed, and the one that came furthest is told: of the clause at which it ended, the candidate that met the most
of what is asked, the latest of these. What stands before a clause in that account is met, so it is the first that
fails. Time: that of the reference at one anchor, the product of what fits the clauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.errors import EventError
from tocsin.events.formats import write_event
from tocsin.events.types import LABEL, Event, Value
from tocsin.language.syntax.ast import (
    Attribute,
    Expression,
    Negation,
    Parameter,
    Pattern,
    Policy,
    Rule,
    Selection,
    Within,
)
from tocsin.language.syntax.expressions import (
    print_clause,
    print_expression,
    print_pattern,
    print_scope,
    print_window,
    walk,
)
from tocsin.reference.patterns import (
    Bound,
    Chosen,
    Condition,
    Fact,
    Part,
    Search,
    aggregated,
    compared,
    conditions_of,
    equation_of,
    holds,
    value_of,
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a clause asks, and what was found."""

    clause: str
    asked: str
    found: str
    holds: bool
    role: str
    """Whose clause it is; a negation or an aggregate belongs to the last role that it speaks of."""
    event: Fact | None = None
    """The event that was tried, or that stands in the way."""


@dataclass(frozen=True, slots=True)
class Reason:
    """What became of a rule at one anchor."""

    rule: str
    anchor: Fact
    checks: tuple[Check, ...]
    """In the order in which they were made; only the last may fail."""
    parts: tuple[Part, ...]
    """The events that fill roles, as far as it came."""

    @property
    def matched(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def failed(self) -> Check | None:
        """What was not met."""
        return next((check for check in self.checks if not check.holds), None)

    def __str__(self) -> str:
        """The account, a clause in a line, with what it asks below."""
        verdict = "matched" if self.matched else "did not match"
        lines = [f"{self.rule} {verdict} at {written(self.anchor)}"]
        for number, check in enumerate(self.checks):
            if number == 0 or self.checks[number - 1].clause != check.clause:
                lines.append(f"  {check.clause}")
            mark = "✓" if check.holds else "✗"
            what = f"{check.asked}: {check.found}" if check.asked != check.clause else check.found
            lines.append(f"    {mark} {what}")
        return "\n".join(lines)

    def as_data(self) -> dict[str, object]:
        """The account as plain data, for JSON."""
        return {
            "rule": self.rule,
            "matched": self.matched,
            "anchor": _data(self.anchor),
            "parts": [{"role": part.role, "type": part.type, "ts": part.ts, "id": part.id} for part in self.parts],
            "checks": [
                {
                    "clause": check.clause,
                    "asked": check.asked,
                    "found": check.found,
                    "holds": check.holds,
                    "role": check.role,
                    "event": None if check.event is None else _data(check.event),
                }
                for check in self.checks
            ],
        }


Consumer = Mapping[tuple[str, Fact], str]
"""The id of the match that has used up an event in a role."""


@dataclass(slots=True)
class Trial:
    """One rule, the events around its anchor in canonical order, and what it had consumed before."""

    rule: Rule
    facts: Sequence[Fact]
    consumed: Consumer = field(default_factory=dict)
    _search: Search = field(init=False)
    _furthest: tuple[tuple[object, ...], Chosen, list[Check]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._search = Search(self.rule, self.facts, conditions_of(self.rule), set())

    def at(self, anchor: Fact, parts: Sequence[str] | None = None) -> Reason:
        """What became of the rule at that event; `parts`: of that match, by the ids of its events in role order."""
        self._furthest = None
        role = self.rule.anchor.role
        checks, bound = self._asked(self.rule.anchor, anchor, {}, {}, print_pattern(self.rule.anchor))
        if bound is None:
            return Reason(self.rule.name, anchor, tuple(checks), ())
        chosen: Chosen = {role: anchor}
        roles = [pattern.role for pattern in self.rule.roles]
        for complete, told in self._completed(0, chosen, bound, checks):
            if parts is None or [complete[name].identity for name in roles] == list(parts):
                return self._reason(complete, told)
        assert self._furthest is not None
        return self._reason(self._furthest[1], self._furthest[2])

    def _reason(self, chosen: Chosen, checks: Sequence[Check]) -> Reason:
        anchor = chosen[self.rule.anchor.role]
        filled = [(pattern.role, chosen[pattern.role]) for pattern in self.rule.roles if pattern.role in chosen]
        parts = tuple(Part(role, fact.type, fact.ts, fact.seq, fact.id) for role, fact in filled)
        return Reason(self.rule.name, anchor, tuple(checks), parts)

    def _completed(
        self, position: int, chosen: Chosen, bound: Bound, before: list[Check]
    ) -> Iterator[tuple[Chosen, list[Check]]]:
        """Every way to fill the roles from a position on, with what was checked; notes where ways end."""
        selections = [clause for clause in self.rule.clauses if isinstance(clause, Selection)]
        if position == len(selections):
            yield chosen, before
            return
        selection = selections[position]
        role, clause = selection.pattern.role, print_clause(selection)
        inside = self._search.in_scope(selection.pattern.type, selection.scope, chosen)
        fitting: list[tuple[Fact, Bound, list[Check]]] = []
        for fact in inside:
            checks, after = self._asked(selection.pattern, fact, chosen, bound, clause)
            if after is not None and (role, fact) in self.consumed:
                told = f"used up by the match {self.consumed[role, fact]}"
                checks.append(Check(clause, "not consumed before", told, False, role, fact))
                after = None
            scoped = [self._scoped(selection, fact, chosen), *checks]
            if after is None:
                self._ended((position, len(scoped), fact.key), chosen, [*before, *scoped])
            else:
                fitting.append((fact, after, scoped))
        if not inside:
            self._ended((position, 0), chosen, [*before, self._outside(selection, chosen)])
        count = len(fitting)
        first = max(0, count - selection.count) if selection.policy == Policy.LAST else 0
        last = min(count, selection.count) if selection.policy == Policy.FIRST else count
        for number, (fact, after, checks) in enumerate(fitting[first:last], first + 1):
            told = f"it is {_place(number, count)} that fits" if count > 1 else "no other fits"
            policy = Check(clause, selection.policy.value, told, True, role, fact)
            yield from self._completed(position + 1, {**chosen, role: fact}, after, [*before, *checks, policy])

    def _ended(self, rank: tuple[object, ...], chosen: Chosen, checks: list[Check]) -> None:
        if self._furthest is None or rank > self._furthest[0]:
            self._furthest = rank, chosen, checks

    def _asked(
        self, pattern: Pattern, fact: Fact, chosen: Chosen, bound: Bound, clause: str
    ) -> tuple[list[Check], Bound | None]:
        """What is asked of an event in a role, up to the first thing that it fails."""
        checks: list[Check] = []
        for constraint in pattern.constraints:
            equation, text = equation_of(constraint), print_expression(constraint)
            if equation and equation[1] not in bound:
                bound = {**bound, equation[1]: fact.value(equation[0])}
                told = f"${equation[1]} is {shown_value(bound[equation[1]])}"
                checks.append(Check(clause, text, told, True, pattern.role, fact))
                continue
            right = holds(constraint, {None: fact}, bound)
            checks.append(Check(clause, text, _values(constraint, fact, bound), right, pattern.role, fact))
            if not right:
                return checks, None
        if not pattern.constraints:
            checks.append(Check(clause, pattern.type, "any will do", True, pattern.role, fact))
        chosen = {**chosen, pattern.role: fact}
        for condition in self._search.conditions[pattern.role]:
            check, bound = self._met(condition, pattern.role, chosen, bound)
            checks.append(check)
            if not check.holds:
                return checks, None
        return checks, bound

    def _met(self, condition: Condition, role: str, chosen: Chosen, bound: Bound) -> tuple[Check, Bound]:
        """Whether a negation or an aggregate holds."""
        clause = print_clause(condition)
        facts = [
            fact
            for fact in self._search.in_scope(condition.pattern.type, condition.scope, chosen)
            if all(holds(constraint, {None: fact}, bound) for constraint in condition.pattern.constraints)
        ]
        if isinstance(condition, Negation):
            if not facts:
                return Check(clause, clause, "there is none", True, role), bound
            return Check(clause, clause, f"there is {written(facts[-1])}", False, role, facts[-1]), bound
        value, test = aggregated(condition, facts), condition.test
        told = f"{condition.function} is {shown_value(value)}, of {len(facts)} events"
        if condition.parameter is not None:
            bound = {**bound, condition.parameter: value}
        right = True
        if test is not None:
            asked = value_of(test.bound, {}, bound)
            right = compared(test.operator, asked, value)
            told += f"; {shown_value(asked)} {test.operator} {shown_value(value)} is {str(right).lower()}"
        return Check(clause, clause, told, right, role), bound

    def _scoped(self, selection: Selection, fact: Fact, chosen: Chosen) -> Check:
        scope = selection.scope
        origin = scope.origin if isinstance(scope, Within) else scope.end
        told = f"{written(fact)}, {_apart(fact, chosen[origin])} {origin}"
        return Check(print_clause(selection), print_scope(scope), told, True, selection.pattern.role, fact)

    def _outside(self, selection: Selection, chosen: Chosen) -> Check:
        """Nothing of the type is in the scope: which event comes nearest?"""
        scope, role = selection.scope, selection.pattern.role
        origin = scope.origin if isinstance(scope, Within) else scope.end
        others = [fact for fact in self.facts if fact.type == selection.pattern.type and fact is not chosen[origin]]
        nearest = min(others, key=lambda fact: abs(fact.ts - chosen[origin].ts), default=None)
        told = f"there is no {selection.pattern.type} around"
        if nearest is not None:
            told = f"the nearest is {written(nearest)}, {_apart(nearest, chosen[origin])} {origin}"
        return Check(print_clause(selection), print_scope(scope), told, False, role, nearest)


def written(fact: Fact) -> str:
    """An event in its notation, without its id; a timer, or what the notation cannot hold, by its type and time."""
    attributes = {name: value for name, value in fact.attributes.items() if name != LABEL}
    label = fact.attributes.get(LABEL)
    try:
        return write_event(Event(fact.type, fact.ts, attributes, fact.seq, None if label is None else str(label)))
    except EventError:
        return f"{fact.type}@{fact.ts}"


def _data(fact: Fact) -> dict[str, object]:
    header = {"type": fact.type, "ts": fact.ts, "seq": fact.seq, "id": fact.id}
    return {**header, "attributes": dict(fact.attributes)}


def _apart(fact: Fact, origin: Fact) -> str:
    """How far an event is from another, up to that one's name."""
    apart = origin.ts - fact.ts
    if apart == 0:
        return "at the time of"
    return f"{print_window(abs(apart))} {'before' if apart > 0 else 'after'}"


def _place(number: int, count: int) -> str:
    return "the last" if number == count else "the first" if number == 1 else f"number {number} of {count}"


def shown_value(value: Value) -> str:
    """A value as it is told."""
    return "null" if value is None else f'"{value}"' if isinstance(value, str) else str(value).lower()


def _values(constraint: Expression, fact: Fact, bound: Bound) -> str:
    """What the attributes and parameters of a constraint are."""
    told: dict[str, None] = {}
    for leaf in walk(constraint):
        if isinstance(leaf, Attribute):
            told[f"{leaf.name} is {shown_value(fact.value(leaf.name))}"] = None
        elif isinstance(leaf, Parameter):
            told[f"${leaf.name} is {shown_value(bound[leaf.name])}"] = None
    return ", ".join(told) or "never"
