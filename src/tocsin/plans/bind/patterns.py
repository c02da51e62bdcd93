"""Bind a TESLA rule to a catalog: resolve names to role indexes, and assign each constraint to the node that tests it.

Clauses are bound from left to right. A constraint that mentions only its own event becomes part of the filter. An
equality with the event of an earlier role becomes a key of the buffer. Any other constraint becomes a condition on each
candidate. A negation or an aggregate belongs to the step of the latest role that it mentions. All semantic errors of
rules are raised here.
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
from tocsin.plans.expressions import Apply, Computed, Field, Typed, at_role, leaves, ordered
from tocsin.plans.rules import (
    AggregateCondition,
    Buffer,
    Filter,
    Lookup,
    NegationCondition,
    RoleCondition,
    RulePlan,
    SelectionStep,
    TimeBounds,
)
from tocsin.plans.typing import Catalog, truth, typed, widened, with_article


def bind(rule: Rule, catalog: Catalog) -> RulePlan:
    """Return the plan of `rule`. If the rule has a mistake, raise a `RuleError` with its position."""
    try:
        return _Binding(rule, catalog).plan()
    except RuleError as error:
        raise located(error, rule) from None


def located(error: RuleError, rule: Statement) -> RuleError:
    """Return a copy of `error` that shows the text of `rule`, or the name of `rule` if its text is unknown."""
    if rule.source is not None and error.span is not None:
        return error.within(rule.source)
    return RuleError(f"rule {rule.name}: {error.message}", hint=error.hint)


@dataclass(frozen=True, slots=True)
class _ConstraintGroups:
    """The constraints of a pattern, grouped by the node that tests each constraint."""

    filter: Filter
    keys: tuple[tuple[Field, Typed], ...]
    conditions: tuple[Typed, ...]


@dataclass(slots=True)
class _Binding:
    rule: Rule
    catalog: Catalog
    role_indexes: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, tuple[Typed, int]] = field(default_factory=dict)
    """The value of each parameter, and the role index of the event that binds the parameter."""
    retentions_us: list[int] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    before: list[frozenset[int]] = field(default_factory=list)
    """For each role, the role indexes of the events that come after its event."""
    unseen: bool = False

    def plan(self) -> RulePlan:
        rule = self.rule
        roles = rule.roles
        for pattern in roles:
            if pattern.role in self.role_indexes:
                name = f"{pattern.type.lower()}{len(self.role_indexes) + 1}"
                hint: str | None = f"Name one of them: {pattern.type}(…) as {name}."
                raise RuleError(f"two events of this rule are called {pattern.role}", span=pattern.span, hint=hint)
            self.role_indexes[pattern.role] = len(self.role_indexes)
        for role in rule.consuming:
            if role not in self.role_indexes:
                hint = nearest(role, self.role_indexes)
                raise RuleError(f"consuming {role}: the rule selects no such event", span=rule.span, hint=hint)

        role_conditions: list[list[RoleCondition]] = [[] for _ in roles]
        lookups: list[tuple[Selection, Lookup]] = []
        self._add_role(0, frozenset())
        self.types.extend(pattern.type for pattern in roles)
        anchor = self._group_constraints(rule.anchor, 0, binds=True)
        aggregates = 0
        for clause in rule.clauses:
            if isinstance(clause, Selection):
                role_index = len(lookups) + 1
                lookups.append((clause, self._select(clause, role_index)))
                continue
            owner, lookup = self._bind_condition(clause)
            if isinstance(clause, Negation):
                role_conditions[owner].append(NegationCondition(lookup))
            else:
                role_conditions[owner].append(self._bind_aggregate(clause, lookup, aggregates, owner))
                aggregates += 1
        steps = tuple(
            SelectionStep(
                lookup,
                clause.policy,
                clause.count,
                tuple(role_conditions[role_index]),
                clause.pattern.role in rule.consuming,
            )
            for role_index, (clause, lookup) in enumerate(lookups, start=1)
        )
        outputs = self._outputs()
        names = (*self.role_indexes, *("" for _ in self.types[len(roles) :]))
        return RulePlan(
            rule, anchor.filter, tuple(role_conditions[0]), steps, outputs, names, tuple(self.types), self.unseen
        )

    def _add_role(self, retention_us: int, before: frozenset[int]) -> None:
        self.retentions_us.append(retention_us)
        self.before.append(before)

    def _select(self, clause: Selection, role_index: int) -> Lookup:
        bounds, retention_us, before = self._time_bounds(clause.scope)
        self._add_role(retention_us, before)
        if bounds.start is not None:
            for earlier in range(role_index):
                if earlier == bounds.start or bounds.start in self.before[earlier]:
                    self.before[earlier] |= {role_index}
        constraints = self._group_constraints(clause.pattern, role_index, binds=True)
        owner = (self.rule.name, role_index) if clause.pattern.role in self.rule.consuming else None
        return self._lookup(constraints, role_index, bounds, retention_us, owner)

    def _bind_condition(self, clause: Negation | Aggregate) -> tuple[int, Lookup]:
        """Return the role index to which a negation or an aggregate belongs, and the lookup of its candidates."""
        if clause.pattern.alias:
            hint = "Only the anchor and selected events have names."
            raise RuleError("this event cannot be named", span=clause.pattern.span, hint=hint)
        role_index = len(self.types)
        self.types.append(clause.pattern.type)
        bounds, retention_us, _ = self._time_bounds(clause.scope)
        lookup = self._lookup(
            self._group_constraints(clause.pattern, role_index, binds=False), role_index, bounds, retention_us, None
        )
        mentioned = [bounds.end, bounds.start or 0]
        expressions: list[Expression] = list(clause.pattern.constraints)
        if isinstance(clause, Aggregate) and clause.test is not None:
            expressions.append(clause.test.bound)
        for name in _parameters(expressions):
            if name in self.parameters:
                mentioned.append(self.parameters[name][1])
        return max(mentioned), lookup

    def _lookup(
        self,
        constraints: _ConstraintGroups,
        role_index: int,
        bounds: TimeBounds,
        retention_us: int,
        owner: tuple[str, int] | None,
    ) -> Lookup:
        keys = sorted(constraints.keys, key=lambda key: key[0].attribute)
        buffer = Buffer(constraints.filter, tuple(here for here, _ in keys), owner)
        return Lookup(
            role_index, buffer, tuple(value for _, value in keys), bounds, constraints.conditions, retention_us
        )

    def _bind_aggregate(self, clause: Aggregate, lookup: Lookup, index: int, owner: int) -> AggregateCondition:
        function, argument, kind = clause.function, None, None
        if clause.attribute is None:
            if function != Function.COUNT:
                hint = f"Write {function}({clause.pattern.type}(…).attribute …)."
                raise RuleError(f"{function} needs an attribute", span=clause.span, hint=hint)
        else:
            argument = self._field(Attribute(clause.attribute, span=clause.span), lookup.role_index)
            kind = argument.kind
        if function == Function.COUNT:
            kind = Kind.LONG
        elif kind is not None and not (kind.numeric or (kind == Kind.TIMESTAMP and function in ("Min", "Max"))):
            raise RuleError(f"{function} of {with_article(kind)} has no meaning", span=clause.span)
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
        return AggregateCondition(lookup, function, argument, index, kind, test)

    def _time_bounds(self, scope: Scope) -> tuple[TimeBounds, int, frozenset[int]]:
        """Return the time bounds of a scope, how much older than the anchor (µs) its events can be, and later roles.

        The later roles are the role indexes of the events that come after the events in the scope.
        """
        if isinstance(scope, Within):
            if scope.window_us <= 0:
                raise RuleError("a window must be positive", span=scope.span)
            origin = self._role_index(scope.origin, scope.span)
            retention_us = self.retentions_us[origin] + scope.window_us
            if retention_us >= TS_LIMIT:
                message = f"the windows up to here are longer than {TS_LIMIT // UNITS_US['d'] // 365:,} years"
                raise RuleError(message, span=scope.span)
            return TimeBounds(origin, window_us=scope.window_us), retention_us, self.before[origin] | {origin}
        start, end = self._role_index(scope.start, scope.span), self._role_index(scope.end, scope.span)
        if start == end or start in self.before[end]:
            hint = f"Write between {scope.end} and {scope.start}." if start != end else None
            raise RuleError(f"nothing is between {scope.start} and {scope.end}: {scope.end} comes first"
                            if start != end else f"nothing is between {scope.start} and itself",
                            span=scope.span, hint=hint)  # fmt: skip
        return TimeBounds(end, start=start), self.retentions_us[start], self.before[end] | {end}

    def _role_index(self, role: str, span: Span | None) -> int:
        role_index = self.role_indexes.get(role)
        if role_index is None:
            raise RuleError(f"the rule has no event called {role}", span=span, hint=self._role_hint(role))
        if role_index == len(self.retentions_us):
            raise RuleError(
                f"{role} cannot be selected relative to itself",
                span=span,
                hint=nearest("", [*self.role_indexes][:role_index]),
            )
        if role_index > len(self.retentions_us):
            raise RuleError(f"{role} is not known yet here", span=span, hint=f"Move this clause after {role}'s.")
        return role_index

    def _role_hint(self, role: str) -> str | None:
        """Return a hint for the unknown role name `role`."""
        for pattern in self.rule.roles:
            if pattern.type == role:
                return f"{role} is called {pattern.role} here."
        if any(clause.pattern.type == role for clause in self.rule.clauses):
            return "Negated and aggregated events have no name; only the anchor and selected events have."
        return nearest(role, self.role_indexes)

    def _group_constraints(self, pattern: Pattern, role_index: int, *, binds: bool) -> _ConstraintGroups:
        self.catalog.check_type(pattern.type, pattern.span)
        local: dict[Typed, None] = {}
        keys: dict[Field, Typed] = {}
        conditions: list[Typed] = []
        for constraint in pattern.constraints:
            if binds and self._bind(constraint, role_index):
                continue
            test = truth(constraint, lambda leaf: self._resolve(leaf, role_index))
            others = [leaf for leaf in leaves(test) if _is_other_role(leaf, role_index)]
            key = key_of(test, role_index)
            if not others:
                local[at_role(test, 0)] = None
            elif key is not None and key[0] not in keys:
                keys[key[0]] = key[1]
            else:
                conditions.append(test)
        return _ConstraintGroups(Filter(pattern.type, ordered(local)), tuple(keys.items()), tuple(conditions))

    def _bind(self, constraint: Expression, role_index: int) -> bool:
        """Bind the parameter of a constraint `attribute = $parameter`, if the parameter is not bound yet.

        Return whether a parameter was bound.
        """
        if not isinstance(constraint, Comparison) or constraint.operator != "=":
            return False
        sides = (constraint.left, constraint.right)
        for attribute, parameter in (sides, sides[::-1]):
            if isinstance(attribute, Attribute) and isinstance(parameter, Parameter):
                if parameter.name in self.parameters:
                    return False
                self.parameters[parameter.name] = (self._field(attribute, role_index), role_index)
                return True
        return False

    def _resolve(self, leaf: Attribute | Parameter, role_index: int | None) -> Typed:
        """Return the typed expression for `leaf`, a name in a constraint on the event at `role_index`."""
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
        if role_index is None:
            hint = "Bind the attribute to a parameter and use that."
            raise RuleError(f"{leaf.name} is outside of any event", span=leaf.span, hint=hint)
        return self._field(leaf, role_index)

    def _field(self, attribute: Attribute, role_index: int) -> Field:
        if attribute.role is not None:
            hint = f"Bind it there to a parameter, {attribute.role}({attribute.name} = $p), and use $p here."
            message = f"a constraint cannot use {attribute.role}.{attribute.name}"
            raise RuleError(message, span=attribute.span, hint=hint)
        return self._attribute(attribute, role_index)

    def _attribute(self, attribute: Attribute, role_index: int) -> Field:
        field = Field(role_index, *self.catalog.field(self.types[role_index], attribute.name, attribute.span))
        self.unseen = self.unseen or field.kind is None
        return field

    def _outputs(self) -> tuple[tuple[str, Kind, Typed], ...]:
        emits, values = self.rule.emits, dict[str, Expression]()
        for name, expression in self.rule.where:
            if emits.kind(name) is None:
                names = [known for known, _ in emits.attributes]
                raise RuleError(
                    f"{emits.name} has no attribute {name}", span=expression.span, hint=nearest(name, names)
                )
            if name in values:
                raise RuleError(f"{name} is given a value twice", span=expression.span)
            values[name] = expression
        outputs: list[tuple[str, Kind, Typed]] = []
        for name, kind in emits.attributes:
            if name not in values:
                hint = f"Add it: where {name} = …"
                raise RuleError(f"{emits.name}.{name} is given no value", span=self.rule.span, hint=hint)
            value = typed(values[name], self._output)
            integral = value.kind is not None and value.kind.integral
            if value.kind not in (kind, None) and not (integral and kind.numeric):
                message = f"{emits.name}.{name} is {with_article(kind)}, its value is {with_article(value.kind)}"
                raise RuleError(message, span=values[name].span)
            outputs.append((name, kind, widened(value, kind)))
        return tuple(outputs)

    def _output(self, leaf: Attribute | Parameter) -> Typed:
        if isinstance(leaf, Parameter):
            return self._resolve(leaf, None)
        if leaf.role is None:
            hint = f"Write {self.rule.anchor.role}.{leaf.name}, for example."
            raise RuleError(f"'{leaf.name}' needs the name of its event", span=leaf.span, hint=hint)
        return self._attribute(leaf, self._role_index(leaf.role, leaf.span))


def _is_other_role(leaf: Typed, role_index: int) -> bool:
    return isinstance(leaf, Computed) or (isinstance(leaf, Field) and leaf.role_index != role_index)


def key_of(test: Typed, role_index: int) -> tuple[Field, Typed] | None:
    """Return (attribute, value) if `test` requires that an attribute of `role_index` equals a value of other roles.

    Return None for any other test.
    """
    if not isinstance(test, Apply) or test.operator != "=":
        return None
    for here, there in (test.operands, test.operands[::-1]):
        if not isinstance(here, Field) or here.role_index != role_index or not here.is_own:
            continue
        if any(isinstance(leaf, Field) and leaf.role_index == role_index for leaf in leaves(there)):
            continue
        return Field(0, here.attribute, here.kind), there
    return None


def _parameters(expressions: list[Expression]) -> set[str]:
    names: set[str] = set()
    waiting = list(expressions)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Parameter):
            names.add(node.name)
        for name in ("operand", "left", "right"):
            if hasattr(node, name):
                waiting.append(getattr(node, name))
        waiting.extend(getattr(node, "operands", ()))
    return names
