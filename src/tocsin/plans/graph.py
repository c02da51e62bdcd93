"""What the rules mean: one operator graph for all of them.

    type ─► filter ─► buffer ─► rule ─► composite type ─► …

Every node is frozen data, equal when its meaning is equal, so that what two rules share exists once: a *filter* is
the tests that one event can meet by itself, a *buffer* the events that passed a filter, kept in time order and
chained by the attributes that equality joins, a *rule* an anchor filter, then one step for each selected role with
the guards that belong to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.events.types import Kind
from tocsin.language.requests import Statement
from tocsin.language.rules import Function, Policy
from tocsin.plans.expressions import Field, Typed


@dataclass(frozen=True, slots=True)
class Filter:
    """Events of a type that meet all conditions; fields are at place 0, conditions in canonical order."""

    type: str
    conditions: tuple[Typed, ...] = ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """The events that passed a filter, chained by `keys`. A consumed role has its own: `owner` is (rule, place)."""

    filter: Filter
    keys: tuple[Field, ...] = ()
    owner: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """Where to look: events that precede `end`, and are less than `window_us` older or that `start` precedes."""

    end: int
    window_us: int | None = None
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """Candidates for a place: the buffer's events under the key, in reach, that meet conditions with earlier places."""

    place: int
    buffer: Buffer
    keys: tuple[Typed, ...]
    reach: Reach
    conditions: tuple[Typed, ...]
    horizon_us: int
    """How far behind the anchor a candidate can be."""


@dataclass(frozen=True, slots=True)
class Absence:
    """No candidate may exist."""

    lookup: Lookup


@dataclass(frozen=True, slots=True)
class Reduction:
    """The aggregate of the candidates becomes `Computed(index)`, and may be tested."""

    lookup: Lookup
    function: Function
    argument: Typed | None
    index: int
    kind: Kind | None
    test: Typed | None


Guard = Absence | Reduction


@dataclass(frozen=True, slots=True)
class Step:
    """Choose events for a role: those of its candidates that pass the guards, by policy, `count` of them (0: all)."""

    lookup: Lookup
    policy: Policy
    count: int
    guards: tuple[Guard, ...]
    consumed: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Places of a request that have to do with each other; see `parts`."""

    lookups: tuple[Lookup, ...]
    """How they are filled, one after another."""
    orders: tuple[tuple[Lookup, ...], ...]
    """For each of them, the lookups with that place first: if it is the one most is known about."""


@dataclass(frozen=True, slots=True)
class Combining:
    """How the events of a request are combined, besides what lookups say. Places are those of one alternative."""

    anchor: int
    """The place of the event that arrives last."""
    window_us: int
    sequences: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """The last event at the places on the left is earlier than the last on the right."""
    ascending: tuple[tuple[int, int], ...]
    """The event at the first place stands before that at the second, in canonical order."""
    conditions: tuple[Typed, ...]
    """Those that need no other event than the anchor."""
    parts: tuple[Part, ...]
    """The other places."""


@dataclass(frozen=True, slots=True)
class RulePlan:
    """One rule, bound to the kinds of its events; or one way in which a request can be met, see `requests`.

    `names` are the places' names: roles first, then patterns without one.
    """

    rule: Statement
    anchor: Filter
    guards: tuple[Guard, ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, Kind, Typed], ...]
    names: tuple[str, ...]
    types: tuple[str, ...]
    """The event type at each place."""
    unseen: bool
    """Whether it uses attributes of which nothing is known yet."""
    combining: Combining | None = None
    """For requests."""

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        """Every search that the rule makes."""
        guards = [*self.guards, *(guard for step in self.steps for guard in step.guards)]
        return (*(step.lookup for step in self.steps), *(guard.lookup for guard in guards))

    @property
    def buffers(self) -> dict[Buffer, int]:
        """Every buffer that it needs, with how long events are kept there for it, in microseconds."""
        orders = [order for part in self.combining.parts for order in part.orders] if self.combining else []
        found: dict[Buffer, int] = {}
        for lookup in (*self.lookups, *(lookup for order in orders for lookup in order)):
            found[lookup.buffer] = max(found.get(lookup.buffer, 0), lookup.horizon_us)
        return found

    @property
    def horizon_us(self) -> int:
        """How far behind its anchor the rule looks."""
        return max((lookup.horizon_us for lookup in self.lookups), default=0)
