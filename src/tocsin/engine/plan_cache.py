"""Cache compiled rules, so that several detectors with the same plan compile it only once."""

from __future__ import annotations

from tocsin.engine.families.window_tables import is_projection
from tocsin.engine.pipeline import CompiledRules, Pipeline
from tocsin.plans.plan import Plan
from tocsin.plans.rules import RulePlan


class PlanCache:
    """Holds the rules that were compiled last.

    The cache pays off because compiling a thousand rules takes as long as evaluating half a million events.
    """

    def __init__(self) -> None:
        self._compiled: tuple[Plan, CompiledRules | None] | None = None

    def __reduce__(self) -> tuple[type[PlanCache], tuple[()]]:
        """Pickle an empty cache, so that the receiver compiles the rules again."""
        return PlanCache, ()

    def compiled(self, plan: Plan) -> CompiledRules | None:
        """Return the compiled rules of `plan`, or None if a rule needs other state than tables and projections."""
        compiled = self._compiled
        if compiled is None or compiled[0] is not plan:
            simple = all(map(_is_stateless, plan.rules))
            compiled = self._compiled = plan, Pipeline(plan, {}, ordered=False).compiled if simple else None
        return compiled[1]


def _is_stateless(rule: RulePlan) -> bool:
    more = rule.timers or rule.timer or rule.request_join or rule.context
    return not more and (rule.windowed is None or is_projection(rule))
