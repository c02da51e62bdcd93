"""Read events from lines of text, in three formats: NDJSON, CSV and the event notation.

Each format can read many lines at once through Arrow, which is fast. It can also read a single line in Python, which
gives an error message for a bad line. Text has no column types. So a format returns the kind of one cell, and the
module `lines` infers the kind of a column from its cells.

The event notation has one event per line, for example `Temp@10(area="A1", value=24.5)`.

    Temp@10#3[id7](area="A1", value=24.5)
    type@time#seq[id](attribute=value, …)

- The time is a number of microseconds, a number with one of the `UNITS_US` (`@10s`, `@5min`), or a date or time of ISO
  8601 (`@2024-01-01`, `@2024-01-01T09:30:00.5Z`). Without an offset, it is in UTC.
- `#seq` is left out if the sequence number is 0, and `[id]` is left out if the event has no id.
- An id that has any character besides letters, digits and `_ . : -` is quoted: `["id 7"]`.
- A value is a string in double quotes with the escapes of JSON, a 64-bit integer, a double (with a point or an
  exponent), `true`, `false` or `null`. A time as a value is an integer in microseconds.
- Blank lines are skipped. A comment begins with `--` or `#` and ends at the end of the line.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from tocsin.errors import EventError, Span
from tocsin.events.columns import ARROW
from tocsin.events.times import is_time_text
from tocsin.events.types import LABEL, UNITS_US, Event, Kind, Value

_NAME = r"[^\W\d]\w*"
_INTEGER = r"-?[0-9]+"
_DOUBLE = rf"{_INTEGER}(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)"
_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_DATE = r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?"
_UNIT = "|".join(sorted(UNITS_US, key=len, reverse=True))
_PLAIN_ID = r"[\w.:-]+"
_BLANK = r"[ \t]*"

# Each step of parsing has a pattern, and a text for the error message. For speed, the patterns of all steps are joined
# into one.
_HEAD_STEPS = (
    (f"{_BLANK}({_NAME})", "the type of an event"),
    ("@", "'@' and a time"),
    (rf"(?:({_DATE})|({_INTEGER})({_UNIT})?)(?![\w.])", "a time, such as 10, 5min or 2024-01-01T00:00:00Z"),
    (rf"(?:#({_INTEGER}))?(?:\[(?:({_PLAIN_ID})|({_STRING}))\])?\({_BLANK}(\))?", "#seq, [id] or '('"),
)
_PAIR_STEPS = (
    (f"({_NAME})", "an attribute"),
    (f"{_BLANK}={_BLANK}", "'='"),
    (
        rf"(?:({_STRING})|({_DOUBLE})|({_INTEGER})|([+-]?{_NAME}))(?![\w.])",
        'a value, such as "text", 3, 4.5, true, false or null',
    ),
    (rf"{_BLANK}([,)]){_BLANK}", "',' or ')'"),
)
_REST_STEPS = ((r"[ \t\r]*(?:(?:--|#)[^\n]*)?(?:\n|\Z)", "the end of the line"),)

_Steps = tuple[tuple[str, str], ...]


def _expression(steps: _Steps) -> re.Pattern[str]:
    return re.compile("".join(step for step, _ in steps))


_HEAD, _PAIR, _REST = _expression(_HEAD_STEPS), _expression(_PAIR_STEPS), _expression(_REST_STEPS)
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_event(text: str) -> Event:
    """Return the event of a text in event notation. Raise if the text does not have exactly one event.

    >>> read_event('Temp@10(area="A1", value=24.5)')
    Event(type='Temp', ts=10, attributes={'area': 'A1', 'value': 24.5}, seq=0, id=None)
    """
    events = read_events(text)
    if len(events) != 1:
        raise EventError(f"expected one event, found {len(events)}")
    return events[0]


def read_events(text: str) -> list[Event]:
    """Return the events of a text in event notation, which has one event per line.

    >>> [event.ts for event in read_events("A@1s()  -- the first\\n\\nB@2s#1[b7](n=3)")]
    [1000000, 2000000]
    """
    events = []
    position = 0
    while position < len(text):
        head = _HEAD.match(text, position)
        if head is not None:
            event, position = _read(head)
            events.append(event)
        elif blank := _REST.match(text, position):
            position = blank.end()
        else:
            raise _unexpected(text, position, _HEAD_STEPS)
    return events


def write_event(event: Event) -> str:
    """Return `event` as a line in event notation, which `read_event` can read.

    >>> write_event(Event("Temp", 10, {"area": "A1", "value": 24.5}, seq=3, id="id 7"))
    'Temp@10#3["id 7"](area="A1", value=24.5)'
    """
    seq = f"#{_written(event.seq)}" if event.seq else ""
    id = ""
    if event.id is not None:
        id = f"[{event.id if re.fullmatch(_PLAIN_ID, event.id) else _written(event.id)}]"
    attributes = ", ".join(f"{_named(name)}={_written(value)}" for name, value in event.attributes.items())
    return f"{_named(event.type)}@{_written(event.ts)}{seq}{id}({attributes})"


def _read(head: re.Match[str]) -> tuple[Event, int]:
    """Return the event that begins with `head`, and the position of the next line."""
    text = head.string
    type, date, _, unit, seq, id, quoted_id, closed = head.groups()
    ts = _microseconds(head, 2) if date else _integer(head, 3, UNITS_US[unit or "us"])
    attributes: dict[str, Value] = {}
    position = head.end()
    while not closed:
        pair = _PAIR.match(text, position)
        if pair is None:
            raise _unexpected(text, position, _PAIR_STEPS)
        name = pair[1]
        if name in attributes:
            raise _mistake(pair, 1, f"'{name}' is given twice")
        attributes[name] = _value(pair)
        closed = pair[6] == ")"
        position = pair.end()
    rest = _REST.match(text, position)
    if rest is None:
        raise _unexpected(text, position, _REST_STEPS)
    event = Event(type, ts, attributes, _integer(head, 5) if seq else 0, _string(head, 7) if quoted_id else id)
    return event, rest.end()


def _value(pair: re.Match[str]) -> Value:
    _, string, double, integer, word, _ = pair.groups()
    if string:
        return _string(pair, 2)
    if integer:
        return _integer(pair, 4)
    if double:
        value = float(double)
        if math.isinf(value):
            raise _mistake(pair, 3, f"{double} is too large for a double")
        return value + 0.0
    if word in _WORDS:
        return _WORDS[word]
    if word.lstrip("+-").lower() in ("nan", "inf", "infinity"):
        raise _mistake(pair, 5, f"{word} is not a value: doubles are finite", "Write null.")
    raise _mistake(pair, 5, f"'{word}' is not a value", "Write text in double quotes.")


def _string(match: re.Match[str], group: int) -> str:
    text = match[group]
    if "\\" not in text:
        return text[1:-1]
    try:
        result: str = json.loads(text, strict=False)
        result.encode()
    except ValueError:
        raise _mistake(match, group, "an escape that JSON does not know, or half a character") from None
    return result


def _integer(match: re.Match[str], group: int, times: int = 1) -> int:
    digits = match[group]
    value = int(digits) * times if len(digits) <= 40 else None
    if value is None or not -(2**63) <= value < 2**63:
        raise _mistake(match, group, "an integer outside 64 bits")
    return value


def _microseconds(match: re.Match[str], group: int) -> int:
    try:
        time = datetime.fromisoformat(match[group])
    except ValueError as error:
        raise _mistake(match, group, f"not a time: {error}") from None
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _mistake(match: re.Match[str], group: int, message: str, hint: str | None = None) -> EventError:
    return EventError(message, source=match.string, span=Span(*match.span(group)), hint=hint)


def _unexpected(text: str, position: int, steps: _Steps) -> EventError:
    """Return the error for the first of `steps` whose pattern does not match the text at `position`."""
    step, expected = steps[0]
    if match := re.compile(step).match(text, position):
        return _unexpected(text, match.end(), steps[1:])
    word = re.compile(r"[ \t]*([\w.+-]*)").match(text, position)
    assert word is not None
    return _mistake(word, 1, f"expected {expected}")


def _named(name: str) -> str:
    if not re.fullmatch(_NAME, name):
        raise EventError(f"'{name}' cannot be written: a name is letters, digits and _")
    return name


def _written(value: Value) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and not math.isfinite(value):
        raise EventError(f"{value} cannot be written: doubles are finite")
    return repr(value)


LineCells = Mapping[str, Any]
ColumnKinds = Mapping[str, Kind | None]
"""The kind of each column by name; None for a column without values."""

NULLS = ["", "null", "NULL", "n/a", "N/A", "#N/A"]
"""The texts that CSV files use for null."""

WORDS = {"true": True, "false": False}
LONGS = range(-(1 << 63), 1 << 63)
_WHOLE = re.compile(r"\s*[-+]?\d+\s*")
_NUMBER = re.compile(r"\s*[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf|infinity)\s*", re.IGNORECASE)
_MARK = b"\xef\xbb\xbf"


class Microseconds(int):
    """A cell that is a time in microseconds since the epoch. Cells with any other int are numbers."""


class Format(Protocol):
    """A format of events as lines of text."""

    header: list[str]
    """The names of the columns, if the first line of a file has them; else empty."""

    def begin(self, path: Path, data: bytes) -> tuple[int, bytes]:
        """Remove the header from `data`, the start of the file `path`. Return its number of lines and the rest."""

    def infer(self, data: bytes) -> pa.Table | None:
        """Return the lines in `data` as columns whose types Arrow infers.

        If Arrow cannot read the lines, return None or raise `pa.ArrowInvalid`.
        """

    def table(self, data: bytes, kinds: ColumnKinds) -> pa.Table | None:
        """Return the lines in `data` as a column for each of `kinds`, which has this kind or is text.

        If Arrow cannot read the lines, return None or raise `pa.ArrowInvalid`.
        """

    def rows(self, line: str) -> Iterable[LineCells]:
        """Return the events of `line`. If the line is bad, raise a ValueError with the reason."""

    def kind(self, value: object) -> Kind | None:
        """Return the kind of the cell `value`; None if the cell is null or cannot be an attribute."""


class Ndjson:
    """The format NDJSON, which has one JSON object per line.

    Text with an ISO 8601 date or time is read as a time. Nested values are left out.
    """

    def __init__(self) -> None:
        self.header: list[str] = []

    def begin(self, path: Path, data: bytes) -> tuple[int, bytes]:
        data = data.removeprefix(_MARK)
        if data.lstrip().startswith(b"["):
            raise EventError(f"{path} holds a JSON array: write one JSON object a line instead (NDJSON)")
        return 0, data

    def infer(self, data: bytes) -> pa.Table | None:
        table = _read_json(data, pa_json.ParseOptions())
        return table.select([field.name for field in table.schema if not pa.types.is_nested(field.type)])

    def table(self, data: bytes, kinds: ColumnKinds) -> pa.Table | None:
        read_as = {**ARROW, Kind.TIMESTAMP: pa.string()}
        schema = pa.schema([(name, read_as[kind]) for name, kind in kinds.items() if kind is not None])
        options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        return _read_json(data, options)

    def rows(self, line: str) -> Iterable[LineCells]:
        try:
            cells = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"invalid JSON: {error.msg}, column {error.colno}") from None
        except RecursionError:
            raise ValueError("invalid JSON: nested too deeply") from None
        if not isinstance(cells, dict):
            raise ValueError("not a JSON object")
        return (cells,)

    def kind(self, value: object) -> Kind | None:
        if isinstance(value, str):
            return Kind.TIMESTAMP if is_time_text(value) else Kind.STRING
        return _kind(value)


class Csv:
    """The format CSV (RFC 4180), which has a header line and then one event per line.

    Differences to RFC 4180: a value cannot contain a line break, and an empty value is null. Columns without a name are
    left out.
    """

    def __init__(self) -> None:
        self.header: list[str] = []

    def begin(self, path: Path, data: bytes) -> tuple[int, bytes]:
        first, _, rest = data.removeprefix(_MARK).partition(b"\n")
        try:
            (self.header,) = csv.reader([first.decode().rstrip("\r")], strict=True)
        except (ValueError, csv.Error) as error:
            raise EventError(f"{path}, line 1: not a line of column names ({error})") from None
        named = [name for name in self.header if name]
        if repeated := {name for name in named if named.count(name) > 1}:
            raise EventError(f"{path}, line 1: two columns are called '{min(repeated)}'")
        return 1, rest

    def infer(self, data: bytes) -> pa.Table | None:
        return self._read(data, {}, [name for name in self.header if name])

    def table(self, data: bytes, kinds: ColumnKinds) -> pa.Table | None:
        return self._read(
            data, dict.fromkeys(self.header, pa.string()), [name for name in self.header if name in kinds]
        )

    def _read(self, data: bytes, types: dict[str, pa.DataType], columns: list[str]) -> pa.Table:
        names = [name or f"\0{number}" for number, name in enumerate(self.header)]
        return pa_csv.read_csv(
            BytesIO(data),
            read_options=pa_csv.ReadOptions(column_names=names, block_size=len(data) + 1),
            convert_options=pa_csv.ConvertOptions(
                column_types=types, null_values=NULLS, strings_can_be_null=True, include_columns=columns
            ),
        )

    def rows(self, line: str) -> Iterable[LineCells]:
        if line.count('"') % 2:
            raise ValueError("a quote is left open; a value cannot hold a line break")
        try:
            (values,) = csv.reader([line], strict=True)
        except csv.Error as error:
            raise ValueError(str(error)) from None
        if len(values) != len(self.header):
            raise ValueError(f"{len(values)} values for {len(self.header)} columns")
        cells = zip(self.header, values, strict=True)
        return ({name: None if value in NULLS else value for name, value in cells if name},)

    def kind(self, value: object) -> Kind | None:
        if not isinstance(value, str):
            return _kind(value)
        if _WHOLE.fullmatch(value):
            return Kind.LONG if len(value) < 40 and int(value) in LONGS else Kind.DOUBLE
        if _NUMBER.fullmatch(value):
            return Kind.DOUBLE
        if value.lower() in WORDS:
            return Kind.BOOL
        return Kind.TIMESTAMP if is_time_text(value) else Kind.STRING


class Notation:
    """The event notation, as read by `read_events`.

    The arguments are the names of the columns for the type, the time, the sequence number and the id of an event.
    """

    def __init__(self, type: str = "type", ts: str = "ts", seq: str = "seq", id: str = LABEL) -> None:
        self.header: list[str] = []
        self.names = type, ts, seq, id

    def begin(self, path: Path, data: bytes) -> tuple[int, bytes]:
        return 0, data.removeprefix(_MARK)

    def infer(self, data: bytes) -> pa.Table | None:
        return None

    def table(self, data: bytes, kinds: ColumnKinds) -> pa.Table | None:
        return None

    def rows(self, line: str) -> Iterable[LineCells]:
        try:
            events = read_events(line)
        except EventError as error:
            raise ValueError(
                error.message if error.column is None else f"column {error.column}: {error.message}"
            ) from None
        type, ts, seq, id = self.names
        for event in events:
            cells = {type: event.type, ts: Microseconds(event.ts)}
            if event.seq:
                cells[seq] = event.seq
            if event.id is not None:
                cells[id] = event.id
            yield cells | dict(event.attributes)

    def kind(self, value: object) -> Kind | None:
        return _kind(value)


DEPTH_MAX = 1_000


def check_json(data: bytes) -> None:
    """Raise if Arrow's JSON reader might crash, because of a line that is no object or of deeply nested values."""
    lines = data.count(b"\n") + 1
    opened = data.count(b"{") + data.count(b"[")
    if not data.startswith(b"{") or data.count(b"\n{") != lines - 1:
        raise pa.ArrowInvalid("a line is no JSON object")
    if opened - lines > DEPTH_MAX:
        for line in data.split(b"\n"):
            if line.count(b"{") + line.count(b"[") > DEPTH_MAX:
                raise pa.ArrowInvalid("nested too deeply")


def _read_json(data: bytes, options: pa_json.ParseOptions) -> pa.Table:
    check_json(data)
    read = pa_json.ReadOptions(block_size=len(data) + 1)
    return pa_json.read_json(BytesIO(data), read_options=read, parse_options=options)


def _kind(value: object) -> Kind | None:
    if isinstance(value, Microseconds):
        return Kind.TIMESTAMP
    if isinstance(value, bool):
        return Kind.BOOL
    if isinstance(value, int):
        return Kind.LONG if value in LONGS else Kind.DOUBLE
    if isinstance(value, float):
        return Kind.DOUBLE
    return Kind.STRING if isinstance(value, str) else None
