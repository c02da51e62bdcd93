"""Split and join snapshots by key, so that a stream can resume with another number of partitions.

No rules run during this. When a state is split, each partition gets the rows of its events, the events that wait, and
the roles that have consumed its events. Every partition gets the data of the whole stream: settings, time, and the last
instant of an ordered source. When states are joined, several states may have the same event for different rules. The
joined state has such an event once, with the attributes of all states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine import detector_state
from tocsin.engine.batch_columns import hexadecimal
from tocsin.engine.detector import Detector
from tocsin.engine.detector_state import DetectorSnapshot, PipelineState
from tocsin.engine.families.windows import CURRENT
from tocsin.errors import StateError
from tocsin.events.columns import concat, one_array
from tocsin.events.types import EventType
from tocsin.kernels import Array
from tocsin.language import parse
from tocsin.language.eps.ast import Request, Statement, owned
from tocsin.language.syntax.ast import Rule

COUNTS = ("events", "late", "dead", "matches")
IDENTITY = ("ts", "seq", "first", "second")

Partitioner = Callable[[str, pa.Table], Array]
"""A function that returns the partition of each event of a type, given the name of the type and a table.

Attributes are columns named `name:kind`. The table has no columns for attributes that no rule reads.
"""


def narrow(snapshot: bytes, rules: Sequence[Statement], types: Mapping[str, EventType]) -> bytes:
    """Return a snapshot with only the part of the state that `rules` need."""
    return Detector.restore(snapshot, rules, types).snapshot()


def split(snapshot: bytes, partitioner: Partitioner, count: int) -> list[bytes]:
    """Split a snapshot into `count` snapshots, one for each partition. The first snapshot gets the event counts."""
    whole = detector_state.decode(snapshot)
    state, waiting = whole.state, whole.waiting
    for user, table in sorted(state.families.items()):
        if "what" not in table.column_names:
            raise StateError(f"the state of {user} cannot be split: it is in one of Snoop's contexts")
        if set(table["what"].to_pylist()) != {CURRENT}:
            raise StateError(f"the state of {user} cannot be split: it covers all events")
    partitions = {type: _partitions(partitioner, type, table, count) for type, table in state.rows.items()}
    buffered = {type: _partitions(partitioner, type, table, count) for type, table in state.buffered.items()}
    waits = None if waiting is None else _partitions_by_type(partitioner, waiting, count)
    types = {owner: _type(whole.header["rules"], owner) for owner in (*state.left, *state.used)}
    states: list[bytes] = []
    for index in range(count):
        mine = PipelineState(
            _select_rows(state.rows, partitions, index),
            _select_rows(state.buffered, buffered, index),
            {
                owner: _select_unconsumed(partitions.get(types[owner]), left, index)
                for owner, left in state.left.items()
            },
            {
                owner: _select_unconsumed(partitions.get(types[owner]), used, index)
                for owner, used in state.used.items()
            },
            _select_window_rows(state.families, partitions, index),
            state.tail,
            state.tail_key,
            state.tail_last,
        )
        numbers = {name: n if index == 0 or name not in COUNTS else 0 for name, n in whole.numbers.items()}
        still = waiting.filter(pa.array(waits == index)) if waiting is not None else None
        states.append(detector_state.encode(DetectorSnapshot(whole.header, numbers, mine, still)))
    return states


def join(states: Iterable[bytes]) -> bytes:
    """Join snapshots of equal watermark into one snapshot."""
    snapshots = [detector_state.decode(snapshot) for snapshot in states]
    if not snapshots:
        raise StateError("there is no state to join")
    header, numbers = _merge_headers([snapshot.header for snapshot in snapshots]), _merge_counters(snapshots)
    state = PipelineState()
    positions: dict[str, list[Array]] = {}
    for type in sorted({type for snapshot in snapshots for type in snapshot.state.rows}):
        state.rows[type], positions[type] = _union([snapshot.state.rows.get(type) for snapshot in snapshots])
    for type in sorted({type for snapshot in snapshots for type in snapshot.state.buffered}):
        state.buffered[type], _ = _union([snapshot.state.buffered.get(type) for snapshot in snapshots])
    for owner in dict.fromkeys(owner for snapshot in snapshots for owner in snapshot.state.left):
        type = _type(header["rules"], owner)
        if type in state.rows:
            lefts = [snapshot.state.left.get(owner) for snapshot in snapshots]
            state.left[owner] = _merge_unconsumed(lefts, positions[type], state.rows[type].num_rows)
        else:
            state.left[owner] = np.zeros(0, np.int64)
    for owner in dict.fromkeys(owner for snapshot in snapshots for owner in snapshot.state.used):
        type = _type(header["rules"], owner)
        here = [
            (positions[type][n], snapshot.state.used.get(owner))
            for n, snapshot in enumerate(snapshots)
            if type in positions
        ]
        used_rows = [place[used] for place, used in here if used is not None and len(used)]
        if used_rows:
            state.used[owner] = np.unique(np.concatenate(used_rows))
    for n, snapshot in enumerate(snapshots):
        for user, table in snapshot.state.families.items():
            pairs = zip(table["type"].to_pylist(), table["row"].to_pylist(), strict=True)
            rows = [int(positions[type][n][row]) if row >= 0 else -1 for type, row in pairs]
            table = table.set_column(table.column_names.index("row"), "row", pa.array(rows, pa.int64()))
            if user in state.families:  # a partitioned query: its window is in the order of events
                table = pa.concat_tables([state.families[user], table])
                table = table.take(pc.sort_indices(table["row"]))
            state.families[user] = table
    state.tail, state.tail_key, state.tail_last = _merge_tails([snapshot.state for snapshot in snapshots])
    waiting = [snapshot.waiting for snapshot in snapshots if snapshot.waiting is not None and snapshot.waiting.num_rows]
    return detector_state.encode(DetectorSnapshot(header, numbers, state, _merge_waiting(waiting) if waiting else None))


# ---- splitting


def _partitions(partitioner: Partitioner, type: str, rows: pa.Table, count: int) -> Array:
    chosen = np.asarray(partitioner(type, rows), np.int64)
    if len(chosen) != rows.num_rows or ((chosen < 0) | (chosen >= count)).any():
        raise StateError(f"each {type} must be assigned to one of {count} parts")
    return chosen


def _partitions_by_type(partitioner: Partitioner, waiting: pa.Table, count: int) -> Array:
    types = one_array(waiting["type"]).dictionary_encode()
    codes, chosen = types.indices.to_numpy(), np.zeros(waiting.num_rows, np.int64)
    for code, type in enumerate(types.dictionary.to_pylist()):
        rows = np.nonzero(codes == code)[0]
        chosen[rows] = _partitions(partitioner, type, waiting.take(rows), count)
    return chosen


def _select_rows(tables: Mapping[str, pa.Table], partitions: Mapping[str, Array], index: int) -> dict[str, pa.Table]:
    """Return the rows of the partition `index`, by type, without types that have no rows in it."""
    selected = {type: table.filter(pa.array(partitions[type] == index)) for type, table in tables.items()}
    return {type: table for type, table in selected.items() if table.num_rows}


def _select_window_rows(
    families: Mapping[str, pa.Table], partitions: Mapping[str, Array], index: int
) -> dict[str, pa.Table]:
    """Return the window entries of the events of partition `index`, by name of the query."""
    selected_tables: dict[str, pa.Table] = {}
    for user, table in families.items():
        type, rows = table["type"][0].as_py(), table["row"].to_numpy()
        in_part = partitions[type] == index
        selected = table.filter(pa.array(in_part[rows]))
        number = (np.cumsum(in_part) - 1)[rows[in_part[rows]]]
        if selected.num_rows:
            selected_tables[user] = selected.set_column(
                selected.column_names.index("row"), "row", pa.array(number, pa.int64())
            )
    return selected_tables


def _select_unconsumed(partitions: Array | None, left: Array, index: int) -> Array:
    """Return the positions within partition `index` of the rows in `left`, which are positions in the whole state."""
    if partitions is None:
        return left
    in_part = partitions == index
    number = np.cumsum(in_part) - 1
    return np.asarray(number[left[in_part[left]]])


def _type(rules: Mapping[str, str], owner: tuple[str, int]) -> str:
    """Return the event type of the role `owner`, given as (name of the rule, index of the role)."""
    (rule,) = parse(rules[owner[0]]).rules
    if isinstance(rule, Request):
        return owned(rule)[owner[1]][1]
    assert isinstance(rule, Rule)
    return rule.roles[owner[1]].type


# ---- joining


def _union(tables: Sequence[pa.Table | None]) -> tuple[pa.Table, list[Array]]:
    """Merge tables of events of one type, so that each event occurs once, in canonical order.

    Return the merged table, and for each given table the positions of its rows in the merged table.
    """
    sizes = [0 if table is None else table.num_rows for table in tables]
    rows = concat([table for table in tables if table is not None])
    rows = rows.select([*(name for name in rows.column_names if ":" not in name), *_attributes([rows])])
    order = _canonical(rows)
    part = np.repeat(np.arange(len(tables)), sizes)
    columns = [rows[name].to_numpy()[order] for name in IDENTITY]
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in columns:
        same &= column[1:] == column[:-1]
    group = np.cumsum(np.concatenate([np.ones(min(len(order), 1), bool), ~same])) - 1
    number, count = _merge_duplicates(group, part[order])
    positions = np.empty(len(order), np.int64)
    positions[order] = number
    merged = pa.table({name: _first_valid(one_array(rows[name]), positions, count) for name in rows.column_names})
    return merged, np.split(positions, np.cumsum(sizes)[:-1])


def _canonical(rows: pa.Table) -> Array:
    """Return the permutation that sorts rows of one type by (ts, seq, id). Rows of equal id keep their order."""
    ts, seq, first, second = (rows[name].to_numpy() for name in IDENTITY)
    if "given" not in rows.column_names or rows["given"].null_count == rows.num_rows:
        return np.lexsort((second, first, seq, ts))
    id = pc.fill_null(one_array(rows["given"]), "")
    id = pc.if_else(one_array(rows["given"]).is_valid(), id, hexadecimal(first, second))
    table = pa.table({"ts": ts, "seq": seq, "id": id})
    return np.asarray(pc.sort_indices(table, [(name, "ascending") for name in table.column_names]), np.int64)


def _merge_duplicates(group: Array, part: Array) -> tuple[Array, int]:
    """Number the rows so that duplicates get equal numbers.

    Two rows are duplicates if each is the k-th row of the same group in its part. Numbers ascend with the groups.
    Return the numbers, and how many distinct numbers there are.
    """
    order = np.lexsort((part, group))
    begins = np.ones(len(order), bool)
    begins[1:] = (group[order][1:] != group[order][:-1]) | (part[order][1:] != part[order][:-1])
    position = np.arange(len(order))
    occurrence = np.empty(len(order), np.int64)
    occurrence[order] = position - np.maximum.accumulate(np.where(begins, position, 0))
    pairs = np.stack([group, occurrence], 1)
    distinct, number = np.unique(pairs, axis=0, return_inverse=True)
    return number.reshape(-1), len(distinct)


def _first_valid(column: pa.Array, positions: Array, count: int) -> pa.Array:
    """Return the first valid value of `column` at each position. `positions` has the position of each value."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    source = np.zeros(count, np.int64)
    for some in (~valid, valid):
        rows = np.nonzero(some)[0][::-1]
        source[positions[rows]] = rows
    return column.take(pa.array(source))


def _merge_unconsumed(lefts: Sequence[Array | None], positions: Sequence[Array], count: int) -> Array:
    """Return the rows that some state has for a role and that no state has consumed.

    `lefts` has the unconsumed rows of each state, and `positions` the merged position of each row of a state.
    """
    left, consumed = np.zeros(count, bool), np.zeros(count, bool)
    for some, where in zip(lefts, positions, strict=True):
        if some is not None:
            left[where[some]] = True
            consumed[np.delete(where, some)] = True
    return np.nonzero(left & ~consumed)[0]


def _merge_waiting(tables: Sequence[pa.Table]) -> pa.Table:
    """Merge tables of waiting events, sorted by (ts, seq) and without duplicates."""
    rows = concat(tables)
    attributes = _attributes(tables)
    rows = rows.select([*(name for name in rows.column_names if ":" not in name), *attributes])
    codes = []
    for name in rows.column_names:
        coded = one_array(rows[name]).dictionary_encode(null_encoding="encode")
        codes.append(coded.indices.to_numpy(zero_copy_only=False))
    _, group = np.unique(np.stack(codes, 1), axis=0, return_inverse=True)
    part = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    number, count = _merge_duplicates(group.reshape(-1), part)
    first = np.empty(count, np.int64)
    first[number[::-1]] = np.arange(rows.num_rows)[::-1]
    rows = rows.take(np.sort(first))
    return rows.take(np.lexsort((rows["seq"].to_numpy(), rows["ts"].to_numpy())))


def _attributes(tables: Iterable[pa.Table]) -> list[str]:
    """Return the sorted names of the attribute columns. Raise an error if an attribute has several kinds."""
    names = sorted({name for table in tables for name in table.column_names if ":" in name})
    kinds: dict[str, str] = {}
    for name in names:
        attribute, _, kind = name.rpartition(":")
        if kinds.setdefault(attribute, kind) != kind:
            raise StateError(f"{attribute} is {kinds[attribute]} in one state and {kind} in another")
    return names


def _merge_counters(snapshots: Sequence[DetectorSnapshot]) -> dict[str, int]:
    """Return the latest progress in time, and the sums of the event counts.

    Raise an error if some state has waiting events before the latest watermark.
    """
    numbers = [snapshot.numbers for snapshot in snapshots]
    now = max((n["watermark"], n["last_seq"]) for n in numbers)
    for snapshot in snapshots:
        if (
            snapshot.waiting is not None
            and snapshot.waiting.num_rows
            and snapshot.waiting["ts"].to_numpy().min() < now[0]
        ):
            raise StateError("the states have different watermarks: advance them all to the same one first")
    times = {"watermark": now[0], "last_seq": now[1], "largest": max(n["largest"] for n in numbers)}
    return {**times, **{name: sum(n[name] for n in numbers) for name in COUNTS}}


def _merge_tails(
    states: Sequence[PipelineState],
) -> tuple[list[tuple[str, int, int, int]], tuple[int, int] | None, list[tuple[str, str]]]:
    """Return the latest instant of all states, and merge what the states have seen of this instant.

    The result is (tail, tail_key, tail_last) as in `PipelineState`, in the order of its fields.
    """
    key = max((state.tail_key for state in states if state.tail_key is not None), default=None)
    counts: dict[tuple[str, int, int], int] = {}
    last: dict[str, str] = {}
    for state in states:
        if state.tail_key == key:
            for type, first, second, n in state.tail:  # parts of a split state may have copies
                counts[type, first, second] = max(n, counts.get((type, first, second), 0))
            for type, id in state.tail_last:
                last[type] = max(id, last.get(type, ""))
    return sorted((*content, n) for content, n in counts.items()), key, sorted(last.items())


def _merge_headers(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the settings and rules of snapshots. Raise an error if they contradict each other."""
    merged: dict[str, Any] = {name: headers[0][name] for name in ("delay_us", "ordered", "columns")}
    for header in headers:
        for name, value in merged.items():
            if header[name] != value:
                raise StateError(f"the states have different settings: {name} is {value} and {header[name]}")
    times = {header["times"] for header in headers} - {None}
    since: dict[str, int] = {}
    for header in headers:
        for rule, ts in header["since"].items():
            since[rule] = max(ts, since.get(rule, ts))
    merged["rules"] = _merge_equal("rule", (header["rules"] for header in headers))
    merged["since"] = since
    merged["coming"] = _merge_changes(header.get("coming", []) for header in headers)
    merged["times"] = max(times) if times else None
    merged["shared"] = _merge_equal("attribute", (header["shared"] for header in headers))
    merged["complete"] = any(header["complete"] for header in headers)
    merged["empty"] = sorted({name for header in headers for name in header["empty"]})
    for section in ("exact", "seen"):
        types = dict.fromkeys(type for header in headers for type in header[section])
        merged[section] = {
            type: _merge_equal(f"{type}'s attribute", (header[section].get(type, {}) for header in headers))
            for type in types
        }
    merged["closed"] = any(header["closed"] for header in headers)
    return merged


def _merge_changes(several: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Merge scheduled changes of rules. Changes that are due at the same time become one change."""
    merged: dict[int, tuple[set[str], dict[str, None]]] = {}
    for changes in several:
        for at, remove, strings in changes:
            removed, added = merged.setdefault(at, (set(), {}))
            removed.update(remove)
            added.update(dict.fromkeys(strings))
    return [[at, sorted(removed), list(added)] for at, (removed, added) in sorted(merged.items())]


def _merge_equal(what: str, several: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge mappings. Raise an error if they have different values for a key; `what` describes the keys."""
    merged: dict[str, Any] = {}
    for one in several:
        for name, value in one.items():
            if merged.setdefault(name, value) != value:
                raise StateError(f"the states do not agree on {what} {name}")
    return merged
