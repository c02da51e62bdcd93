"""Where do events come from, and where do matches go? Parquet, NDJSON, CSV and event notation, as files or folders.

Reading gives chunks of a bounded size, so that a file may be larger than memory, and tells how many bytes of all have
been read. `disorder_us` reads the times first: it says how many events have to be held to sort all. What a line of text
holds that is no event comes along as `BadLine`s. Writing streams into a temporary file that takes its name when all is
written, so that nobody reads half a result.
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
from tocsin.events.formats import Csv, Format, Kinds, Ndjson, Notation
from tocsin.events.lines import BadLine, Counts, blocks, decide, decide_ts, parse, tally
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
"""The format of a file by how its name ends."""

CHUNK_ROWS = 250_000
GROUP_ROWS = 65_536


class Chunk(NamedTuple):
    """Some of the events, the bad lines among them, and how many bytes of all files have been read with them."""

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
        """The columns over all files. Text files are read once for this."""
        schema = self._schema()
        for header, name in self.names.items():
            if (header in self.optional and name == header) or name in schema.names:
                continue
            role = {"type": "type", "ts": "time"}.get(header, header)
            message = f"{self.source} has no column '{name}' with the {role} of each event"
            raise EventError(message, hint=nearest(name, schema.names))
        return schema

    def chunks(self, rows: int = CHUNK_ROWS) -> Iterator[Chunk]:
        """All events in the order of the files, at most `rows` at a time."""
        schema = self.schema
        before = 0
        for path in self.paths:
            with _readable(path):
                for table, bad, bytes_read in self._file(path, schema, rows):
                    yield Chunk(table, bad, before + bytes_read)
                before += path.stat().st_size

    def disorder_us(self, ts_unit: str | None = None) -> int:
        """How much earlier than an event before it an event is at most; 0 if all are in order. Reads only the times."""
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
        """The column of times of one file, in pieces."""

    @abstractmethod
    def _schema(self) -> pa.Schema:
        """The columns over all files, under the names that they have there."""

    @abstractmethod
    def _file(self, path: Path, schema: pa.Schema, rows: int) -> Iterator[Chunk]:
        """The events of one file, at most `rows` at a time."""


class ParquetFiles(EventFiles):
    """Parquet: columns may be missing in some files, and are null there. Nested columns are left out, and those of
    which files hold values of different kinds, such as text and numbers."""

    @cached_property
    def schemas(self) -> tuple[pa.Schema, ...]:
        """The columns of each file."""
        schemas = []
        for path in self.paths:
            with _readable(path), pq.ParquetFile(path) as file:
                schemas.append(file.schema_arrow.remove_metadata())
        return tuple(schemas)

    def _schema(self) -> pa.Schema:
        held: dict[str, list[pa.DataType]] = {}
        for schema in self.schemas:
            for field in schema:
                held.setdefault(field.name, []).append(field.type)
        fields, header = [], set(self.names.values())
        for name, several in held.items():
            type = common_type(several)
            if type is None and name in header:
                told = ", ".join(dict.fromkeys(map(str, several)))
                raise EventError(f"the files of {self.source} disagree about the column '{name}': {told}")
            if type is not None and pa.types.is_nested(type) and name in header:
                raise EventError(f"the column '{name}' of {self.source} is nested: it holds {type}")
            if type is not None and not pa.types.is_nested(type):
                fields.append((name, type))
        return pa.schema(fields)

    def _file(self, path: Path, schema: pa.Schema, rows: int) -> Iterator[Chunk]:
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
                yield Chunk(pa.table(columns, schema=schema), [], size * done // file.metadata.num_rows)

    def _ts(self, path: Path) -> Iterator[pa.ChunkedArray[Any]]:
        name = self.names["ts"]
        with pq.ParquetFile(path) as file:
            if name in file.schema_arrow.names:
                for batch in file.iter_batches(CHUNK_ROWS, columns=[name]):
                    yield pa.chunked_array([as_type(batch[name], self.schema.field(name).type)])


class TextFiles(EventFiles):
    """NDJSON, CSV and the event notation."""

    @cached_property
    def format(self) -> Format:
        name = FORMATS[self.paths[0].suffix.lower()]
        return Csv() if name == "CSV" else Ndjson() if name == "NDJSON" else Notation(**self.names)

    @cached_property
    def kinds(self) -> Kinds:
        """What each column holds, over all files."""
        counts: Counts = {}
        first_bad = None
        for path in self.paths:
            with _readable(path):
                for block in blocks(path, self.format):
                    bad = tally(block, self.format, counts)
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
        """What the column of times holds; text if a unit is given for the numbers among times."""
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

    def _file(self, path: Path, schema: pa.Schema, rows: int) -> Iterator[Chunk]:
        for block in blocks(path, self.format):
            table, bad = parse(block, self.format, self.kinds)
            for start in range(0, max(1, table.num_rows), rows):
                yield Chunk(table.slice(start, rows), bad if start == 0 else [], block.end)

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
    """The events of a file, or of all files of a folder in the order of their names.

    `type`, `ts`, `seq` and `id` say what those columns are called, `ts_unit` what numbers in `ts` count, `optional`
    which columns may be missing under their own name, `declared` what columns of text files hold that is not to be
    guessed. In a folder, names that start with `.` or `_` are passed over, as are folders inside it.
    """
    path = Path(path)
    names = {"type": type, "ts": ts, "seq": seq} | ({} if id is None else {"id": id})
    with _readable(path):
        if not path.exists():
            beside = (
                nearest(path.name, (other.name for other in path.parent.iterdir())) if path.parent.is_dir() else None
            )
            raise EventError(f"there is no file or folder {path}", hint=beside)
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
    """The table with its times as ISO 8601 text, also those inside `parts`."""
    columns = [_iso(table[name].combine_chunks()) for name in table.column_names]
    return pa.table(columns, names=table.column_names)


def records(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as plain dicts that JSON can hold."""
    rows: list[dict[str, Any]] = iso(table).to_pylist()
    return rows


class TableWriter:
    """Writes tables of one schema to a Parquet, NDJSON or CSV file, by how its name ends.

    The file appears when the `with` block ends well, and not at all if it does not.
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
        self._begun = False
        try:
            self._file: BinaryIO = self._part.open("wb")
        except OSError as error:
            raise EventError(f"{self.path} cannot be written: {error.strerror}") from None

    def write(self, table: pa.Table) -> None:
        """Adds the rows of a table. An empty table still says what the columns are."""
        self.rows += table.num_rows
        self._waiting.append(table)
        if sum(waiting.num_rows for waiting in self._waiting) >= GROUP_ROWS:
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
            options = pa_csv.WriteOptions(include_header=not self._begun)
            pa_csv.write_csv(_flat(iso(table)), self._file, options)
        self._begun = True

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
    """The table with nested values as JSON text."""
    columns = [
        pa.array([json.dumps(value, ensure_ascii=False) for value in column.to_pylist()], pa.string())
        if pa.types.is_nested(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)
