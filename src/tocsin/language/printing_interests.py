"""How is a dynamic interest query written as text? `mcep.parse` gives it back."""

from __future__ import annotations

from tocsin.language.interests import (
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
)
from tocsin.language.names import quoted_type
from tocsin.language.printing import print_pattern, print_window


def print_interest(interest: Interest) -> str:
    """An interest as text, without its rules; what is as usual is not said."""
    lines = [
        f"interest  {interest.name}",
        f"of        {', '.join(map(quoted_type, interest.delivers))}",
        f"around    {print_pattern(interest.focal)}",
        f"range     {print_shape(interest.shape)}",
    ]
    if interest.space != Space.PLANE:
        lines.append(f"space     {interest.space}")
    if interest.lifetime_us:
        lines.append(f"lifetime  {print_window(interest.lifetime_us)}")
    match interest.update:
        case Timed(every_us):
            lines.append(f"update    every {print_window(every_us)}")
        case Spatial(every_m):
            lines.append(f"update    every {_length(every_m)}")
        case Each():
            pass
    if interest.semantics != Semantics.WEAK:
        lines.append(f"semantics {interest.semantics}")
    return "\n".join(lines)


def print_shape(shape: Shape) -> str:
    """A shape as text.

    >>> print_shape(Rectangle(1500.0, 12.5))
    'rectangle 1500 m by 12.5 m'
    """
    match shape:
        case Rectangle(width, height):
            return f"rectangle {_length(width)} by {_length(height)}"
        case Circle(radius):
            return f"circle {_length(radius)}"
        case Polygon(corners):
            return "polygon " + ", ".join(f"({_length(east)}, {_length(north)})" for east, north in corners)


def _length(length_m: float) -> str:
    text = repr(length_m)
    return (text[:-2] if text.endswith(".0") else text) + " m"
