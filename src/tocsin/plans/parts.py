"""Which events of a request have to do with each other, once the one that arrives last is known?

Those that an equality joins otherwise than by way of that event, that a test or an order compares, or that could be the
same event. *Parts* are what these relations hold together. They are searched one by one:

- A combination is one choice for each part, and every choice goes with every other, so there is one if and only if
  each part has one.
- The first combination consists of the first of each part. Let X be before X' in a part, and Y whatever the other parts
  have. In order, X and X' have the same events up to some place, where x of X is before x' of X'. All of Y that is
  before x stands in both at the same places; then X with Y goes on with x, and X' with Y with something later.
- If combinations are told apart by the leaves alone, they have the same events, and so the same in each part, since no
  event can stand in two. The leaves are compared one after another, and each part can be as it wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from tocsin.plans.expressions import Apply, Constant, Field
from tocsin.plans.graph import Filter


def parts(groups: Iterable[Iterable[int]], filters: Sequence[Filter], anchor: int) -> list[list[int]]:
    """The places but the anchor's, in parts; each of the groups has to do with each other."""
    places = [place for place in range(len(filters)) if place != anchor]
    alike = [pair for pair in combinations(places, 2) if not exclusive(filters[pair[0]], filters[pair[1]])]
    part = {place: {place} for place in places}
    for group in [*groups, *alike]:
        joined = set[int]().union(*(part[place] for place in group if place != anchor))
        for place in joined:
            part[place] = joined
    return sorted({min(joined): sorted(joined) for joined in part.values()}.values())


def exclusive(one: Filter, other: Filter) -> bool:
    """Whether no event passes both, as far as one can easily see."""
    if one.type != other.type:
        return True
    wanted = _constants(one)
    return any(value != wanted.get(name, value) for name, value in _constants(other).items())


def _constants(filter: Filter) -> dict[str, object]:
    found: dict[str, object] = {}
    for condition in filter.conditions:
        if isinstance(condition, Apply) and condition.operator == "=":
            left, right = condition.operands
            if isinstance(left, Field) and isinstance(right, Constant):
                found[left.attribute] = right.value
    return found
