"""Build requests for notification in Python, with one function for each operator.

A built request equals the request that is parsed from the same text.

>>> from tocsin.language.builder import event, role
>>> cycle = request(
...     "Cycle",
...     then(event("st"), event("rt"), as_=("s", "r")),
...     role.s.proc == role.r.proc,
...     role.s.msg == role.r.msg,
...     within="10 min",
...     notify="a message came back",
... )
>>> from tocsin.language.syntax.expressions import print_rule
>>> print(print_rule(cycle))
request   Cycle
on        st() as s ; rt() as r
if        s.proc=r.proc and s.msg=r.msg
within    10 min
notify    "a message came back"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce

from tocsin.errors import RuleError
from tocsin.language.builder import Term, expression_of, name_of, window_of
from tocsin.language.eps.ast import (
    WINDOW_US,
    After,
    All,
    Either,
    EventExpression,
    Mode,
    Moment,
    Occurs,
    Period,
    Request,
    Then,
    Times,
)
from tocsin.language.eps.text import TIMES_MAX, check
from tocsin.language.syntax import expressions
from tocsin.language.syntax.ast import Pattern
from tocsin.language.syntax.names import checked_name

Part = Pattern | EventExpression


def request(
    name: str,
    expression: Part,
    *conditions: Term,
    within: str | timedelta | None = None,
    mode: str | Mode = Mode.GENERIC,
    notify: str | None = None,
) -> Request:
    """Return a request for notification when `expression` occurs and all `conditions` hold.

    Conditions use the names of the events, for example `role.s.proc == role.r.proc`.
    """
    if mode not in tuple(Mode):
        raise RuleError(f"unknown mode {mode!r}", hint="There are " + ", ".join(Mode) + ".")
    tests = tuple(expressions.conjuncts(expressions.checked(expression_of(condition)) for condition in conditions))
    events = _part(expression)
    check(events, tests)
    window_us = WINDOW_US if within is None else window_of(within)
    return Request(name_of(name), events, tests, window_us, Mode(mode), notify)


def called(name: str, part: Part) -> EventExpression:
    """Return an event or a timer with the name `name`, which conditions can use."""
    expression = _part(part)
    if isinstance(expression, Occurs | Times):
        return replace(expression, pattern=replace(expression.pattern, alias=name_of(name)))
    if isinstance(expression, Moment | Period | After):
        return replace(expression, alias=name_of(name))
    raise RuleError("only an event or a timer can have a name", hint="Name the events in it.")


def both(*parts: Part, as_: Sequence[str] | None = None) -> EventExpression:
    """Return `A & B & …`, which occurs when all parts have occurred in any order. `as_` has a name for each part."""
    return _combine(All, parts, as_)


def either(*parts: Part, as_: Sequence[str] | None = None) -> EventExpression:
    """Return `A || B || …`, which occurs when any one part occurs. `as_` has a name for each part."""
    return _combine(Either, parts, as_)


def then(*parts: Part, as_: Sequence[str] | None = None) -> EventExpression:
    """Return `A ; B ; …`, which occurs when the parts have occurred in this order. `as_` has a name for each part."""
    return reduce(Then, _parts(parts, as_))


def times_eq(count: int, pattern: Pattern, attribute: str) -> Times:
    """Return `TimesEq`, which occurs with `count` events of `pattern` that have the same value of `attribute`."""
    return _times(count, pattern, attribute, same=True)


def times_df(count: int, pattern: Pattern, attribute: str) -> Times:
    """Return `TimesDf`, which occurs with `count` events of `pattern` that have distinct values of `attribute`."""
    return _times(count, pattern, attribute, same=False)


def at(moment: datetime) -> Moment:
    """Return a timer that fires once, at `moment`. A time without an offset is taken as UTC."""
    return Moment(int(expressions.timestamp(moment).value))


def after(part: Part, delay: str | timedelta) -> After:
    """Return a timer that fires `delay` after each occurrence of `part`."""
    return After(_part(part), window_of(delay))


def every(period: str | timedelta, *, start: datetime | None = None) -> Period:
    """Return a timer that fires at multiples of `period` after `start`. The default of `start` is 1970-01-01."""
    return Period(window_of(period), None if start is None else int(expressions.timestamp(start).value))


def _combine(operator: type[All] | type[Either], parts: Sequence[Part], names: Sequence[str] | None) -> EventExpression:
    flat: list[EventExpression] = []
    for part in _parts(parts, names):
        flat += part.operands if isinstance(part, operator) else (part,)
    return operator(tuple(flat))


def _parts(parts: Sequence[Part], names: Sequence[str] | None) -> list[EventExpression]:
    if len(parts) < 2:
        raise RuleError("an operator needs at least two events")
    if names is None:
        return [_part(part) for part in parts]
    if len(names) != len(parts):
        raise RuleError(f"there are {len(parts)} events and {len(names)} names")
    return [called(name, part) for name, part in zip(names, parts, strict=True)]


def _part(part: Part) -> EventExpression:
    if isinstance(part, Pattern):
        return Occurs(part)
    if not isinstance(part, Occurs | Times | Moment | Period | After | All | Either | Then):
        raise RuleError(f"{part!r} is not an event", hint='Write event("Temp", …).')
    return part


def _times(count: int, pattern: Pattern, attribute: str, *, same: bool) -> Times:
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= TIMES_MAX:
        raise RuleError(f"a repetition has 2 to {TIMES_MAX} events")
    if not isinstance(pattern, Pattern):
        raise RuleError(f"{pattern!r} is not an event", hint='Write event("Temp", …).')
    return Times(count, pattern, checked_name(attribute), same)
