"""Queries as tables: the record of each, and behind it the words of a join or of an automaton, see `kernels.layout`.

Plain queries as tables. A query is plain if it selects attributes of its events, or aggregates of them over a number
of events, and that is all.
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
from tocsin.plans.rules import Chained, Joined, RulePlan, Windowed

if TYPE_CHECKING:
    from tocsin.engine.compile import Loaded, Tables

EXTENTS = {
    Extent.LENGTH: layout.LENGTH,
    Extent.LENGTH_BATCH: layout.LENGTH_BATCH,
    Extent.TIME: layout.TIME,
    Extent.TIME_BATCH: layout.TIME_BATCH,
}


_SUMMARIES = {
    Summary.AVG: layout.AVG,
    Summary.SUM: layout.SUM,
    Summary.MIN: layout.MIN,
    Summary.MAX: layout.MAX,
    Summary.COUNT: layout.COUNT,
    Summary.STD_DEV: layout.STD_DEV,
}


@dataclass(frozen=True, slots=True)
class LoadedWindow:
    """A query, as its kernel reads it."""

    rule: Loaded
    windowed: Windowed
    number: int
    """Of its state; those of a join's sides, and of an automaton's stages, are behind it."""
    offset: int
    start: int
    """Where the aggregates stand in the record of a group."""
    record: int
    """How long that is."""
    bits: Mapping[int, int]
    """For a filter, the sides or stages that an event which passes it comes to, as bits; none for a window."""
    lanes: tuple[int, ...]
    """Where in the record of a group lists of values begin."""

    @property
    def following(self) -> int:
        """The number of the next query's state."""
        if self.windowed.chained is not None:
            return self.number + 1 + len(self.windowed.chained.stages)
        return self.number + (1 if self.windowed.joined is None else 3)


def load_window(tables: Tables, plan: RulePlan, windowed: Windowed, level: int, since: int) -> Loaded:
    """Takes a query."""
    window, types, code = windowed.window, plan.types, tables.code
    keys = [n for key in windowed.group_by for n in (key.place, tables.slot(types[key.place], key.attribute))]
    start = at = layout.G_KEY + 1 + len(windowed.group_by)
    calls: list[int] = []
    lanes: list[int] = []
    queues = 0
    for call in windowed.calls:
        function = _SUMMARIES[call.function]
        double = call.argument is not None and call.argument.kind == Kind.DOUBLE
        queue = layout.NONE
        if call.function in (Summary.MIN, Summary.MAX):
            if window is not None:
                queue, queues = queues, queues + 1
            elif windowed.joined is not None:
                queue = layout.IN_LANES
                lanes.append(at)
        argument = layout.NONE if call.argument is None else tables.expressions.add(types, call.argument)
        calls += [function, argument, int(double), at, queue]
        at += call_words(function, double=double, ordered=queue != layout.IN_LANES)
    tables.queues = max(tables.queues, queues)
    loaded = tables.note(plan, code.size, level)
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
    tables.tells_expired = tables.tells_expired or windowed.expired
    if window is not None:
        tables.hold(loaded.anchor)
    tables.windows.append(LoadedWindow(loaded, windowed, number, loaded.offset, start, at, bits, tuple(lanes)))
    return loaded


def side_words(tables: Tables, types: Sequence[str], joined: Joined, number: int, bits: dict[int, int]) -> list[int]:
    """The words of a join's sides, whose states stand behind its own."""
    on = tables.code.extend([tables.expressions.add(types, test) for test in joined.on])
    words = [int(joined.balanced), len(joined.on), on]
    for place, side in enumerate(joined.sides):
        window, filter = side.window, tables.filter(side.filter)
        bits[filter] = bits.get(filter, 0) | 1 << place
        if window is not None:
            tables.hold(filter)
        slots = [tables.slots[types[place]][key[place].attribute][0] for key in joined.keys]
        own = [0] * layout.J_SIDE_WORDS
        own[layout.Q_STATE] = (number + 1 + place) * layout.STATE_WORDS
        own[layout.Q_EXTENT] = EXTENTS[window.extent] if window else layout.NO_WINDOW
        own[layout.Q_SIZE] = window.size if window else 0
        own[layout.Q_KEY_COUNT] = len(slots)
        own[layout.Q_KEYS] = tables.code.extend([n for slot in slots for n in (place, slot)])
        own[layout.Q_RECORD] = layout.G_KEY + 1 + len(slots) + 2  # the first and the last entry of a key
        own[layout.J_LOOKS], own[layout.J_OUTER] = int(side.looks), int(side.outer)
        words += own
    return words


def stage_words(tables: Tables, types: Sequence[str], chained: Chained, loaded: int, bits: dict[int, int]) -> list[int]:
    """The words of an automaton and of its stages, whose states stand behind its own."""
    stages, code = chained.stages, tables.code
    record = layout.T_COUNTS + len(stages) + len(types)
    for filter in chained.filters:
        bits.setdefault(tables.filter(filter), 0)
    first = [n if stage.partner is None else min(n, stage.partner) for n, stage in enumerate(stages)]
    order = sorted(range(len(stages)), key=lambda n: (-first[n], not stages[n].absent, n))
    second = [] if stages[0].next is None else [n for n in range(len(stages)) if first[n] == stages[0].next]
    begins = stages[0].again is not None or (chained.sequence and any(stages[n].absent for n in second))
    within = layout.NONE if chained.within_us is None else chained.within_us
    # One attempt that goes on: a copy of it, and one for each stage that need not have an event; where they wait.
    moves = 1 + sum(stage.counts and stage.least == 0 for stage in stages)
    sides = 2 if any(stage.partner is not None for stage in stages) else 1
    key = max(len(stage.keys) for stage in stages)
    keyed = layout.G_KEY + 3 + key if key else 0
    room = moves * (record + (2 * sides + 1) * (layout.ENTRY_WORDS + keyed))
    words = [int(chained.sequence), within, int(begins), record, room, len(types), code.extend(order), len(stages)]
    for number, stage in enumerate(stages):
        mine = tables.filter(stage.filter)
        bits[mine] |= 1 << number
        if not stage.absent:
            tables.hold(mine)
        what = layout.ABSENT if stage.absent else layout.COUNTING if stage.counts else layout.STEP
        words += [
            what,
            tables.types[stage.filter.type],
            stage.least,
            layout.NONE if stage.most is None else stage.most,
            _word(stage.duration_us),
            len(stage.tests),
            code.extend([tables.expressions.add(types, test) for test in stage.tests]),
            stage.place,
            len(stage.fronts),
            code.extend(stage.fronts),
            stage.backs,
            first[number],
            _word(stage.partner),
            int(stage.both),
            _word(stage.next),
            _word(stage.again),
            _word(stage.home),
            int(stage.starts),
            *_key_words(tables, types, stage.keys, (loaded + 1 + number) * layout.STATE_WORDS),
        ]
    return words


def _key_words(tables: Tables, types: Sequence[str], keys: Sequence[tuple[Field, Field]], state: int) -> list[int]:
    """Where it stands how the attempts of one key are found, and the slots of an event's own key."""
    if not keys:
        return [layout.NONE, layout.NONE]
    there, here = (
        tables.code.extend(
            [n for key in keys for n in (key[k].place, tables.slot(types[key[k].place], key[k].attribute))]
        )
        for k in range(2)
    )
    words = [0] * (layout.Q_KIND + 1)
    words[layout.Q_STATE], words[layout.Q_KEY_COUNT], words[layout.Q_KEYS] = state, len(keys), there
    words[layout.Q_RECORD] = layout.G_KEY + 3 + len(keys)  # the first and the last entry of a key
    return [tables.code.extend(words), here]


def _word(number: int | None) -> int:
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
class LoadedPlain:
    """A plain query: when it begins to see events, its window, its aggregates and what it puts out.

    An aggregate is (function, slot of its argument, whether that is a double). What is put out is the slot of an
    attribute, or, below 0, an aggregate.
    """

    rule: Loaded
    since: int
    extent: int
    size: int
    calls: tuple[tuple[int, int, bool], ...]
    outputs: tuple[int, ...]


def is_plain(plan: RulePlan) -> bool:
    """Whether a rule is a plain query."""
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
    """Whether all that a plain query reads is in the columns of a batch as it is, which is not so for strings."""
    assert plan.windowed is not None
    values = [call.argument for call in plan.windowed.calls] + [value for _, _, value in plan.outputs]
    return all(value.kind != Kind.STRING for value in values if isinstance(value, Field))


def load_plain(tables: Tables, plan: RulePlan, windowed: Windowed, level: int, since: int) -> Loaded:
    """Takes a plain query."""
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
    tables.filters.show(tables.types[type], read)
    loaded = tables.note(plan, layout.NONE, level)
    window = windowed.window
    extent, size = (layout.NO_WINDOW, 0) if window is None else (_EXTENTS[window.extent], window.size)
    tables.plain.append(LoadedPlain(loaded, since, extent, size, tuple(calls), tuple(outputs)))
    return loaded


def _is_attribute(value: Typed) -> bool:
    return isinstance(value, Field) and value.is_own


def _slot(tables: Tables, type: str, value: Typed) -> int:
    assert isinstance(value, Field)
    return tables.slot(type, value.attribute)
