"""How is a request for notification written in Python? With functions for the operators; it equals its text's.

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
    """A request: what is to occur, and the conditions on its events by their names, `role.s.proc == role.r.proc`."""
    if mode not in tuple(Mode):
        raise RuleError(f"unknown mode {mode!r}", hint="There are " + ", ".join(Mode) + ".")
    tests = tuple(expressions.conjuncts(expressions.checked(expression_of(condition)) for condition in conditions))
    events = _part(expression)
    check(events, tests)
    window_us = WINDOW_US if within is None else window_of(within)
    return Request(name_of(name), events, tests, window_us, Mode(mode), notify)


def called(name: str, part: Part) -> EventExpression:
    """An event or a timer with a name."""
    found = _part(part)
    if isinstance(found, Occurs | Times):
        return replace(found, pattern=replace(found.pattern, alias=name_of(name)))
    if isinstance(found, Moment | Period | After):
        return replace(found, alias=name_of(name))
    raise RuleError("only an event or a timer has a name", hint="Name the events in it.")


def both(*parts: Part, as_: Sequence[str] | None = None) -> EventExpression:
    """`A & B & …`: all of them, in any order."""
    return _joined(All, parts, as_)


def either(*parts: Part, as_: Sequence[str] | None = None) -> EventExpression:
    """`A || B || …`: any one of them."""
    return _joined(Either, parts, as_)


def then(*parts: Part, as_: Sequence[str] | None = None) -> EventExpression:
    """`A ; B ; …`: one after another."""
    return reduce(Then, _parts(parts, as_))


def times_eq(count: int, pattern: Pattern, attribute: str) -> Times:
    """So many events with one value of an attribute."""
    return _times(count, pattern, attribute, same=True)


def times_df(count: int, pattern: Pattern, attribute: str) -> Times:
    """So many events with as many values of an attribute."""
    return _times(count, pattern, attribute, same=False)


def at(moment: datetime) -> Moment:
    """A timer: one moment; without an offset it is UTC."""
    return Moment(int(expressions.timestamp(moment).value))


def after(part: Part, delay: str | timedelta) -> After:
    """A timer: so long after each occurrence of something."""
    return After(_part(part), window_of(delay))


def every(period: str | timedelta, *, start: datetime | None = None) -> Period:
    """A timer: every so often."""
    return Period(window_of(period), None if start is None else int(expressions.timestamp(start).value))


def _joined(operator: type[All] | type[Either], parts: Sequence[Part], names: Sequence[str] | None) -> EventExpression:
    flat: list[EventExpression] = []
    for part in _parts(parts, names):
        flat += part.operands if isinstance(part, operator) else (part,)
    return operator(tuple(flat))


def _parts(parts: Sequence[Part], names: Sequence[str] | None) -> list[EventExpression]:
    if len(parts) < 2:
        raise RuleError("an operator joins two events or more")
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
        raise RuleError(f"a repetition is of 2 to {TIMES_MAX} events")
    if not isinstance(pattern, Pattern):
        raise RuleError(f"{pattern!r} is not an event", hint='Write event("Temp", …).')
    return Times(count, pattern, checked_name(attribute), same)
