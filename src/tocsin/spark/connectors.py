"""Read the events of a run, from files or a Kafka topic, as Spark DataFrames.

Spark reads Parquet. Lines of text (NDJSON, CSV and the values of Kafka messages) are parsed in Python, by the same
functions as in a single process. If a line is not an event, its text and the reason go into the column `UNREADABLE`.
The kinds of columns of text are inferred by reading the files once (as `events.files` does), or are those that the
rules declare. A `SourceSchema` is what must not change when a stream continues.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Self, cast

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tocsin.errors import EventError, TocsinError
from tocsin.events.columns import ARROW, kind_of, one_array
from tocsin.events.dead_letters import dead_letter_table
from tocsin.events.files import FORMATS, OPTIONAL, EventFiles, ParquetFiles, TextFiles, open_events
from tocsin.events.formats import Csv, Format, Ndjson
from tocsin.events.lines import Block, parse
from tocsin.events.reader import Columns
from tocsin.events.types import EventType, Kind
from tocsin.spark import kafka
from tocsin.spark.blocks import UNREADABLE, Batches
from tocsin.spark.names import col, quoted
from tocsin.spark.times import event_time, micros

SPARK: dict[pa.DataType, T.DataType] = {
    pa.string(): T.StringType(),
    pa.bool_(): T.BooleanType(),
    pa.int8(): T.ByteType(),
    pa.int16(): T.ShortType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.uint8(): T.ShortType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.date32(): T.DateType(),
    pa.date64(): T.DateType(),
}
"""The Spark type of a column of Parquet files, by its Arrow type."""

LINE = "_line"
NANOS = "tocsin.nanos"
"""The metadata key that marks columns of times in nanoseconds, which Spark reads as integers."""
NANOS_SETTING = "spark.sql.legacy.parquet.nanosAsLong"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class SourceSchema:
    """The format and the columns of a source of events."""

    format: str
    """Parquet, NDJSON, CSV or Kafka."""
    kinds: Mapping[str, str | None] = field(default_factory=dict)
    """The kind of each column of lines of text; None for a column without values."""
    schema: str = ""
    """The columns of Parquet files, as a Spark schema in JSON."""
    header: str = ""
    """The first line of CSV files."""

    @property
    def names(self) -> list[str]:
        """The names of the columns, in the order of the values in a line of CSV."""
        return next(csv.reader([self.header])) if self.header else list(self.kinds)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["format"], data["kinds"], data["schema"], data["header"])


@dataclass(frozen=True)
class InputStatistics:
    """The numbers of events and of bad lines that were read, and the earliest and latest time of the events (µs)."""

    events: int
    bad_lines: int
    first: int | None
    last: int | None


@dataclass(frozen=True)
class EventInput:
    """The events of a run over a table, and what is needed to count them."""

    frame: DataFrame
    columns: Columns
    observation: Observation | None = None
    bad: pa.Table = field(default_factory=lambda: dead_letter_table([]))
    """The bad lines that were found before Spark read the events, as dead letters."""

    def statistics(self) -> InputStatistics:
        """Return the statistics of the events. Call this only after Spark has read the events."""
        if self.observation is not None:
            with suppress(Py4JJavaError):  # Spark reads and counts no rows if it proves that none is needed
                return input_statistics(self.observation.get)
        (found,) = self.frame.agg(*statistics_columns(self.frame, self.columns)).collect()
        counted = input_statistics(found.asDict())
        return replace(counted, bad_lines=counted.bad_lines + self.bad.num_rows)


def statistics_columns(frame: DataFrame, columns: Columns) -> list[Column]:
    """Return the aggregates of `frame` that `input_statistics` converts."""
    ts = F.unix_micros(event_time(columns, frame.schema[columns.ts].dataType))
    unreadable = col(UNREADABLE) if UNREADABLE in frame.columns else F.lit(None)
    counts = F.count(F.lit(1)).alias("rows"), F.count(unreadable).alias("unreadable")
    return [*counts, F.min(ts).alias("first"), F.max(ts).alias("last")]


def input_statistics(found: Mapping[str, Any]) -> InputStatistics:
    """Convert the values of `statistics_columns`, by name, to an object."""
    return InputStatistics(found["rows"] - found["unreadable"], found["unreadable"], found["first"], found["last"])


def is_local(address: str) -> bool:
    """Return whether `address` is a path on this machine, and not a URL."""
    return "://" not in address


def absolute(address: str) -> str:
    """Make a local `address` an absolute path, because Spark may have another working directory."""
    return str(Path(address).absolute()) if is_local(address) else address


def open_table(
    session: SparkSession,
    address: str,
    columns: Columns,
    types: Mapping[str, EventType],
    optional: Collection[str] = OPTIONAL,
) -> EventInput:
    """Open the events that are now at `address` as a table.

    `types` are the event types that the rules declare. `optional` are the columns that may be missing.
    """
    if address.startswith("kafka://"):
        lines = _messages(session.read.format("kafka").options(**kafka.reading(kafka.topic(address))).load())
        return _observe(parse_lines(lines, SourceSchema("Kafka", declared_kinds(types, columns))), columns)
    if not is_local(address):
        format = _format(Path(address))
        if format == "Parquet":
            return EventInput(session.read.option("mergeSchema", True).parquet(address), columns)
        shape = SourceSchema(format, declared_kinds(types, columns))
        return _observe(parse_lines(_lines(session.read.text(address, lineSep="\n")), shape), columns)
    files = open_files(address, columns, types, optional)
    if isinstance(files, TextFiles):
        return _text(session, files, columns)
    assert isinstance(files, ParquetFiles)
    schema = _parquet_schema(session, address, files)
    paths_by_fields = _group_by_fields(files, schema)
    if not any(paths_by_fields) or files.source != Path(address):
        return EventInput(_parquet(session, session.read, address, schema), columns)
    parts = []
    for own, paths in paths_by_fields.items():
        fields = dict(own)
        rows = _parquet(session, session.read, paths, T.StructType([fields.get(one.name, one) for one in schema]))
        parts.append(rows.select(*(_as_common(fields.get(one.name, one), one) for one in schema)))
    return EventInput(reduce(DataFrame.unionByName, parts), columns)


def open_stream(session: SparkSession, address: str, shape: SourceSchema, columns: Columns) -> DataFrame:
    """Open the events at `address` as a stream.

    A query over the stream begins at the first event, or continues from its checkpoint.
    """
    if shape.format == "Kafka":
        options = kafka.reading(kafka.topic(address))
        return parse_lines(_messages(session.readStream.format("kafka").options(**options).load()), shape)
    suffixes = [suffix[1:] for suffix, format in FORMATS.items() if format == shape.format]
    reader = session.readStream.option("pathGlobFilter", "*.{" + ",".join(suffixes) + "}")
    if shape.format == "Parquet":
        return _parquet(session, reader, address, T.StructType.fromJson(json.loads(shape.schema)))
    return parse_lines(_lines(reader.text(absolute(address), lineSep="\n")), shape)


def infer_schema(
    session: SparkSession,
    address: str,
    columns: Columns,
    types: Mapping[str, EventType],
    optional: Collection[str] = OPTIONAL,
) -> SourceSchema:
    """Return the schema of the stream at `address`, from its current files or from the types that the rules declare."""
    if address.startswith("kafka://"):
        return SourceSchema("Kafka", declared_kinds(types, columns))
    if not is_local(address):
        format = _format(Path(address))
        if format != "Parquet":
            return SourceSchema(format, declared_kinds(types, columns))
        return SourceSchema(format, schema=session.read.option("mergeSchema", True).parquet(address).schema.json())
    if Path(address).is_file():
        raise EventError(
            f"{address} is a file, and --follow waits for new ones: name a folder, or kafka://host:port/topic"
        )
    files = open_files(address, columns, types, optional)
    if not isinstance(files, TextFiles):
        assert isinstance(files, ParquetFiles)
        schema = _parquet_schema(session, address, files)
        paths_by_fields = _group_by_fields(files, schema)
        if len(paths_by_fields) == 1:
            (own,) = paths_by_fields
            fields = dict(own)
            schema = T.StructType([fields.get(one.name, one) for one in schema])
        elif name := next((name for own in paths_by_fields for name, _ in own), None):
            types_in = ", ".join(dict.fromkeys(str(one.field(name).type) for one in files.schemas if name in one.names))
            raise EventError(f"followed files must have the same columns: '{name}' of {address} is {types_in}")
        return SourceSchema("Parquet", schema=schema.json())
    format = _format(files.paths[0])
    if format == "notation":
        raise EventError(f"{address} is in event notation, which cannot be followed: use NDJSON, CSV or Parquet")
    headers = list(_group_by_header(files.paths, format))
    if len(headers) > 1:
        raise EventError(f"the files of {address} have different columns: {headers[0]} and {headers[1]}")
    return SourceSchema(format, _kinds(files), header=headers[0] if headers else "")


def open_files(
    address: str, columns: Columns, types: Mapping[str, EventType], optional: Collection[str] = OPTIONAL
) -> EventFiles:
    """Open the local files at `address` with `events.files`, so that errors are the same as without Spark."""
    path = Path(address)
    names: dict[str, Any] = {"type": columns.type, "ts": columns.ts, "seq": columns.seq, "id": columns.id}
    names["ts_unit"] = columns.ts_unit
    if path.is_dir() and not any(file.is_file() and file.name[0] not in "._" for file in path.iterdir()):
        files_below = (file for file in sorted(path.rglob("*.parquet")) if _visible(file.relative_to(path)))
        path = next((file for file in files_below), path)  # Spark may write nested folders
    files = open_events(path, declared=_common_kinds(types), optional=optional, **names)
    _ = files.schema
    return files


def declared_kinds(types: Mapping[str, EventType], columns: Columns) -> dict[str, str | None]:
    """Return the kind of each column of text, as the rules declare it.

    If types declare different kinds for a column, the column stays text, and each type converts it.
    """
    if not types:
        raise TocsinError(
            "the kinds of attributes in messages are unknown: declare the types in the rules, "
            "as in  event Temp(area: string, value: double)"
        )
    agreed = _common_kinds(types)
    names = dict.fromkeys(name for type in types.values() for name, _ in type.attributes)
    kinds: dict[str, str | None] = {name: _kind_read(agreed.get(name, Kind.STRING)) for name in names}
    # The ts is an integer if it has a unit, else a time.
    ts = Kind.LONG if columns.ts_unit else Kind.TIMESTAMP
    header = {columns.type: "string", columns.ts: ts.value, columns.seq: "long"}
    return {**header, **({} if columns.id is None else {columns.id: "string"}), **kinds}


def parse_lines(lines: DataFrame, shape: SourceSchema) -> DataFrame:
    """Parse lines of text into rows with the columns of `shape`, and the column `UNREADABLE`."""
    fields = [T.StructField(name, SPARK_KINDS[Kind(kind)]) for name, kind in shape.kinds.items() if kind is not None]
    rows = lines.mapInArrow(_reader(shape), T.StructType([*fields, T.StructField(UNREADABLE, BAD)]))
    names = {field.name for field in fields}
    values = [col(name) if name in names else F.lit(None).alias(name) for name in shape.kinds]
    return rows.select(*values, UNREADABLE)


SPARK_KINDS = {
    Kind.STRING: T.StringType(),
    Kind.LONG: T.LongType(),
    Kind.DOUBLE: T.DoubleType(),
    Kind.BOOL: T.BooleanType(),
    Kind.TIMESTAMP: T.TimestampType(),
}
BAD = T.StructType([T.StructField("reason", T.StringType()), T.StructField("text", T.StringType())])


def _reader(shape: SourceSchema) -> Callable[[Batches], Batches]:
    """Return the function with which a worker parses lines of text."""
    kinds = {name: Kind(kind) for name, kind in shape.kinds.items() if kind is not None}
    bad_type = pa.struct([("reason", pa.string()), ("text", pa.string())])
    fields = pa.schema([*((name, ARROW[kind]) for name, kind in kinds.items()), (UNREADABLE, bad_type)])
    header, names = shape.header.encode(), shape.names

    def read(batches: Batches) -> Batches:
        format: Format = Ndjson()
        if shape.format == "CSV":
            format = Csv()
            format.header = names
        for batch in batches:
            lines = [
                line.removeprefix(BYTE_ORDER_MARK).replace(b"\n", b" ").rstrip(b"\r")
                for line in batch[LINE].to_pylist()
            ]
            data = b"\n".join(line for line in lines if line != header)
            table, bad = parse(Block(Path(), 1, data, 0), format, kinds)
            good = [*(one_array(column) for column in table.columns), pa.nulls(table.num_rows, bad_type)]
            yield pa.record_batch(good, schema=fields)
            reasons = pa.array([{"reason": line.reason, "text": line.text} for line in bad], bad_type)
            yield pa.record_batch(
                [*(pa.nulls(len(bad), ARROW[kind]) for kind in kinds.values()), reasons], schema=fields
            )

    return read


def _fields(schema: pa.Schema) -> list[T.StructField]:
    """Return the columns of a Parquet schema as Spark reads them, without columns that Spark cannot read."""
    fields = []
    for one in schema:
        type = one.type.value_type if pa.types.is_dictionary(one.type) else one.type
        type = pa.string() if pa.types.is_large_string(type) or pa.types.is_string_view(type) else type
        nanos = pa.types.is_timestamp(type) and type.unit == "ns"
        read_as = SPARK.get(type)
        if pa.types.is_timestamp(type):
            read_as = T.LongType() if nanos else T.TimestampNTZType() if type.tz is None else T.TimestampType()
        elif pa.types.is_decimal128(type):
            read_as = T.DecimalType(type.precision, type.scale)
        elif pa.types.is_null(type):
            read_as = T.NullType()
        if read_as is not None:
            fields.append(T.StructField(one.name, read_as, metadata={NANOS: True} if nanos else None))
    return fields


FieldOverrides = tuple[tuple[str, T.StructField], ...]
"""The name and field of each column whose type in a file differs from the common type of all files."""


def _group_by_fields(files: ParquetFiles, schema: T.StructType) -> dict[FieldOverrides, list[str]]:
    """Group the paths of `files` by the columns whose types differ from the common `schema`."""
    whole = {field.name: field for field in schema}
    found: dict[FieldOverrides, list[str]] = {}
    for path, one in zip(files.paths, files.schemas, strict=True):
        fields = [field for field in _fields(one) if not isinstance(field.dataType, T.NullType)]
        own = ((field.name, field) for field in fields if field.name in whole and field != whole[field.name])
        found.setdefault(tuple(own), []).append(absolute(str(path)))
    return found


def _as_common(own: T.StructField, whole: T.StructField) -> Column:
    """Cast the column `own` of a file to the common field `whole` of all files. Times without a zone are in UTC."""
    if own == whole:
        return col(whole.name)
    if isinstance(own.dataType, T.TimestampNTZType | T.DateType) and isinstance(whole.dataType, T.TimestampType):
        ts_us = micros(Columns(ts=own.name), own.dataType)
        return F.timestamp_micros(ts_us).alias(whole.name)
    return col(own.name).cast(whole.dataType).alias(whole.name)


def _parquet_schema(session: SparkSession, address: str, files: EventFiles) -> T.StructType:
    """Return the schema with which Spark reads `files`, without columns that it cannot read."""
    fields = _fields(files.schema)
    if files.source == Path(address):
        return T.StructType(fields)
    # In nested folders, the names of folders are columns, too.
    names = {field.name: field for field in fields}
    if any(field.metadata for field in fields):
        session.conf.set(NANOS_SETTING, "true")
    found = session.read.option("mergeSchema", True).parquet(absolute(address)).schema
    return T.StructType([names.get(field.name, field) for field in found])


def _parquet(session: SparkSession, reader: Any, address: str | list[str], schema: T.StructType) -> DataFrame:
    """Read the columns `schema` of the Parquet files at `address`."""
    paths = [absolute(address)] if isinstance(address, str) else address
    present = T.StructType([field for field in schema if not isinstance(field.dataType, T.NullType)])
    if not any(field.metadata.get(NANOS) for field in present):
        rows: DataFrame = reader.schema(present).parquet(*paths)
        return rows if len(present) == len(schema) else rows.select(*map(_column, schema))
    session.conf.set(NANOS_SETTING, "true")
    return cast(DataFrame, reader.schema(present).parquet(*paths).select(*map(_column, schema)))


def _column(field: T.StructField) -> Column:
    if isinstance(field.dataType, T.NullType):
        return F.lit(None).alias(field.name)
    if not field.metadata.get(NANOS):
        return col(field.name)
    name = quoted(field.name)
    return F.expr(f"timestamp_micros(({name} - pmod({name}, 1000L)) div 1000L)").alias(field.name)


def _text(session: SparkSession, files: TextFiles, columns: Columns) -> EventInput:
    """Read files of text as a table. Files with the same header are read together."""
    format = _format(files.paths[0])
    if format == "notation":
        return _notation(session, files, columns)
    kinds = _kinds(files)
    parts = []
    for header, paths in _group_by_header(files.paths, format).items():
        lines = _lines(session.read.text([absolute(str(path)) for path in paths], lineSep="\n"))
        parts.append(parse_lines(lines, SourceSchema(format, kinds, header=header)))
    return _observe(reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts), columns)


def _notation(session: SparkSession, files: TextFiles, columns: Columns) -> EventInput:
    chunks = list(files.chunks())
    whole = pa.concat_tables([chunk.table for chunk in chunks])
    present = whole.select([name for name in whole.column_names if not pa.types.is_null(whole[name].type)])
    empty = {name: F.lit(None) for name in whole.column_names if name not in present.column_names}
    bad = [
        (f"{line.path}, line {line.line}: {line.reason}", None, None, line.text)
        for chunk in chunks
        for line in chunk.bad
    ]
    return EventInput(session.createDataFrame(present).withColumns(empty), columns, bad=dead_letter_table(bad))


def _group_by_header(paths: Sequence[Path], format: str) -> dict[str, list[Path]]:
    """Group the paths of CSV files by their header; files of other formats are one group."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        header = ""
        if format == "CSV":
            with path.open("rb") as file:
                header = (
                    next((line for line in file if line.strip()), b"")
                    .removeprefix(BYTE_ORDER_MARK)
                    .decode()
                    .strip("\r\n")
                )
        if header or format != "CSV":
            found.setdefault(header, []).append(path)
    return found


def _lines(text: DataFrame) -> DataFrame:
    return text.select(F.col("value").cast("binary").alias(LINE))


def _messages(rows: DataFrame) -> DataFrame:
    """Return the values of Kafka messages as lines of text."""
    return rows.where("value IS NOT NULL").select(F.col("value").alias(LINE))


def _observe(frame: DataFrame, columns: Columns) -> EventInput:
    observation = Observation()
    return EventInput(frame.observe(observation, *statistics_columns(frame, columns)), columns, observation)


def _kinds(files: TextFiles) -> dict[str, str | None]:
    return {field.name: (kind := kind_of(field.type)) and kind.value for field in files.schema}


def _common_kinds(types: Mapping[str, EventType]) -> dict[str, Kind]:
    """Return the attributes that have the same kind in all types that declare them, with this kind."""
    kinds: dict[str, set[Kind]] = {}
    for type in types.values():
        for name, kind in type.attributes:
            kinds.setdefault(name, set()).add(kind)
    return {name: kind for name, (kind, *others) in kinds.items() if not others}


def _kind_read(kind: Kind) -> str:
    return (Kind.LONG if kind is Kind.INT else kind).value


def _format(path: Path) -> str:
    format = FORMATS.get(path.suffix.lower())
    if format is None and path.suffix:
        raise EventError(
            f"{path.name} ends in '{path.suffix}', which is no known format", hint=f"Known: {', '.join(FORMATS)}."
        )
    return format or "Parquet"


def _visible(path: Path) -> bool:
    return all(part[0] not in "._" for part in path.parts)
