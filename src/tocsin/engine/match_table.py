"""Matches as an Arrow table: rule, type, ts, id, the attributes and the parts, ordered by (ts, seq, rule, parts)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.batch_columns import hexadecimal
from tocsin.engine.match_columns import Found, moments_of, some
from tocsin.engine.pipeline import Machine
from tocsin.engine.programs import Labels
from tocsin.errors import EventError, nearest
from tocsin.events.columns import ARROW
from tocsin.events.types import Kind
from tocsin.kernels import Array
from tocsin.plans.plan import Plan, column_names


def schema(
    plan: Plan, *, times: bool, select: Collection[str] | None = None, named: Mapping[str, str] | None = None
) -> pa.Schema:
    """The columns of the matches of these rules, or some of them, and `seq` if that is asked for by name.

    `times`: ts are timestamps, not integers. `named`: columns of attributes, as far as they are settled elsewhere.
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
        **({"expired": pa.bool_()} if plan.tells_expired else {}),
        **{names[attribute]: ARROW[kind] for attribute, kind in kinds.items()},
        "parts": pa.list_(part),
    }
    return pa.schema([(name, type) for name, type in columns.items() if select is None or name in select])


def checked(select: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    """The columns that are wanted, if matches have them."""
    select = tuple(select)
    for name in select:
        if name not in names:
            raise EventError(f"matches have no column '{name}'. {nearest(name, names) or ''}".rstrip())
    return select


def attributes_of(plan: Plan, named: Mapping[str, str] | None = None) -> dict[str, str]:
    """Which attribute each column of matches holds."""
    names = column_names(plan.emitted.kinds, named)
    return {names[key]: plan.emitted.attribute(key) for key in plan.emitted.kinds}


def table(found: Found, machine: Machine, columns: pa.Schema, attributes: Mapping[str, str]) -> pa.Table:
    """The matches as a table of that schema; `attributes`: the key in `Emitted.kinds` of each column that has one."""
    if not len(found.rules):
        return columns.empty_table()
    labels = machine.tables.labels
    ts, seq = moments_of(found, machine.store)
    order = _order(labels.ranks[found.rules], ts, seq)
    if order is not None:
        found = some(found, order)
        ts, seq = ts[order], seq[order]
    header: dict[str, Callable[[pa.DataType], pa.Array]] = {
        "rule": lambda _: _texts(labels.names, found.rules),
        "type": lambda _: _texts(labels.types, found.rules),
        "ts": lambda type: _times(ts, type),
        "seq": lambda _: pa.array(seq),
        "id": lambda _: hexadecimal(found.first, found.second),
        "expired": lambda _: _expired(found, labels),
        "parts": lambda type: _parts(found, labels, machine, type.value_type.field("ts").type),
    }
    values = [
        _attribute(field, attributes[field.name], found, labels, machine)
        if field.name in attributes
        else header[field.name](field.type)
        for field in columns
    ]
    return pa.table(values, schema=columns)


def _expired(found: Found, labels: Labels) -> pa.Array:
    """Whether a row is of an event that left its window; null unless its query puts out such rows."""
    expired = np.zeros(len(found.rules), bool) if found.expired is None else found.expired != 0
    return pa.array(expired, pa.bool_(), mask=~labels.expired[found.rules])


def _attribute(field: pa.Field, name: str, found: Found, labels: Labels, machine: Machine) -> pa.Array:
    attribute = labels.attribute(name)
    if attribute is None:
        return pa.nulls(len(found.rules), field.type)
    places, kind = attribute
    if (places == places[0]).all():
        return column_of(found.words[places[0]], found.known[places[0]], kind, machine)
    chosen, at = places[found.rules], np.arange(len(found.rules))
    return column_of(found.words[chosen, at], found.known[chosen, at] & (chosen >= 0), kind, machine)


def _parts(found: Found, labels: Labels, machine: Machine, ts_type: pa.DataType) -> pa.Array:
    counts = labels.role_counts[found.rules] if found.roles is None else found.roles.counts
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    places = found.parts.shape[1]
    there = None if (counts == places).all() else np.arange(places) < counts[:, None]
    rows = found.parts.reshape(-1) if there is None else found.parts[there]
    starts = labels.role_starts[found.rules]
    turns = len(labels) == 1 and found.roles is None
    if found.roles is None:
        numbers = np.repeat(starts - offsets[:-1], counts) + np.arange(len(rows))
    else:
        roles = found.roles.numbers
        numbers = np.repeat(starts, counts) + (roles.reshape(-1) if there is None else roles[there])
    children = {
        "role": _texts(labels.roles, numbers, turns),
        "type": _texts(labels.role_types, numbers, turns),
        "ts": _times(machine.store.ts[rows], ts_type),
        "id": ids_of(machine, rows),
    }
    structs = pa.StructArray.from_arrays(list(children.values()), names=list(children))
    return pa.ListArray.from_arrays(pa.array(offsets), structs)


def _texts(texts: pa.Array, numbers: Array, turns: bool = False) -> pa.Array:
    """The texts of these numbers; `turns`: each has its turn, over and over."""
    if len(texts) == 1:
        return pa.repeat(texts[0], len(numbers))
    if turns and len(texts):
        data = [text.encode() for text in texts.to_pylist()]
        rounds = len(numbers) // len(texts)
        offsets = np.zeros(len(numbers) + 1, np.int32)
        np.cumsum(np.tile(np.array([len(text) for text in data], np.int32), rounds), out=offsets[1:])
        buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(data) * rounds)]
        return pa.StringArray.from_buffers(len(numbers), *buffers)
    return texts.take(pa.array(numbers))


def _order(ranks: Array, ts: Array, seq: Array) -> Array | None:
    """How to sort by (ts, seq, rule); matches of one rule are in order already."""
    before, after = slice(None, -1), slice(1, None)
    same = ts[before] == ts[after]
    wrong = (ts[after] < ts[before]) | (same & (seq[after] < seq[before]))
    wrong |= same & (seq[before] == seq[after]) & (ranks[after] < ranks[before])
    return np.lexsort((ranks, seq, ts)) if wrong.any() else None


def column_of(words: Array, known: Array, kind: Kind, machine: Machine) -> pa.Array:
    """Words as an Arrow column of that kind."""
    if kind == Kind.STRING:
        return machine.texts.decode(words, known)
    mask = None if known.all() else known == 0
    if kind == Kind.DOUBLE:
        return pa.array(words.view(np.float64), pa.float64(), mask=mask)
    if kind == Kind.BOOL:
        return pa.array(words != 0, pa.bool_(), mask=mask)
    if kind == Kind.INT:
        return pa.array(np.where(known != 0, words, 0).astype(np.int32), pa.int32(), mask=mask)
    numbers = pa.array(words, pa.int64(), mask=mask)
    return numbers.cast(ARROW[Kind.TIMESTAMP]) if kind == Kind.TIMESTAMP else numbers


def _times(ts: Array, type: pa.DataType) -> pa.Array:
    times = pa.array(ts, pa.int64())
    return times.cast(type) if pa.types.is_timestamp(type) else times


def ids_of(machine: Machine, rows: Array) -> pa.Array:
    """The ids of rows: what the source gave, else the identity in hexadecimal."""
    store = machine.store
    given = store.given[rows]
    if (given < 0).all() or not machine.intake.shows_ids:
        return hexadecimal(store.first[rows], store.second[rows])
    texts = store.names.texts(given)
    if (given >= 0).all():
        return texts
    return pc.if_else(pa.array(given >= 0), texts, hexadecimal(store.first[rows], store.second[rows]))
