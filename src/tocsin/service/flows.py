"""How much flows through a filter? The share of the last events of its type that pass it, of what comes of that type.

What passes is tried when somebody looks, on events that are at hand: detection counts nothing for it, on any engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from tocsin.engine import kernels
from tocsin.engine.sieve import Sieve
from tocsin.engine.tables import Tables
from tocsin.engine.texts import Texts
from tocsin.events.types import ID
from tocsin.plans.expressions import Field, leaves
from tocsin.plans.graph import Filter
from tocsin.plans.plan import Plan
from tocsin.service.detection import joined
from tocsin.service.recent import Recent

EVENTS = 20_000
"""On how many of the last events filters are tried."""


def passing(
    plan: Plan, filters: Iterable[Filter], recent: Recent, per_s: Mapping[str, float]
) -> dict[Filter, float | None]:
    """Events a second that pass each filter, given those of each type; None where that cannot be told."""
    found: dict[Filter, float | None] = {}
    tried: list[Filter] = []
    for filter in filters:
        if filter.type not in per_s:
            found[filter] = None
        elif not filter.conditions:
            found[filter] = per_s[filter.type]
        elif filter.type in plan.defined or any(_reads_id(filter)):
            found[filter] = None
        else:
            tried.append(filter)
    shares = _shares(plan, tried, recent) if tried else {}
    return found | {filter: per_s[filter.type] * share for filter, share in shares.items()}


def _shares(plan: Plan, filters: list[Filter], recent: Recent) -> dict[Filter, float]:
    """Which share of the last events of its type passes each filter."""
    records, count = [], 0
    for record in reversed(recent.records({filter.type for filter in filters})):
        records.append(record)
        count += record.batch.num_rows
        if count >= EVENTS:
            break
    if not count:
        return dict.fromkeys(filters, 0.0)
    texts = Texts()
    tables = Tables(texts)
    numbers = {}
    for filter in filters:
        tables.enter(filter.type, plan.columns[filter.type])
        numbers[filter] = tables.filter(filter)
    batch, types = joined(records)
    codes = np.array([tables.types.get(type, kernels.NONE) for type in types], np.int32)[batch["type"].to_numpy()]
    sieve = Sieve(tables, texts)
    passed, _ = sieve.classify(sieve.view_of(batch.set_column(0, "type", pa.array(codes))))
    by_filter = np.bincount(passed.filters, minlength=len(filters))
    by_type = np.bincount(codes[codes >= 0], minlength=len(tables.types))
    return {
        filter: float(by_filter[number]) / max(1, int(by_type[tables.types[filter.type]]))
        for filter, number in numbers.items()
    }


def _reads_id(filter: Filter) -> Iterable[bool]:
    for condition in filter.conditions:
        for leaf in leaves(condition):
            yield isinstance(leaf, Field) and leaf.attribute == ID
