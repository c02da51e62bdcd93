"""Are these rules laid out already? Rules that do not change need that only once."""

from __future__ import annotations

from tocsin.engine.machine import Machine
from tocsin.engine.tables import Tables
from tocsin.plans.plan import Plan


class Shelf:
    """The tables of the rules that were laid out last, for detectors that do not change them.

    Laying out a thousand rules takes as long as looking through half a million events.
    """

    def __init__(self) -> None:
        self._laid: tuple[Plan, Tables | None] | None = None

    def __reduce__(self) -> tuple[type[Shelf], tuple[()]]:
        """Rules that are sent elsewhere are laid out there."""
        return Shelf, ()

    def tables(self, plan: Plan) -> Tables | None:
        """The tables of the plan's rules; None if some of them bring more than tables."""
        laid = self._laid
        if laid is None or laid[0] is not plan:
            plain = all(
                not rule.clocks
                and all(part is None for part in (rule.clock, rule.combining, rule.context, rule.windowed))
                for rule in plan.rules
            )
            laid = self._laid = plan, Machine(plan, {}, ordered=False).tables if plain else None
        return laid[1]
