"""Convert matches to an Arrow table, ordered by (ts, seq, rule, parts).

The table has the columns rule, type, ts and id, one column per attribute, and the parts of each match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.batch_columns import hexadecimal
from tocsin.engine.match_columns import MatchColumns, match_times, select_matches
from tocsin.engine.pipeline import Pipeline
from tocsin.engine.programs import RuleLabels
from tocsin.errors import EventError, nearest
from tocsin.events.columns import ARROW
from tocsin.events.types import Kind
from tocsin.kernels import Array
from tocsin.plans.plan import Plan, column_names


def schema(
    plan: Plan, *, times: bool, select: Collection[str] | None = None, named: Mapping[str, str] | None = None
) -> pa.Schema:
    """Return the schema of the matches of a plan, restricted to the columns in `select`.

    The column `seq` exists only if it is selected. If `times`, `ts` are timestamps instead of integers. `named` has the
    column names of attributes that are fixed already.
    """
    kinds = plan.emitted.kinds
    names = column_names(kinds, named)
    ts = ARROW[Kind.TIMESTAMP] if times else pa.int64()
    part = pa.struct([("role", pa.string()), ("type", pa.string()), ("ts", ts), ("id", pa.string())])
    columns = {
        "rule": pa.string(),
        "type": pa.string(),
        "ts": ts,
        "id": pa.string(),
        **({"seq": pa.int64()} if select is not None and "seq" in select else {}),
        **({"expired": pa.bool_()} if plan.emits_expired else {}),
        **{names[attribute]: ARROW[kind] for attribute, kind in kinds.items()},
        "parts": pa.list_(part),
    }
    return pa.schema([(name, type) for name, type in columns.items() if select is None or name in select])


def checked_select(select: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    """Return `select` as a tuple. Raise an error if it has a column that is not in `names`."""
    select = tuple(select)
    for name in select:
        if name not in names:
            raise EventError(f"matches have no column '{name}'. {nearest(name, names) or ''}".rstrip())
    return select


def attributes_of(plan: Plan, named: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the attribute of each column of matches, by column name."""
    names = column_names(plan.emitted.kinds, named)
    return {names[key]: plan.emitted.attribute(key) for key in plan.emitted.kinds}


def table(matches: MatchColumns, pipeline: Pipeline, columns: pa.Schema, attributes: Mapping[str, str]) -> pa.Table:
    """Return matches as a table with the schema `columns`. `attributes` maps columns to keys of `Emitted.kinds`."""
    if not len(matches.rules):
        return columns.empty_table()
    labels = pipeline.tables.labels
    ts, seq = match_times(matches, pipeline.store)
    order = _order(labels.ranks[matches.rules], ts, seq)
    if order is not None:
        matches = select_matches(matches, order)
        ts, seq = ts[order], seq[order]
    header: dict[str, Callable[[pa.DataType], pa.Array]] = {
        "rule": lambda _: _strings(labels.names, matches.rules),
        "type": lambda _: _strings(labels.types, matches.rules),
        "ts": lambda type: _times(ts, type),
        "seq": lambda _: pa.array(seq),
        "id": lambda _: hexadecimal(matches.id_high, matches.id_low),
        "expired": lambda _: _expired(matches, labels),
        "parts": lambda type: _parts(matches, labels, pipeline, type.value_type.field("ts").type),
    }
    values = [
        _attribute(field, attributes[field.name], matches, labels, pipeline)
        if field.name in attributes
        else header[field.name](field.type)
        for field in columns
    ]
    return pa.table(values, schema=columns)


def _expired(matches: MatchColumns, labels: RuleLabels) -> pa.Array:
    """Return whether the event of each match left its window, with null if the rule does not output such events."""
    expired = np.zeros(len(matches.rules), bool) if matches.expired is None else matches.expired != 0
    return pa.array(expired, pa.bool_(), mask=~labels.expired[matches.rules])


def _attribute(field: pa.Field, name: str, matches: MatchColumns, labels: RuleLabels, pipeline: Pipeline) -> pa.Array:
    attribute = labels.attribute(name)
    if attribute is None:
        return pa.nulls(len(matches.rules), field.type)
    indexes, kind = attribute
    if (indexes == indexes[0]).all():
        return column_of(matches.values[indexes[0]], matches.valid[indexes[0]], kind, pipeline)
    chosen, at = indexes[matches.rules], np.arange(len(matches.rules))
    return column_of(matches.values[chosen, at], matches.valid[chosen, at] & (chosen >= 0), kind, pipeline)


def _parts(matches: MatchColumns, labels: RuleLabels, pipeline: Pipeline, ts_type: pa.DataType) -> pa.Array:
    counts = labels.role_counts[matches.rules] if matches.roles is None else matches.roles.counts
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    width = matches.parts.shape[1]
    is_part = None if (counts == width).all() else np.arange(width) < counts[:, None]
    rows = matches.parts.reshape(-1) if is_part is None else matches.parts[is_part]
    starts = labels.role_starts[matches.rules]
    repeating = len(labels) == 1 and matches.roles is None
    if matches.roles is None:
        numbers = np.repeat(starts - offsets[:-1], counts) + np.arange(len(rows))
    else:
        roles = matches.roles.numbers
        numbers = np.repeat(starts, counts) + (roles.reshape(-1) if is_part is None else roles[is_part])
    children = {
        "role": _strings(labels.roles, numbers, repeating),
        "type": _strings(labels.role_types, numbers, repeating),
        "ts": _times(pipeline.store.ts[rows], ts_type),
        "id": row_ids(pipeline, rows),
    }
    structs = pa.StructArray.from_arrays(list(children.values()), names=list(children))
    return pa.ListArray.from_arrays(pa.array(offsets), structs)


def _strings(strings: pa.Array, numbers: Array, repeating: bool = False) -> pa.Array:
    """Return the strings at the indices `numbers`. If `repeating`, the indices cycle through all strings."""
    if len(strings) == 1:
        return pa.repeat(strings[0], len(numbers))
    if repeating and len(strings):
        data = [text.encode() for text in strings.to_pylist()]
        rounds = len(numbers) // len(strings)
        offsets = np.zeros(len(numbers) + 1, np.int32)
        np.cumsum(np.tile(np.array([len(text) for text in data], np.int32), rounds), out=offsets[1:])
        buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(data) * rounds)]
        return pa.StringArray.from_buffers(len(numbers), *buffers)
    return strings.take(pa.array(numbers))


def _order(ranks: Array, ts: Array, seq: Array) -> Array | None:
    """Return the permutation that sorts matches by (ts, seq, rule), or None if they are sorted."""
    before, after = slice(None, -1), slice(1, None)
    same = ts[before] == ts[after]
    wrong = (ts[after] < ts[before]) | (same & (seq[after] < seq[before]))
    wrong |= same & (seq[before] == seq[after]) & (ranks[after] < ranks[before])
    return np.lexsort((ranks, seq, ts)) if wrong.any() else None


def column_of(values: Array, valid: Array, kind: Kind, pipeline: Pipeline) -> pa.Array:
    """Return 64-bit values as an Arrow column of `kind`, with null for values that are not valid."""
    if kind == Kind.STRING:
        return pipeline.strings.decode(values, valid)
    mask = None if valid.all() else valid == 0
    if kind == Kind.DOUBLE:
        return pa.array(values.view(np.float64), pa.float64(), mask=mask)
    if kind == Kind.BOOL:
        return pa.array(values != 0, pa.bool_(), mask=mask)
    if kind == Kind.INT:
        return pa.array(np.where(valid != 0, values, 0).astype(np.int32), pa.int32(), mask=mask)
    numbers = pa.array(values, pa.int64(), mask=mask)
    return numbers.cast(ARROW[Kind.TIMESTAMP]) if kind == Kind.TIMESTAMP else numbers


def _times(ts: Array, type: pa.DataType) -> pa.Array:
    times = pa.array(ts, pa.int64())
    return times.cast(type) if pa.types.is_timestamp(type) else times


def row_ids(pipeline: Pipeline, rows: Array) -> pa.Array:
    """Return the ids that the source gave to rows, or computed ids in hexadecimal for rows without a source id."""
    store = pipeline.store
    source_id = store.source_id[rows]
    if (source_id < 0).all() or not pipeline.ingest.shows_ids:
        return hexadecimal(store.id_high[rows], store.id_low[rows])
    strings = store.source_ids.strings(source_id)
    if (source_id >= 0).all():
        return strings
    return pc.if_else(pa.array(source_id >= 0), strings, hexadecimal(store.id_high[rows], store.id_low[rows]))
