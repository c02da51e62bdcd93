"""Pack events into shuffle blocks, and unpack the reports of slots.

A *shuffle block* is one row of Spark's shuffle: the slot that receives it, its kind (the column `what`), and bytes.
Workers next to the source pack whole columns of events into blocks, so that the shuffle moves a few large values. There
are five kinds of blocks, to which `moving_slot` adds one for location updates:

- `EVENTS` has a batch of events.
- `WATERMARK`, also called a *marker*, has the largest ts so far, so that slots without events advance, too.
- `REJECTED` has rows that could not be read.
- `CONTROL` has a control row, which changes the rules or advances time.
- `INITIAL_STATE` has the state that a slot starts with.

A slot writes a row for each match and each dead letter (rejected event), and one row with its metrics. These rows leave
the query in one table, the *report*, whose column `_kind` distinguishes them. `matches`, `dead_letters` and `metrics`
select its parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.ingest import content_ids
from tocsin.events.columns import one_array
from tocsin.events.dead_letters import dead_letter_table
from tocsin.events.reader import Columns, Data, TypeInfo, read
from tocsin.events.types import text_words
from tocsin.process import freezing_gc
from tocsin.spark.job import Job, SentJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BLOCK_SCHEMA = pa.schema(
    [
        ("slot", pa.int32()),
        ("what", pa.string()),
        ("least", pa.int64()),
        ("largest", pa.int64()),
        ("payload", pa.binary()),
    ]
)
BLOCK_DDL = "slot int, what string, least bigint, largest bigint, payload binary"
EVENTS, WATERMARK, REJECTED, CONTROL, INITIAL_STATE = "events", "tick", "letters", "control", "seed"
UNREADABLE = "_unreadable"
"""The column in which a source puts each row that it cannot read, as a reason and the text of the row.

The column is null for events. Sources that can read every row do not have it.
"""

UNKNOWN_TYPE = "_tocsin_type"
"""The column with the names of types that have no number, if the type column has numbers."""

CHUNK_ROWS = 1 << 18
"""The number of rows in a chunk. A chunk is a table of rows that are packed at once."""

Batches = Iterator[pa.RecordBatch]


class ShuffleBlock(NamedTuple):
    """A row of the shuffle."""

    slot: int
    """The key by which Spark knows the slot (see `job.labels`)."""
    what: str
    least: int | None
    """The key by which the blocks of a slot are sorted in a table.

    It is the least ts (µs) of a block of events. For moving queries, it is the number of a chunk of emissions.
    """
    largest: int | None
    payload: bytes | pa.Buffer | None


def block_packer(sent: SentJob[Job], *, watermarks: bool) -> Callable[[Batches], Batches]:
    """Return the function that packs the rows of a partition into shuffle blocks.

    `watermarks` appends a marker for each slot, as streams need.
    """

    @freezing_gc
    def pack(batches: Batches) -> Batches:
        job, largest = sent.job, None
        for table in chunks(batches):
            for block in _pack_chunk(table, job):
                if block.what == WATERMARK:
                    assert block.largest is not None
                    largest = block.largest if largest is None else max(largest, block.largest)
                else:
                    yield to_record_batch([block])
        if watermarks:
            yield to_record_batch([ShuffleBlock(label, WATERMARK, None, largest, None) for label in job.labels])

    return pack


def chunks(batches: Batches) -> Iterator[pa.Table]:
    """Combine record batches into tables of about `CHUNK_ROWS` rows."""
    collected: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        collected.append(batch)
        count += batch.num_rows
        if count >= CHUNK_ROWS:
            yield pa.Table.from_batches(collected)
            collected, count = [], 0
    if count:
        yield pa.Table.from_batches(collected)


def _pack_chunk(table: pa.Table, job: Job) -> Iterator[ShuffleBlock]:
    """Yield the shuffle blocks of the chunk `table`, and a marker with the largest ts of the chunk."""
    batch, rejected = read_chunk(_with_type_names(table, job), job)
    if rejected is not None:
        yield rejected
    if not batch.num_rows:
        return
    yield ShuffleBlock(0, WATERMARK, None, int(batch["ts"].to_numpy().max()), None)
    types = json.dumps(job.types)
    for slot, part in job.router.route(batch):
        ts = part["ts"].to_numpy()
        yield ShuffleBlock(job.labels[slot], EVENTS, int(ts.min()), int(ts.max()), encode(compacted(part, types)))


def _with_type_names(table: pa.Table, job: Job) -> pa.Table:
    """Replace the numbers in the type column by the names of the types."""
    if UNKNOWN_TYPE not in table.column_names:
        return table
    position = table.column_names.index(job.columns.type)
    numbers, unknown = one_array(table[job.columns.type]), table[UNKNOWN_TYPE]
    types: Any = pa.DictionaryArray.from_arrays(numbers, pa.array(job.types, pa.string()))
    if unknown.null_count < len(unknown):
        types = pc.coalesce(types.cast(pa.string()), unknown)
    return table.set_column(position, job.columns.type, types).drop_columns([UNKNOWN_TYPE])


class ReadContext(Protocol):
    """What `read_chunk` needs to know of a job."""

    @property
    def columns(self) -> Columns: ...
    @property
    def tables(self) -> Mapping[str, Mapping[str, str]] | None: ...
    @property
    def known(self) -> TypeInfo: ...
    @property
    def labels(self) -> list[int]: ...


def read_chunk(table: pa.Table, job: ReadContext) -> tuple[pa.Table, ShuffleBlock | None]:
    """Return the events of the chunk `table` as a batch, and a block with the rows that could not be read."""
    rejected: list[tuple[str, str | None, int | None, str]] = []
    if UNREADABLE in table.column_names:
        unreadable = table[UNREADABLE].filter(table[UNREADABLE].is_valid()).to_pylist()
        rejected += [(row["reason"], None, None, row["text"]) for row in unreadable]
        table = table.filter(table[UNREADABLE].is_null()).drop_columns([UNREADABLE])
    result = read(_split_by_type(table, job), job.columns, job.known)
    rejected += result.rejected
    return result.batch, ShuffleBlock(
        job.labels[0], REJECTED, None, None, encode(dead_letter_table(rejected))
    ) if rejected else None


def _split_by_type(table: pa.Table, job: ReadContext) -> Data:
    """Return the rows of `table` as the source had them, in one table or in one table for each type."""
    if job.tables is None:
        return table
    names = job.columns
    header = [name for name in (names.ts, names.seq, names.id) if name in table.column_names]
    parts: dict[str, pa.Table] = {}
    for type, attributes in job.tables.items():
        selected = table.filter(pc.equal(table[names.type], type))
        if selected.num_rows:
            columns = {name: selected[name] for name in header}
            columns |= {
                name: selected[column] for name, column in attributes.items() if column in selected.column_names
            }
            parts[type] = pa.table(columns)
    nothing = pa.table({names.ts: pa.array([], pa.int64())})
    return parts or {"": nothing}


def to_record_batch(shuffle_blocks: list[ShuffleBlock]) -> pa.RecordBatch:
    """Convert shuffle blocks to a record batch. The payload of a single block is not copied."""
    *header, payloads = zip(*shuffle_blocks, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(header, BLOCK_SCHEMA, strict=False)]
    if len(payloads) == 1 and payloads[0] is not None:
        payload = pa.py_buffer(payloads[0])
        ends = pa.array([0, payload.size], pa.int32()).buffers()[1]
        return pa.record_batch(
            [*arrays, pa.Array.from_buffers(pa.binary(), 1, [None, ends, payload])], schema=BLOCK_SCHEMA
        )
    copied = [None if payload is None else bytes(payload) for payload in payloads]
    return pa.record_batch([*arrays, pa.array(copied, pa.binary())], schema=BLOCK_SCHEMA)


def encode(table: pa.Table) -> pa.Buffer:
    """Serialize a table. The size is computed first, because a growing buffer would be copied repeatedly."""
    table = table.combine_chunks()
    measured = pa.MockOutputStream()
    _write(table, measured)
    buffer = pa.allocate_buffer(measured.size())
    _write(table, pa.FixedSizeBufferWriter(buffer))
    return buffer


def _write(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def decode(payload: bytes | pa.Buffer) -> pa.Table:
    """Return the table that `encode` has serialized."""
    return pa.ipc.open_stream(pa.py_buffer(payload)).read_all()


def compacted(batch: pa.Table, types: str) -> pa.Table:
    """Return a smaller form of a batch of events for the shuffle.

    The column `seq` is dropped if it is always 0, and the numbers of types take one byte if they fit.
    `types` is the JSON list of the types by number, which is stored as metadata.
    """
    if not batch["seq"].to_numpy().any():
        batch = batch.drop_columns(["seq"])
    numbers = batch["type"].to_numpy()
    if numbers.max() < 128:
        batch = batch.set_column(0, "type", pa.array(numbers.astype(np.int8)))
    return batch.replace_schema_metadata({"types": types})


def decode_events(payload: bytes | pa.Buffer, *, without_ids: bool = False) -> tuple[pa.Table, list[str]]:
    """Return the events in the payload of a block as a batch, and the names of their types by number.

    If the payload has no ids, they are computed, unless `without_ids` says that the detector does not need them.
    """
    batch = decode(payload)
    types = list(json.loads(batch.schema.metadata[b"types"]))
    columns = {"type": pa.array(batch["type"].to_numpy().astype(np.int32)), "ts": batch["ts"]}
    columns["seq"] = batch["seq"] if "seq" in batch.column_names else pa.array(np.zeros(batch.num_rows, np.int64))
    for name in batch.column_names:
        column = batch[name]
        columns.setdefault(name, column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column)
    events = pa.table(columns)
    if not without_ids and "first" not in columns:
        type_hashes = np.array([text_words(type) for type in types], np.uint64)
        first, second = content_ids(events, type_hashes, np.arange(events.num_rows), {})
        events = events.append_column("first", pa.array(first)).append_column("second", pa.array(second))
    return events, types


REPORT_FIELDS = [("_reason", pa.string()), ("_event", pa.string()), ("_metrics", pa.string())]
KIND = "CASE WHEN _metrics IS NOT NULL THEN 'metrics' WHEN _reason IS NOT NULL THEN 'dead letter' ELSE 'match' END"
PAYLOADS_DDL = "payload binary"


def report_fields(matches: pa.Schema) -> pa.Schema:
    """Return the schema of a report as slots write it: the columns of `matches`, and then `REPORT_FIELDS`."""
    return pa.schema([*matches, *(pa.field(name, type) for name, type in REPORT_FIELDS)])


def report(columns: pa.Schema, matches: pa.Table, letters: pa.Table, counted: Mapping[str, Any] | None) -> pa.Table:
    """Combine matches, dead letters (`letters`) and metrics (`counted`) into one table with the schema `columns`.

    Attributes of matches that have no column go into the column `attributes`, if there is one.
    """
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
    """Return the non-null values of each row as a JSON object; null for a row of nulls."""
    rows = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    return pa.array([json.dumps(row, default=str) if row else None for row in rows], pa.string())


def _wide(columns: pa.Schema, values: Mapping[str, Any], size: int) -> pa.Table:
    arrays = [values[field.name] if field.name in values else pa.nulls(size, field.type) for field in columns]
    return pa.table(arrays, schema=columns)


def report_unpacker(sent: SentJob[Any]) -> Callable[[Batches], Batches]:
    """Return the function that converts the payloads that slots wrote to rows of the report."""

    @freezing_gc
    def unpack(batches: Batches) -> Batches:
        columns = report_fields(sent.job.matches)
        for batch in batches:
            for payload in batch["payload"]:
                yield from decode(payload.as_buffer()).cast(columns).to_batches()

    return unpack


def count_by_rule(matches: pa.Table) -> dict[str, int]:
    """Return the number of matches of each rule, by the name of the rule."""
    counted: Any = pc.value_counts(matches["rule"].drop_null())
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}


def with_kind(written: DataFrame) -> DataFrame:
    """Add the column `_kind` to `written`, the rows that slots wrote."""
    return written.selectExpr("*", f"{KIND} AS _kind")


def matches(report: DataFrame) -> DataFrame:
    """Select the matches of `report`, with their own columns."""
    from tocsin.spark.names import col, exact

    beside = {"_kind", *(name for name, _ in REPORT_FIELDS)}
    with exact(report.sparkSession, report.columns):
        rows = report.where("_reason IS NULL AND _metrics IS NULL")
        return rows.select(*(col(name) for name in report.columns if name not in beside))


def dead_letters(report: DataFrame) -> DataFrame:
    """Select the dead letters of `report`: their reason, type and ts, and the event as text."""
    from tocsin.spark.names import exact

    with exact(report.sparkSession, report.columns):
        rows = report.where("_kind = 'dead letter'")
        return rows.selectExpr("_reason AS reason", "type", "ts", "_event AS event")


def metrics(report: DataFrame) -> DataFrame:
    """Select the metrics of `report`, which are one JSON object for each slot."""
    from tocsin.spark.names import exact

    with exact(report.sparkSession, report.columns):
        return report.where("_kind = 'metrics'").selectExpr("_metrics AS metrics")
