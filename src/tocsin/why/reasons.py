"""Explain why a rule matched at an event, or why it did not, by the tests of the rule and what each of them found.

A rule is tried at one anchor, the event from which it looks back, clause by clause like in the reference. If several
events fit a clause, all ways to continue are followed. The report is about the way that got furthest. At the clause
where this way ended, the report shows the candidate that passed the most tests, and the latest of several such
candidates. All clauses before are met, so this clause is the first that fails.

`accounts` explains requests and queries. An explanation takes the time of the reference at one anchor, which is the
product of the numbers of events that fit the clauses.
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
    Condition,
    Fact,
    MatchPart,
    RoleFacts,
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
    """The result of one test of a clause."""

    clause: str
    asked: str
    found: str
    holds: bool
    role: str
    """The role of the clause. A negation or an aggregate belongs to the last role that it mentions."""
    event: Fact | None = None
    """The event that was tested, or the event that keeps the test from holding."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The explanation of what a rule did at one anchor."""

    rule: str
    anchor: Fact
    checks: tuple[Check, ...]
    """The tests in the order in which they were made. Only the last may fail."""
    parts: tuple[MatchPart, ...]
    """The events that fill the roles that the rule got to."""

    @property
    def matched(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def failed(self) -> Check | None:
        """The test that failed, or None."""
        return next((check for check in self.checks if not check.holds), None)

    def __str__(self) -> str:
        """Return the report as text, with a line for each clause and its tests below."""
        verdict = "matched" if self.matched else "did not match"
        lines = [f"{self.rule} {verdict} at {event_text(self.anchor)}"]
        for number, check in enumerate(self.checks):
            if number == 0 or self.checks[number - 1].clause != check.clause:
                lines.append(f"  {check.clause}")
            mark = "✓" if check.holds else "✗"
            what = f"{check.asked}: {check.found}" if check.asked != check.clause else check.found
            lines.append(f"    {mark} {what}")
        return "\n".join(lines)

    def as_data(self) -> dict[str, object]:
        """Return the report as plain data, for JSON."""
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
    """One rule, the events around its anchor in canonical order, and the events that the rule consumed before."""

    rule: Rule
    facts: Sequence[Fact]
    consumed: Consumer = field(default_factory=dict)
    _search: Search = field(init=False)
    _furthest: tuple[tuple[object, ...], RoleFacts, list[Check]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._search = Search(self.rule, self.facts, conditions_of(self.rule), set())

    def at(self, anchor: Fact, parts: Sequence[str] | None = None) -> Reason:
        """Explain what the rule did at the event `anchor`.

        To explain a particular match, pass the ids of its events in role order as `parts`.
        """
        self._furthest = None
        role = self.rule.anchor.role
        checks, bound = self._asked(self.rule.anchor, anchor, {}, {}, print_pattern(self.rule.anchor))
        if bound is None:
            return Reason(self.rule.name, anchor, tuple(checks), ())
        chosen: RoleFacts = {role: anchor}
        roles = [pattern.role for pattern in self.rule.roles]
        for complete, finding in self._completed(0, chosen, bound, checks):
            if parts is None or [complete[name].identity for name in roles] == list(parts):
                return self._reason(complete, finding)
        assert self._furthest is not None
        return self._reason(self._furthest[1], self._furthest[2])

    def _reason(self, chosen: RoleFacts, checks: Sequence[Check]) -> Reason:
        anchor = chosen[self.rule.anchor.role]
        filled = [(pattern.role, chosen[pattern.role]) for pattern in self.rule.roles if pattern.role in chosen]
        parts = tuple(MatchPart(role, fact.type, fact.ts, fact.seq, fact.id) for role, fact in filled)
        return Reason(self.rule.name, anchor, tuple(checks), parts)

    def _completed(
        self, position: int, chosen: RoleFacts, bound: Bound, before: list[Check]
    ) -> Iterator[tuple[RoleFacts, list[Check]]]:
        """Yield every way to fill the roles from `position`, with the checks made. Note the ways that end before."""
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
                finding = f"used up by the match {self.consumed[role, fact]}"
                checks.append(Check(clause, "not consumed before", finding, False, role, fact))
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
            finding = f"it is {_ordinal(number, count)} that fits" if count > 1 else "no other fits"
            policy = Check(clause, selection.policy.value, finding, True, role, fact)
            yield from self._completed(position + 1, {**chosen, role: fact}, after, [*before, *checks, policy])

    def _ended(self, rank: tuple[object, ...], chosen: RoleFacts, checks: list[Check]) -> None:
        if self._furthest is None or rank > self._furthest[0]:
            self._furthest = rank, chosen, checks

    def _asked(
        self, pattern: Pattern, fact: Fact, chosen: RoleFacts, bound: Bound, clause: str
    ) -> tuple[list[Check], Bound | None]:
        """Return the tests of an event in a role, up to the first that fails, and the bound parameters.

        If a test fails, None is returned in place of the parameters.
        """
        checks: list[Check] = []
        for constraint in pattern.constraints:
            equation, text = equation_of(constraint), print_expression(constraint)
            if equation and equation[1] not in bound:
                bound = {**bound, equation[1]: fact.value(equation[0])}
                finding = f"${equation[1]} is {value_text(bound[equation[1]])}"
                checks.append(Check(clause, text, finding, True, pattern.role, fact))
                continue
            passed = holds(constraint, {None: fact}, bound)
            checks.append(Check(clause, text, _values(constraint, fact, bound), passed, pattern.role, fact))
            if not passed:
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

    def _met(self, condition: Condition, role: str, chosen: RoleFacts, bound: Bound) -> tuple[Check, Bound]:
        """Check whether a negation or an aggregate holds. Return the check and the bound parameters."""
        clause = print_clause(condition)
        facts = [
            fact
            for fact in self._search.in_scope(condition.pattern.type, condition.scope, chosen)
            if all(holds(constraint, {None: fact}, bound) for constraint in condition.pattern.constraints)
        ]
        if isinstance(condition, Negation):
            if not facts:
                return Check(clause, clause, "there is none", True, role), bound
            return Check(clause, clause, f"there is {event_text(facts[-1])}", False, role, facts[-1]), bound
        value, test = aggregated(condition, facts), condition.test
        finding = f"{condition.function} is {value_text(value)}, of {len(facts)} events"
        if condition.parameter is not None:
            bound = {**bound, condition.parameter: value}
        passed = True
        if test is not None:
            asked = value_of(test.bound, {}, bound)
            passed = compared(test.operator, asked, value)
            finding += f"; {value_text(asked)} {test.operator} {value_text(value)} is {str(passed).lower()}"
        return Check(clause, clause, finding, passed, role), bound

    def _scoped(self, selection: Selection, fact: Fact, chosen: RoleFacts) -> Check:
        scope = selection.scope
        origin = scope.origin if isinstance(scope, Within) else scope.end
        finding = f"{event_text(fact)}, {_distance(fact, chosen[origin])} {origin}"
        return Check(print_clause(selection), print_scope(scope), finding, True, selection.pattern.role, fact)

    def _outside(self, selection: Selection, chosen: RoleFacts) -> Check:
        """Return a failed check, because no event of the type is in the scope.

        The check names the nearest event outside.
        """
        scope, role = selection.scope, selection.pattern.role
        origin = scope.origin if isinstance(scope, Within) else scope.end
        others = [fact for fact in self.facts if fact.type == selection.pattern.type and fact is not chosen[origin]]
        nearest = min(others, key=lambda fact: abs(fact.ts - chosen[origin].ts), default=None)
        finding = f"there is no {selection.pattern.type} around"
        if nearest is not None:
            finding = f"the nearest is {event_text(nearest)}, {_distance(nearest, chosen[origin])} {origin}"
        return Check(print_clause(selection), print_scope(scope), finding, False, role, nearest)


def event_text(fact: Fact) -> str:
    """Return an event in its notation, without its id.

    A timer or an event without a notation is shown as type and time.
    """
    attributes = {name: value for name, value in fact.attributes.items() if name != LABEL}
    label = fact.attributes.get(LABEL)
    try:
        return write_event(Event(fact.type, fact.ts, attributes, fact.seq, None if label is None else str(label)))
    except EventError:
        return f"{fact.type}@{fact.ts}"


def _data(fact: Fact) -> dict[str, object]:
    header = {"type": fact.type, "ts": fact.ts, "seq": fact.seq, "id": fact.id}
    return {**header, "attributes": dict(fact.attributes)}


def _distance(fact: Fact, origin: Fact) -> str:
    """Return text such as "5 min before" or "at the time of", to which the caller appends the name of `origin`."""
    apart = origin.ts - fact.ts
    if apart == 0:
        return "at the time of"
    return f"{print_window(abs(apart))} {'before' if apart > 0 else 'after'}"


def _ordinal(number: int, count: int) -> str:
    return "the last" if number == count else "the first" if number == 1 else f"number {number} of {count}"


def value_text(value: Value) -> str:
    """Return a value as text for a report."""
    return "null" if value is None else f'"{value}"' if isinstance(value, str) else str(value).lower()


def _values(constraint: Expression, fact: Fact, bound: Bound) -> str:
    """Return the values of the attributes and parameters in a constraint as text."""
    findings: dict[str, None] = {}
    for leaf in walk(constraint):
        if isinstance(leaf, Attribute):
            findings[f"{leaf.name} is {value_text(fact.value(leaf.name))}"] = None
        elif isinstance(leaf, Parameter):
            findings[f"${leaf.name} is {value_text(bound[leaf.name])}"] = None
    return ", ".join(findings) or "constant"
