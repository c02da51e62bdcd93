"""Which tables need not become Spark's rows? Parquet files that Python workers can open themselves: they read what the
rules need straight into Arrow, where Spark would make rows of it and Arrow of the rows again, which costs more than
detection.

A DataFrame is read so if it is nothing but a scan of files (no filter, column or join was added), the files are on a
file system of the machine, which Spark's workers see at the same path, and each has the needed columns, of the types
that Spark says. All else, and everything if the session's setting `spark.tocsin.scan` is `spark`, is read by Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from tocsin.errors import EventError
from tocsin.spark.jobs import Job, Sent
from tocsin.spark.packing import CHUNK_ROWS, Batches, packer

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
