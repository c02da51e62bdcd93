"""Where do the events of a run come from? From files or a Kafka topic, as DataFrames for Spark to read.

Spark reads Parquet, with the columns that are found in the files. Lines of text (NDJSON, CSV, the values of Kafka
messages) are read in Python, by the functions that read them in one process; a line that cannot be read comes along in
the column `UNREADABLE`, with the reason. What columns of text hold is found out by reading the files once (as
`events.files` does), or is what the rules declare. A `Shape` is what must be the same when a stream goes on.
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
from tocsin.events.columns import ARROW, kind_of, whole
from tocsin.events.dead_letters import letters
from tocsin.events.files import FORMATS, OPTIONAL, EventFiles, ParquetFiles, TextFiles, open_events
from tocsin.events.formats import Csv, Format, Ndjson
from tocsin.events.lines import Block, parse
from tocsin.events.reader import Columns
from tocsin.events.types import EventType, Kind
from tocsin.spark import kafka
from tocsin.spark.blocks import UNREADABLE, Batches
from tocsin.spark.names import col, quoted
from tocsin.spark.times import micros, moment

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
"""As what Spark reads columns of Parquet files."""

LINE = "_line"
NANOS = "tocsin.nanos"
"""In a schema, what marks columns with nanoseconds, which Spark reads as whole numbers."""
NANOS_SETTING = "spark.sql.legacy.parquet.nanosAsLong"
MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Shape:
    """What the events of a source look like."""

    format: str
    """Parquet, NDJSON, CSV or Kafka."""
    kinds: Mapping[str, str | None] = field(default_factory=dict)
    """What each column of text holds."""
    schema: str = ""
    """The columns of Parquet, as Spark's JSON."""
    header: str = ""
    """The first line of CSV files."""

    @property
    def names(self) -> list[str]:
        """The columns, in the order that they have in a line."""
        return next(csv.reader([self.header])) if self.header else list(self.kinds)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["format"], data["kinds"], data["schema"], data["header"])


@dataclass(frozen=True)
class Measured:
    """How many events there were, how many lines that are none, and the first and the last time of events (µs)."""

    events: int
    bad_lines: int
    first: int | None
    last: int | None


@dataclass(frozen=True)
class Events:
    """The events of a run over what is there."""

    frame: DataFrame
    columns: Columns
    observed: Observation | None = None
    bad: pa.Table = field(default_factory=lambda: letters([]))
    """Lines that were found to be bad before Spark saw them."""

    def measured(self) -> Measured:
        """What there was, after it was read."""
        if self.observed is not None:
            with suppress(Py4JJavaError):  # where Spark sees that no row can be needed, it reads and counts none
                return measured(self.observed.get)
        (found,) = self.frame.agg(*measures(self.frame, self.columns)).collect()
        counted = measured(found.asDict())
        return replace(counted, bad_lines=counted.bad_lines + self.bad.num_rows)


def measures(frame: DataFrame, columns: Columns) -> list[Column]:
    """What to count of events, for `measured`."""
    ts = F.unix_micros(moment(columns, frame.schema[columns.ts].dataType))
    unreadable = col(UNREADABLE) if UNREADABLE in frame.columns else F.lit(None)
    counts = F.count(F.lit(1)).alias("rows"), F.count(unreadable).alias("unreadable")
    return [*counts, F.min(ts).alias("first"), F.max(ts).alias("last")]


def measured(found: Mapping[str, Any]) -> Measured:
    """What was counted."""
    return Measured(found["rows"] - found["unreadable"], found["unreadable"], found["first"], found["last"])


def is_local(address: str) -> bool:
    """Whether an address is a path on this machine."""
    return "://" not in address


def absolute(address: str) -> str:
    """The address as Spark understands it, whose own working folder is that in which it was started."""
    return str(Path(address).absolute()) if is_local(address) else address


def table(
    session: SparkSession,
    address: str,
    columns: Columns,
    types: Mapping[str, EventType],
    optional: Collection[str] = OPTIONAL,
) -> Events:
    """What is there now. `optional`: columns that may be missing."""
    if address.startswith("kafka://"):
        lines = _messages(session.read.format("kafka").options(**kafka.reading(kafka.topic(address))).load())
        return _observed(typed(lines, Shape("Kafka", declared(types, columns))), columns)
    if not is_local(address):
        format = _format(Path(address))
        if format == "Parquet":
            return Events(session.read.option("mergeSchema", True).parquet(address), columns)
        shape = Shape(format, declared(types, columns))
        return _observed(typed(_lines(session.read.text(address, lineSep="\n")), shape), columns)
    files = opened(address, columns, types, optional)
    if isinstance(files, TextFiles):
        return _text(session, files, columns)
    assert isinstance(files, ParquetFiles)
    schema = _parquet_schema(session, address, files)
    alike = _by_columns(files, schema)
    if not any(alike) or files.source != Path(address):
        return Events(_parquet(session, session.read, address, schema), columns)
    parts = []
    for own, paths in alike.items():
        fields = dict(own)
        rows = _parquet(session, session.read, paths, T.StructType([fields.get(one.name, one) for one in schema]))
        parts.append(rows.select(*(_as_held(fields.get(one.name, one), one) for one in schema)))
    return Events(reduce(DataFrame.unionByName, parts), columns)


def stream(session: SparkSession, address: str, shape: Shape, columns: Columns) -> DataFrame:
    """What comes, from the beginning on or from where a checkpoint is."""
    if shape.format == "Kafka":
        options = kafka.reading(kafka.topic(address))
        return typed(_messages(session.readStream.format("kafka").options(**options).load()), shape)
    suffixes = [suffix[1:] for suffix, format in FORMATS.items() if format == shape.format]
    reader = session.readStream.option("pathGlobFilter", "*.{" + ",".join(suffixes) + "}")
    if shape.format == "Parquet":
        return _parquet(session, reader, address, T.StructType.fromJson(json.loads(shape.schema)))
    return typed(_lines(reader.text(absolute(address), lineSep="\n")), shape)


def shape_of(
    session: SparkSession,
    address: str,
    columns: Columns,
    types: Mapping[str, EventType],
    optional: Collection[str] = OPTIONAL,
) -> Shape:
    """What a stream looks like, as far as that can be seen now."""
    if address.startswith("kafka://"):
        return Shape("Kafka", declared(types, columns))
    if not is_local(address):
        format = _format(Path(address))
        if format != "Parquet":
            return Shape(format, declared(types, columns))
        return Shape(format, schema=session.read.option("mergeSchema", True).parquet(address).schema.json())
    if Path(address).is_file():
        raise EventError(
            f"{address} is a file, and --follow waits for new ones: name a folder, or kafka://host:port/topic"
        )
    files = opened(address, columns, types, optional)
    if not isinstance(files, TextFiles):
        assert isinstance(files, ParquetFiles)
        schema = _parquet_schema(session, address, files)
        alike = _by_columns(files, schema)
        if len(alike) == 1:
            (own,) = alike
            fields = dict(own)
            schema = T.StructType([fields.get(one.name, one) for one in schema])
        elif name := next((name for own in alike for name, _ in own), None):
            told = ", ".join(dict.fromkeys(str(one.field(name).type) for one in files.schemas if name in one.names))
            raise EventError(f"files that are followed have the same columns: '{name}' of {address} is {told}")
        return Shape("Parquet", schema=schema.json())
    format = _format(files.paths[0])
    if format == "notation":
        raise EventError(f"{address} is in event notation, which cannot be followed: write NDJSON, CSV or Parquet")
    headers = list(_by_header(files.paths, format))
    if len(headers) > 1:
        raise EventError(f"the files of {address} have different columns: {headers[0]} and {headers[1]}")
    return Shape(format, _kinds(files), header=headers[0] if headers else "")


def opened(
    address: str, columns: Columns, types: Mapping[str, EventType], optional: Collection[str] = OPTIONAL
) -> EventFiles:
    """The files of a path on this machine, looked at as in one process, and so with the same complaints."""
    path = Path(address)
    names: dict[str, Any] = {"type": columns.type, "ts": columns.ts, "seq": columns.seq, "id": columns.id}
    names["ts_unit"] = columns.ts_unit
    if path.is_dir() and not any(file.is_file() and file.name[0] not in "._" for file in path.iterdir()):
        below = (file for file in sorted(path.rglob("*.parquet")) if _visible(file.relative_to(path)))
        path = next((file for file in below), path)  # folders in folders, as Spark writes them
    files = open_events(path, declared=_agreed(types), optional=optional, **names)
    _ = files.schema
    return files


def declared(types: Mapping[str, EventType], columns: Columns) -> dict[str, str | None]:
    """What the columns of text hold by what the rules declare; of two kinds, each type makes its own of the text."""
    if not types:
        raise TocsinError(
            "messages do not say what their attributes hold: declare the types in the rules, "
            "as in  event Temp(area: string, value: double)"
        )
    agreed = _agreed(types)
    names = dict.fromkeys(name for type in types.values() for name, _ in type.attributes)
    kinds: dict[str, str | None] = {name: _whole(agreed.get(name, Kind.STRING)) for name in names}
    # A whole number where a unit is given, else a time.
    ts = Kind.LONG if columns.ts_unit else Kind.TIMESTAMP
    header = {columns.type: "string", columns.ts: ts.value, columns.seq: "long"}
    return {**header, **({} if columns.id is None else {columns.id: "string"}), **kinds}


def typed(lines: DataFrame, shape: Shape) -> DataFrame:
    """Lines as rows of the columns that the shape has, and `UNREADABLE`."""
    fields = [T.StructField(name, SPARK_KINDS[Kind(kind)]) for name, kind in shape.kinds.items() if kind is not None]
    rows = lines.mapInArrow(_reader(shape), T.StructType([*fields, T.StructField(UNREADABLE, BAD)]))
    known = {field.name for field in fields}
    values = [col(name) if name in known else F.lit(None).alias(name) for name in shape.kinds]
    return rows.select(*values, UNREADABLE)


SPARK_KINDS = {
    Kind.STRING: T.StringType(),
    Kind.LONG: T.LongType(),
    Kind.DOUBLE: T.DoubleType(),
    Kind.BOOL: T.BooleanType(),
    Kind.TIMESTAMP: T.TimestampType(),
}
BAD = T.StructType([T.StructField("reason", T.StringType()), T.StructField("text", T.StringType())])


def _reader(shape: Shape) -> Callable[[Batches], Batches]:
    """What reads lines in a worker."""
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
            lines = [line.removeprefix(MARK).replace(b"\n", b" ").rstrip(b"\r") for line in batch[LINE].to_pylist()]
            data = b"\n".join(line for line in lines if line != header)
            table, bad = parse(Block(Path(), 1, data, 0), format, kinds)
            good = [*(whole(column) for column in table.columns), pa.nulls(table.num_rows, bad_type)]
            yield pa.record_batch(good, schema=fields)
            told = pa.array([{"reason": line.reason, "text": line.text} for line in bad], bad_type)
            yield pa.record_batch([*(pa.nulls(len(bad), ARROW[kind]) for kind in kinds.values()), told], schema=fields)

    return read


def _fields(schema: pa.Schema) -> list[T.StructField]:
    """The columns of Parquet as Spark is to read them; without those that it cannot."""
    fields = []
    for one in schema:
        type = one.type.value_type if pa.types.is_dictionary(one.type) else one.type
        type = pa.string() if pa.types.is_large_string(type) or pa.types.is_string_view(type) else type
        nanos = pa.types.is_timestamp(type) and type.unit == "ns"
        held = SPARK.get(type)
        if pa.types.is_timestamp(type):
            held = T.LongType() if nanos else T.TimestampNTZType() if type.tz is None else T.TimestampType()
        elif pa.types.is_decimal128(type):
            held = T.DecimalType(type.precision, type.scale)
        elif pa.types.is_null(type):
            held = T.NullType()
        if held is not None:
            fields.append(T.StructField(one.name, held, metadata={NANOS: True} if nanos else None))
    return fields


Own = tuple[tuple[str, T.StructField], ...]
"""The columns, by name, that a file holds in another type than all files together."""


def _by_columns(files: ParquetFiles, schema: T.StructType) -> dict[Own, list[str]]:
    """The files that hold columns of the same types."""
    whole = {field.name: field for field in schema}
    found: dict[Own, list[str]] = {}
    for path, one in zip(files.paths, files.schemas, strict=True):
        fields = [field for field in _fields(one) if not isinstance(field.dataType, T.NullType)]
        own = ((field.name, field) for field in fields if field.name in whole and field != whole[field.name])
        found.setdefault(tuple(own), []).append(absolute(str(path)))
    return found


def _as_held(own: T.StructField, whole: T.StructField) -> Column:
    """A column of some files as it is held in all. Times without a zone are UTC."""
    if own == whole:
        return col(whole.name)
    if isinstance(own.dataType, T.TimestampNTZType | T.DateType) and isinstance(whole.dataType, T.TimestampType):
        words = micros(Columns(ts=own.name), own.dataType)
        return F.timestamp_micros(words).alias(whole.name)
    return col(own.name).cast(whole.dataType).alias(whole.name)


def _parquet_schema(session: SparkSession, address: str, files: EventFiles) -> T.StructType:
    """The columns of Parquet files that can be attributes, as Spark is to read them."""
    fields = _fields(files.schema)
    if files.source == Path(address):
        return T.StructType(fields)
    # Folders in folders, whose names are columns too.
    known = {field.name: field for field in fields}
    if any(field.metadata for field in fields):
        session.conf.set(NANOS_SETTING, "true")
    found = session.read.option("mergeSchema", True).parquet(absolute(address)).schema
    return T.StructType([known.get(field.name, field) for field in found])


def _parquet(session: SparkSession, reader: Any, address: str | list[str], schema: T.StructType) -> DataFrame:
    """Parquet files, of which these columns are read."""
    places = [absolute(address)] if isinstance(address, str) else address
    held = T.StructType([field for field in schema if not isinstance(field.dataType, T.NullType)])
    if not any(field.metadata.get(NANOS) for field in held):
        rows: DataFrame = reader.schema(held).parquet(*places)
        return rows if len(held) == len(schema) else rows.select(*map(_column, schema))
    session.conf.set(NANOS_SETTING, "true")
    return cast(DataFrame, reader.schema(held).parquet(*places).select(*map(_column, schema)))


def _column(field: T.StructField) -> Column:
    if isinstance(field.dataType, T.NullType):
        return F.lit(None).alias(field.name)
    if not field.metadata.get(NANOS):
        return col(field.name)
    name = quoted(field.name)
    return F.expr(f"timestamp_micros(({name} - pmod({name}, 1000L)) div 1000L)").alias(field.name)


def _text(session: SparkSession, files: TextFiles, columns: Columns) -> Events:
    """Text files as a table. Those with the same header are read together."""
    format = _format(files.paths[0])
    if format == "notation":
        return _notation(session, files, columns)
    kinds = _kinds(files)
    parts = []
    for header, paths in _by_header(files.paths, format).items():
        lines = _lines(session.read.text([absolute(str(path)) for path in paths], lineSep="\n"))
        parts.append(typed(lines, Shape(format, kinds, header=header)))
    return _observed(reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts), columns)


def _notation(session: SparkSession, files: TextFiles, columns: Columns) -> Events:
    chunks = list(files.chunks())
    whole = pa.concat_tables([chunk.table for chunk in chunks])
    held = whole.select([name for name in whole.column_names if not pa.types.is_null(whole[name].type)])
    empty = {name: F.lit(None) for name in whole.column_names if name not in held.column_names}
    bad = [
        (f"{line.path}, line {line.line}: {line.reason}", None, None, line.text)
        for chunk in chunks
        for line in chunk.bad
    ]
    return Events(session.createDataFrame(held).withColumns(empty), columns, bad=letters(bad))


def _by_header(paths: Sequence[Path], format: str) -> dict[str, list[Path]]:
    """The files that have the same first line, where that is a header."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        header = ""
        if format == "CSV":
            with path.open("rb") as file:
                header = next((line for line in file if line.strip()), b"").removeprefix(MARK).decode().strip("\r\n")
        if header or format != "CSV":
            found.setdefault(header, []).append(path)
    return found


def _lines(text: DataFrame) -> DataFrame:
    return text.select(F.col("value").cast("binary").alias(LINE))


def _messages(rows: DataFrame) -> DataFrame:
    """The values of messages, as lines."""
    return rows.where("value IS NOT NULL").select(F.col("value").alias(LINE))


def _observed(frame: DataFrame, columns: Columns) -> Events:
    observed = Observation()
    return Events(frame.observe(observed, *measures(frame, columns)), columns, observed)


def _kinds(files: TextFiles) -> dict[str, str | None]:
    return {field.name: (kind := kind_of(field.type)) and kind.value for field in files.schema}


def _agreed(types: Mapping[str, EventType]) -> dict[str, Kind]:
    """What the attributes hold that are declared with one kind for all types."""
    kinds: dict[str, set[Kind]] = {}
    for type in types.values():
        for name, kind in type.attributes:
            kinds.setdefault(name, set()).add(kind)
    return {name: kind for name, (kind, *others) in kinds.items() if not others}


def _whole(kind: Kind) -> str:
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
