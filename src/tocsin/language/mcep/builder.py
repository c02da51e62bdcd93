"""Build interests (moving queries) in Python.

A built interest equals the interest that is parsed from the same text.

>>> from tocsin.language.builder import define, event, this
>>> hot = define("Hot").from_(event("Temp", this.value > 45)).build()
>>> near = interest("Near", of=["Hot"], around=event("Me"), range=circle(100), rules=[hot], lifetime="15 min")
>>> from tocsin.language.mcep.text import print_interest
>>> print(print_interest(near))
interest  Near
of        Hot
around    Me()
range     circle 100 m
lifetime  15 min
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from tocsin.errors import RuleError
from tocsin.language.builder import name_of, window_of
from tocsin.language.eps.ast import Statement
from tocsin.language.mcep.ast import (
    Circle,
    Each,
    Interest,
    Polygon,
    Rectangle,
    Semantics,
    Shape,
    Space,
    Spatial,
    Timed,
    Update,
    WindowOperator,
    check,
    needed,
)
from tocsin.language.syntax.ast import Pattern
from tocsin.language.syntax.names import checked_name


def interest(
    name: str,
    *,
    of: Sequence[str],
    around: Pattern,
    range: Shape,
    rules: Sequence[Statement] = (),
    operators: Sequence[WindowOperator] = (),
    space: str = "plane",
    lifetime: str | timedelta | None = None,
    every: str | timedelta | float | None = None,
    semantics: str = "weak",
) -> Interest:
    """Return an interest in the events of the types `of` within `range`, which moves with the events of `around`.

    `every` says when a location update starts a new range: after this time or, as a number, after this distance in
    metres. By default, each location update starts a new range. `operators` use MCEP's window model, and run in
    simulated sites only.
    """
    if space not in tuple(Space):
        raise RuleError(f"unknown space {space!r}", hint="There are " + ", ".join(Space) + ".")
    if semantics not in tuple(Semantics):
        raise RuleError(f"unknown semantics {semantics!r}", hint="There are " + ", ".join(Semantics) + ".")
    if not isinstance(around, Pattern):
        raise RuleError(f"{around!r} is not an event", hint='Write event("Position", …).')
    update: Update = Each()
    if isinstance(every, str | timedelta):
        update = Timed(window_of(every))
    elif every is not None:
        update = Spatial(float(every))
    names = tuple(checked_name(one) for one in of)
    if not names:
        raise RuleError("an interest must deliver at least one type", hint='Write of=["Accident"].')
    built = Interest(
        name_of(name),
        names,
        around,
        range,
        needed(names, rules, operators=operators),
        Space(space),
        0 if lifetime is None else window_of(lifetime),
        update,
        Semantics(semantics),
        tuple(operators),
    )
    return check(built)


def rectangle(width_m: float, height_m: float | None = None) -> Rectangle:
    """Return a rectangle around the focal object. It is a square if `height_m` is not given."""
    return Rectangle(float(width_m), float(width_m if height_m is None else height_m))


def circle(radius_m: float) -> Circle:
    """Return a circle around the focal object."""
    return Circle(float(radius_m))


def polygon(*corners_m: tuple[float, float]) -> Polygon:
    """Return a polygon with these corners, each in metres to the east and to the north of the focal object."""
    return Polygon(tuple((float(east), float(north)) for east, north in corners_m))
