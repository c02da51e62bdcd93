"""Read events from files or folders of Parquet, NDJSON, CSV or event notation, and write matches to files.

Events are read in chunks of a bounded size, so that a file may be larger than memory. Each chunk has the number of
bytes that have been read so far, and a `BadLine` for each line that is no event. `disorder_us` reads only the times and
returns the delay that is needed to sort all events.

Matches are written to a temporary file, which is renamed at the end, so that nobody can read a partial result.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from tocsin.errors import EventError, nearest
from tocsin.events.columns import ARROW, as_type, common_type
from tocsin.events.formats import ColumnKinds, Csv, Format, Ndjson, Notation
from tocsin.events.lines import BadLine, KindCounts, blocks, count_kinds, decide, decide_ts, parse
from tocsin.events.reader import TS_LIMIT, times_us
from tocsin.events.times import check_unit
from tocsin.events.types import Kind

FORMATS = {
    ".parquet": "Parquet",
    ".json": "NDJSON",
    ".jsonl": "NDJSON",
    ".ndjson": "NDJSON",
    ".csv": "CSV",
    ".events": "notation",
    ".txt": "notation",
}
"""The format of a file by its suffix."""

CHUNK_ROWS = 250_000
GROUP_ROWS = 65_536


class EventChunk(NamedTuple):
    """A chunk of the events in files, with the bad lines in the same part of the files.

    `bytes_read` is the number of bytes of all files that have been read up to the end of this chunk.
    """

    table: pa.Table
    bad: list[BadLine]
    bytes_read: int


OPTIONAL = ("seq", "id")


class EventFiles(ABC):
    """Event files of one format, opened by `open_events`."""

    def __init__(
        self,
        source: Path,
        paths: tuple[Path, ...],
        names: Mapping[str, str],
        declared: Mapping[str, Kind],
        optional: Collection[str] = OPTIONAL,
        ts_unit: str | None = None,
    ) -> None:
        check_unit(ts_unit)
        self.optional = optional
        self.ts_unit = ts_unit
        self.source = source
        self.paths = paths
        self.names = dict(names)
        self.declared = declared
        self.bytes_total = sum(path.stat().st_size for path in paths)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all files together. Text files are read completely to infer their columns."""
        schema = self._schema()
        for header, name in self.names.items():
            if (header in self.optional and name == header) or name in schema.names:
                continue
            role = {"type": "type", "ts": "time"}.get(header, header)
            message = f"{self.source} has no column '{name}' with the {role} of each event"
            raise EventError(message, hint=nearest(name, schema.names))
        return schema

    def chunks(self, rows: int = CHUNK_ROWS) -> Iterator[EventChunk]:
        """Yield all events in the order of the files, at most `rows` at a time."""
        schema = self.schema
        before = 0
        for path in self.paths:
            with _readable(path):
                for table, bad, bytes_read in self._file(path, schema, rows):
                    yield EventChunk(table, bad, before + bytes_read)
                before += path.stat().st_size

    def disorder_us(self, ts_unit: str | None = None) -> int:
        """Return the largest time by which an event is earlier than a previous event; 0 if all events are in order.

        Only the column of times is read.
        """
        _ = self.schema
        last, most = -TS_LIMIT, 0
        for path in self.paths:
            with _readable(path):
                for column in self._ts(path):
                    ts = times_us(column, ts_unit)
                    if len(ts):
                        latest = np.maximum.accumulate(np.concatenate([[last], ts]))
                        most, last = max(most, int((latest[1:] - ts).max())), int(latest[-1])
        return most

    @abstractmethod
    def _ts(self, path: Path) -> Iterator[pa.ChunkedArray[Any]]:
        """Yield the column of times of the file `path`, in parts."""

    @abstractmethod
    def _schema(self) -> pa.Schema:
        """Return the columns of all files, with their original names."""

    @abstractmethod
    def _file(self, path: Path, schema: pa.Schema, rows: int) -> Iterator[EventChunk]:
        """Yield the events of the file `path`, at most `rows` at a time."""


class ParquetFiles(EventFiles):
    """Parquet files of events. If a file lacks a column, the column is null for the events of this file.

    Nested columns are left out. So are columns that have different kinds of values in different files, for example text
    and numbers.
    """

    @cached_property
    def schemas(self) -> tuple[pa.Schema, ...]:
        """The columns of each file."""
        schemas = []
        for path in self.paths:
            with _readable(path), pq.ParquetFile(path) as file:
                schemas.append(file.schema_arrow.remove_metadata())
        return tuple(schemas)

    def _schema(self) -> pa.Schema:
        types_by_name: dict[str, list[pa.DataType]] = {}
        for schema in self.schemas:
            for field in schema:
                types_by_name.setdefault(field.name, []).append(field.type)
        fields, header = [], set(self.names.values())
        for name, types in types_by_name.items():
            type = common_type(types)
            if type is None and name in header:
                listed = ", ".join(dict.fromkeys(map(str, types)))
                raise EventError(f"the files of {self.source} disagree about the column '{name}': {listed}")
            if type is not None and pa.types.is_nested(type) and name in header:
                raise EventError(f"the column '{name}' of {self.source} is nested: it holds {type}")
            if type is not None and not pa.types.is_nested(type):
                fields.append((name, type))
        return pa.schema(fields)

    def _file(self, path: Path, schema: pa.Schema, rows: int) -> Iterator[EventChunk]:
        size = path.stat().st_size
        with pq.ParquetFile(path) as file:
            present = [name for name in schema.names if name in file.schema_arrow.names]
            done = 0
            for batch in file.iter_batches(rows, columns=present):
                done += batch.num_rows
                columns = [
                    as_type(batch[one.name], one.type) if one.name in present else pa.nulls(len(batch), one.type)
                    for one in schema
                ]
                yield EventChunk(pa.table(columns, schema=schema), [], size * done // file.metadata.num_rows)

    def _ts(self, path: Path) -> Iterator[pa.ChunkedArray[Any]]:
        name = self.names["ts"]
        with pq.ParquetFile(path) as file:
            if name in file.schema_arrow.names:
                for batch in file.iter_batches(CHUNK_ROWS, columns=[name]):
                    yield pa.chunked_array([as_type(batch[name], self.schema.field(name).type)])


class TextFiles(EventFiles):
    """Event files that consist of lines: NDJSON, CSV or the event notation."""

    @cached_property
    def format(self) -> Format:
        name = FORMATS[self.paths[0].suffix.lower()]
        return Csv() if name == "CSV" else Ndjson() if name == "NDJSON" else Notation(**self.names)

    @cached_property
    def kinds(self) -> ColumnKinds:
        """The kind of each column, inferred from all files."""
        counts: KindCounts = {}
        first_bad = None
        for path in self.paths:
            with _readable(path):
                for block in blocks(path, self.format):
                    bad = count_kinds(block, self.format, counts)
                    first_bad = first_bad or bad
            for name in filter(None, self.format.header):
                counts.setdefault(name, Counter())
        if not counts:
            if first_bad is None:
                raise EventError(f"{self.source} is empty: there are no events to read")
            raise EventError(f"{first_bad.path}, line {first_bad.line}: {first_bad.reason}\n  {first_bad.text[:200]}")
        return {
            name: self._kind_of_ts(counter) if name == self.names["ts"] else self._declared(name) or decide(counter)
            for name, counter in counts.items()
        }

    def _kind_of_ts(self, counter: Counter[Kind]) -> Kind | None:
        """Return the kind of the column of times.

        If the column has numbers and times, and a unit of numbers is given, the column is read as text.
        """
        kind = decide_ts(counter)
        numbers = counter[Kind.LONG] + counter[Kind.DOUBLE]
        return Kind.STRING if kind is Kind.TIMESTAMP and numbers and self.ts_unit is not None else kind

    def _declared(self, name: str) -> Kind | None:
        kind = self.declared.get(name)
        return Kind.LONG if kind is Kind.INT else kind

    def _schema(self) -> pa.Schema:
        kinds = self.kinds
        ts = self.names["ts"]
        if kinds.get(ts) is Kind.BOOL or (kinds.get(ts) is Kind.STRING and self.ts_unit is None):
            message = f"column '{ts}' of {self.source} holds text that is no time"
            hint = "Times are written as in 2026-07-01T12:00:00.5Z (ISO 8601), or as whole numbers."
            raise EventError(message, hint=hint)
        return pa.schema([(name, pa.null() if kind is None else ARROW[kind]) for name, kind in kinds.items()])

    def _file(self, path: Path, schema: pa.Schema, rows: int) -> Iterator[EventChunk]:
        for block in blocks(path, self.format):
            table, bad = parse(block, self.format, self.kinds)
            for start in range(0, max(1, table.num_rows), rows):
                yield EventChunk(table.slice(start, rows), bad if start == 0 else [], block.end)

    def _ts(self, path: Path) -> Iterator[pa.ChunkedArray[Any]]:
        name = self.names["ts"]
        for block in blocks(path, self.format):
            yield parse(block, self.format, {name: self.kinds[name]})[0][name]


def open_events(
    path: str | Path,
    *,
    type: str = "type",
    ts: str = "ts",
    seq: str = "seq",
    id: str | None = None,
    declared: Mapping[str, Kind] | None = None,
    optional: Collection[str] = OPTIONAL,
    ts_unit: str | None = None,
) -> EventFiles:
    """Open a file of events, or all files of a folder in the order of their names.

    `type`, `ts`, `seq` and `id` are the names of the columns with these fields of an event. `ts_unit` is the unit of
    numbers in `ts`. `optional` names the fields whose column may be missing if it has the default name. `declared` has
    the kinds of columns in text files that must not be inferred.

    In a folder, files whose names start with `.` or `_` are skipped, and so are nested folders.
    """
    path = Path(path)
    names = {"type": type, "ts": ts, "seq": seq} | ({} if id is None else {"id": id})
    with _readable(path):
        if not path.exists():
            hint = nearest(path.name, (other.name for other in path.parent.iterdir())) if path.parent.is_dir() else None
            raise EventError(f"there is no file or folder {path}", hint=hint)
        paths: tuple[Path, ...] = (path,)
        if path.is_dir():
            paths = tuple(sorted(file for file in path.iterdir() if file.is_file() and file.name[0] not in "._"))
            if not paths:
                raise EventError(f"the folder {path} has no files in it")
        formats = {_format(file): file for file in paths}
        if len(formats) > 1:
            examples = ", ".join(f"{file.name} ({name})" for name, file in sorted(formats.items()))
            raise EventError(f"the folder {path} mixes formats: {examples}", hint="Read one format at a time.")
        return (ParquetFiles if "Parquet" in formats else TextFiles)(
            path, paths, names, declared or {}, optional, ts_unit
        )


def iso(table: pa.Table) -> pa.Table:
    """Return a copy of `table` whose times are ISO 8601 text, including the times inside the column `parts`."""
    columns = [_iso(table[name].combine_chunks()) for name in table.column_names]
    return pa.table(columns, names=table.column_names)


def records(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of `table` as dicts that can be written as JSON, with times as text."""
    rows: list[dict[str, Any]] = iso(table).to_pylist()
    return rows


class TableWriter:
    """Writes tables of one schema to a file. The suffix of the file selects the format: Parquet, NDJSON or CSV.

    The file is created when the `with` block ends. If the block raises an exception, no file is created.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.format = _format(self.path)
        if self.format == "notation":
            raise EventError(f"{self.path}: matches are written as .parquet, .jsonl or .csv")
        if self.path.is_dir():
            raise EventError(f"{self.path} is a folder: name a file to write, such as {self.path / 'matches.parquet'}")
        self.rows = 0
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._waiting: list[pa.Table] = []
        self._parquet: pq.ParquetWriter | None = None
        self._has_header = False
        try:
            self._file: BinaryIO = self._part.open("wb")
        except OSError as error:
            raise EventError(f"{self.path} cannot be written: {error.strerror}") from None

    def write(self, table: pa.Table) -> None:
        """Write the rows of `table`. Even an empty table defines the columns of the file."""
        self.rows += table.num_rows
        self._waiting.append(table)
        if sum(table.num_rows for table in self._waiting) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        self._waiting = []
        if self.format == "Parquet":
            self._parquet = self._parquet or pq.ParquetWriter(self._file, table.schema)
            self._parquet.write_table(table)
        elif self.format == "NDJSON":
            for record in records(table):
                self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        else:
            options = pa_csv.WriteOptions(include_header=not self._has_header)
            pa_csv.write_csv(_flat(iso(table)), self._file, options)
        self._has_header = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
                if self._parquet is not None:
                    self._parquet.close()
                self._file.close()
                self._part.replace(self.path)
        except OSError as failure:
            raise EventError(f"{self.path} cannot be written: {failure.strerror}") from None
        finally:
            self._file.close()
            self._part.unlink(missing_ok=True)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EventError(f"{path} cannot be read: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise EventError(f"{path} cannot be read as {_format(path)}: {error}") from None


def _format(path: Path) -> str:
    format = FORMATS.get(path.suffix.lower())
    if format is None:
        ending = f"ends in '{path.suffix}'" if path.suffix else "has no ending"
        raise EventError(f"{path.name} {ending}, which is no known format", hint=f"Known: {', '.join(FORMATS)}.")
    return format


def _iso(array: Any) -> Any:
    if pa.types.is_timestamp(array.type):
        return pc.strftime(array, format="%Y-%m-%dT%H:%M:%SZ")
    if pa.types.is_list(array.type):
        return pa.ListArray.from_arrays(array.offsets, _iso(array.values))
    if pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        return pa.StructArray.from_arrays([_iso(array.field(name)) for name in names], names)
    return array


def _flat(table: pa.Table) -> pa.Table:
    """Return a copy of `table` whose nested values are JSON text."""
    columns = [
        pa.array([json.dumps(value, ensure_ascii=False) for value in column.to_pylist()], pa.string())
        if pa.types.is_nested(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)
