"""Joins and automata as tables: the words behind the record of a query, see `kernels.layout`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tocsin.engine.kernels import layout
from tocsin.language.queries import Extent
from tocsin.plans.expressions import Field
from tocsin.plans.graph import Chained, Joined

if TYPE_CHECKING:
    from tocsin.engine.tables import Tables

EXTENTS = {
    Extent.LENGTH: layout.LENGTH,
    Extent.LENGTH_BATCH: layout.LENGTH_BATCH,
    Extent.TIME: layout.TIME,
    Extent.TIME_BATCH: layout.TIME_BATCH,
}


def side_words(tables: Tables, types: Sequence[str], joined: Joined, number: int, bits: dict[int, int]) -> list[int]:
    """The words of a join's sides, whose states stand behind its own."""
    on = tables.code.extend([tables.expressions.add(types, test) for test in joined.on])
    words = [int(joined.balanced), len(joined.on), on]
    for place, side in enumerate(joined.sides):
        window, filter = side.window, tables.filter(side.filter)
        bits[filter] = bits.get(filter, 0) | 1 << place
        tables._is_held.data[filter] = max(int(tables._is_held.data[filter]), int(window is not None))
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
        tables._is_held.data[mine] = max(int(tables._is_held.data[mine]), int(not stage.absent))
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
            [n for key in keys for n in (key[k].place, tables._slot(types[key[k].place], key[k].attribute))]
        )
        for k in range(2)
    )
    words = [0] * (layout.Q_KIND + 1)
    words[layout.Q_STATE], words[layout.Q_KEY_COUNT], words[layout.Q_KEYS] = state, len(keys), there
    words[layout.Q_RECORD] = layout.G_KEY + 3 + len(keys)  # the first and the last entry of a key
    return [tables.code.extend(words), here]


def _word(number: int | None) -> int:
    return layout.NONE if number is None else number
