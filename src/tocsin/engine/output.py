"""Matches as an Arrow table: rule, type, ts, id, the attributes and the parts, ordered by (ts, seq, rule, parts)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.intake import hexadecimal
from tocsin.engine.kernels import Array
from tocsin.engine.machine import Found, Machine
from tocsin.events.batches import ARROW
from tocsin.events.types import Kind
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


class Output:
    """Turns what a machine found into tables, for the rules that it has now."""

    def __init__(self, machine: Machine, columns: pa.Schema) -> None:
        self._machine = machine
        self.schema = columns
        rules = [loaded.plan.rule for loaded in machine.tables.rules]
        names = [rule.name for rule in rules]
        self._names = pa.array(names, pa.string())
        self._types = pa.array([rule.emits.name for rule in rules], pa.string())
        self._ranks = np.empty(len(names), np.int64)
        self._ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        self._roles = pa.array([pattern.role for rule in rules for pattern in rule.roles], pa.string())
        self._role_types = pa.array([pattern.type for rule in rules for pattern in rule.roles], pa.string())
        self._role_starts = np.concatenate([[0], np.cumsum(machine.tables.role_counts)])
        self._kinds: dict[str, Kind] = {}
        self._which: dict[str, Array] = {}
        for number, rule in enumerate(rules):
            for k, (attribute, kind) in enumerate(rule.emits.attributes):
                self._kinds[attribute] = kind
                self._which.setdefault(attribute, np.full(len(rules), -1, np.int64))[number] = k

    def table(self, found: Found) -> pa.Table:
        """The matches as a table."""
        if not len(found.rules):
            return self.schema.empty_table()
        store, ts_type = self._machine.store, self.schema.field("ts").type
        anchors = found.parts[:, 0]
        ts, seq = store.ts[anchors], store.seq[anchors]
        order = _order(self._ranks[found.rules], ts, seq)
        if order is not None:
            found = Found(
                found.rules[order], found.parts[order], found.words[:, order], found.known[:, order],
                found.first[order], found.second[order],
            )  # fmt: skip
            ts = ts[order]
        header = {
            "rule": _labels(self._names, found.rules),
            "type": _labels(self._types, found.rules),
            "ts": _times(ts, ts_type),
            "id": hexadecimal(found.first, found.second),
            "parts": self._parts(found, ts_type),
        }
        columns = [
            header[field.name] if field.name in header else self._attribute(field.name, found) for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    def _attribute(self, name: str, found: Found) -> pa.Array:
        k = self._which[name][found.rules]
        if (k == k[0]).all() and k[0] >= 0:
            words, known = found.words[k[0]], found.known[k[0]]
        else:
            at = np.arange(len(k))
            words, known = found.words[k, at], found.known[k, at] & (k >= 0)
        return column_of(words, known, self._kinds[name], self._machine)

    def _parts(self, found: Found, ts_type: pa.DataType) -> pa.Array:
        counts = self._machine.tables.role_counts[found.rules]
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        places = found.parts.shape[1]
        if (counts == places).all():
            rows = found.parts.reshape(-1)
        else:
            rows = found.parts[np.arange(places) < counts[:, None]]
        labels = np.repeat(self._role_starts[found.rules] - offsets[:-1], counts) + np.arange(len(rows))
        children = {
            "role": _labels(self._roles, labels),
            "type": _labels(self._role_types, labels),
            "ts": _times(self._machine.store.ts[rows], ts_type),
            "id": ids_of(self._machine, rows),
        }
        structs = pa.StructArray.from_arrays(list(children.values()), names=list(children))
        return pa.ListArray.from_arrays(pa.array(offsets), structs)


def _labels(texts: pa.Array, numbers: Array) -> pa.Array:
    return pa.repeat(texts[0], len(numbers)) if len(texts) == 1 else texts.take(pa.array(numbers))


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
    if (given < 0).all():
        return hexadecimal(store.first[rows], store.second[rows])
    texts = machine.texts.decode(np.maximum(given, 0))
    if (given >= 0).all():
        return texts
    return pc.if_else(pa.array(given >= 0), texts, hexadecimal(store.first[rows], store.second[rows]))
