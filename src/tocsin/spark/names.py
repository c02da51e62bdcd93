"""What are columns called? Users' names may hold anything, and Spark takes dots and backquotes in names for its own."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def col(name: str) -> Column:
    """A column by its name, whatever is in that."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """A name of a column in Spark's own language."""
    return "`" + name.replace("`", "``") + "`"
