"""What Spark itself can sort out: which rows and columns no rule can need.

The filters of the rules become one condition for Catalyst. It may let through too much, never too little: what it
cannot say exactly as the engine means it is left to the engine. Rows that are broken (no type, no time that can be
used) pass, to be set aside with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import and_, or_
from typing import Any, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tocsin.events.batches import Columns
from tocsin.events.types import Kind
from tocsin.plans.expressions import Apply, Constant, Field, Typed
from tocsin.plans.graph import Filter
from tocsin.plans.plan import Plan
from tocsin.spark.names import col, quoted
from tocsin.spark.packing import UNREADABLE
from tocsin.spark.times import is_wrong

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
