"""What comes out: one row for each match, for each event that could not be used, and for what a slot has to tell.

All three leave one query in one table, the *report*, told apart by `_kind`; `matches`, `dead_letters` and `metrics`
are its parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.garbage import settling
from tocsin.spark.jobs import Sent
from tocsin.spark.packing import Batches, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MORE = [("_reason", pa.string()), ("_event", pa.string()), ("_metrics", pa.string())]
KIND = "CASE WHEN _metrics IS NOT NULL THEN 'metrics' WHEN _reason IS NOT NULL THEN 'dead letter' ELSE 'match' END"
PAYLOADS_DDL = "payload binary"


def schema(matches: pa.Schema) -> pa.Schema:
    """The columns of a report as slots write it: those of the matches, and more."""
    return pa.schema([*matches, *(pa.field(name, type) for name, type in MORE)])


def report(columns: pa.Schema, matches: pa.Table, letters: pa.Table, counted: Mapping[str, Any] | None) -> pa.Table:
    """Everything as one table of those columns."""
    parts = []
    if matches.num_rows:
        values = {name: matches[name] for name in matches.column_names if name in columns.names}
        beyond = [name for name in matches.column_names if name not in columns.names]
        if beyond and "attributes" in columns.names:
            values["attributes"] = _as_json(matches.select(beyond))
        parts.append(_wide(columns, values, matches.num_rows))
    if letters.num_rows:
        ts = letters["ts"]
        if "ts" in columns.names and pa.types.is_timestamp(columns.field("ts").type):
            ts = ts.cast(columns.field("ts").type)
        values = {"type": letters["type"], "ts": ts, "_reason": letters["reason"], "_event": letters["event"]}
        parts.append(_wide(columns, values, letters.num_rows))
    if counted is not None:
        parts.append(_wide(columns, {"_metrics": pa.array([json.dumps(counted)])}, 1))
    return pa.concat_tables(parts) if parts else columns.empty_table()


def _as_json(table: pa.Table) -> pa.Array:
    """The values of each row that has any, as a JSON object."""
    found = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    return pa.array([json.dumps(row, default=str) if row else None for row in found], pa.string())


def _wide(columns: pa.Schema, values: Mapping[str, Any], size: int) -> pa.Table:
    arrays = [values[field.name] if field.name in values else pa.nulls(size, field.type) for field in columns]
    return pa.table(arrays, schema=columns)


def unpacker(sent: Sent[Any]) -> Callable[[Batches], Batches]:
    """The function that turns payloads into the rows of the report."""

    @settling
    def unpack(batches: Batches) -> Batches:
        columns = schema(sent.job.matches)
        for batch in batches:
            for payload in batch["payload"]:
                yield from decode(payload.as_buffer()).cast(columns).to_batches()

    return unpack


def count_by_rule(matches: pa.Table) -> dict[str, int]:
    """How many matches each rule has."""
    counted: Any = pc.value_counts(matches["rule"].drop_null())
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}


def told_apart(written: DataFrame) -> DataFrame:
    """The report, from what slots wrote."""
    return written.selectExpr("*", f"{KIND} AS _kind")


def matches(report: DataFrame) -> DataFrame:
    """The matches of a report."""
    from tocsin.spark.names import col, exact

    beside = {"_kind", *(name for name, _ in MORE)}
    with exact(report.sparkSession, report.columns):
        rows = report.where("_reason IS NULL AND _metrics IS NULL")
        return rows.select(*(col(name) for name in report.columns if name not in beside))


def dead_letters(report: DataFrame) -> DataFrame:
    """The events of a report that could not be used: reason, type, ts, and the event in its notation."""
    from tocsin.spark.names import exact

    with exact(report.sparkSession, report.columns):
        rows = report.where("_kind = 'dead letter'")
        return rows.selectExpr("_reason AS reason", "type", "ts", "_event AS event")


def metrics(report: DataFrame) -> DataFrame:
    """What the slots counted, a JSON object for each."""
    from tocsin.spark.names import exact

    with exact(report.sparkSession, report.columns):
        return report.where("_kind = 'metrics'").selectExpr("_metrics AS metrics")
