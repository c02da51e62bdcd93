"""Handle column names that Spark's SQL would misread, such as names with dots, backquotes or different case."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

CASE = "spark.sql.caseSensitive"


def col(name: str) -> Column:
    """Return the column with exactly this name, even if the name has dots or backquotes."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """Quote a column name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def map_in_arrow(
    rows: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: T.StructType | str,
) -> DataFrame:
    """Call `DataFrame.mapInArrow` on columns with any names.

    PySpark fails for names with dots, and for names that differ only in case. So the columns are sent to Python under
    numbered names, and `function` receives them under their own names.
    """
    names = rows.columns

    def with_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(with_names, schema)


@contextmanager
def exact(session: SparkSession, names: Collection[str] | None = None) -> Iterator[None]:
    """Make the names of columns case-sensitive in Spark while a plan is built.

    The setting belongs to the session, which other code uses too. So if `names` are given, it is changed only if two
    of the names differ only in case.
    """
    if names is not None and len({name.lower() for name in names}) == len(set(names)):
        yield
        return
    before = session.conf.get(CASE)
    session.conf.set(CASE, "true")
    try:
        yield
    finally:
        session.conf.set(CASE, str(before))
