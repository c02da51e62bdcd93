"""Compile window queries, joins, sequences and projections into records for their kernels.

A *record* is an array of 64-bit words that describes a query; see `kernels.layout`. The words of a join or of an
automaton, which evaluates a sequence in stages, follow the record. A *projection* is a query that only selects
attributes of its events, or aggregates over a fixed number of events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tocsin.events.types import Kind
from tocsin.kernels import layout
from tocsin.kernels.windows.groups import call_words
from tocsin.language.siddhi.ast import Extent, Summary
from tocsin.plans.expressions import Computed, Field, Typed
from tocsin.plans.rules import ChainAutomaton, QueryPlan, RulePlan, StreamJoin

if TYPE_CHECKING:
    from tocsin.engine.compile import LoadedRule, RuleTables

EXTENTS = {
    Extent.LENGTH: layout.LENGTH,
    Extent.LENGTH_BATCH: layout.LENGTH_BATCH,
    Extent.TIME: layout.TIME,
    Extent.TIME_BATCH: layout.TIME_BATCH,
}


_AGGREGATES = {
    Summary.AVG: layout.AVG,
    Summary.SUM: layout.SUM,
    Summary.MIN: layout.MIN,
    Summary.MAX: layout.MAX,
    Summary.COUNT: layout.COUNT,
    Summary.STD_DEV: layout.STD_DEV,
}


@dataclass(frozen=True, slots=True)
class LoadedQuery:
    """A compiled query, in the form that its kernel reads."""

    rule: LoadedRule
    windowed: QueryPlan
    number: int
    """The number of the query's state. The states of a join's sides or of an automaton's stages follow it."""
    offset: int
    start: int
    """The offset of the aggregates in the record of a group."""
    record: int
    """The length of the record of a group."""
    bits: Mapping[int, int]
    """The sides or stages that get the events of a filter, as bits, by number of the filter. Empty for a window."""
    skip_lists: tuple[int, ...]
    """The offsets of the skip lists, which serve minimum and maximum in joins, in the record of a group."""

    @property
    def following(self) -> int:
        """The number of the next query's state."""
        if self.windowed.chained is not None:
            return self.number + 1 + len(self.windowed.chained.stages)
        return self.number + (1 if self.windowed.joined is None else 3)


def load_query(tables: RuleTables, plan: RulePlan, windowed: QueryPlan, stratum: int, since: int) -> LoadedRule:
    """Compile a window query, join or sequence, which sees the events from the time `since` (µs) on."""
    window, types, code = windowed.window, plan.types, tables.code
    keys = [n for key in windowed.group_by for n in (key.role_index, tables.slot(types[key.role_index], key.attribute))]
    start = at = layout.G_KEY + 1 + len(windowed.group_by)
    calls: list[int] = []
    skip_lists: list[int] = []
    queues = 0
    for call in windowed.calls:
        function = _AGGREGATES[call.function]
        double = call.argument is not None and call.argument.kind == Kind.DOUBLE
        queue = layout.NONE
        if call.function in (Summary.MIN, Summary.MAX):
            if window is not None:
                queue, queues = queues, queues + 1
            elif windowed.joined is not None:
                queue = layout.IN_SKIP_LIST
                skip_lists.append(at)
        argument = layout.NONE if call.argument is None else tables.expressions.add(types, call.argument)
        calls += [function, argument, int(double), at, queue]
        at += call_words(function, double=double, ordered=queue != layout.IN_SKIP_LIST)
    tables.queues = max(tables.queues, queues)
    loaded = tables.append_rule(plan, code.size, stratum)
    programs = tables.programs_of(loaded.number)
    after, having = (
        code.extend([tables.expressions.add(types, test) for test in tests])
        for tests in (windowed.after, windowed.having)
    )
    grouped = windowed.grouped
    number = tables.windows[-1].following if tables.windows else 0
    record = [since, loaded.number, number * layout.STATE_WORDS]
    record += [EXTENTS[window.extent] if window else layout.NO_WINDOW, window.size if window else 0]
    record += [
        len(windowed.after),
        after,
        len(windowed.group_by),
        code.extend(keys),
        len(windowed.calls),
        code.extend(calls),
    ]
    record += [len(programs), code.extend(programs)]
    record += [len(windowed.having), having, int(windowed.current), int(windowed.expired), int(grouped), at]
    bits: dict[int, int] = {}
    if windowed.joined is not None:
        record += [layout.JOIN, *side_words(tables, types, windowed.joined, number, bits)]
    elif windowed.chained is not None:
        record += [layout.AUTOMATON, *stage_words(tables, types, windowed.chained, number, bits)]
    else:
        record += [layout.WINDOW]
    loaded = tables.rules[-1] = replace(loaded, offset=code.extend(record))
    tables.reports_expired = tables.reports_expired or windowed.expired
    if window is not None:
        tables.mark_windowed(loaded.anchor)
    tables.windows.append(LoadedQuery(loaded, windowed, number, loaded.offset, start, at, bits, tuple(skip_lists)))
    return loaded


def side_words(
    tables: RuleTables, types: Sequence[str], joined: StreamJoin, number: int, bits: dict[int, int]
) -> list[int]:
    """Return the words of a join's sides, and add the bits of each side's filter to `bits`.

    The states of the sides follow the state `number` of the join.
    """
    on = tables.code.extend([tables.expressions.add(types, test) for test in joined.on])
    words = [int(joined.balanced), len(joined.on), on]
    for index, side in enumerate(joined.sides):
        window, filter = side.window, tables.filter(side.filter)
        bits[filter] = bits.get(filter, 0) | 1 << index
        if window is not None:
            tables.mark_windowed(filter)
        slots = [tables.slots[types[index]][key[index].attribute][0] for key in joined.keys]
        own = [0] * layout.J_SIDE_WORDS
        own[layout.Q_STATE] = (number + 1 + index) * layout.STATE_WORDS
        own[layout.Q_EXTENT] = EXTENTS[window.extent] if window else layout.NO_WINDOW
        own[layout.Q_SIZE] = window.size if window else 0
        own[layout.Q_KEY_COUNT] = len(slots)
        own[layout.Q_KEYS] = tables.code.extend([n for slot in slots for n in (index, slot)])
        own[layout.Q_RECORD] = layout.G_KEY + 1 + len(slots) + 2  # first and last entry of a key
        own[layout.J_PROBES], own[layout.J_OUTER] = int(side.looks), int(side.outer)
        words += own
    return words


def stage_words(
    tables: RuleTables, types: Sequence[str], chained: ChainAutomaton, loaded: int, bits: dict[int, int]
) -> list[int]:
    """Return the words of an automaton and its stages, and add the bits of each stage's filter to `bits`.

    The states of the stages follow the state `loaded` of the automaton.
    """
    stages, code = chained.stages, tables.code
    record = layout.T_COUNTS + len(stages) + len(types)
    for filter in chained.filters:
        bits.setdefault(tables.filter(filter), 0)
    first = [n if stage.partner is None else min(n, stage.partner) for n, stage in enumerate(stages)]
    order = sorted(range(len(stages)), key=lambda n: (-first[n], not stages[n].absent, n))
    second = [] if stages[0].next is None else [n for n in range(len(stages)) if first[n] == stages[0].next]
    begins = stages[0].repeat_at is not None or (chained.sequence and any(stages[n].absent for n in second))
    within = layout.NONE if chained.within_us is None else chained.within_us
    # A run that continues may be copied, once more for each optional stage. Each copy needs waiting entries.
    moves = 1 + sum(stage.counts and stage.least == 0 for stage in stages)
    sides = 2 if any(stage.partner is not None for stage in stages) else 1
    key = max(len(stage.keys) for stage in stages)
    keyed = layout.G_KEY + 3 + key if key else 0
    room = moves * (record + (2 * sides + 1) * (layout.WAITING_WORDS + keyed))
    words = [int(chained.sequence), within, int(begins), record, room, len(types), code.extend(order), len(stages)]
    for number, stage in enumerate(stages):
        filter_number = tables.filter(stage.filter)
        bits[filter_number] |= 1 << number
        if not stage.absent:
            tables.mark_windowed(filter_number)
        what = layout.ABSENT if stage.absent else layout.COUNTING if stage.counts else layout.STEP
        words += [
            what,
            tables.types[stage.filter.type],
            stage.least,
            layout.NONE if stage.most is None else stage.most,
            _or_none(stage.duration_us),
            len(stage.tests),
            code.extend([tables.expressions.add(types, test) for test in stage.tests]),
            stage.role_index,
            len(stage.fronts),
            code.extend(stage.fronts),
            stage.backs,
            first[number],
            _or_none(stage.partner),
            int(stage.both),
            _or_none(stage.next),
            _or_none(stage.repeat_at),
            _or_none(stage.every_start),
            int(stage.starts),
            *_key_words(tables, types, stage.keys, (loaded + 1 + number) * layout.STATE_WORDS),
        ]
    return words


def _key_words(tables: RuleTables, types: Sequence[str], keys: Sequence[tuple[Field, Field]], state: int) -> list[int]:
    """Write the key slots of runs and of events to the code, and return their offsets, or NONE without keys.

    A run waits for an event whose key equals the key of the run.
    """
    if not keys:
        return [layout.NONE, layout.NONE]
    run_slots, event_slots = (
        tables.code.extend(
            [n for key in keys for n in (key[k].role_index, tables.slot(types[key[k].role_index], key[k].attribute))]
        )
        for k in range(2)
    )
    words = [0] * (layout.Q_KIND + 1)
    words[layout.Q_STATE], words[layout.Q_KEY_COUNT], words[layout.Q_KEYS] = state, len(keys), run_slots
    words[layout.Q_RECORD] = layout.G_KEY + 3 + len(keys)  # first and last entry of a key
    return [tables.code.extend(words), event_slots]


def _or_none(number: int | None) -> int:
    return layout.NONE if number is None else number


_EXTENTS = {Extent.LENGTH: layout.LENGTH, Extent.LENGTH_BATCH: layout.LENGTH_BATCH}
_FUNCTIONS = {
    Summary.AVG: layout.AVG,
    Summary.SUM: layout.SUM,
    Summary.MIN: layout.MIN,
    Summary.MAX: layout.MAX,
    Summary.COUNT: layout.COUNT,
}


@dataclass(frozen=True, slots=True)
class LoadedProjection:
    """A compiled projection, which sees the events from the time `since` (µs) on.

    `calls` has its aggregates as (function, slot of the argument, whether the argument is a double). An output is the
    slot of an attribute or, if negative, -1 minus the index of an aggregate.
    """

    rule: LoadedRule
    since: int
    extent: int
    size: int
    calls: tuple[tuple[int, int, bool], ...]
    outputs: tuple[int, ...]


def is_projection(plan: RulePlan) -> bool:
    """Return whether a rule is a projection, which `projections` can run without storing events."""
    windowed = plan.windowed
    if windowed is None or windowed.joined is not None or windowed.chained is not None:
        return False
    if windowed.after or windowed.group_by or windowed.having or windowed.expired:
        return False
    window = windowed.window
    if window is None and windowed.calls:
        return False
    if window is not None and (window.extent not in _EXTENTS or not windowed.calls):
        return False
    return all(
        call.function in _FUNCTIONS and (call.argument is None or _is_attribute(call.argument))
        for call in windowed.calls
    ) and all(
        value.kind == kind and (isinstance(value, Computed) or _is_attribute(value)) for _, kind, value in plan.outputs
    )


def reads_in_place(plan: RulePlan) -> bool:
    """Return whether a projection reads no strings, so that it can read all values in the columns of a batch."""
    assert plan.windowed is not None
    values = [call.argument for call in plan.windowed.calls] + [value for _, _, value in plan.outputs]
    return all(value.kind != Kind.STRING for value in values if isinstance(value, Field))


def load_projection(tables: RuleTables, plan: RulePlan, windowed: QueryPlan, stratum: int, since: int) -> LoadedRule:
    """Compile a projection, which sees the events from the time `since` (µs) on."""
    (type,) = plan.types
    calls = [
        (
            _FUNCTIONS[call.function],
            layout.NONE if call.argument is None else _slot(tables, type, call.argument),
            call.argument is not None and call.argument.kind == Kind.DOUBLE,
        )
        for call in windowed.calls
    ]
    outputs = [
        -1 - value.index if isinstance(value, Computed) else _slot(tables, type, value) for _, _, value in plan.outputs
    ]
    read = [slot for _, slot, _ in calls if slot >= 0] + [slot for slot in outputs if slot >= 0]
    tables.filters.mark_read(tables.types[type], read)
    loaded = tables.append_rule(plan, layout.NONE, stratum)
    window = windowed.window
    extent, size = (layout.NO_WINDOW, 0) if window is None else (_EXTENTS[window.extent], window.size)
    tables.projections.append(LoadedProjection(loaded, since, extent, size, tuple(calls), tuple(outputs)))
    return loaded


def _is_attribute(value: Typed) -> bool:
    return isinstance(value, Field) and value.is_own


def _slot(tables: RuleTables, type: str, value: Typed) -> int:
    assert isinstance(value, Field)
    return tables.slot(type, value.attribute)
