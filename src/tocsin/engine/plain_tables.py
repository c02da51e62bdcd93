"""Plain queries as tables. A query is plain if it selects attributes of its events, or aggregates of them over a number
of events, and that is all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tocsin.engine.kernels import layout
from tocsin.events.types import Kind
from tocsin.language.queries import Extent, Summary
from tocsin.plans.expressions import Computed, Field, Typed
from tocsin.plans.graph import RulePlan, Windowed

if TYPE_CHECKING:
    from tocsin.engine.tables import Loaded, Tables

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
