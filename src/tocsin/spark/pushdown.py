"""Reduce what Spark reads: skip rows and columns that no rule needs, and let workers read Parquet files directly.

The filters of the rules become one condition for Catalyst. The condition may keep too many rows, but never too few: if
a filter has no exact equivalent in Spark, the engine evaluates it later. Malformed rows (without a type or a valid
time) pass the condition, so that they are rejected with a reason.

If possible, Python workers open Parquet files themselves, and read the needed columns straight into Arrow. Otherwise
Spark would convert the columns to rows, and the rows to Arrow again, which costs more than detection.

Workers can read a DataFrame that is a plain scan of files, to which no filter, column or join was added. The files must
be on a file system that all workers see at the same path, and each file must have the needed columns with the types
that Spark expects. Spark reads everything else. If the session's setting `spark.tocsin.scan` is `spark`, Spark reads
everything.
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
from tocsin.spark.blocks import CHUNK_ROWS, UNREADABLE, Batches, block_packer
from tocsin.spark.job import Job, SentJob
from tocsin.spark.names import col, quoted
from tocsin.spark.times import is_invalid

SETTING = "spark.tocsin.scan"
"""The setting of Spark's session that selects who reads Parquet files: `files` (workers, the default) or `spark`."""

FILES_MAX = 4_096
"""The most files that workers read themselves, because the driver must open each file to read its metadata."""

ROWS_OF_TASK = 1 << 22
"""The most rows of a task. Tasks have fewer rows if that is needed to use all cores."""

LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""The metadata keys by which Spark marks files that have times of another calendar."""

RowGroups = tuple[str, tuple[int, ...]]
"""The path of a Parquet file and the numbers of some of its row groups."""


@dataclass(frozen=True)
class Scan:
    """The Parquet row groups that each task reads, and the columns. The column `type` is read as a dictionary."""

    tasks: tuple[tuple[RowGroups, ...], ...]
    columns: tuple[str, ...]
    type: str

    def batches(self, task: int) -> Iterator[pa.RecordBatch]:
        """Read the row groups of the task with the number `task`, and yield their record batches."""
        for path, groups in self.tasks[task]:
            with pq.ParquetFile(path, read_dictionary=[self.type]) as file:
                if groups[-1] >= file.num_row_groups:
                    raise EventError(f"{path} has changed since the detection was planned")
                read = {"row_groups": groups, "columns": list(self.columns), "use_threads": False}
                yield from file.iter_batches(CHUNK_ROWS, **read)


def scan_of(frame: DataFrame, columns: Sequence[str], type: str) -> Scan | None:
    """Return the scan by which workers read `columns` of `frame`; None if Spark must read `frame`."""
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
    return Scan(_split_into_tasks(groups, parallel), tuple(columns), type)


def _files(frame: DataFrame) -> list[str] | None:
    """Return the paths that `frame` reads if it is a plain scan of local Parquet files; otherwise None."""
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
    """Return whether `file` has each `expected` column, with the type that Spark would read."""
    schema, metadata = file.schema_arrow, file.metadata.metadata or {}
    if any(key in metadata for key in LEGACY):
        return False
    return all(
        schema.get_field_index(field.name) >= 0 and _plain(schema.field(field.name).type) == field.type
        for field in expected
    )


def _plain(type: pa.DataType) -> pa.DataType:
    """Return the type of the values in a column of `type`, whatever their encoding is."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    return pa.string() if pa.types.is_large_string(type) or pa.types.is_string_view(type) else type


def _split_into_tasks(groups: list[tuple[str, int, int]], parallel: int) -> tuple[tuple[RowGroups, ...], ...]:
    """Split `groups`, the (path, number, rows) of row groups, into tasks of about equal size, in order."""
    rows = sum(count for _, _, count in groups)
    task_rows = min(ROWS_OF_TASK, -(-rows // max(parallel, 1)) or 1)
    tasks: dict[int, dict[str, list[int]]] = {}
    before = 0
    for path, number, count in groups:
        tasks.setdefault((before + count // 2) // task_rows, {}).setdefault(path, []).append(number)
        before += count
    return tuple(
        tuple((path, tuple(groups_of_task)) for path, groups_of_task in task.items()) for task in tasks.values()
    )


def scan_to_blocks(frame: DataFrame, scan: Scan, sent: SentJob[Job], ddl: str) -> DataFrame:
    """Return the DataFrame of the shuffle blocks that workers pack from `scan`."""
    tasks = len(scan.tasks)
    numbers = frame.sparkSession.range(0, tasks, 1, max(tasks, 1))
    return numbers.mapInArrow(_reader(scan, block_packer(sent, watermarks=False)), ddl)


def _reader(scan: Scan, pack: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from pack(scan.batches(task))

    return read


FILTERS_MAX, FILTERS_TOTAL_MAX = 16, 48
"""The most filters of one type, and of all types, that Spark evaluates.

If there are more filters, the engine's index evaluates all of them at once, and Spark tests only the type. With 227
filters in one condition, Spark took 9 s for 640,000 rows; a test of the type alone took half a second.
"""

COMPARABLE: Mapping[type[T.DataType], Kind] = {
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
"""The types of columns whose values Spark compares exactly as the engine does, with the kinds of such attributes."""

ColumnNames: TypeAlias = Mapping[str, str]
"""The name of the column of each attribute that is in a column of another name."""

NO_COLUMN_NAMES: ColumnNames = {}

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def row_condition(plan: Plan, columns: Columns, schema: T.StructType, retained: Iterable[str] = ()) -> Column:
    """Return the condition for the rows that the rules need, which include all rows of the types in `retained`."""
    plain, tests = {*plan.defined, *retained}, []
    for name, test in conditions_by_type(plan, schema).items():
        if test is None or name in plain:
            plain.add(name)
        else:
            tests.append((col(columns.type) == F.lit(name)) & test)
    wanted = [is_in(columns.type, sorted(plain))] if plain else []
    return reduce(or_, [*wanted, *tests, *malformed(columns, schema)])


def is_in(column: str, values: Iterable[str]) -> Column:
    """Return the condition that `column` has one of `values`.

    It is built as a single SQL text, which avoids a call to Java for each value.
    """
    literals = ["'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'" for text in values]
    return F.expr(f"{quoted(column)} in ({', '.join(literals)})")


def row_condition_of_type(
    name: str, plan: Plan, columns: Columns, schema: T.StructType, column_names: Mapping[str, str]
) -> Column | None:
    """Return the condition for the needed rows of a table with events of the type `name`; None for all rows.

    `column_names` are the columns of the attributes.
    """
    filters = filters_by_type(plan).get(name)
    test = _any(filters, schema, column_names) if filters else F.lit(name in plan.defined)
    return None if test is None else reduce(or_, [test, *malformed(columns, schema)])


def conditions_by_type(plan: Plan, schema: T.StructType) -> dict[str, Column | None]:
    """Return the condition for the attributes of needed events, by input type.

    The condition is None if Spark cannot evaluate it; all events of the type are then read.
    """
    few_filters = len(plan.filters) <= FILTERS_TOTAL_MAX
    return {name: _any(filters, schema) if few_filters else None for name, filters in filters_by_type(plan).items()}


def malformed(columns: Columns, schema: T.StructType) -> list[Column]:
    """Return the conditions of which malformed rows meet at least one."""
    untyped = [col(columns.type).isNull()] if columns.type in schema.names else []
    unreadable = [col(UNREADABLE).isNotNull()] if UNREADABLE in schema.names else []
    return [*untyped, *unreadable, is_invalid(columns, schema[columns.ts].dataType)]


def filters_by_type(plan: Plan) -> dict[str, list[Filter]]:
    """Group the filters of the rules by input type."""
    by_type: dict[str, list[Filter]] = {}
    for filter in plan.filters:
        if filter.type not in plan.defined:
            by_type.setdefault(filter.type, []).append(filter)
    return by_type


def _any(filters: list[Filter], schema: T.StructType, column_names: ColumnNames = NO_COLUMN_NAMES) -> Column | None:
    """Return the disjunction of `filters`; None if Spark cannot evaluate it."""
    if len(filters) > FILTERS_MAX:
        return None
    tests = [_all(filter.conditions, schema, column_names) for filter in filters]
    if any(test is None for test in tests):
        return None
    return reduce(or_, (test for test in tests if test is not None))


def _all(
    conditions: tuple[Typed, ...], schema: T.StructType, column_names: ColumnNames = NO_COLUMN_NAMES
) -> Column | None:
    """Return the conjunction of those `conditions` that Spark can evaluate; None if it can evaluate none of them."""
    tests = [test for condition in conditions if (test := _test(condition, schema, column_names)) is not None]
    return reduce(and_, tests) if tests else None


def _test(condition: Typed, schema: T.StructType, column_names: ColumnNames = NO_COLUMN_NAMES) -> Column | None:
    """Convert `condition` to a Spark condition that holds wherever `condition` holds; None if that is not possible."""
    if isinstance(condition, Field):
        return _field(condition, schema, column_names)
    if not isinstance(condition, Apply):
        return None
    if condition.operator == "and":
        return _all(condition.operands, schema, column_names)
    if condition.operator == "or":
        tests = [_test(operand, schema, column_names) for operand in condition.operands]
        return None if any(test is None for test in tests) else reduce(or_, (t for t in tests if t is not None))
    if condition.operator in _COMPARE:
        left, right = (_operand(operand, schema, column_names) for operand in condition.operands)
        if left is not None and right is not None:
            return _COMPARE[condition.operator](left, right)
    return None


def _operand(operand: Typed, schema: T.StructType, column_names: ColumnNames = NO_COLUMN_NAMES) -> Column | None:
    if isinstance(operand, Field):
        return _field(operand, schema, column_names)
    if isinstance(operand, Constant):
        value = F.lit(operand.value)
        return F.timestamp_micros(value) if operand.kind == Kind.TIMESTAMP else value
    if isinstance(operand, Apply) and operand.operator == "double":
        inner = _operand(operand.operands[0], schema, column_names)
        return None if inner is None else inner.cast("double")
    return None


def _field(field: Field, schema: T.StructType, column_names: ColumnNames = NO_COLUMN_NAMES) -> Column | None:
    if field.attribute not in schema.names:
        return None
    data_type = schema[field.attribute].dataType
    same = COMPARABLE.get(type(data_type)) == field.kind and (field.kind != Kind.STRING or data_type == T.StringType())
    return col(column_names.get(field.attribute, field.attribute)) if same else None
