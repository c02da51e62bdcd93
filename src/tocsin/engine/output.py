"""Matches as an Arrow table: rule, type, ts, id, the attributes and the parts, ordered by (ts, seq, rule, parts)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.columns import hexadecimal
from tocsin.engine.found import Found, moments_of, some
from tocsin.engine.kernels import Array
from tocsin.engine.machine import Machine
from tocsin.errors import EventError, nearest
from tocsin.events.arrow import ARROW
from tocsin.events.types import Kind
from tocsin.language.requests import shown_type
from tocsin.language.rules import Rule
from tocsin.plans.graph import RulePlan
from tocsin.plans.plan import Plan


def schema(plan: Plan, *, times: bool, select: Collection[str] | None = None) -> pa.Schema:
    """The columns of the matches of these rules, or some of them, and `seq` if that is asked for by name.

    `times`: ts are timestamps, not integers.
    """
    ts = ARROW[Kind.TIMESTAMP] if times else pa.int64()
    part = pa.struct([("role", pa.string()), ("type", pa.string()), ("ts", ts), ("id", pa.string())])
    columns = {
        "rule": pa.string(),
        "type": pa.string(),
        "ts": ts,
        "id": pa.string(),
        **({"seq": pa.int64()} if select is not None and "seq" in select else {}),
        **({"expired": pa.bool_()} if plan.tells_expired else {}),
        **{name: ARROW[kind] for name, kind in plan.emitted.kinds.items()},
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


def table(found: Found, machine: Machine, columns: pa.Schema) -> pa.Table:
    """The matches as a table of that schema. Looks only at the rules that have matches."""
    if not len(found.rules):
        return columns.empty_table()
    numbers, which = _distinct(found.rules)
    plans = [machine.tables.rules[number].plan for number in numbers]
    rules = [plan.rule for plan in plans]
    ts, seq = moments_of(found, machine.store)
    order = _order(_ranks([rule.name for rule in rules])[which], ts, seq)
    if order is not None:
        found = some(found, order)
        ts, seq, which = ts[order], seq[order], which[order]
    header: dict[str, Callable[[pa.DataType], pa.Array]] = {
        "rule": lambda _: _labels([rule.name for rule in rules], which),
        "type": lambda _: _labels([rule.emits.name for rule in rules], which),
        "ts": lambda type: _times(ts, type),
        "seq": lambda _: pa.array(seq),
        "id": lambda _: hexadecimal(found.first, found.second),
        "expired": lambda _: _expired(found, plans, which),
        "parts": lambda type: _parts(found, plans, which, machine, type.value_type.field("ts").type),
    }
    values = [
        header[field.name](field.type)
        if field.name in header and (field.name != "expired" or machine.tables.tells_expired)
        else _attribute(field, found, rules, which, machine)
        for field in columns
    ]
    return pa.table(values, schema=columns)


def _distinct(rules: Array) -> tuple[Array, Array]:
    """The rules that have matches, and for each match which of these it is of."""
    most = int(rules.max()) + 1
    if most > len(rules):
        return np.unique(rules, return_inverse=True)
    there = np.zeros(most, bool)  # many matches of few rules: marking them is cheaper than sorting
    there[rules] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[rules]


def _expired(found: Found, plans: list[RulePlan], which: Array) -> pa.Array:
    """Whether a row is of an event that left its window; null unless its query puts out such rows."""
    told = np.array([plan.windowed is not None and plan.windowed.expired for plan in plans])[which]
    expired = np.zeros(len(which), bool) if found.expired is None else found.expired != 0
    return pa.array(expired, pa.bool_(), mask=~told)


def _ranks(names: list[str]) -> Array:
    return np.unique(np.array(names), return_inverse=True)[1]


def _attribute(field: pa.Field, found: Found, rules: list[Rule], which: Array, machine: Machine) -> pa.Array:
    places = np.full(len(rules), -1, np.int64)
    kind: Kind | None = None
    for number, rule in enumerate(rules):
        for k, (attribute, attribute_kind) in enumerate(rule.emits.attributes):
            if attribute == field.name:
                places[number], kind = k, attribute_kind
    if kind is None:
        return pa.nulls(len(which), field.type)
    if (places == places[0]).all():
        return column_of(found.words[places[0]], found.known[places[0]], kind, machine)
    chosen, at = places[which], np.arange(len(which))
    return column_of(found.words[chosen, at], found.known[chosen, at] & (chosen >= 0), kind, machine)


def _parts(found: Found, plans: list[RulePlan], which: Array, machine: Machine, ts_type: pa.DataType) -> pa.Array:
    roles = [
        [*zip(plan.names, plan.types, strict=True)][
            : None if plan.context else 0 if plan.windowed else 1 + len(plan.steps)
        ]
        for plan in plans
    ]
    role_counts = np.array([len(mine) for mine in roles], np.int64)
    counts = role_counts[which] if found.roles is None else found.roles.counts
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    places = found.parts.shape[1]
    there = None if (counts == places).all() else np.arange(places) < counts[:, None]
    rows = found.parts.reshape(-1) if there is None else found.parts[there]
    starts = np.cumsum(role_counts) - role_counts
    names, types = ([part[k] for mine in roles for part in mine] for k in range(2))
    turns = len(plans) == 1 and found.roles is None
    if found.roles is None:
        labels = np.repeat(starts[which] - offsets[:-1], counts) + np.arange(len(rows))
    else:
        numbers = found.roles.numbers
        labels = np.repeat(starts[which], counts) + (numbers.reshape(-1) if there is None else numbers[there])
    children = {
        "role": _labels(names, labels, turns),
        "type": _labels([shown_type(type) for type in types], labels, turns),
        "ts": _times(machine.store.ts[rows], ts_type),
        "id": ids_of(machine, rows),
    }
    structs = pa.StructArray.from_arrays(list(children.values()), names=list(children))
    return pa.ListArray.from_arrays(pa.array(offsets), structs)


def _labels(texts: list[str], numbers: Array, turns: bool = False) -> pa.Array:
    """The texts of these numbers; `turns`: each has its turn, over and over."""
    if len(texts) == 1:
        return pa.repeat(pa.scalar(texts[0], pa.string()), len(numbers))
    if turns and texts:
        data = [text.encode() for text in texts]
        rounds = len(numbers) // len(texts)
        offsets = np.zeros(len(numbers) + 1, np.int32)
        np.cumsum(np.tile(np.array([len(text) for text in data], np.int32), rounds), out=offsets[1:])
        buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(data) * rounds)]
        return pa.StringArray.from_buffers(len(numbers), *buffers)
    return pa.array(texts, pa.string()).take(pa.array(numbers))


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
    texts = store.names.texts(given)
    if (given >= 0).all():
        return texts
    return pc.if_else(pa.array(given >= 0), texts, hexadecimal(store.first[rows], store.second[rows]))
