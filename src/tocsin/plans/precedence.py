"""Which events of a request stand before which, said once: what follows from the rest is left out.

`((A ; B) ; C) ; D` wants A before B, A and B before C, all three before D; it is enough that A is before B, B before C
and C before D. The fewer events have to do with each other, the fewer combinations the search has to tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Sequence = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, order=True)
class Precedence:
    """The event at `before` is earlier than the last of those at `after`; or if not `strictly`, it stands before it
    in canonical order.
    """

    before: int
    after: tuple[int, ...]
    strictly: bool

    @property
    def places(self) -> frozenset[int]:
        """All places it speaks of."""
        return frozenset((self.before, *self.after))


def precedences(
    sequences: Iterable[Sequence], ascending: Iterable[tuple[int, int]], anchor: int
) -> tuple[Precedence, ...]:
    """What must hold if the event at `anchor` arrives last.

    >>> [(one.before, one.after) for one in precedences([((0,), (1,)), ((0, 1), (2,)), ((0, 1, 2), (3,))], [], 3)]
    [(0, (1,)), (1, (2,)), (2, (3,))]
    """
    found = {Precedence(place, right, True) for left, right in sequences for place in left}
    found |= {Precedence(before, (after,), False) for before, after in ascending}
    while True:
        known = links(found)
        simpler = {Precedence(one.before, _last(one.after, known, anchor), one.strictly) for one in found}
        if simpler == found:
            break
        found = simpler
    return tuple(sorted(one for one in found if not _implied(one, known) and (one.strictly or one.after != (anchor,))))


Links = dict[tuple[int, int], bool]
"""Which place is before which, also by way of others; whether strictly."""


def links(found: Iterable[Precedence]) -> Links:
    """Which place is before which single other."""
    known: Links = {}
    for one in found:
        if len(one.after) == 1:
            pair = one.before, one.after[0]
            known[pair] = known.get(pair, False) or one.strictly
    while True:
        longer = dict(known)
        following: dict[int, list[tuple[int, bool]]] = {}
        for (y, z), second in known.items():
            following.setdefault(y, []).append((z, second))
        for (x, y), first in known.items():
            for z, second in following.get(y, ()):
                longer[x, z] = longer.get((x, z), False) or first or second
        if longer == known:
            return known
        known = longer


def _last(places: tuple[int, ...], known: Links, anchor: int) -> tuple[int, ...]:
    """Those of some places of which one must be the last."""
    if anchor in places:
        return (anchor,)
    return tuple(place for place in places if not any((place, other) in known for other in places))


def _implied(one: Precedence, known: Links) -> bool:
    """Whether others say it already: some way from the one to the other, with a place between them."""
    if len(one.after) > 1:
        return any(known.get((one.before, place), False) for place in one.after)
    (after,) = one.after
    for (x, between), first in known.items():
        if x == one.before and (between, after) in known:
            second = known[between, after]
            if first or second or not one.strictly:
                return True
    return False
