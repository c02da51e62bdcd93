"""Typed expressions over the events of one match.

A match is a row of *places*: the anchor is place 0, the selected roles follow, then one place for each negated or
aggregated pattern. Operands are put in canonical order as nodes are made (`5 < v` becomes `v > 5`, `b = a` becomes `a
= b`), so that equal meanings are equal nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tocsin.events.types import ID, SEQ, TS, Kind, shown_name


@dataclass(frozen=True, slots=True)
class Field:
    """An attribute of the event at a place. A kind of None is not known yet: no such event has been seen."""

    place: int
    attribute: str
    """Its name; of a header field, that of `FIELDS`."""
    kind: Kind | None

    @property
    def is_own(self) -> bool:
        """Whether it is an attribute of the event, and not a header field."""
        return self.attribute not in (TS, SEQ, ID)

    @property
    def shown(self) -> str:
        """Its name as people see it."""
        return shown_name(self.attribute)


@dataclass(frozen=True, slots=True)
class Computed:
    """The value of the rule's aggregate of that number."""

    index: int
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Constant:
    value: str | int | float | bool
    kind: Kind


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator over operands of one kind. Operators: `+ - * / negative double = != < <= > >= and or not`."""

    operator: str
    operands: tuple[Typed, ...]
    kind: Kind | None


Typed = Field | Computed | Constant | Apply

FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KINDS: dict[Kind | None, str] = {kind: repr(kind) for kind in (None, *Kind)}
COMMUTATIVE = frozenset(("+", "*", "and", "or", "=", "!="))


def leaves(expression: Typed) -> Iterator[Field | Computed | Constant]:
    """The operands at the bottom, from left to right."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Apply):
            waiting += reversed(node.operands)
        else:
            yield node


def show(expression: Typed, names: tuple[str, ...] = ()) -> str:
    """An expression as text; `names` are what the places are called, the place itself is left out where it has none."""
    if isinstance(expression, Field):
        name = names[expression.place] if expression.place < len(names) else ""
        return f"{name}.{expression.shown}" if name else expression.shown
    if isinstance(expression, Computed):
        return f"aggregate {expression.index + 1}"
    if isinstance(expression, Constant):
        return f'"{expression.value}"' if expression.kind == Kind.STRING else str(expression.value)
    inner = [
        f"({show(operand, names)})"
        if isinstance(operand, Apply) and len(operand.operands) > 1
        else show(operand, names)
        for operand in expression.operands
    ]
    if expression.operator == "double":
        return inner[0]
    if expression.operator == "negative":
        return f"-{inner[0]}"
    if len(inner) == 1:
        return f"{expression.operator} {inner[0]}"
    return f" {expression.operator} ".join(inner)


def comparison(operator: str, left: Typed, right: Typed) -> Typed:
    """A comparison with its operands in canonical order: a constant on the right, else by place and text."""
    if isinstance(left, Constant) != isinstance(right, Constant):
        swap = isinstance(left, Constant)
    else:
        swap = order(right) < order(left)
    if swap:
        left, right, operator = right, left, FLIPPED[operator]
    return Apply(operator, (left, right), Kind.BOOL)


def commuted(operator: str, operands: tuple[Typed, ...], kind: Kind | None) -> Typed:
    """`and`, `or`, `+` and `*` with operands in canonical order; logic is flattened and loses its repetitions."""
    if operator in ("and", "or"):
        flat: dict[Typed, None] = {}
        for operand in operands:
            inner = operand.operands if isinstance(operand, Apply) and operand.operator == operator else (operand,)
            flat.update(dict.fromkeys(inner))
        operands = tuple(flat)
        if len(operands) == 1:
            return operands[0]
    return Apply(operator, tuple(sorted(operands, key=order)), kind)


def order(expression: Typed) -> str:
    """What the canonical order goes by: the `repr`, which the dataclass itself takes twice as long to make."""
    if isinstance(expression, Apply):
        inner = ", ".join(map(order, expression.operands))
        inner += "," if len(expression.operands) == 1 else ""
        return f"Apply(operator={expression.operator!r}, operands=({inner}), kind={_KINDS[expression.kind]})"
    if isinstance(expression, Field):
        kind = _KINDS[expression.kind]
        return f"Field(place={expression.place!r}, attribute={expression.attribute!r}, kind={kind})"
    if isinstance(expression, Constant):
        return f"Constant(value={expression.value!r}, kind={_KINDS[expression.kind]})"
    return repr(expression)


def ordered(expressions: Iterable[Typed]) -> tuple[Typed, ...]:
    """The expressions in canonical order, each once."""
    found = {order(expression): expression for expression in expressions}
    return tuple(found[key] for key in sorted(found))


def moved(expression: Typed, place: int) -> Typed:
    """The expression about one place: all of its fields are there."""
    if isinstance(expression, Field):
        return Field(place, expression.attribute, expression.kind)
    if isinstance(expression, Apply):
        operands = tuple(moved(operand, place) for operand in expression.operands)
        if len(operands) == 2 and expression.kind == Kind.BOOL and expression.operator not in ("and", "or"):
            return comparison(expression.operator, *operands)
        return Apply(expression.operator, operands, expression.kind)
    return expression


def places_in(expression: Typed) -> set[int]:
    """The places that an expression speaks of."""
    return {leaf.place for leaf in leaves(expression) if isinstance(leaf, Field)}


def equal_fields(test: Typed) -> tuple[Field, Field] | None:
    """The attributes of two events whose words are the same if, and only if, the test holds."""
    if not isinstance(test, Apply) or test.operator != "=":
        return None
    one, other = test.operands
    if not isinstance(one, Field) or not isinstance(other, Field) or one.place == other.place:
        return None
    integral = all(field.kind is not None and field.kind.integral for field in (one, other))
    alike = integral or (one.kind == other.kind and one.kind is not None)
    return (one, other) if alike and one.is_own and other.is_own else None
