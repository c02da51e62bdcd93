"""How does a state go on in another number of partitions? It is split by the keys of its events, and parts are joined.

All works on snapshots, without running a rule. What belongs to an event goes where the event goes: its row, whether it
waits, and for which consumed roles it is left. What belongs to the stream as a whole (settings, time, the last instant
of an ordered source) goes everywhere. Joining takes an event that several states hold, for different rules, once, with
the attributes that any of them kept.
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
from tocsin.engine.detector_state import Snapshot, State
from tocsin.engine.families.windows import HELD
from tocsin.errors import StateError
from tocsin.events.columns import concat, whole
from tocsin.events.types import EventType
from tocsin.kernels import Array
from tocsin.language import parse
from tocsin.language.eps.ast import Request, Statement, owned
from tocsin.language.syntax.ast import Rule

COUNTS = ("events", "late", "dead", "matches")
IDENTITY = ("ts", "seq", "first", "second")

Place = Callable[[str, pa.Table], Array]
"""The partition of each row of a type; an attribute is a column `name:kind`, missing if no rule reads it."""


def narrowed(snapshot: bytes, rules: Sequence[Statement], types: Mapping[str, EventType]) -> bytes:
    """Only what these rules need of a state."""
    return Detector.restore(snapshot, rules, types).snapshot()


def split(snapshot: bytes, place: Place, parts: int) -> list[bytes]:
    """A state for each part, with the events that `place` gives it. Counts stay with the first."""
    whole = detector_state.decode(snapshot)
    state, waiting = whole.state, whole.waiting
    for user, table in sorted(state.kept.items()):
        if "what" not in table.column_names:
            raise StateError(f"what {user} keeps cannot be split: it is in one of Snoop's contexts")
        if set(table["what"].to_pylist()) != {HELD}:
            raise StateError(f"what {user} keeps cannot be split: it is about all events")
    rows = {type: _placed(place, type, table, parts) for type, table in state.rows.items()}
    pending = {type: _placed(place, type, table, parts) for type, table in state.pending.items()}
    waits = None if waiting is None else _placed_by_type(place, waiting, parts)
    types = {owner: _type(whole.header["rules"], owner) for owner in (*state.left, *state.used)}
    found: list[bytes] = []
    for part in range(parts):
        mine = State(
            _chosen(state.rows, rows, part),
            _chosen(state.pending, pending, part),
            {owner: _left(rows.get(types[owner]), left, part) for owner, left in state.left.items()},
            {owner: _left(rows.get(types[owner]), used, part) for owner, used in state.used.items()},
            _held(state.kept, rows, part),
            state.tail,
            state.tail_key,
            state.tail_last,
        )
        numbers = {name: n if part == 0 or name not in COUNTS else 0 for name, n in whole.numbers.items()}
        still = waiting.filter(pa.array(waits == part)) if waiting is not None else None
        found.append(detector_state.encode(Snapshot(whole.header, numbers, mine, still)))
    return found


def joined(states: Iterable[bytes]) -> bytes:
    """One state of several that are at the same time."""
    parts = [detector_state.decode(snapshot) for snapshot in states]
    if not parts:
        raise StateError("there is no state to join")
    header, numbers = _headers([part.header for part in parts]), _numbers(parts)
    state = State()
    places: dict[str, list[Array]] = {}
    for type in sorted({type for part in parts for type in part.state.rows}):
        state.rows[type], places[type] = _union([part.state.rows.get(type) for part in parts])
    for type in sorted({type for part in parts for type in part.state.pending}):
        state.pending[type], _ = _union([part.state.pending.get(type) for part in parts])
    for owner in dict.fromkeys(owner for part in parts for owner in part.state.left):
        type = _type(header["rules"], owner)
        if type in state.rows:
            lefts = [part.state.left.get(owner) for part in parts]
            state.left[owner] = _left_together(lefts, places[type], state.rows[type].num_rows)
        else:
            state.left[owner] = np.zeros(0, np.int64)
    for owner in dict.fromkeys(owner for part in parts for owner in part.state.used):
        type = _type(header["rules"], owner)
        here = [(places[type][n], part.state.used.get(owner)) for n, part in enumerate(parts) if type in places]
        gone = [place[used] for place, used in here if used is not None and len(used)]
        if gone:
            state.used[owner] = np.unique(np.concatenate(gone))
    for n, part in enumerate(parts):
        for user, table in part.state.kept.items():
            pairs = zip(table["type"].to_pylist(), table["row"].to_pylist(), strict=True)
            rows = [int(places[type][n][row]) if row >= 0 else -1 for type, row in pairs]
            table = table.set_column(table.column_names.index("row"), "row", pa.array(rows, pa.int64()))
            if user in state.kept:  # a query that was partitioned: its window is in the order of the events
                table = pa.concat_tables([state.kept[user], table])
                table = table.take(pc.sort_indices(table["row"]))
            state.kept[user] = table
    state.tail, state.tail_key, state.tail_last = _tails([part.state for part in parts])
    waiting = [part.waiting for part in parts if part.waiting is not None and part.waiting.num_rows]
    return detector_state.encode(Snapshot(header, numbers, state, _waiting(waiting) if waiting else None))


# ---- splitting


def _placed(place: Place, type: str, rows: pa.Table, parts: int) -> Array:
    chosen = np.asarray(place(type, rows), np.int64)
    if len(chosen) != rows.num_rows or ((chosen < 0) | (chosen >= parts)).any():
        raise StateError(f"each {type} needs one of the {parts} parts")
    return chosen


def _placed_by_type(place: Place, waiting: pa.Table, parts: int) -> Array:
    types = whole(waiting["type"]).dictionary_encode()
    codes, chosen = types.indices.to_numpy(), np.zeros(waiting.num_rows, np.int64)
    for code, type in enumerate(types.dictionary.to_pylist()):
        rows = np.nonzero(codes == code)[0]
        chosen[rows] = _placed(place, type, waiting.take(rows), parts)
    return chosen


def _chosen(tables: Mapping[str, pa.Table], places: Mapping[str, Array], part: int) -> dict[str, pa.Table]:
    """The rows of one part; a type of which it has none is left out."""
    mine = {type: table.filter(pa.array(places[type] == part)) for type, table in tables.items()}
    return {type: table for type, table in mine.items() if table.num_rows}


def _held(kept: Mapping[str, pa.Table], places: Mapping[str, Array], part: int) -> dict[str, pa.Table]:
    """What windows hold of one part's events."""
    found: dict[str, pa.Table] = {}
    for user, table in kept.items():
        type, rows = table["type"][0].as_py(), table["row"].to_numpy()
        here = places[type] == part
        mine = table.filter(pa.array(here[rows]))
        number = (np.cumsum(here) - 1)[rows[here[rows]]]
        if mine.num_rows:
            found[user] = mine.set_column(mine.column_names.index("row"), "row", pa.array(number, pa.int64()))
    return found


def _left(places: Array | None, left: Array, part: int) -> Array:
    """Which of a part's rows are left, of those that are left in the whole."""
    if places is None:
        return left
    here = places == part
    number = np.cumsum(here) - 1
    return np.asarray(number[left[here[left]]])


def _type(rules: Mapping[str, str], owner: tuple[str, int]) -> str:
    """The event type of a rule's role."""
    (rule,) = parse(rules[owner[0]]).rules
    if isinstance(rule, Request):
        return owned(rule)[owner[1]][1]
    assert isinstance(rule, Rule)
    return rule.roles[owner[1]].type


# ---- joining


def _union(tables: Sequence[pa.Table | None]) -> tuple[pa.Table, list[Array]]:
    """The rows of one type in canonical order, each event once; and where each table's rows are."""
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
    number, count = _once(group, part[order])
    place = np.empty(len(order), np.int64)
    place[order] = number
    merged = pa.table({name: _first_known(whole(rows[name]), place, count) for name in rows.column_names})
    return merged, np.split(place, np.cumsum(sizes)[:-1])


def _canonical(rows: pa.Table) -> Array:
    """How to sort rows of one type by (ts, seq, id); those that share an id stay in their order."""
    ts, seq, first, second = (rows[name].to_numpy() for name in IDENTITY)
    if "given" not in rows.column_names or rows["given"].null_count == rows.num_rows:
        return np.lexsort((second, first, seq, ts))
    id = pc.fill_null(whole(rows["given"]), "")
    id = pc.if_else(whole(rows["given"]).is_valid(), id, hexadecimal(first, second))
    table = pa.table({"ts": ts, "seq": seq, "id": id})
    return np.asarray(pc.sort_indices(table, [(name, "ascending") for name in table.column_names]), np.int64)


def _once(group: Array, part: Array) -> tuple[Array, int]:
    """Numbers what is in the same group, ascending, but in different parts alike: the k-th of a part is everyone's
    k-th. Returns the numbers, and how many there are.
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


def _first_known(column: pa.Array, place: Array, count: int) -> pa.Array:
    """For each place the first value that is there."""
    known = column.is_valid().to_numpy(zero_copy_only=False)
    source = np.zeros(count, np.int64)
    for some in (~known, known):
        rows = np.nonzero(some)[0][::-1]
        source[place[rows]] = rows
    return column.take(pa.array(source))


def _left_together(lefts: Sequence[Array | None], places: Sequence[Array], count: int) -> Array:
    """What is left for a role somewhere, and consumed nowhere."""
    left, gone = np.zeros(count, bool), np.zeros(count, bool)
    for some, place in zip(lefts, places, strict=True):
        if some is not None:
            left[place[some]] = True
            gone[np.delete(place, some)] = True
    return np.nonzero(left & ~gone)[0]


def _waiting(tables: Sequence[pa.Table]) -> pa.Table:
    """Events that wait, in order of (ts, seq). One that several states have is there once."""
    rows = concat(tables)
    attributes = _attributes(tables)
    rows = rows.select([*(name for name in rows.column_names if ":" not in name), *attributes])
    codes = []
    for name in rows.column_names:
        coded = whole(rows[name]).dictionary_encode(null_encoding="encode")
        codes.append(coded.indices.to_numpy(zero_copy_only=False))
    _, group = np.unique(np.stack(codes, 1), axis=0, return_inverse=True)
    part = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    number, count = _once(group.reshape(-1), part)
    first = np.empty(count, np.int64)
    first[number[::-1]] = np.arange(rows.num_rows)[::-1]
    rows = rows.take(np.sort(first))
    return rows.take(np.lexsort((rows["seq"].to_numpy(), rows["ts"].to_numpy())))


def _attributes(tables: Iterable[pa.Table]) -> list[str]:
    """The columns of attributes, sorted; each must be of one kind."""
    names = sorted({name for table in tables for name in table.column_names if ":" in name})
    kinds: dict[str, str] = {}
    for name in names:
        attribute, _, kind = name.rpartition(":")
        if kinds.setdefault(attribute, kind) != kind:
            raise StateError(f"{attribute} is {kinds[attribute]} in one state and {kind} in another")
    return names


def _numbers(parts: Sequence[Snapshot]) -> dict[str, int]:
    """The time of the latest, and all counts together. Nobody may still have events before that time to release."""
    numbers = [part.numbers for part in parts]
    now = max((n["watermark"], n["last_seq"]) for n in numbers)
    for part in parts:
        if part.waiting is not None and part.waiting.num_rows and part.waiting["ts"].to_numpy().min() < now[0]:
            raise StateError("the states are not of one time: advance them all to the same watermark first")
    times = {"watermark": now[0], "last_seq": now[1], "largest": max(n["largest"] for n in numbers)}
    return {**times, **{name: sum(n[name] for n in numbers) for name in COUNTS}}


def _tails(
    states: Sequence[State],
) -> tuple[list[tuple[str, int, int, int]], tuple[int, int] | None, list[tuple[str, str]]]:
    """The last instant that any state saw, with what all of them saw there."""
    key = max((state.tail_key for state in states if state.tail_key is not None), default=None)
    counts: dict[tuple[str, int, int], int] = {}
    last: dict[str, str] = {}
    for state in states:
        if state.tail_key == key:
            for type, first, second, n in state.tail:  # a part that was split off may have a copy
                counts[type, first, second] = max(n, counts.get((type, first, second), 0))
            for type, id in state.tail_last:
                last[type] = max(id, last.get(type, ""))
    return sorted((*content, n) for content, n in counts.items()), key, sorted(last.items())


def _headers(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of all, with the rules of all."""
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
    merged["rules"] = _agreed("rule", (header["rules"] for header in headers))
    merged["since"] = since
    merged["coming"] = _coming(header.get("coming", []) for header in headers)
    merged["times"] = max(times) if times else None
    merged["shared"] = _agreed("attribute", (header["shared"] for header in headers))
    merged["complete"] = any(header["complete"] for header in headers)
    merged["empty"] = sorted({name for header in headers for name in header["empty"]})
    for known in ("exact", "seen"):
        types = dict.fromkeys(type for header in headers for type in header[known])
        merged[known] = {
            type: _agreed(f"{type}'s attribute", (header[known].get(type, {}) for header in headers)) for type in types
        }
    merged["closed"] = any(header["closed"] for header in headers)
    return merged


def _coming(several: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """The changes of rules that any of the states waits for; what changes at one time is one change."""
    merged: dict[int, tuple[set[str], dict[str, None]]] = {}
    for changes in several:
        for at, remove, texts in changes:
            gone, added = merged.setdefault(at, (set(), {}))
            gone.update(remove)
            added.update(dict.fromkeys(texts))
    return [[at, sorted(gone), list(added)] for at, (gone, added) in sorted(merged.items())]


def _agreed(what: str, several: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What any of them says; they must not contradict each other."""
    merged: dict[str, Any] = {}
    for one in several:
        for name, value in one.items():
            if merged.setdefault(name, value) != value:
                raise StateError(f"the states do not agree on {what} {name}")
    return merged
