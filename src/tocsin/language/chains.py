"""What expression does a chain of operands and operators make?

The grammar reads `a + 1 < b and not c` as a flat list. It gets its shape here, by precedence: the comma between
constraints binds least, then `or`, `and`, `not`, comparisons, `+ -`, `* /`.
"""

from __future__ import annotations

from typing import Any

from tocsin.errors import RuleError, Span
from tocsin.language import terms
from tocsin.language.rules import Arithmetic, Comparison, Expression, Not
from tocsin.language.tokens import Token

_LEVELS = {"COMMA": 0, "OR": 1, "AND": 2, "NOT": 3, "COMPARE": 4, "EQUAL": 4, "ADD": 5, "MINUS": 5, "MULTIPLY": 6}
"""How tightly an operator binds."""

_COMPARISON = _LEVELS["COMPARE"]
_NORMAL = {"==": "=", "<>": "!="}


def constraints_of(chain: list[Any]) -> tuple[Expression, ...]:
    """The constraints of an event: what stands between the commas of a chain, and a top-level `and` split."""
    return tuple(terms.conjuncts(map(terms.checked, _fold(chain))))


def expression_of(chain: list[Any]) -> Expression:
    """The one expression of a chain that has no commas."""
    expression, *more = _fold(chain)
    if more:
        comma = next(item for item in chain if isinstance(item, Token) and item.type == "COMMA")
        raise RuleError("a comma cannot stand here", span=comma.span, hint="Write 'and'.")
    return expression


def _fold(chain: list[Any]) -> list[Expression]:
    """The expressions between commas: each operator takes what binds more tightly, from left to right."""
    operands: list[Expression] = []
    waiting: list[tuple[int, Token]] = []
    for item in chain:
        if not isinstance(item, Token):
            operands.append(item)
            continue
        level = _LEVELS[item.type]
        # Operands of `and` and `or` wait for the last one: joined one by one, they would be copied each time.
        joined = item.type in ("AND", "OR")
        while waiting and item.type != "NOT" and waiting[-1][0] >= level + joined:
            if waiting[-1][0] == level == _COMPARISON:
                raise RuleError("comparisons do not chain", span=item.span, hint="Join two comparisons with 'and'.")
            _apply_last(waiting, operands)
        if level:
            waiting.append((level, item))
    while waiting:
        _apply_last(waiting, operands)
    return operands


def _apply_last(waiting: list[tuple[int, Token]], operands: list[Expression]) -> None:
    """Applies the last operator that waits, with all before it that are the same `and` or `or`."""
    _, token = waiting.pop()
    if token.type not in ("AND", "OR"):
        _apply(token, operands)
        return
    count = 2
    while waiting and waiting[-1][1].type == token.type:
        waiting.pop()
        count += 1
    some = operands[-count:]
    assert some[0].span
    assert some[-1].span
    join = terms.conjunction if token.type == "AND" else terms.disjunction
    operands[-count:] = [join(some, Span(some[0].span.start, some[-1].span.end))]


def _apply(token: Token, operands: list[Expression]) -> None:
    right = operands.pop()
    assert right.span
    if token.type == "NOT":
        operands.append(Not(right, span=Span(token.start_pos, right.span.end)))
        return
    left = operands.pop()
    assert left.span
    span = Span(left.span.start, right.span.end)
    if token.type in ("COMPARE", "EQUAL"):
        operands.append(Comparison(comparison_of(token), left, right, span=span))
    else:
        operands.append(Arithmetic(token.value, left, right, span=span))


def comparison_of(token: Token) -> str:
    """The operator in its one spelling."""
    return _NORMAL.get(token.value, token.value)
