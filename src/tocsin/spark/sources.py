"""Where do the events of a run come from? From files or a Kafka topic, as DataFrames for Spark to read.

Parquet is read as it is. Lines of text (NDJSON, CSV, the values of Kafka messages) are taken apart by Spark into cells
of text, and each cell is read as what its column holds, as in one process; a line that cannot be read that way comes
along in the column `UNREADABLE`, with the reason. What columns hold is found out by reading text files once (as
`events.files` does), or is what the rules declare. A `Shape` is what must be the same when a stream goes on.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tocsin.errors import EventError, TocsinError
from tocsin.events.arrow import kind_of
from tocsin.events.batches import Columns
from tocsin.events.files import FORMATS, OPTIONAL, EventFiles, TextFiles, open_events
from tocsin.events.formats import NULLS, WORDS
from tocsin.events.letters import letters
from tocsin.events.lines import NAMES
from tocsin.events.types import EventType, Kind
from tocsin.spark import kafka
from tocsin.spark.names import col
from tocsin.spark.packing import UNREADABLE
from tocsin.spark.times import moment

SPARK = {Kind.STRING: "string", Kind.LONG: "bigint", Kind.DOUBLE: "double"}
LINE, CELLS, CORRUPT, REASON = "_line", "_cells", "_corrupt", "_reason"


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
            return measured(self.observed.get)
        (found,) = self.frame.agg(*measures(self.frame, self.columns)).collect()
        return replace(measured(found.asDict()), bad_lines=self.bad.num_rows)


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
        return _observed(typed(lines, Shape("Kafka", declared(types, columns)), columns), columns)
    if not is_local(address):
        format = _format(Path(address))
        if format == "Parquet":
            return Events(session.read.option("mergeSchema", True).parquet(address), columns)
        shape = Shape(format, declared(types, columns))
        return _observed(typed(_lines(session.read.text(address)), shape, columns), columns)
    files = opened(address, columns, types, optional)
    if isinstance(files, TextFiles):
        return _text(session, files, columns)
    return Events(session.read.option("mergeSchema", True).parquet(absolute(address)), columns)


def stream(session: SparkSession, address: str, shape: Shape, columns: Columns) -> DataFrame:
    """What comes, from the beginning on or from where a checkpoint is."""
    if shape.format == "Kafka":
        options = kafka.reading(kafka.topic(address))
        return typed(_messages(session.readStream.format("kafka").options(**options).load()), shape, columns)
    suffixes = [suffix[1:] for suffix, format in FORMATS.items() if format == shape.format]
    reader = session.readStream.option("pathGlobFilter", "*.{" + ",".join(suffixes) + "}")
    if shape.format == "Parquet":
        return reader.schema(T.StructType.fromJson(json.loads(shape.schema))).parquet(absolute(address))
    return typed(_lines(reader.text(absolute(address))), shape, columns)


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
        table = session.read.option("mergeSchema", True).parquet(absolute(address))
        return Shape("Parquet", schema=table.schema.json())
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


def typed(lines: DataFrame, shape: Shape, columns: Columns) -> DataFrame:
    """Lines as rows of the columns that the shape has, and `UNREADABLE`."""
    names, kinds = shape.names, shape.kinds
    options = {"columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE"}
    cells = [T.StructField(name, T.StringType()) for name in [*names, CORRUPT]]
    if shape.format == "CSV":
        ddl = ", ".join(f"`{cell.name.replace('`', '``')}` string" for cell in cells)
        apart = F.from_csv(col(LINE), ddl, {**options, "escape": '"'})
        what = f"a line of CSV with the {len(names)} columns {', '.join(names)}"
        lines = lines.where(col(LINE) != shape.header)
    else:
        apart, what = F.from_json(col(LINE), T.StructType(cells), options), "a JSON object"
    rows = lines.withColumn(CELLS, apart)
    texts = {name: _cell(name, shape.format) for name in names}
    values = {name: _value(texts[name], kinds[name]) for name in names}
    reason = F.when(col(CELLS).isNull() | col(CELLS).getField(CORRUPT).isNotNull(), F.lit(f"it is not {what}"))
    for name, kind in kinds.items():
        if name in texts and kind is not None and kind != Kind.STRING:
            shown = F.substring(texts[name], 1, 80)
            told = F.concat(F.lit(f'{name} is "'), shown, F.lit(f'", which is not {NAMES[Kind(kind)]}'))
            reason = reason.when(texts[name].isNotNull() & values[name].isNull(), told)
    rows = rows.select(LINE, reason.alias(REASON), *(value.alias(name) for name, value in values.items()))
    unreadable = F.when(col(REASON).isNotNull(), F.struct(col(REASON).alias("reason"), col(LINE).alias("text")))
    # What is no event must not move time.
    values[columns.ts] = F.when(col(REASON).isNull(), col(columns.ts))
    kept = [(values[name] if name == columns.ts else col(name)).alias(name) for name in names]
    return rows.select(*kept, unreadable.alias(UNREADABLE))


def _cell(name: str, format: str) -> Column:
    text = col(CELLS).getField(name)
    if format != "CSV":
        return text
    return F.when(~F.trim(text).isin(NULLS), text)


def _value(text: Column, kind: str | None) -> Column:
    """A cell as what its column holds; null if it cannot be."""
    match kind:
        case None:
            return F.lit(None)
        case Kind.BOOL:
            word = F.lower(F.trim(text))
            return reduce(
                lambda found, known: found.when(word == known, WORDS[known]), WORDS, F.when(F.lit(False), None)
            )
        case Kind.TIMESTAMP:
            return F.try_to_timestamp(F.trim(text))
        case Kind.STRING:
            return text
    return F.trim(text).try_cast(SPARK[Kind(kind)])


def _text(session: SparkSession, files: TextFiles, columns: Columns) -> Events:
    """Text files as a table. Those with the same header are read together."""
    format = _format(files.paths[0])
    if format == "notation":
        return _notation(session, files, columns)
    kinds = _kinds(files)
    parts = []
    for header, paths in _by_header(files.paths, format).items():
        lines = _lines(session.read.text([absolute(str(path)) for path in paths]))
        parts.append(typed(lines, Shape(format, kinds, header=header), columns))
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
            with path.open(encoding="utf-8-sig", newline="") as file:
                header = next((line.strip("\r\n") for line in file if line.strip()), "")
        if header or format != "CSV":
            found.setdefault(header, []).append(path)
    return found


def _lines(text: DataFrame) -> DataFrame:
    line = F.regexp_replace(F.col("value"), "^\ufeff|\r$", "")
    return text.select(line.alias(LINE)).where(F.trim(LINE) != "")


def _messages(rows: DataFrame) -> DataFrame:
    """The values of messages, as lines."""
    return rows.where("value IS NOT NULL").select(F.col("value").cast("string").alias(LINE))


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
