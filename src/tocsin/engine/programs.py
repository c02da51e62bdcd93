"""Compile expressions into programs for a stack machine, and look up the names of rules, roles and attributes.

A program is a sequence of words that `kernels.expressions` interprets. `RuleLabels` has the names by rule number.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from tocsin.engine.strings import StringDictionary
from tocsin.errors import RuleError
from tocsin.events.types import SEQ, TS, Kind
from tocsin.kernels import Array, layout
from tocsin.language.eps.ast import shown_type
from tocsin.plans.expressions import Apply, Computed, Constant, Field, Typed
from tocsin.plans.rules import RulePlan

_INTEGER = {
    "+": layout.ADD,
    "-": layout.SUBTRACT,
    "*": layout.MULTIPLY,
    "//": layout.DIVIDE,
    "%": layout.REMAINDER,
    "negative": layout.NEGATIVE,
}
_DOUBLE = {
    "+": layout.ADD_DOUBLE,
    "-": layout.SUBTRACT_DOUBLE,
    "*": layout.MULTIPLY_DOUBLE,
    "/": layout.DIVIDE_DOUBLE,
    "//": layout.DIVIDE_DOUBLE,
    "%": layout.REMAINDER_DOUBLE,
    "negative": layout.NEGATIVE_DOUBLE,
    "double": layout.TO_DOUBLE,
}
_LOGIC = {"and": layout.AND, "or": layout.OR, "not": layout.NOT}


class GrowingArray:
    """A growing array of 64-bit words. Appending has amortised constant cost."""

    def __init__(self) -> None:
        self.data: Array = np.zeros(1024, np.int64)
        self.size = 0

    @property
    def view(self) -> Array:
        """The words that were appended so far."""
        return self.data[: self.size]

    def extend(self, words: Sequence[int]) -> int:
        """Append words, and return the offset of the first word."""
        start, self.size = self.size, self.size + len(words)
        if self.size > len(self.data):
            grown = np.zeros(2 * self.size, np.int64)
            grown[:start] = self.data[:start]
            self.data = grown
        self.data[start : self.size] = words
        return start


class ProgramWriter:
    """Compiles expressions, and appends their programs to `code`.

    `slots` has the slot and kind of each attribute, by type and name.
    """

    def __init__(
        self, code: GrowingArray, strings: StringDictionary, slots: Mapping[str, Mapping[str, tuple[int, Kind | None]]]
    ) -> None:
        self._code, self._strings, self._slots = code, strings, slots
        self.uses_ranks = False
        """Whether some program compares strings with <, <=, > or >=, which needs the ranks of strings."""

    def add(self, types: Sequence[str], expression: Typed, kind: Kind | None = None) -> int:
        """Compile an expression, and return the offset of its program.

        `types` are the event types of the roles to which the expression refers. If `kind` is INT, the program converts
        its result to an integer.
        """
        words: list[int] = []
        self._emit(types, expression, words)
        if kind == Kind.INT and expression.kind != Kind.INT:
            words += [layout.TO_INT, 0, 0]
        if _depth(words) > layout.MAX_STACK:
            raise RuleError(f"an expression is nested more than {layout.MAX_STACK} deep")
        return self._code.extend([len(words) // 3, *words])

    def _emit(self, types: Sequence[str], expression: Typed, words: list[int]) -> None:
        if isinstance(expression, Constant):
            words += [layout.LOAD_CONSTANT, self.constant(expression), 0]
        elif isinstance(expression, Computed):
            words += [layout.LOAD_COMPUTED, expression.index, 0]
        elif isinstance(expression, Field):
            if expression.attribute == TS:
                words += [layout.LOAD_TS, expression.role_index, 0]
            elif expression.attribute == SEQ:
                words += [layout.LOAD_SEQ, expression.role_index, 0]
            else:
                slot = self._slots[types[expression.role_index]][expression.attribute][0]
                words += [layout.LOAD, expression.role_index, slot]
        else:
            self._emit_operator(types, expression, words)

    def _emit_operator(self, types: Sequence[str], expression: Apply, words: list[int]) -> None:
        operator, operands = expression.operator, expression.operands
        kinds = {operand.kind for operand in operands} - {None}
        if operator in _LOGIC:
            number = _LOGIC[operator]
        elif operator in layout.RELATIONS:
            relation = layout.RELATIONS[operator]
            if Kind.STRING in kinds and relation >= 2:
                number = layout.LESS_TEXT + relation - 2
                self.uses_ranks = True
            else:
                number = (layout.EQUAL_DOUBLE if Kind.DOUBLE in kinds else layout.EQUAL) + relation
        elif expression.kind == Kind.DOUBLE:
            number = _DOUBLE[operator]
        else:
            number = _INTEGER[operator]
        self._emit(types, operands[0], words)
        if len(operands) == 1:
            words += [number, 0, 0]
        for operand in operands[1:]:
            self._emit(types, operand, words)
            words += [number, 0, 0]

    def constant(self, constant: Constant) -> int:
        """Return a constant as a 64-bit word."""
        if isinstance(constant.value, str):
            return self._strings.pin(constant.value)
        if constant.kind == Kind.DOUBLE:
            return int(struct.unpack("<q", struct.pack("<d", constant.value + 0.0))[0])
        return int(constant.value)


def _depth(words: list[int]) -> int:
    """Return the largest number of values on the stack while a program runs."""
    unary = (layout.NEGATIVE, layout.NEGATIVE_DOUBLE, layout.TO_DOUBLE, layout.NOT, layout.TO_INT)
    depth = deepest = 0
    for operation in words[::3]:
        if operation <= layout.LOAD_CONSTANT:
            depth += 1
            deepest = max(deepest, depth)
        elif operation not in unary:
            depth -= 1
    return deepest


class RuleLabels:
    """Holds the names of rules, and of the roles and attributes of their matches."""

    def __init__(self, plans: Sequence[RulePlan]) -> None:
        self._plans = plans
        self._attributes: dict[str, tuple[Array, Kind] | None] = {}

    def __len__(self) -> int:
        return len(self._plans)

    @cached_property
    def names(self) -> pa.Array:
        """The name of each rule."""
        return pa.array([plan.rule.name for plan in self._plans], pa.string())

    @cached_property
    def ranks(self) -> Array:
        """The rank of each rule when the rules are sorted by name."""
        return np.unique(np.array([plan.rule.name for plan in self._plans]), return_inverse=True)[1]

    @cached_property
    def types(self) -> pa.Array:
        """The event type that each rule defines."""
        return pa.array([plan.rule.emits.name for plan in self._plans], pa.string())

    @cached_property
    def expired(self) -> Array:
        """Whether the matches of each rule tell if their event left a window."""
        return np.array([plan.windowed is not None and plan.windowed.expired for plan in self._plans])

    @cached_property
    def role_counts(self) -> Array:
        """The number of roles of each rule."""
        return np.array([_role_count(plan) for plan in self._plans], np.int64)

    @cached_property
    def role_starts(self) -> Array:
        """The index of each rule's first role in `roles` and `role_types`."""
        return np.cumsum(self.role_counts) - self.role_counts

    @cached_property
    def roles(self) -> pa.Array:
        """The names of the roles of all rules, rule by rule."""
        return pa.array([name for plan in self._plans for name in plan.names[: _role_count(plan)]], pa.string())

    @cached_property
    def role_types(self) -> pa.Array:
        """The event types of the roles of all rules, rule by rule."""
        types = [shown_type(type) for plan in self._plans for type in plan.types[: _role_count(plan)]]
        return pa.array(types, pa.string())

    def attribute(self, name: str) -> tuple[Array, Kind] | None:
        """Return the index of an attribute in each rule, and the kind of the attribute.

        `name` may have the form `name:kind`. The index is -1 for rules without the attribute. Return None if no rule
        has the attribute.
        """
        if name not in self._attributes:
            indexes = np.full(len(self), -1, np.int64)
            kind: Kind | None = None
            for number, plan in enumerate(self._plans):
                for index, (attribute, attribute_kind) in enumerate(plan.rule.emits.attributes):
                    if name in (attribute, f"{attribute}:{attribute_kind}"):
                        indexes[number], kind = index, attribute_kind
            self._attributes[name] = None if kind is None else (indexes, kind)
        return self._attributes[name]


def _role_count(plan: RulePlan) -> int:
    if plan.context is not None:
        return len(plan.names)
    return 0 if plan.windowed is not None else 1 + len(plan.steps)
