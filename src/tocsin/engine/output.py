"""Matches as an Arrow table: rule, type, ts, id, the attributes, and the parts that made them, ordered by (ts, seq, rule, parts)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.intake import hexadecimal
from tocsin.engine.kernels import Array
from tocsin.engine.machine import Found, Machine
from tocsin.events.batches import ARROW
from tocsin.events.types import EventType, Kind
from tocsin.plans.plan import Plan


def schema(plan: Plan, *, times: bool) -> pa.Schema:
    """The columns of the matches of these rules. `times`: ts are timestamps, not integers."""
    ts = ARROW[Kind.TIMESTAMP] if times else pa.int64()
    part = pa.struct([("role", pa.string()), ("type", pa.string()), ("ts", ts), ("id", pa.string())])
    attributes: dict[str, Kind] = {}
    for rule in plan.rules:
        attributes.update(rule.rule.emits.attributes)
    return pa.schema(
        [
            ("rule", pa.string()),
            ("type", pa.string()),
            ("ts", ts),
            ("id", pa.string()),
            *((name, ARROW[kind]) for name, kind in attributes.items()),
            ("parts", pa.list_(part)),
        ]
    )


def table(found: Found, machine: Machine, columns: pa.Schema) -> pa.Table:
    """The matches as a table of that schema."""
    if not len(found.rules):
        return columns.empty_table()
    store = machine.store
    rules = machine.tables.rules
    anchors = found.parts[:, 0]
    names = [rule.plan.rule.name for rule in rules]
    ts, seq = store.ts[anchors], store.seq[anchors]
    order = _order(found.rules, ts, seq, names)
    if order is not None:
        found = Found(
            found.rules[order], found.parts[order], found.words[:, order], found.known[:, order],
            found.first[order], found.second[order],
        )  # fmt: skip
        ts = ts[order]
    values: dict[str, pa.Array] = {
        "rule": pa.array(names).take(pa.array(found.rules)),
        "type": pa.array([rule.plan.rule.emits.name for rule in rules]).take(pa.array(found.rules)),
        "ts": _times(ts, columns.field("ts").type),
        "id": hexadecimal(found.first, found.second),
    }
    emits = [rule.plan.rule.emits for rule in rules]
    for field in columns:
        if field.name not in values and field.name != "parts":
            values[field.name] = _attribute(field.name, field.type, found, emits, machine)
    values["parts"] = _parts(found, machine, columns.field("ts").type)
    return pa.table([values[field.name] for field in columns], schema=columns)


def _order(rules: Array, ts: Array, seq: Array, names: list[str]) -> Array | None:
    """How to sort; matches of one rule are in order already."""
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    ranks = rank[rules]
    before, after = slice(None, -1), slice(1, None)
    same_ts, same_seq = ts[before] == ts[after], seq[before] == seq[after]
    wrong = (ts[after] < ts[before]) | (same_ts & (seq[after] < seq[before]))
    wrong |= same_ts & same_seq & (ranks[after] < ranks[before])
    return np.lexsort((ranks, seq, ts)) if wrong.any() else None


def _attribute(name: str, type: pa.DataType, found: Found, emits: list[EventType], machine: Machine) -> pa.Array:
    which = np.full(len(emits), -1, np.int64)
    kind = None
    for number, event_type in enumerate(emits):
        for k, (attribute, attribute_kind) in enumerate(event_type.attributes):
            if attribute == name:
                which[number], kind = k, attribute_kind
    k = which[found.rules]
    if (k == k[0]).all() and k[0] >= 0:
        words, known = found.words[k[0]], found.known[k[0]]
    else:
        at = np.arange(len(k))
        words, known = found.words[k, at], found.known[k, at] & (k >= 0)
    return column_of(words, known, kind or Kind.LONG, machine).cast(type)


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


def _parts(found: Found, machine: Machine, ts_type: pa.DataType) -> pa.Array:
    tables, store = machine.tables, machine.store
    counts = tables.role_counts[found.rules]
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    places = found.parts.shape[1]
    if (counts == places).all():
        rows = found.parts.reshape(-1)
    else:
        rows = found.parts[np.arange(places) < counts[:, None]]
    starts = np.zeros(len(tables.rules) + 1, np.int64)
    np.cumsum(tables.role_counts, out=starts[1:])
    labels = np.repeat(starts[found.rules] - offsets[:-1], counts) + np.arange(len(rows))
    roles = [pattern.role for rule in tables.rules for pattern in rule.plan.rule.roles]
    types = [pattern.type for rule in tables.rules for pattern in rule.plan.rule.roles]
    children = {
        "role": pa.array(roles).take(pa.array(labels)),
        "type": pa.array(types).take(pa.array(labels)),
        "ts": _times(store.ts[rows], ts_type),
        "id": ids_of(machine, rows),
    }
    structs = pa.StructArray.from_arrays(list(children.values()), names=list(children))
    return pa.ListArray.from_arrays(pa.array(offsets), structs)


def ids_of(machine: Machine, rows: Array) -> pa.Array:
    """The ids of rows: what the source gave, else the identity in hexadecimal."""
    store = machine.store
    given = store.given[rows]
    if (given < 0).all():
        return hexadecimal(store.first[rows], store.second[rows])
    texts = machine.texts.decode(np.maximum(given, 0))
    if (given >= 0).all():
        return texts
    return pc.if_else(pa.array(given >= 0), texts, hexadecimal(store.first[rows], store.second[rows]))
