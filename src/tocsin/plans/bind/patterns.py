"""Binds a rule to what is known of its events: names become places, constraints are sorted by who can test them.

Clauses are read from left to right. A constraint that needs only its own event goes into a filter; one that equates
an attribute with something known before becomes a key of the buffer; the rest is tested on each candidate. A negation
or an aggregate goes to the step of the latest role that it mentions. Every mistake that is not one of spelling is
found here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.reader import TS_LIMIT
from tocsin.events.types import UNITS_US, Kind
from tocsin.language.eps.ast import Statement
from tocsin.language.syntax.ast import (
    Aggregate,
    Attribute,
    Comparison,
    Expression,
    Function,
    Negation,
    Parameter,
    Pattern,
    Rule,
    Scope,
    Selection,
    Within,
)
from tocsin.plans.expressions import Apply, Computed, Field, Typed, leaves, moved, ordered
from tocsin.plans.rules import Absence, Buffer, Filter, Guard, Lookup, Reach, Reduction, RulePlan, Step
from tocsin.plans.typing import Catalog, a, truth, typed, widened


def bind(rule: Rule, catalog: Catalog) -> RulePlan:
    """The plan of one rule, or a `RuleError` that points at the mistake."""
    try:
        return _Binding(rule, catalog).plan()
    except RuleError as error:
        raise located(error, rule) from None


def located(error: RuleError, rule: Statement) -> RuleError:
    """The error with the text of its rule, or at least its name."""
    if rule.source is not None and error.span is not None:
        return error.within(rule.source)
    return RuleError(f"rule {rule.name}: {error.message}", hint=error.hint)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The constraints of a pattern, by who can test them."""

    filter: Filter
    keys: tuple[tuple[Field, Typed], ...]
    conditions: tuple[Typed, ...]


@dataclass(slots=True)
class _Binding:
    rule: Rule
    catalog: Catalog
    places: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, tuple[Typed, int]] = field(default_factory=dict)
    """What a parameter stands for, and the role from which on it does."""
    horizons: list[int] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    before: list[frozenset[int]] = field(default_factory=list)
    """For each role, the roles that it is known to precede."""
    unseen: bool = False

    def plan(self) -> RulePlan:
        rule = self.rule
        roles = rule.roles
        for pattern in roles:
            if pattern.role in self.places:
                name = f"{pattern.type.lower()}{len(self.places) + 1}"
                hint: str | None = f"Name one of them: {pattern.type}(…) as {name}."
                raise RuleError(f"two events of this rule are called {pattern.role}", span=pattern.span, hint=hint)
            self.places[pattern.role] = len(self.places)
        for role in rule.consuming:
            if role not in self.places:
                hint = nearest(role, self.places)
                raise RuleError(f"consuming {role}: the rule selects no such event", span=rule.span, hint=hint)

        guards: list[list[Guard]] = [[] for _ in roles]
        lookups: list[tuple[Selection, Lookup]] = []
        self._enter(0, frozenset())
        self.types.extend(pattern.type for pattern in roles)
        anchor = self._sort(rule.anchor, 0, binds=True)
        aggregates = 0
        for clause in rule.clauses:
            if isinstance(clause, Selection):
                place = len(lookups) + 1
                lookups.append((clause, self._select(clause, place)))
                continue
            owner, lookup = self._aside(clause)
            if isinstance(clause, Negation):
                guards[owner].append(Absence(lookup))
            else:
                guards[owner].append(self._reduce(clause, lookup, aggregates, owner))
                aggregates += 1
        steps = tuple(
            Step(lookup, clause.policy, clause.count, tuple(guards[place]), clause.pattern.role in rule.consuming)
            for place, (clause, lookup) in enumerate(lookups, start=1)
        )
        outputs = self._outputs()
        names = (*self.places, *("" for _ in self.types[len(roles) :]))
        return RulePlan(rule, anchor.filter, tuple(guards[0]), steps, outputs, names, tuple(self.types), self.unseen)

    def _enter(self, horizon_us: int, before: frozenset[int]) -> None:
        self.horizons.append(horizon_us)
        self.before.append(before)

    def _select(self, clause: Selection, place: int) -> Lookup:
        reach, horizon_us, before = self._reach(clause.scope)
        self._enter(horizon_us, before)
        if reach.start is not None:
            for earlier in range(place):
                if earlier == reach.start or reach.start in self.before[earlier]:
                    self.before[earlier] |= {place}
        sorted_ = self._sort(clause.pattern, place, binds=True)
        owner = (self.rule.name, place) if clause.pattern.role in self.rule.consuming else None
        return self._lookup(sorted_, place, reach, horizon_us, owner)

    def _aside(self, clause: Negation | Aggregate) -> tuple[int, Lookup]:
        """The search of a negation or an aggregate, and the role that it belongs to."""
        if clause.pattern.alias:
            hint = "Only the anchor and selected events have names."
            raise RuleError("this event cannot be named", span=clause.pattern.span, hint=hint)
        place = len(self.types)
        self.types.append(clause.pattern.type)
        reach, horizon_us, _ = self._reach(clause.scope)
        lookup = self._lookup(self._sort(clause.pattern, place, binds=False), place, reach, horizon_us, None)
        mentioned = [reach.end, reach.start or 0]
        expressions: list[Expression] = list(clause.pattern.constraints)
        if isinstance(clause, Aggregate) and clause.test is not None:
            expressions.append(clause.test.bound)
        for name in _parameters(expressions):
            if name in self.parameters:
                mentioned.append(self.parameters[name][1])
        return max(mentioned), lookup

    def _lookup(
        self, sorted_: _Sorted, place: int, reach: Reach, horizon_us: int, owner: tuple[str, int] | None
    ) -> Lookup:
        keys = sorted(sorted_.keys, key=lambda key: key[0].attribute)
        buffer = Buffer(sorted_.filter, tuple(here for here, _ in keys), owner)
        return Lookup(place, buffer, tuple(value for _, value in keys), reach, sorted_.conditions, horizon_us)

    def _reduce(self, clause: Aggregate, lookup: Lookup, index: int, owner: int) -> Reduction:
        function, argument, kind = clause.function, None, None
        if clause.attribute is None:
            if function != Function.COUNT:
                hint = f"Write {function}({clause.pattern.type}(…).attribute …)."
                raise RuleError(f"{function} needs an attribute", span=clause.span, hint=hint)
        else:
            argument = self._field(Attribute(clause.attribute, span=clause.span), lookup.place)
            kind = argument.kind
        if function == Function.COUNT:
            kind = Kind.LONG
        elif kind is not None and not (kind.numeric or (kind == Kind.TIMESTAMP and function in ("Min", "Max"))):
            raise RuleError(f"{function} of {a(kind)} has no meaning", span=clause.span)
        elif function == Function.AVG:
            kind = Kind.DOUBLE
        elif function == Function.SUM and kind == Kind.INT:
            kind = Kind.LONG
        value = Computed(index, kind)
        if clause.parameter is not None:
            if clause.parameter in self.parameters:
                raise RuleError(f"${clause.parameter} is bound already", span=clause.span, hint="Choose another name.")
            self.parameters[clause.parameter] = (value, owner)
        test = None
        if clause.test is not None:
            node = Comparison(clause.test.operator, clause.test.bound, Parameter(""), span=clause.test.span)
            test = truth(node, lambda leaf: value if leaf == Parameter("") else self._resolve(leaf, None))
        return Reduction(lookup, function, argument, index, kind, test)

    def _reach(self, scope: Scope) -> tuple[Reach, int, frozenset[int]]:
        """Where a scope looks, how far behind the anchor that is, and which roles it is known to precede."""
        if isinstance(scope, Within):
            if scope.window_us <= 0:
                raise RuleError("a window must be longer than nothing", span=scope.span)
            origin = self._place(scope.origin, scope.span)
            horizon_us = self.horizons[origin] + scope.window_us
            if horizon_us >= TS_LIMIT:
                message = f"the windows up to here reach back more than {TS_LIMIT // UNITS_US['d'] // 365:,} years"
                raise RuleError(message, span=scope.span)
            return Reach(origin, window_us=scope.window_us), horizon_us, self.before[origin] | {origin}
        start, end = self._place(scope.start, scope.span), self._place(scope.end, scope.span)
        if start == end or start in self.before[end]:
            hint = f"Write between {scope.end} and {scope.start}." if start != end else None
            raise RuleError(f"nothing is between {scope.start} and {scope.end}: {scope.end} comes first"
                            if start != end else f"nothing is between {scope.start} and itself",
                            span=scope.span, hint=hint)  # fmt: skip
        return Reach(end, start=start), self.horizons[start], self.before[end] | {end}

    def _place(self, role: str, span: Span | None) -> int:
        place = self.places.get(role)
        if place is None:
            raise RuleError(f"the rule has no event called {role}", span=span, hint=self._instead(role))
        if place == len(self.horizons):
            raise RuleError(f"{role} cannot be found from itself", span=span, hint=nearest("", [*self.places][:place]))
        if place > len(self.horizons):
            raise RuleError(f"{role} is not known yet here", span=span, hint=f"Move this clause behind {role}'s.")
        return place

    def _instead(self, role: str) -> str | None:
        """What somebody may have meant who calls an event by a name that it has not."""
        for pattern in self.rule.roles:
            if pattern.type == role:
                return f"{role} is called {pattern.role} here."
        if any(clause.pattern.type == role for clause in self.rule.clauses):
            return "Negated and aggregated events have no name; only the anchor and selected events have."
        return nearest(role, self.places)

    def _sort(self, pattern: Pattern, place: int, *, binds: bool) -> _Sorted:
        self.catalog.check_type(pattern.type, pattern.span)
        local: dict[Typed, None] = {}
        keys: dict[Field, Typed] = {}
        conditions: list[Typed] = []
        for constraint in pattern.constraints:
            if binds and self._bind(constraint, place):
                continue
            test = truth(constraint, lambda leaf: self._resolve(leaf, place))
            others = [leaf for leaf in leaves(test) if _elsewhere(leaf, place)]
            key = key_of(test, place)
            if not others:
                local[moved(test, 0)] = None
            elif key is not None and key[0] not in keys:
                keys[key[0]] = key[1]
            else:
                conditions.append(test)
        return _Sorted(Filter(pattern.type, ordered(local)), tuple(keys.items()), tuple(conditions))

    def _bind(self, constraint: Expression, place: int) -> bool:
        """Whether the constraint binds a free parameter, which it then does."""
        if not isinstance(constraint, Comparison) or constraint.operator != "=":
            return False
        sides = (constraint.left, constraint.right)
        for attribute, parameter in (sides, sides[::-1]):
            if isinstance(attribute, Attribute) and isinstance(parameter, Parameter):
                if parameter.name in self.parameters:
                    return False
                self.parameters[parameter.name] = (self._field(attribute, place), place)
                return True
        return False

    def _resolve(self, leaf: Attribute | Parameter, place: int | None) -> Typed:
        """What a name in a constraint stands for; `place` is that of the event that the constraint is about."""
        if isinstance(leaf, Parameter):
            bound = self.parameters.get(leaf.name)
            if bound is None:
                hint = nearest(leaf.name, self.parameters) if self.parameters else None
                hint = (
                    hint
                    if hint and hint.startswith("Did")
                    else f"Bind it before, with an attribute: attr = ${leaf.name}."
                )
                raise RuleError(f"${leaf.name} is not bound here", span=leaf.span, hint=hint)
            return bound[0]
        if place is None:
            hint = "Bind the attribute to a parameter and use that."
            raise RuleError(f"{leaf.name} stands outside of any event", span=leaf.span, hint=hint)
        return self._field(leaf, place)

    def _field(self, attribute: Attribute, place: int) -> Field:
        if attribute.role is not None:
            hint = f"Bind it there to a parameter, {attribute.role}({attribute.name} = $p), and use $p here."
            message = f"a constraint cannot speak of {attribute.role}.{attribute.name}"
            raise RuleError(message, span=attribute.span, hint=hint)
        return self._attribute(attribute, place)

    def _attribute(self, attribute: Attribute, place: int) -> Field:
        field = Field(place, *self.catalog.field(self.types[place], attribute.name, attribute.span))
        self.unseen = self.unseen or field.kind is None
        return field

    def _outputs(self) -> tuple[tuple[str, Kind, Typed], ...]:
        emits, given = self.rule.emits, dict[str, Expression]()
        for name, expression in self.rule.where:
            if emits.kind(name) is None:
                names = [known for known, _ in emits.attributes]
                raise RuleError(
                    f"{emits.name} has no attribute {name}", span=expression.span, hint=nearest(name, names)
                )
            if name in given:
                raise RuleError(f"{name} is given a value twice", span=expression.span)
            given[name] = expression
        outputs: list[tuple[str, Kind, Typed]] = []
        for name, kind in emits.attributes:
            if name not in given:
                hint = f"Add it: where {name} = …"
                raise RuleError(f"{emits.name}.{name} is given no value", span=self.rule.span, hint=hint)
            value = typed(given[name], self._output)
            integral = value.kind is not None and value.kind.integral
            if value.kind not in (kind, None) and not (integral and kind.numeric):
                message = f"{emits.name}.{name} is {a(kind)}, its value is {a(value.kind)}"
                raise RuleError(message, span=given[name].span)
            outputs.append((name, kind, widened(value, kind)))
        return tuple(outputs)

    def _output(self, leaf: Attribute | Parameter) -> Typed:
        if isinstance(leaf, Parameter):
            return self._resolve(leaf, None)
        if leaf.role is None:
            hint = f"Write which event's: {self.rule.anchor.role}.{leaf.name}, say."
            raise RuleError(f"whose {leaf.name}?", span=leaf.span, hint=hint)
        return self._attribute(leaf, self._place(leaf.role, leaf.span))


def _elsewhere(leaf: Typed, place: int) -> bool:
    return isinstance(leaf, Computed) or (isinstance(leaf, Field) and leaf.place != place)


def key_of(test: Typed, place: int) -> tuple[Field, Typed] | None:
    """The attribute and its value, if the test is an equality of an attribute here with something from elsewhere."""
    if not isinstance(test, Apply) or test.operator != "=":
        return None
    for here, there in (test.operands, test.operands[::-1]):
        if not isinstance(here, Field) or here.place != place or not here.is_own:
            continue
        if any(isinstance(leaf, Field) and leaf.place == place for leaf in leaves(there)):
            continue
        return Field(0, here.attribute, here.kind), there
    return None


def _parameters(expressions: list[Expression]) -> set[str]:
    found: set[str] = set()
    pending = list(expressions)
    while pending:
        node = pending.pop()
        if isinstance(node, Parameter):
            found.add(node.name)
        for name in ("operand", "left", "right"):
            if hasattr(node, name):
                pending.append(getattr(node, name))
        pending.extend(getattr(node, "operands", ()))
    return found
