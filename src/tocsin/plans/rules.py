"""Define the nodes of the operator graph that describes bound rules.

    type ─► filter ─► buffer ─► rule ─► composite type ─► …

- A *filter* has the conditions that depend on one event only.
- A *buffer* retains the events that pass a filter, in time order, indexed by the attributes of equality joins.
- A *rule* has a filter for its *anchor*, which is the event that completes a match. For each other *role*, which is a
  named event of a match, it has a step that selects an event, with the negations and aggregates of the role.

Nodes are immutable, and two nodes with the same meaning are equal. So rules share the nodes that they have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.events.types import EventType, Kind
from tocsin.language.eps.ast import Mode, RequestTimer, Statement
from tocsin.language.siddhi.ast import Summary, Window
from tocsin.language.syntax.ast import Function, Policy
from tocsin.plans.expressions import Field, Typed


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter, which passes the events of `type` that meet all `conditions`.

    The fields in the conditions have role index 0, and the conditions are in canonical order.
    """

    type: str
    conditions: tuple[Typed, ...] = ()
    _hash: int | None = field(default=None, init=False, compare=False, repr=False)

    def __hash__(self) -> int:
        """Return the hash, which is cached because shared nodes are looked up often."""
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.type, self.conditions)))
        assert self._hash is not None
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the hash, which differs between processes."""
        return Filter, (self.type, self.conditions)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of the events that pass `filter`, indexed by `keys`.

    If the events of a role are consumed, no other role shares its buffer. Then `owner` is the rule and the role index.
    """

    filter: Filter
    keys: tuple[Field, ...] = ()
    owner: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The times of the candidates for a role: they are earlier than the event of the role index `end`.

    In addition, candidates are less than `window_us` older than that event, or later than the event of the role index
    `start`.
    """

    end: int
    window_us: int | None = None
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """A search for the candidates for a role.

    A candidate is an event of `buffer` that has the values `keys`, is within `bounds`, and meets `conditions`.
    """

    role_index: int
    buffer: Buffer
    keys: tuple[Typed, ...]
    bounds: TimeBounds
    conditions: tuple[Typed, ...]
    retention_us: int
    """How much older than the anchor a candidate can be, in microseconds."""


@dataclass(frozen=True, slots=True)
class NegationCondition:
    """A negation, which is met if `lookup` finds no candidate."""

    lookup: Lookup


@dataclass(frozen=True, slots=True)
class AggregateCondition:
    """An aggregate of the candidates that `lookup` finds.

    Expressions refer to its value as `Computed(index)`. If there is a `test` of the value, it must be met.
    """

    lookup: Lookup
    function: Function
    argument: Typed | None
    index: int
    kind: Kind | None
    test: Typed | None


RoleCondition = NegationCondition | AggregateCondition


@dataclass(frozen=True, slots=True)
class SelectionStep:
    """The selection of events for a role, from the candidates that meet `role_conditions`.

    `policy` says which candidates are selected, for example the last, and `count` how many of them; 0 means all.
    """

    lookup: Lookup
    policy: Policy
    count: int
    role_conditions: tuple[RoleCondition, ...]
    consumed: bool


@dataclass(frozen=True, slots=True)
class ConnectedComponent:
    """Roles of a request that depend on each other, as defined by `connected_components`."""

    lookups: tuple[Lookup, ...]
    """The lookups of the roles, one for each role, in the order in which they are joined."""
    orders: tuple[tuple[Lookup, ...], ...]
    """For each role, the lookups in a join order that begins with this role."""
    time_order: int | None = None
    """The index of the join order in `orders` where each event must be earlier than the next event; None if none is.

    In this join order, the first combination consists of the earliest event at each step.
    """


@dataclass(frozen=True, slots=True)
class RequestJoin:
    """The relations between the events of one alternative of a request, in addition to its lookups."""

    anchor: int
    """The role index of the event that arrives last."""
    window_us: int
    sequences: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Pairs of two lists of roles: the last event of the first list must be earlier than that of the second list."""
    ascending: tuple[tuple[int, int], ...]
    """Pairs of roles: the event of the first role must precede that of the second role in canonical order."""
    conditions: tuple[Typed, ...]
    """The conditions on the anchor alone."""
    components: tuple[ConnectedComponent, ...]
    """The other roles, in groups that do not depend on each other."""


@dataclass(frozen=True, slots=True)
class ContextNode:
    """A node of the event expression of a request.

    `first` is the number of the first leaf below the node, and `operands` are the numbers of its operand nodes.
    """

    operator: str
    """The operator: `leaf`, `all`, `then`, `either` or `times`."""
    first: int
    operands: tuple[int, ...] = ()
    count: int = 0
    attribute: Field | None = None
    same: bool = False


@dataclass(frozen=True, slots=True)
class SnoopContext:
    """A request in one of Snoop's contexts, which say how events are combined.

    The roles of the request are the leaves of its event expression.
    """

    mode: Mode
    window_us: int
    nodes: tuple[ContextNode, ...]
    """The nodes of the event expression in post-order, so that operands come before their operator."""
    filters: tuple[Filter, ...]
    """The filter of each leaf."""
    conditions: tuple[Typed, ...]
    """The conditions on a combination. If a leaf has several events, some choice of events must meet the conditions."""
    repeated: frozenset[int]
    """The leaves that stand for several events. A condition on such a leaf refers to its first event."""


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate over the events in a window of a query.

    Expressions refer to its value as `Computed`, with the number of the aggregate in the query.
    """

    function: Summary
    argument: Typed | None
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One side of a join of two streams.

    `looks` is whether an event of this side looks for partners when it arrives. `outer` is whether an event of this
    side that has no partner is emitted alone.
    """

    filter: Filter
    window: Window | None
    looks: bool
    outer: bool


@dataclass(frozen=True, slots=True)
class StreamJoin:
    """The join of two streams with windows. The left side has role index 0, and the right side has role index 1."""

    sides: tuple[JoinSide, JoinSide]
    on: tuple[Typed, ...]
    """The conditions on a pair of events, in addition to the keys."""
    keys: tuple[tuple[Field, Field], ...]
    """Pairs of attributes, of the left and of the right event, that must be equal."""

    @property
    def balanced(self) -> bool:
        """Whether each pair of events that expires was emitted as a current row before."""
        return all(side.looks and not side.outer for side in self.sides)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of an automaton, where runs wait for one event, for several events, or for the absence of an event."""

    filter: Filter
    """The conditions on the event of the stage alone."""
    tests: tuple[Typed, ...]
    """The conditions that also use events of earlier stages."""
    keys: tuple[tuple[Field, Field], ...]
    """Pairs of attributes, of an earlier event and of the event of this stage, that must be equal."""
    role_index: int
    """The role index of the event. The next role indexes are for `e[i]`, and then for `e[last-i]`."""
    least: int
    most: int | None
    """The minimum (`least`) and maximum number of events; None for any number."""
    fronts: tuple[int, ...]
    """The indexes `i` of the events `e[i]` that the query uses."""
    backs: int
    """The number of events `e[last]`, `e[last-1]`, … that the query uses."""
    absent: bool
    """Whether the stage waits for the absence of an event."""
    duration_us: int | None
    """The time for which no event of an absent stage may arrive."""
    partner: int | None
    """The number of the other stage, if this stage is part of a pair."""
    both: bool
    """Whether both stages of a pair must complete, and not just one of them."""
    next: int | None
    """The first stage of the next state; None if this stage is in the last state."""
    repeat_at: int | None
    """The stage at which a new run starts when this stage completes an `every`."""
    every_start: int | None
    """The first stage of the `every` that this stage belongs to."""
    starts: bool
    """Whether the stage is in the first state."""

    @property
    def counts(self) -> bool:
        return not self.absent and (self.least, self.most) != (1, 1)


@dataclass(frozen=True, slots=True)
class ChainAutomaton:
    """The automaton of a pattern or a sequence of a query.

    A *run* is a partial match, which moves from stage to stage as events arrive. A run that completes gives a row.
    """

    stages: tuple[Stage, ...]
    sequence: bool
    """Whether the automaton is for a sequence, where an event that does not match ends the waiting runs."""
    within_us: int | None

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The filters of all events that the automaton needs."""
        own = [stage.filter for stage in self.stages]
        return tuple(dict.fromkeys([*own, *(Filter(filter.type) for filter in own if self.sees_all)]))

    @property
    def sees_all(self) -> bool:
        """Whether the automaton needs events that match no stage.

        Such events end a sequence, start the wait of an absence at the first stage, and restart a first stage that is
        older than `within`.
        """
        first = self.stages[0]
        ages = self.within_us is not None and first.every_start is not None
        persistent = first.counts or first.partner is not None or first.repeat_at is None
        return self.sequence or first.duration_us is not None or (ages and persistent)

    @property
    def retention_us(self) -> int | None:
        """The maximum age of an event in a run; None if it is unbounded because a run can start without an event."""
        first = self.stages[0]
        unborn = first.duration_us is not None or (first.counts and first.least == 0)
        return None if unborn else self.within_us


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The part of a plan that is specific to a query: how the query produces rows from its events.

    The rows come from a window over the events of the anchor, from the join `joined`, or from the automaton `chained`.
    """

    window: Window | None
    after: tuple[Typed, ...]
    """The conditions on the events that the window operator outputs."""
    calls: tuple[AggregateCall, ...]
    group_by: tuple[Field, ...]
    having: tuple[Typed, ...]
    """The conditions on a row. The values of the row are `Computed`, with indexes after those of the aggregates."""
    current: bool
    """Whether the query emits rows for events that arrive."""
    expired: bool
    """Whether the query emits rows for events that leave the window."""
    joined: StreamJoin | None = None
    chained: ChainAutomaton | None = None

    @property
    def windows(self) -> tuple[Window | None, ...]:
        """The window of the query, or the windows of both sides of its join. None stands for no window."""
        return (self.window,) if self.joined is None else tuple(side.window for side in self.joined.sides)

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The filters of the automaton or of both sides of the join; empty if the query has neither."""
        if self.chained is not None:
            return self.chained.filters
        return () if self.joined is None else tuple(side.filter for side in self.joined.sides)

    @property
    def grouped(self) -> bool:
        """Whether the query has state for each group."""
        return bool(self.calls) or (bool(self.group_by) and any(self.windows))

    @property
    def is_timed(self) -> bool:
        """Whether the passage of time alone can cause rows."""
        if self.chained is not None:
            return any(stage.duration_us is not None for stage in self.chained.stages)
        return any(window is not None and window.extent.timed for window in self.windows)

    @property
    def looks_at_one(self) -> bool:
        """Whether each event produces its row independently of all other events."""
        return self.chained is None and not any(self.windows) and not self.grouped


@dataclass(frozen=True, slots=True)
class RulePlan:
    """The plan of one rule, or of one variant of a request (see `bind.requests`).

    `names` are the names of roles by role index. Negated and aggregated patterns, which come last, have the name "".
    """

    rule: Statement
    anchor: Filter
    role_conditions: tuple[RoleCondition, ...]
    steps: tuple[SelectionStep, ...]
    outputs: tuple[tuple[str, Kind, Typed], ...]
    names: tuple[str, ...]
    types: tuple[str, ...]
    """The event types by role index."""
    unseen: bool
    """Whether the rule uses attributes whose kind is not known yet."""
    request_join: RequestJoin | None = None
    """The relations between the events of a request; None for other statements."""
    context: SnoopContext | None = None
    """The operators of a request in one of Snoop's contexts; None for other statements."""
    windowed: QueryPlan | None = None
    """The windows and outputs of a query; None for other statements."""
    timer: RequestTimer | None = None
    """The timer that a match of this plan starts. If there is a timer, matches are not emitted."""
    early: int = 0
    """The number of strata by which this plan runs before its request, because a timer depends on its matches."""
    timers: tuple[RequestTimer, ...] = ()
    """The timers of the request that fire at fixed times or periodically."""
    own: tuple[Filter, ...] = ()
    """The filters of the request's own events. The first event that passes a filter starts the periodic timers."""

    @property
    def emits(self) -> EventType:
        """The type of the composite event that a match produces."""
        return self.rule.emits if self.timer is None else EventType(self.timer.type)

    @property
    def consumer(self) -> str:
        """The name of the consumer of events: the rule itself, or the timer that its matches start."""
        return self.rule.name if self.timer is None else self.timer.type

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        """All lookups of the rule."""
        role_conditions = [
            *self.role_conditions,
            *(role_condition for step in self.steps for role_condition in step.role_conditions),
        ]
        return (*(step.lookup for step in self.steps), *(role_condition.lookup for role_condition in role_conditions))

    @property
    def buffers(self) -> dict[Buffer, int]:
        """The buffers that the rule reads, with the time (µs) for which each buffer must retain events."""
        orders = (
            [order for component in self.request_join.components for order in component.orders]
            if self.request_join
            else []
        )
        retentions_us: dict[Buffer, int] = {}
        for lookup in (*self.lookups, *(lookup for order in orders for lookup in order)):
            retentions_us[lookup.buffer] = max(retentions_us.get(lookup.buffer, 0), lookup.retention_us)
        if self.context is not None:
            retentions_us |= {Buffer(filter): self.context.window_us + 1 for filter in self.context.filters}
        return retentions_us

    @property
    def filters(self) -> dict[Filter, None]:
        """The filters of all events that the rule reads."""
        if self.windowed is not None:  # which has no buffers
            return dict.fromkeys((self.anchor, *self.windowed.filters))
        return dict.fromkeys((self.anchor, *(buffer.filter for buffer in self.buffers), *self.own))

    @property
    def retention_us(self) -> int:
        """How much older than the anchor the events of a match can be, in microseconds."""
        return max(self.buffers.values(), default=0)
