"""What is a line of text? Three ways to write events as lines: NDJSON, CSV and the event notation.

Each format reads many lines at once through Arrow where Arrow can, and any one line in Python, where it says what is
wrong with it. Text does not say what a column holds; `kind` says what one cell is, and `lines` makes that a kind for
the column.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from tocsin.errors import EventError
from tocsin.events.arrow import ARROW
from tocsin.events.notation import read_events
from tocsin.events.times import is_time_text
from tocsin.events.types import LABEL, Kind

Cells = Mapping[str, Any]
Kinds = Mapping[str, Kind | None]
"""What each column holds; None if it holds nothing."""

NULLS = ["", "null", "NULL", "n/a", "N/A", "#N/A"]
"""What stands for nothing in CSV."""

WORDS = {"true": True, "false": False}
LONGS = range(-(1 << 63), 1 << 63)
_WHOLE = re.compile(r"\s*[-+]?\d+\s*")
_NUMBER = re.compile(r"\s*[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf|infinity)\s*", re.IGNORECASE)
_MARK = b"\xef\xbb\xbf"


class Microseconds(int):
    """A time as a cell, since the epoch; an int that is no time is a number."""


class Format(Protocol):
    """One way to write events as lines."""

    header: list[str]
    """The columns, if the start of a file names them."""

    def begin(self, path: Path, data: bytes) -> tuple[int, bytes]:
        """Takes what stands before the events off the start of a file: how many lines that was, and what is left."""

    def infer(self, data: bytes) -> pa.Table | None:
        """Lines as Arrow's own guess of columns; None or `pa.ArrowInvalid` if Arrow cannot."""

    def table(self, data: bytes, kinds: Kinds) -> pa.Table | None:
        """Lines as columns of these kinds, or as text; None or `pa.ArrowInvalid` if Arrow cannot."""

    def rows(self, line: str) -> Iterable[Cells]:
        """The events of one line; a ValueError says what is wrong with it."""

    def kind(self, value: object) -> Kind | None:
        """What one cell is; None for nothing, and for what no attribute can hold."""


class Ndjson:
    """One JSON object a line. Text that is an ISO 8601 date or time is a time; nested values are left out."""

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

    def table(self, data: bytes, kinds: Kinds) -> pa.Table | None:
        read_as = {**ARROW, Kind.TIMESTAMP: pa.string()}
        schema = pa.schema([(name, read_as[kind]) for name, kind in kinds.items() if kind is not None])
        options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        return _read_json(data, options)

    def rows(self, line: str) -> Iterable[Cells]:
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
    """A header line, then an event a line: RFC 4180, but a value cannot hold a line break, and an empty one is null.

    Columns without a name are left out.
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

    def table(self, data: bytes, kinds: Kinds) -> pa.Table | None:
        return self._read(
            data, dict.fromkeys(self.header, pa.string()), [name for name in self.header if name in kinds]
        )

    def _read(self, data: bytes, types: dict[str, pa.DataType], columns: list[str]) -> pa.Table:
        names = [name or f"\0{place}" for place, name in enumerate(self.header)]
        return pa_csv.read_csv(
            BytesIO(data),
            read_options=pa_csv.ReadOptions(column_names=names, block_size=len(data) + 1),
            convert_options=pa_csv.ConvertOptions(
                column_types=types, null_values=NULLS, strings_can_be_null=True, include_columns=columns
            ),
        )

    def rows(self, line: str) -> Iterable[Cells]:
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
    """The event notation, as `notation` reads it. The columns of type, time, seq and id get the names given here."""

    def __init__(self, type: str = "type", ts: str = "ts", seq: str = "seq", id: str = LABEL) -> None:
        self.header: list[str] = []
        self.names = type, ts, seq, id

    def begin(self, path: Path, data: bytes) -> tuple[int, bytes]:
        return 0, data.removeprefix(_MARK)

    def infer(self, data: bytes) -> pa.Table | None:
        return None

    def table(self, data: bytes, kinds: Kinds) -> pa.Table | None:
        return None

    def rows(self, line: str) -> Iterable[Cells]:
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
    """Fails if Arrow's reader could crash: it does over nothing but `null`, and over values nested very deeply."""
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
