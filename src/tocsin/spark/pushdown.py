"""What Spark itself can sort out: which rows and columns no rule can need.

The filters of the rules become one condition for Catalyst. It may let through too much, never too little: what it
cannot say exactly as the engine means it is left to the engine. Rows that are broken (no type, no time that can be
used) pass, to be set aside with a reason.

Which tables need not become Spark's rows? Parquet files that Python workers can open themselves: they read what the
rules need straight into Arrow, where Spark would make rows of it and Arrow of the rows again, which costs more than
detection.

A DataFrame is read so if it is nothing but a scan of files (no filter, column or join was added), the files are on a
file system of the machine, which Spark's workers see at the same path, and each has the needed columns, of the types
that Spark says. All else, and everything if the session's setting `spark.tocsin.scan` is `spark`, is read by Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from tocsin.errors import EventError
from tocsin.events.reader import Columns
from tocsin.events.types import Kind
from tocsin.plans.expressions import Apply, Constant, Field, Typed
from tocsin.plans.plan import Plan
from tocsin.plans.rules import Filter
from tocsin.spark.blocks import CHUNK_ROWS, UNREADABLE, Batches, packer
from tocsin.spark.job import Job, Sent
from tocsin.spark.names import col, quoted
from tocsin.spark.times import is_wrong

SETTING = "spark.tocsin.scan"
"""A setting of Spark's session: `files` (the default) or `spark`."""

FILES_MAX = 4_096
"""Of more files Spark plans the reading: each must be opened here to see what is in it."""

ROWS_OF_TASK = 1 << 22
"""How many rows a task reads, if there are more than enough for all cores."""

LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""What Spark notes in files with times of another calendar."""

Piece = tuple[str, tuple[int, ...]]
"""Row groups of a file."""


@dataclass(frozen=True)
class Scan:
    """What is to be read: for each task row groups of files, and the columns; types are read as a dictionary."""

    tasks: tuple[tuple[Piece, ...], ...]
    columns: tuple[str, ...]
    type: str

    def batches(self, task: int) -> Iterator[pa.RecordBatch]:
        """What a task reads."""
        for path, groups in self.tasks[task]:
            with pq.ParquetFile(path, read_dictionary=[self.type]) as file:
                if groups[-1] >= file.num_row_groups:
                    raise EventError(f"{path} is another file than when the detection was planned")
                read = {"row_groups": groups, "columns": list(self.columns), "use_threads": False}
                yield from file.iter_batches(CHUNK_ROWS, **read)


def scan_of(frame: DataFrame, columns: Sequence[str], type: str) -> Scan | None:
    """How to read these columns of a DataFrame from its files; None if Spark must read it."""
    paths = _files(frame)
    if not paths:
        return None
    expected = to_arrow_schema(T.StructType([frame.schema[name] for name in columns]), timezone="UTC")
    groups: list[tuple[str, int, int]] = []
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                if not _fits(file, expected):
                    return None
                counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        except (OSError, pa.ArrowException):
            return None
        groups += [(path, number, count) for number, count in enumerate(counts) if count]
    parallel = frame.sparkSession.sparkContext.defaultParallelism
    return Scan(_dealt(groups, parallel), tuple(columns), type)


def _files(frame: DataFrame) -> list[str] | None:
    """The files of a DataFrame that is a plain scan of Parquet on this file system."""
    session = frame.sparkSession
    if not hasattr(frame, "_jdf") or session.conf.get(SETTING, "files") != "files":
        return None
    try:
        plan: Any = frame._jdf.queryExecution().analyzed()
        if plan.getClass().getSimpleName() != "LogicalRelation":
            return None
        relation = plan.relation()
        if relation.getClass().getSimpleName() != "HadoopFsRelation":
            return None
        if relation.fileFormat().getClass().getSimpleName() != "ParquetFileFormat":
            return None
        if relation.partitionSchema().length():
            return None
    except Py4JError:
        return None
    addresses = [urlsplit(address) for address in sorted(frame.inputFiles())]
    if len(addresses) > FILES_MAX or any(one.scheme != "file" or one.netloc for one in addresses):
        return None
    return [unquote(one.path) for one in addresses]


def _fits(file: pq.ParquetFile, expected: pa.Schema) -> bool:
    """Whether a file holds the very columns that Spark would read."""
    held, noted = file.schema_arrow, file.metadata.metadata or {}
    if any(key in noted for key in LEGACY):
        return False
    return all(
        held.get_field_index(field.name) >= 0 and _plain(held.field(field.name).type) == field.type
        for field in expected
    )


def _plain(type: pa.DataType) -> pa.DataType:
    """A type as Spark would have it: what is in a column, not how it is held."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    return pa.string() if pa.types.is_large_string(type) or pa.types.is_string_view(type) else type


def _dealt(groups: list[tuple[str, int, int]], parallel: int) -> tuple[tuple[Piece, ...], ...]:
    """Row groups, with their files and rows, dealt to tasks in the order in which they stand."""
    rows = sum(count for _, _, count in groups)
    share = min(ROWS_OF_TASK, -(-rows // max(parallel, 1)) or 1)
    tasks: dict[int, dict[str, list[int]]] = {}
    before = 0
    for path, number, count in groups:
        tasks.setdefault((before + count // 2) // share, {}).setdefault(path, []).append(number)
        before += count
    return tuple(tuple((path, tuple(mine)) for path, mine in task.items()) for task in tasks.values())


def scanned(frame: DataFrame, scan: Scan, sent: Sent[Job], ddl: str) -> DataFrame:
    """The parcels of what is read."""
    tasks = len(scan.tasks)
    numbers = frame.sparkSession.range(0, tasks, 1, max(tasks, 1))
    return numbers.mapInArrow(_reader(scan, packer(sent, ticks=False)), ddl)


def _reader(scan: Scan, pack: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from pack(scan.batches(task))

    return read


FILTERS_MAX, FILTERS_TOTAL_MAX = 16, 48
"""More filters than this, on one type or in all, are left to the engine's index, which looks at all of them at once.

(227 filters in one condition took Spark 9 s for 640,000 rows; a test of the type alone half a second.)
"""

SAME: Mapping[type[T.DataType], Kind] = {
    T.StringType: Kind.STRING,
    T.BooleanType: Kind.BOOL,
    T.ByteType: Kind.INT,
    T.ShortType: Kind.INT,
    T.IntegerType: Kind.INT,
    T.LongType: Kind.LONG,
    T.FloatType: Kind.DOUBLE,
    T.DoubleType: Kind.DOUBLE,
    T.TimestampType: Kind.TIMESTAMP,
}
"""Columns of which the engine reads the very values that Spark compares."""

Names: TypeAlias = Mapping[str, str]
NAMES: Names = {}
"""In which columns attributes are, where that is not the column of their name."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def needed(plan: Plan, columns: Columns, schema: T.StructType, kept: Iterable[str] = ()) -> Column:
    """The condition that a row must meet to be looked at. Of the types that are `kept`, all rows do."""
    plain, tests = {*plan.defined, *kept}, []
    for name, test in tests_by_type(plan, schema).items():
        if test is None or name in plain:
            plain.add(name)
        else:
            tests.append((col(columns.type) == F.lit(name)) & test)
    wanted = [among(columns.type, sorted(plain))] if plain else []
    return reduce(or_, [*wanted, *tests, *broken(columns, schema)])


def among(column: str, texts: Iterable[str]) -> Column:
    """Whether a column has one of these texts. Said as one text: each value by itself is a call to Java and back."""
    literals = ["'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'" for text in texts]
    return F.expr(f"{quoted(column)} in ({', '.join(literals)})")


def needed_of_type(
    name: str, plan: Plan, columns: Columns, schema: T.StructType, held: Mapping[str, str]
) -> Column | None:
    """The same for events of one type, whose attributes are held in columns of other names.

    None if all of its rows must be looked at.
    """
    filters = filters_by_type(plan).get(name)
    test = _any(filters, schema, held) if filters else F.lit(name in plan.defined)
    return None if test is None else reduce(or_, [test, *broken(columns, schema)])


def tests_by_type(plan: Plan, schema: T.StructType) -> dict[str, Column | None]:
    """For each type from outside, what a row must meet beyond being of that type; None if that cannot be told."""
    few = len(plan.filters) <= FILTERS_TOTAL_MAX
    return {name: _any(filters, schema) if few else None for name, filters in filters_by_type(plan).items()}


def broken(columns: Columns, schema: T.StructType) -> list[Column]:
    """What is wrong with a row that no reader can mend."""
    untyped = [col(columns.type).isNull()] if columns.type in schema.names else []
    unreadable = [col(UNREADABLE).isNotNull()] if UNREADABLE in schema.names else []
    return [*untyped, *unreadable, is_wrong(columns, schema[columns.ts].dataType)]


def filters_by_type(plan: Plan) -> dict[str, list[Filter]]:
    """What rules want of the events from outside."""
    by_type: dict[str, list[Filter]] = {}
    for filter in plan.filters:
        if filter.type not in plan.defined:
            by_type.setdefault(filter.type, []).append(filter)
    return by_type


def _any(filters: list[Filter], schema: T.StructType, held: Names = NAMES) -> Column | None:
    """Some filter holds; None if that cannot be told."""
    if len(filters) > FILTERS_MAX:
        return None
    tests = [_all(filter.conditions, schema, held) for filter in filters]
    if any(test is None for test in tests):
        return None
    return reduce(or_, (test for test in tests if test is not None))


def _all(conditions: tuple[Typed, ...], schema: T.StructType, held: Names = NAMES) -> Column | None:
    """As many of the conditions as can be told; None if none can."""
    tests = [test for condition in conditions if (test := _test(condition, schema, held)) is not None]
    return reduce(and_, tests) if tests else None


def _test(condition: Typed, schema: T.StructType, held: Names = NAMES) -> Column | None:
    """A condition that holds wherever the engine's does."""
    if isinstance(condition, Field):
        return _field(condition, schema, held)
    if not isinstance(condition, Apply):
        return None
    if condition.operator == "and":
        return _all(condition.operands, schema, held)
    if condition.operator == "or":
        tests = [_test(operand, schema, held) for operand in condition.operands]
        return None if any(test is None for test in tests) else reduce(or_, (t for t in tests if t is not None))
    if condition.operator in _COMPARE:
        left, right = (_operand(operand, schema, held) for operand in condition.operands)
        if left is not None and right is not None:
            return _COMPARE[condition.operator](left, right)
    return None


def _operand(operand: Typed, schema: T.StructType, held: Names = NAMES) -> Column | None:
    if isinstance(operand, Field):
        return _field(operand, schema, held)
    if isinstance(operand, Constant):
        value = F.lit(operand.value)
        return F.timestamp_micros(value) if operand.kind == Kind.TIMESTAMP else value
    if isinstance(operand, Apply) and operand.operator == "double":
        inner = _operand(operand.operands[0], schema, held)
        return None if inner is None else inner.cast("double")
    return None


def _field(field: Field, schema: T.StructType, held: Names = NAMES) -> Column | None:
    if field.attribute not in schema.names:
        return None
    found = schema[field.attribute].dataType
    same = SAME.get(type(found)) == field.kind and (field.kind != Kind.STRING or found == T.StringType())
    return col(held.get(field.attribute, field.attribute)) if same else None
