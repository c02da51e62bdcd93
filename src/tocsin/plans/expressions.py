"""Represent expressions over the events of one match, with the kinds of their values.

An expression names each event by a *role index*. The anchor (the event that completes a match) has index 0. The
selected roles follow, and then each negated or aggregated pattern. `comparison` and `commuted` put operands in a
canonical order (`5 < v` becomes `v > 5`, `b = a` becomes `a = b`), so that expressions with equal meanings are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tocsin.events.types import ID, SEQ, TS, Kind, shown_name


@dataclass(frozen=True, slots=True)
class Field:
    """An attribute of the event with the role index `role_index`.

    The kind is None if it is not known yet, because no event with this attribute has arrived.
    """

    role_index: int
    attribute: str
    """The name of the attribute, or the name of a header field in `FIELDS`."""
    kind: Kind | None

    @property
    def is_own(self) -> bool:
        """Whether the field is an attribute of the event, and not a header field."""
        return self.attribute not in (TS, SEQ, ID)

    @property
    def shown(self) -> str:
        """The name of the field that users see."""
        return shown_name(self.attribute)


@dataclass(frozen=True, slots=True)
class Computed:
    """The value of the aggregate with the number `index` in its rule."""

    index: int
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Constant:
    value: str | int | float | bool
    kind: Kind


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator applied to operands. The result has the kind `kind`.

    The operators are `+ - * / negative double = != < <= > >= and or not`.
    """

    operator: str
    operands: tuple[Typed, ...]
    kind: Kind | None


Typed = Field | Computed | Constant | Apply

FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KINDS: dict[Kind | None, str] = {kind: repr(kind) for kind in (None, *Kind)}
COMMUTATIVE = frozenset(("+", "*", "and", "or", "=", "!="))


def leaves(expression: Typed) -> Iterator[Field | Computed | Constant]:
    """Yield the fields, aggregates and constants of an expression, from left to right."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Apply):
            waiting += reversed(node.operands)
        else:
            yield node


def show(expression: Typed, names: tuple[str, ...] = ()) -> str:
    """Return an expression as text. `names` are the names of roles by role index; missing names are omitted."""
    if isinstance(expression, Field):
        name = names[expression.role_index] if expression.role_index < len(names) else ""
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
    """Return a comparison whose operands are in canonical order.

    A constant is on the right. Two constants, or two other operands, are sorted by `order`.
    """
    if isinstance(left, Constant) != isinstance(right, Constant):
        swap = isinstance(left, Constant)
    else:
        swap = order(right) < order(left)
    if swap:
        left, right, operator = right, left, FLIPPED[operator]
    return Apply(operator, (left, right), Kind.BOOL)


def commuted(operator: str, operands: tuple[Typed, ...], kind: Kind | None) -> Typed:
    """Return the `and`, `or`, `+` or `*` of `operands`, sorted by `order`.

    For `and` and `or`, nested operands of the same operator are flattened, and duplicates are removed.
    """
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
    """Return the sort key of an expression in the canonical order. It equals the `repr`, but takes half the time."""
    if isinstance(expression, Apply):
        inner = ", ".join(map(order, expression.operands))
        inner += "," if len(expression.operands) == 1 else ""
        return f"Apply(operator={expression.operator!r}, operands=({inner}), kind={_KINDS[expression.kind]})"
    if isinstance(expression, Field):
        kind = _KINDS[expression.kind]
        return f"Field(role_index={expression.role_index!r}, attribute={expression.attribute!r}, kind={kind})"
    if isinstance(expression, Constant):
        return f"Constant(value={expression.value!r}, kind={_KINDS[expression.kind]})"
    return repr(expression)


def ordered(expressions: Iterable[Typed]) -> tuple[Typed, ...]:
    """Return the distinct expressions in canonical order."""
    by_key = {order(expression): expression for expression in expressions}
    return tuple(by_key[key] for key in sorted(by_key))


def at_role(expression: Typed, role_index: int) -> Typed:
    """Return a copy of `expression` in which all fields have the role index `role_index`."""
    if isinstance(expression, Field):
        return Field(role_index, expression.attribute, expression.kind)
    if isinstance(expression, Apply):
        operands = tuple(at_role(operand, role_index) for operand in expression.operands)
        if len(operands) == 2 and expression.kind == Kind.BOOL and expression.operator not in ("and", "or"):
            return comparison(expression.operator, *operands)
        return Apply(expression.operator, operands, expression.kind)
    return expression


def roles_in(expression: Typed) -> set[int]:
    """Return the role indexes of all fields in an expression."""
    return {leaf.role_index for leaf in leaves(expression) if isinstance(leaf, Field)}


def equal_fields(test: Typed) -> tuple[Field, Field] | None:
    """Return the two attributes that `test` compares, if it is an equality of attributes of two events.

    Return None for other tests, and if equal values may be stored differently because their kinds differ.
    """
    if not isinstance(test, Apply) or test.operator != "=":
        return None
    one, other = test.operands
    if not isinstance(one, Field) or not isinstance(other, Field) or one.role_index == other.role_index:
        return None
    integral = all(field.kind is not None and field.kind.integral for field in (one, other))
    alike = integral or (one.kind == other.kind and one.kind is not None)
    return (one, other) if alike and one.is_own and other.is_own else None
