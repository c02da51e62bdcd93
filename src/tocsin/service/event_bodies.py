"""What does a request's body hold? Columns, where Arrow can read them, else objects with their places.

NDJSON goes through Arrow's reader, which wants one kind in a column; what it refuses is read object by object, which
finds the bad ones and why they are bad.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from tocsin.errors import EventError
from tocsin.events.formats import Ndjson
from tocsin.events.reader import Columns
from tocsin.events.times import micros, unit_needed
from tocsin.events.types import Kind
from tocsin.service.arrow_streams import CELLS_MAX, TooLarge, check_size, check_texts
from tocsin.service.encoding import is_utf8, utf8

EVENTS_MAX = 1_000_000
CONTAINERS_MAX = 2 * EVENTS_MAX
"""How many lists and objects a body of JSON may have: one of three bytes needs twenty times as much memory."""
VALUES_MAX = 10 * EVENTS_MAX
LINE_BYTES_MAX = 1 << 20
NAME_CHARACTERS_MAX = 200

Arrays = np.ndarray[Any, Any]
Object = tuple[int, dict[str, Any]]
"""A JSON object and its place in the body."""

DIGITS_MAX = 1_000
"""Of longer whole numbers only so many digits are read. They are rejected anyway."""

HEADER = ("type", "ts", "seq")
DEFAULT = Columns()
_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \t]*:')
_NDJSON = Ndjson()


def arrow_table(body: bytes) -> pa.Table:
    """An Arrow stream as a table. How large that is, is checked before."""
    if not body:
        raise EventError("the body is empty: there are no events in it")
    try:
        check_size(body)
        with pa.ipc.open_stream(body) as stream:
            batches, rows, texts = [], 0, 0
            for batch in stream:
                rows += batch.num_rows
                if rows > EVENTS_MAX:
                    raise EventError(f"one request has at most {EVENTS_MAX:,} events")
                batch.validate()
                texts = check_texts(batch, texts)
                batch.validate(full=True)  # which reads the text of every row
                batches.append(batch)
            return pa.Table.from_batches(batches, stream.schema)
    except EventError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise EventError(f"the body is no Arrow stream that can be read: {str(error)[:200]}") from None


def fast_lines(body: bytes) -> pa.Table | None:
    """NDJSON as Arrow reads it; None if it finds fault or leaves out a line, or could find something nested."""
    data = body.strip(b"\r\n")
    lines = data.count(b"\n") + 1
    flat = data.count(b"{") == data.count(b"}") == lines and b"[" not in data
    if not flat or not data.startswith(b"{") or data.count(b"\n{") != lines - 1:
        return None
    if lines > EVENTS_MAX:
        raise EventError(f"one request has at most {EVENTS_MAX:,} events, this has {lines:,}")
    _check_names(data, lines)
    try:
        if not data.isascii():
            data.decode()
        options = pa.json.ReadOptions(block_size=len(data) + 1, use_threads=False)
        table = pa.json.read_json(pa.BufferReader(data), read_options=options)
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    if table.num_rows != lines or len(set(table.column_names)) < len(table.column_names):
        return None
    if "type" not in table.column_names or not pa.types.is_string(table.schema.field("type").type):
        return None
    return table


def _check_names(data: bytes, lines: int) -> None:
    """Fails if a table of these lines, with a column for each name in them, would have too many values."""
    pairs = data.count(b":")
    if pairs * lines <= CELLS_MAX:
        return
    if b"\\" not in data:  # mostly each line has the names of the first: that is found faster
        first = set(_NAME.findall(data[: data.find(b"\n")]))
        if len(first) <= 20 and sum(data.count(b'"%s":' % name) for name in first) == pairs:
            return
    names: set[bytes] = set()
    for found in _NAME.finditer(data):
        names.add(found[1])
        check_cells(len(names), lines)


def check_cells(columns: int, rows: int) -> None:
    """Fails if a table of that size would have too many values: each event has a value, or null, in each column."""
    if columns * rows > CELLS_MAX:
        raise TooLarge(
            f"the events of a body have at most {CELLS_MAX:,} values, with a null for each attribute that another has"
        )


def lines(body: bytes) -> tuple[list[Object], dict[int, str]]:
    """The objects of NDJSON with their places, and the lines that are none."""
    rows: list[Object] = []
    rejected: dict[int, str] = {}
    place = -1
    _check_values(body)
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        place += 1
        if place >= EVENTS_MAX:
            raise EventError(f"one request has at most {EVENTS_MAX:,} events")
        if len(line) > LINE_BYTES_MAX:
            rejected[place] = f"the line is longer than {LINE_BYTES_MAX >> 20} MB"
            continue
        try:
            ((cells),) = _NDJSON.rows(line.decode().rstrip("\r"))
            rows.append((place, dict(cells)))
        except UnicodeDecodeError:
            rejected[place] = "not UTF-8"
        except ValueError as error:
            rejected[place] = str(error)
    if place < 0:
        raise EventError("the body is empty: there are no events in it")
    return rows, rejected


def _check_values(body: bytes) -> None:
    """Fails if a body of JSON would need far more memory than it has bytes. Those in texts are counted too."""
    if (count := body.count(b"{") + body.count(b"[")) > CONTAINERS_MAX:
        raise TooLarge(f"a body has at most {CONTAINERS_MAX:,} brackets and braces, this has {count:,}")
    if (count := body.count(b",")) > VALUES_MAX:
        raise TooLarge(f"a body has at most {VALUES_MAX:,} commas, this has {count:,}")


def _loaded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python reads no whole number of thousands of digits; it is rejected where it stands
        return json.loads(body, parse_int=lambda digits: int(digits[:DIGITS_MAX]))


def objects(body: bytes) -> list[Any]:
    """What a JSON array holds, or the one object."""
    try:
        _check_values(body)
        found = _loaded(body)
    except UnicodeDecodeError:
        raise EventError("the body is not UTF-8") from None
    except ValueError as error:
        raise EventError(f"the body is not JSON: {error}"[:200]) from None
    except RecursionError:
        raise EventError("the body is not JSON that can be read: it is nested too deeply") from None
    if isinstance(found, dict):
        found = [found]
    if not isinstance(found, list):
        raise EventError("the body must be an event (a JSON object) or an array of events")
    if len(found) > EVENTS_MAX:
        raise EventError(f"one request has at most {EVENTS_MAX:,} events, this has {len(found):,}")
    return found


def line_texts(body: bytes, places: Sequence[int]) -> list[str]:
    """The lines at some places, which ascend."""
    lines = (line for line in body.split(b"\n") if line.strip())
    wanted = set(places)
    chosen = (line for place, line in enumerate(islice(lines, places[-1] + 1)) if place in wanted)
    return [line[:LINE_BYTES_MAX].decode(errors="replace").rstrip("\r") for line in chosen]


def plain(text: str, characters: int) -> str:
    """The start of a text, as UTF-8 can hold it: a lone surrogate is written as its escape."""
    return utf8(text[:characters])


def columns_of(
    rows: Sequence[Object], kinds: Mapping[str, Kind], rejected: dict[int, str], columns: Columns = DEFAULT
) -> tuple[pa.Table, Arrays]:
    """Objects of one type as a table, and their places; those with a cell that does not fit are rejected.

    An attribute that is nothing but lists and objects is left out.
    """
    wanted: dict[str, Kind | None] = {}
    good: list[Object] = []
    usable = {*HEADER, *kinds, columns.id}
    usable |= {name for _, cells in rows for name, value in cells.items() if not isinstance(value, list | dict)}
    for place, given in rows:
        cells = {name: value for name, value in given.items() if value is None or name in usable}
        for name, value in cells.items():
            reason = _misnamed(name)
            if reason is None and value is not None and name != "type":
                reason = _misfit(name, value, kinds, wanted, columns)
            if reason is not None:
                rejected[place] = reason
                break
        else:
            good.append((place, cells))
    if columns.ts_unit is None:
        good = _counted(good, rejected)
    names = dict.fromkeys(["type", *(name for _, cells in good for name in cells)])
    check_cells(len(names), len(good))
    arrays: dict[str, pa.Array] = {}
    for name in names:
        values = [cells.get(name) for _, cells in good]
        kind = wanted.get(name)
        if name in ("ts", columns.id) or kind in (Kind.TIMESTAMP, Kind.STRING):
            numbers = name == "ts" and all(value is None or isinstance(value, int | float) for value in values)
            whole = numbers and not any(isinstance(value, float) for value in values)
            texts = [None if value is None else value if numbers else str(value) for value in values]
            arrays[name] = pa.array(texts, pa.int64() if whole else pa.float64() if numbers else pa.string())
        else:
            number = kind is Kind.DOUBLE
            arrays[name] = pa.array([None if v is None else float(v) if number else v for v in values])
    return pa.table(arrays), np.array([place for place, _ in good], np.int64)


def _counted(rows: list[Object], rejected: dict[int, str]) -> list[Object]:
    """The rows; with microseconds for times that are text if others are numbers, as no column can hold both."""
    if not {str, int} <= {type(cells.get("ts")) for _, cells in rows}:
        return rows
    texts = [(place, cells["ts"]) for place, cells in rows if isinstance(cells.get("ts"), str)]
    words, failed = micros(pa.array([text for _, text in texts], pa.string()))
    rejected |= {place: f"ts is not a time: {text!r}" for place, text in (texts[row] for row in failed)}
    counts = dict(zip((place for place, _ in texts), words.to_pylist(), strict=True))
    kept = [(place, cells) for place, cells in rows if place not in rejected]
    return [(place, {**cells, "ts": counts[place]} if place in counts else cells) for place, cells in kept]


def _misnamed(name: str) -> str | None:
    """Why an attribute cannot be called so."""
    if not name or len(name) > NAME_CHARACTERS_MAX:
        return f"a name of an attribute has 1 to {NAME_CHARACTERS_MAX} characters"
    return None if is_utf8(name) else f"the name '{plain(name, 50)}' has a lone surrogate, which is no character"


def _misfit(
    name: str, value: object, kinds: Mapping[str, Kind], wanted: dict[str, Kind | None], columns: Columns
) -> str | None:
    """Why a cell cannot stand in its column."""
    kind = _NDJSON.kind(value)
    if isinstance(value, str) and len(value) > LINE_BYTES_MAX:
        return f"{name} is longer than {LINE_BYTES_MAX >> 20} MB"
    if isinstance(value, str) and not is_utf8(value):
        return f"{name} has a lone surrogate, which is no character: '{plain(value, 50)}'"
    if kind is None:
        held = "a list" if isinstance(value, list) else "an object"
        return f"{name} holds {held}; it can be a string, a number or a boolean"
    if isinstance(value, float) and value != value:
        return f"{name} is not a number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"{name} holds a whole number of more than 64 bits"
    if name == "ts":
        if kind is Kind.BOOL or (kind is Kind.STRING and columns.ts_unit is None):
            return f"ts is not a time: {str(value)[:50]!r}"
        if isinstance(value, float) and columns.ts_unit is None:
            return unit_needed(value).message
        return None
    if name == "seq":
        return None if kind is Kind.LONG else f"seq should be a whole number, it is {str(value)[:50]!r}"
    if name == columns.id:
        return None if kind in (Kind.STRING, Kind.LONG, Kind.TIMESTAMP) else f"{name} should be text, it is {value!r}"
    known = kinds.get(name)
    if kind is Kind.LONG and (known is None or known is Kind.DOUBLE):
        kind = Kind.DOUBLE if wanted.get(name) is Kind.DOUBLE or known is Kind.DOUBLE else Kind.LONG
    if kind is Kind.DOUBLE and known is None and wanted.get(name) is Kind.LONG:
        wanted[name] = Kind.DOUBLE
    if kind is Kind.TIMESTAMP and (known or wanted.get(name)) is Kind.STRING:
        kind = Kind.STRING
    if kind is Kind.STRING and known is None and wanted.get(name) is Kind.TIMESTAMP:
        wanted[name] = Kind.STRING
    target = wanted.setdefault(name, known or kind)
    if target in (Kind.INT, Kind.LONG) and kind is Kind.LONG:
        return None
    if kind is Kind.DOUBLE and target is Kind.LONG and isinstance(value, float) and value.is_integer():
        return None
    if target is Kind.TIMESTAMP and kind is Kind.LONG:
        return None
    return None if kind is target else f"{name} should be a {target}, it is {str(value)[:50]!r}"
