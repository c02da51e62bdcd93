"""What the rules mean: one operator graph for all of them.

    type ─► filter ─► buffer ─► rule ─► composite type ─► …

Every node is frozen data, equal when its meaning is equal, so that what two rules share exists once: a *filter* is
the tests that one event can meet by itself, a *buffer* the events that passed a filter, kept in time order and
chained by the attributes that equality joins, a *rule* an anchor filter, then one step for each selected role with
the guards that belong to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.events.types import EventType, Kind
from tocsin.language.eps.ast import Clock, Mode, Statement
from tocsin.language.siddhi.ast import Summary, Window
from tocsin.language.syntax.ast import Function, Policy
from tocsin.plans.expressions import Field, Typed


@dataclass(frozen=True, slots=True)
class Filter:
    """Events of a type that meet all conditions; fields are at place 0, conditions in canonical order."""

    type: str
    conditions: tuple[Typed, ...] = ()
    _hash: int | None = field(default=None, init=False, compare=False, repr=False)

    def __hash__(self) -> int:
        """Computed once: what rules share is found by it, again and again."""
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.type, self.conditions)))
        assert self._hash is not None
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        """Without the hash, which is another one in another process."""
        return Filter, (self.type, self.conditions)


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
    row: int | None = None
    """Which of these orders is that of time, if each event must stand before the next: then what is found first, with
    the earliest event at each step, is the first combination.
    """


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
class Node:
    """A node of an event expression: what it is, its operands by number, and the number of its first leaf."""

    operator: str
    """`leaf`, `all`, `then`, `either` or `times`."""
    first: int
    operands: tuple[int, ...] = ()
    count: int = 0
    attribute: Field | None = None
    same: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """How the events of a request are combined in one of Snoop's contexts. Places are the leaves."""

    mode: Mode
    window_us: int
    nodes: tuple[Node, ...]
    """Operands before what combines them."""
    filters: tuple[Filter, ...]
    """Of each leaf."""
    conditions: tuple[Typed, ...]
    """What must hold of a combination, for some choice where a leaf has several events."""
    repeated: frozenset[int]
    """The leaves of which a condition means the first event."""


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate over what a window holds; its value is `Computed` by its number among the aggregates."""

    function: Summary
    argument: Typed | None
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a join: what it lets in, its window, whether its events look for partners, and come out alone."""

    filter: Filter
    window: Window | None
    looks: bool
    outer: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """How a query over two streams brings their events together. Places are the sides."""

    sides: tuple[Side, Side]
    on: tuple[Typed, ...]
    """What must hold of a pair, besides the keys."""
    keys: tuple[tuple[Field, Field], ...]
    """Attributes of the left and the right event that must be equal."""

    @property
    def balanced(self) -> bool:
        """Whether each pair that leaves had come."""
        return all(side.looks and not side.outer for side in self.sides)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where attempts of an automaton wait: for an event, for several, or for one not to come. Stages have numbers."""

    filter: Filter
    """What an event must meet by itself."""
    tests: tuple[Typed, ...]
    """What it must meet together with those found before."""
    keys: tuple[tuple[Field, Field], ...]
    """Besides: attributes of an earlier event and of this one that must be equal."""
    place: int
    """Where the event stands. Behind it are those of several that are spoken of: from the first, then from the last."""
    least: int
    most: int | None
    fronts: tuple[int, ...]
    backs: int
    """Of several events: which ones from the first are spoken of, and how many from the last."""
    absent: bool
    duration_us: int | None
    """How long nothing must come."""
    partner: int | None
    """The other one of a pair."""
    both: bool
    """Whether both of a pair must be complete, or either."""
    next: int | None
    """The first of the next state, None at the end."""
    again: int | None
    """Where a copy begins anew when this one is complete."""
    home: int | None
    """The first stage of the part that begins anew."""
    starts: bool

    @property
    def counts(self) -> bool:
        return not self.absent and (self.least, self.most) != (1, 1)


@dataclass(frozen=True, slots=True)
class Chained:
    """An automaton: attempts go from stage to stage as events come, and those that reach the end are rows."""

    stages: tuple[Stage, ...]
    sequence: bool
    """Whether what waits is given up at every event that does not fit."""
    within_us: int | None

    @property
    def filters(self) -> tuple[Filter, ...]:
        """What it has to see."""
        own = [stage.filter for stage in self.stages]
        return tuple(dict.fromkeys([*own, *(Filter(filter.type) for filter in own if self.sees_all)]))

    @property
    def sees_all(self) -> bool:
        """Whether events of its streams that fit nowhere matter: they end a sequence and begin what is quiet, and each
        of them lets what is too old at the start begin anew.
        """
        first = self.stages[0]
        ages = self.within_us is not None and first.home is not None
        held = first.counts or first.partner is not None or first.again is None
        return self.sequence or first.duration_us is not None or (ages and held)

    @property
    def horizon_us(self) -> int | None:
        """How old an event that an attempt holds can be; None: there is no bound, if it can begin with nothing."""
        first = self.stages[0]
        unborn = first.duration_us is not None or (first.counts and first.least == 0)
        return None if unborn else self.within_us


@dataclass(frozen=True, slots=True)
class Windowed:
    """How a query makes rows: the events that pass the anchor's filter go through a window, two sides meet, or an
    automaton finds them.
    """

    window: Window | None
    after: tuple[Typed, ...]
    """Tests of what comes out of the window."""
    calls: tuple[Call, ...]
    group_by: tuple[Field, ...]
    having: tuple[Typed, ...]
    """Tests of a row, whose values are `Computed` behind the aggregates."""
    current: bool
    expired: bool
    """Whether rows come out for events that arrive, and for those that leave."""
    joined: Joined | None = None
    chained: Chained | None = None

    @property
    def windows(self) -> tuple[Window | None, ...]:
        """The window, or those of both sides."""
        return (self.window,) if self.joined is None else tuple(side.window for side in self.joined.sides)

    @property
    def filters(self) -> tuple[Filter, ...]:
        """What the sides of a join, or an automaton, let in."""
        if self.chained is not None:
            return self.chained.filters
        return () if self.joined is None else tuple(side.filter for side in self.joined.sides)

    @property
    def grouped(self) -> bool:
        """Whether something must be kept for each group."""
        return bool(self.calls) or (bool(self.group_by) and any(self.windows))

    @property
    def is_timed(self) -> bool:
        """Whether events leave by time alone."""
        if self.chained is not None:
            return any(stage.duration_us is not None for stage in self.chained.stages)
        return any(window is not None and window.extent.timed for window in self.windows)

    @property
    def looks_at_one(self) -> bool:
        """Whether each event is answered by itself."""
        return self.chained is None and not any(self.windows) and not self.grouped


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
    context: Context | None = None
    """For requests in one of Snoop's contexts."""
    windowed: Windowed | None = None
    """For queries over one stream."""
    clock: Clock | None = None
    """The timer that is started by what is found, which then is no match."""
    early: int = 0
    """How many levels before its rule it runs, since a timer waits for it."""
    clocks: tuple[Clock, ...] = ()
    """The moments and periods of its request."""
    own: tuple[Filter, ...] = ()
    """What passes the first of these starts the periods."""

    @property
    def emits(self) -> EventType:
        """The type of what is found."""
        return self.rule.emits if self.clock is None else EventType(self.clock.type)

    @property
    def user(self) -> str:
        """What uses events up: the request, or one of its timers."""
        return self.rule.name if self.clock is None else self.clock.type

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
        if self.context is not None:
            found |= {Buffer(filter): self.context.window_us + 1 for filter in self.context.filters}
        return found

    @property
    def filters(self) -> dict[Filter, None]:
        """What it lets in."""
        if self.windowed is not None:  # which has no buffers
            return dict.fromkeys((self.anchor, *self.windowed.filters))
        return dict.fromkeys((self.anchor, *(buffer.filter for buffer in self.buffers), *self.own))

    @property
    def horizon_us(self) -> int:
        """How far behind its anchor the rule looks."""
        return max(self.buffers.values(), default=0)
