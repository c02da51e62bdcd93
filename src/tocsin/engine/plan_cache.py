"""Are these rules laid out already? Rules that do not change need that only once."""

from __future__ import annotations

from tocsin.engine.families.window_tables import is_plain
from tocsin.engine.pipeline import Laid, Machine
from tocsin.plans.plan import Plan
from tocsin.plans.rules import RulePlan


class Shelf:
    """The rules that were laid out last, for detectors that do not change them.

    Laying out a thousand rules takes as long as looking through half a million events.
    """

    def __init__(self) -> None:
        self._laid: tuple[Plan, Laid | None] | None = None

    def __reduce__(self) -> tuple[type[Shelf], tuple[()]]:
        """Rules that are sent elsewhere are laid out there."""
        return Shelf, ()

    def laid(self, plan: Plan) -> Laid | None:
        """The plan's rules as they were laid out; None if some of them bring more than tables and plain queries."""
        laid = self._laid
        if laid is None or laid[0] is not plan:
            simple = all(map(_is_simple, plan.rules))
            laid = self._laid = plan, Machine(plan, {}, ordered=False).laid if simple else None
        return laid[1]


def _is_simple(rule: RulePlan) -> bool:
    more = rule.clocks or rule.clock or rule.combining or rule.context
    return not more and (rule.windowed is None or is_plain(rule))
