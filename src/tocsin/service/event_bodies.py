"""Parse the bodies of publish requests to an Arrow table or to JSON objects.

An Arrow stream gives a table. NDJSON gives a table, too, if Arrow can read it, which needs one kind per column.
Otherwise NDJSON is read object by object, like a JSON array. Each object keeps its index in the body, so that each bad
object is reported with its reason.
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
"""The limit of lists and objects in a JSON body. A list or object of three bytes needs twenty times as much memory."""
VALUES_MAX = 10 * EVENTS_MAX
LINE_BYTES_MAX = 1 << 20
NAME_CHARACTERS_MAX = 200

Arrays = np.ndarray[Any, Any]
Object = tuple[int, dict[str, Any]]
"""The index of a JSON object in the body, and the object."""

DIGITS_MAX = 1_000
"""The number of digits to which longer integers are truncated while they are parsed. They are rejected later."""

HEADER = ("type", "ts", "seq")
DEFAULT = Columns()
_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"[ \t]*:')
_NDJSON = Ndjson()


def arrow_table(body: bytes) -> pa.Table:
    """Read an Arrow stream as a table, after checking that the decoded stream is not too large."""
    if not body:
        raise EventError("the body is empty")
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
                batch.validate(full=True)  # reads the text of every row
                batches.append(batch)
            return pa.Table.from_batches(batches, stream.schema)
    except EventError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise EventError(f"the body is not a valid Arrow stream: {str(error)[:200]}") from None


def fast_lines(body: bytes) -> pa.Table | None:
    """Read NDJSON with Arrow, or return None if the body must be read line by line.

    For example, Arrow may fail or skip a line, or a line may have nested values.
    """
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
    """Raise `TooLarge` if a table with a row for each line and a column for each name would have too many values."""
    pairs = data.count(b":")
    if pairs * lines <= CELLS_MAX:
        return
    if b"\\" not in data:  # fast path: all lines have the names of the first
        first = set(_NAME.findall(data[: data.find(b"\n")]))
        if len(first) <= 20 and sum(data.count(b'"%s":' % name) for name in first) == pairs:
            return
    names: set[bytes] = set()
    for match in _NAME.finditer(data):
        names.add(match[1])
        check_cells(len(names), lines)


def check_cells(columns: int, rows: int) -> None:
    """Raise `TooLarge` if a table of `columns` and `rows` would have too many values, including nulls."""
    if columns * rows > CELLS_MAX:
        raise TooLarge(
            f"the events of a body have at most {CELLS_MAX:,} values, including a null for each missing attribute"
        )


def lines(body: bytes) -> tuple[list[Object], dict[int, str]]:
    """Parse NDJSON line by line. Return the objects with their indices, and the reason for each rejected line."""
    rows: list[Object] = []
    rejected: dict[int, str] = {}
    index = -1
    _check_values(body)
    for line in body.split(b"\n"):
        if not line.strip():
            continue
        index += 1
        if index >= EVENTS_MAX:
            raise EventError(f"one request has at most {EVENTS_MAX:,} events")
        if len(line) > LINE_BYTES_MAX:
            rejected[index] = f"the line is longer than {LINE_BYTES_MAX >> 20} MB"
            continue
        try:
            ((cells),) = _NDJSON.rows(line.decode().rstrip("\r"))
            rows.append((index, dict(cells)))
        except UnicodeDecodeError:
            rejected[index] = "not UTF-8"
        except ValueError as error:
            rejected[index] = str(error)
    if index < 0:
        raise EventError("the body is empty")
    return rows, rejected


def _check_values(body: bytes) -> None:
    """Raise `TooLarge` if a JSON body has so many brackets or commas that parsing it would need far too much memory.

    Brackets and commas in strings count, too.
    """
    if (count := body.count(b"{") + body.count(b"[")) > CONTAINERS_MAX:
        raise TooLarge(f"a body has at most {CONTAINERS_MAX:,} brackets and braces, this has {count:,}")
    if (count := body.count(b",")) > VALUES_MAX:
        raise TooLarge(f"a body has at most {VALUES_MAX:,} commas, this has {count:,}")


def _loaded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python does not parse integers with thousands of digits; they are rejected later
        return json.loads(body, parse_int=lambda digits: int(digits[:DIGITS_MAX]))


def objects(body: bytes) -> list[Any]:
    """Parse a JSON body. Return the elements of its array, or a list with its single object."""
    try:
        _check_values(body)
        items = _loaded(body)
    except UnicodeDecodeError:
        raise EventError("the body is not UTF-8") from None
    except ValueError as error:
        raise EventError(f"the body is not JSON: {error}"[:200]) from None
    except RecursionError:
        raise EventError("the body is not valid JSON: it is nested too deeply") from None
    if isinstance(items, dict):
        items = [items]
    if not isinstance(items, list):
        raise EventError("the body must be an event (a JSON object) or an array of events")
    if len(items) > EVENTS_MAX:
        raise EventError(f"one request has at most {EVENTS_MAX:,} events, this has {len(items):,}")
    return items


def line_texts(body: bytes, indices: Sequence[int]) -> list[str]:
    """Return the lines of `body` at `indices`, which are ascending. Empty lines are not counted."""
    lines = (line for line in body.split(b"\n") if line.strip())
    wanted = set(indices)
    chosen = (line for index, line in enumerate(islice(lines, indices[-1] + 1)) if index in wanted)
    return [line[:LINE_BYTES_MAX].decode(errors="replace").rstrip("\r") for line in chosen]


def plain(text: str, characters: int) -> str:
    """Return the first `characters` characters of `text`, with lone surrogates escaped."""
    return utf8(text[:characters])


def columns_of(
    rows: Sequence[Object], kinds: Mapping[str, Kind], rejected: dict[int, str], columns: Columns = DEFAULT
) -> tuple[pa.Table, Arrays]:
    """Convert objects of one type to a table. Return the table, and the index of each row in the body.

    Objects with an invalid cell are left out, and the reason is added to `rejected`. An attribute whose values are all
    lists or objects is left out, too.
    """
    wanted: dict[str, Kind | None] = {}
    good: list[Object] = []
    usable = {*HEADER, *kinds, columns.id}
    usable |= {name for _, cells in rows for name, value in cells.items() if not isinstance(value, list | dict)}
    for index, given in rows:
        cells = {name: value for name, value in given.items() if value is None or name in usable}
        for name, value in cells.items():
            reason = _misnamed(name)
            if reason is None and value is not None and name != "type":
                reason = _misfit(name, value, kinds, wanted, columns)
            if reason is not None:
                rejected[index] = reason
                break
        else:
            good.append((index, cells))
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
    return pa.table(arrays), np.array([index for index, _ in good], np.int64)


def _counted(rows: list[Object], rejected: dict[int, str]) -> list[Object]:
    """Convert times given as text to microseconds if other objects have integers, because a column has one kind.

    Objects whose text is not a time are left out, and the reason is added to `rejected`.
    """
    if not {str, int} <= {type(cells.get("ts")) for _, cells in rows}:
        return rows
    texts = [(index, cells["ts"]) for index, cells in rows if isinstance(cells.get("ts"), str)]
    converted, failed = micros(pa.array([text for _, text in texts], pa.string()))
    rejected |= {index: f"ts is not a time: {text!r}" for index, text in (texts[row] for row in failed)}
    counts = dict(zip((index for index, _ in texts), converted.to_pylist(), strict=True))
    accepted = [(index, cells) for index, cells in rows if index not in rejected]
    return [(index, {**cells, "ts": counts[index]} if index in counts else cells) for index, cells in accepted]


def _misnamed(name: str) -> str | None:
    """Return why the attribute name `name` is invalid, or None if it is valid."""
    if not name or len(name) > NAME_CHARACTERS_MAX:
        return f"an attribute name must have 1 to {NAME_CHARACTERS_MAX} characters"
    return None if is_utf8(name) else f"the name '{plain(name, 50)}' has a lone surrogate, which is not a character"


def _misfit(
    name: str, value: object, kinds: Mapping[str, Kind], wanted: dict[str, Kind | None], columns: Columns
) -> str | None:
    """Return why `value` does not fit the column `name`, or None if it fits.

    `wanted` has the kind of each column so far. The value may set or widen the kind of its column.
    """
    kind = _NDJSON.kind(value)
    if isinstance(value, str) and len(value) > LINE_BYTES_MAX:
        return f"{name} is longer than {LINE_BYTES_MAX >> 20} MB"
    if isinstance(value, str) and not is_utf8(value):
        return f"{name} has a lone surrogate, which is not a character: '{plain(value, 50)}'"
    if kind is None:
        actual = "a list" if isinstance(value, list) else "an object"
        return f"{name} must be a string, a number or a boolean, it is {actual}"
    if isinstance(value, float) and value != value:
        return f"{name} is not a number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"{name} has an integer of more than 64 bits"
    if name == "ts":
        if kind is Kind.BOOL or (kind is Kind.STRING and columns.ts_unit is None):
            return f"ts is not a time: {str(value)[:50]!r}"
        if isinstance(value, float) and columns.ts_unit is None:
            return unit_needed(value).message
        return None
    if name == "seq":
        return None if kind is Kind.LONG else f"seq should be an integer, it is {str(value)[:50]!r}"
    if name == columns.id:
        return None if kind in (Kind.STRING, Kind.LONG, Kind.TIMESTAMP) else f"{name} should be text, it is {value!r}"
    declared = kinds.get(name)
    if kind is Kind.LONG and (declared is None or declared is Kind.DOUBLE):
        kind = Kind.DOUBLE if wanted.get(name) is Kind.DOUBLE or declared is Kind.DOUBLE else Kind.LONG
    if kind is Kind.DOUBLE and declared is None and wanted.get(name) is Kind.LONG:
        wanted[name] = Kind.DOUBLE
    if kind is Kind.TIMESTAMP and (declared or wanted.get(name)) is Kind.STRING:
        kind = Kind.STRING
    if kind is Kind.STRING and declared is None and wanted.get(name) is Kind.TIMESTAMP:
        wanted[name] = Kind.STRING
    target = wanted.setdefault(name, declared or kind)
    if target in (Kind.INT, Kind.LONG) and kind is Kind.LONG:
        return None
    if kind is Kind.DOUBLE and target is Kind.LONG and isinstance(value, float) and value.is_integer():
        return None
    if target is Kind.TIMESTAMP and kind is Kind.LONG:
        return None
    return None if kind is target else f"{name} should be a {target}, it is {str(value)[:50]!r}"
