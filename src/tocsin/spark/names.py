"""What are columns called? Users' names may hold anything, and Spark takes dots and backquotes in names for its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

CASE = "spark.sql.caseSensitive"


def col(name: str) -> Column:
    """A column by its name, whatever is in that."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """A name of a column in Spark's own language."""
    return "`" + name.replace("`", "``") + "`"


def map_in_arrow(
    rows: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: T.StructType | str,
) -> DataFrame:
    """`DataFrame.mapInArrow` for columns of any names: PySpark itself fails for names with dots, or twice in two cases.

    The columns have numbers on their way to Python.
    """
    names = rows.columns

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*(f"c{place}" for place in range(len(names)))).mapInArrow(named, schema)


@contextmanager
def exact(session: SparkSession, names: Collection[str] | None = None) -> Iterator[None]:
    """Lets Spark tell apart names that differ only in case while a plan is made.

    With `names`, only if two of them do: it is a setting of the session, which others use too.
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
