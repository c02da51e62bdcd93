"""From rows to slots: whole columns are packed on the side of the source, so that the shuffle moves a few large values.

A *parcel* is a row of the shuffle: the slot, what is in it, and the bytes. Parcels of events hold a batch; a *tick*
tells every slot how far time has come, so that those without events go on too; letters are rows that could not be read;
control rows are changes of the rules; a seed is the state that a slot starts from.

What comes out: one row for each match, for each event that could not be used, and for what a slot has to tell.

All three leave one query in one table, the *report*, told apart by `_kind`; `matches`, `dead_letters` and `metrics`
are its parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.ingest import identities
from tocsin.events.columns import whole
from tocsin.events.dead_letters import letters
from tocsin.events.reader import Columns, Data, Known, read
from tocsin.events.types import text_words
from tocsin.process import settling
from tocsin.spark.job import Job, Sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARCELS = pa.schema(
    [
        ("slot", pa.int32()),
        ("what", pa.string()),
        ("least", pa.int64()),
        ("largest", pa.int64()),
        ("payload", pa.binary()),
    ]
)
PARCELS_DDL = "slot int, what string, least bigint, largest bigint, payload binary"
EVENTS, TICK, LETTERS, CONTROL, SEED = "events", "tick", "letters", "control", "seed"
UNREADABLE = "_unreadable"
"""A column of sources that cannot read every row: the reason why not, and the row's text; null for an event."""

TYPE_NAME = "_tocsin_type"
"""A column of rows whose types came as numbers: the names of those that have none."""

CHUNK_ROWS = 1 << 18
"""How many rows are packed at once."""

Batches = Iterator[pa.RecordBatch]


class Parcel(NamedTuple):
    slot: int
    what: str
    least: int | None
    largest: int | None
    payload: bytes | pa.Buffer | None


def packer(sent: Sent[Job], *, ticks: bool) -> Callable[[Batches], Batches]:
    """The function that packs a partition. `ticks`: for a stream."""

    @settling
    def pack(batches: Batches) -> Batches:
        job, largest = sent.job, None
        for table in chunks(batches):
            for parcel in _packed(table, job):
                if parcel.what == TICK:
                    assert parcel.largest is not None
                    largest = parcel.largest if largest is None else max(largest, parcel.largest)
                else:
                    yield rows([parcel])
        if ticks:
            yield rows([Parcel(label, TICK, None, largest, None) for label in job.labels])

    return pack


def chunks(batches: Batches) -> Iterator[pa.Table]:
    """Record batches put together to what is worth the work."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= CHUNK_ROWS:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if count:
        yield pa.Table.from_batches(held)


def _packed(table: pa.Table, job: Job) -> Iterator[Parcel]:
    """The parcels of a chunk, and a tick with its largest ts."""
    batch, dead = readable(_named(table, job), job)
    if dead is not None:
        yield dead
    if not batch.num_rows:
        return
    yield Parcel(0, TICK, None, int(batch["ts"].to_numpy().max()), None)
    types = json.dumps(job.types)
    for slot, part in job.router.route(batch):
        ts = part["ts"].to_numpy()
        yield Parcel(job.labels[slot], EVENTS, int(ts.min()), int(ts.max()), encode(shortened(part, types)))


def _named(table: pa.Table, job: Job) -> pa.Table:
    """The rows with the names of their types."""
    if TYPE_NAME not in table.column_names:
        return table
    place = table.column_names.index(job.columns.type)
    numbers, strangers = whole(table[job.columns.type]), table[TYPE_NAME]
    types: Any = pa.DictionaryArray.from_arrays(numbers, pa.array(job.types, pa.string()))
    if strangers.null_count < len(strangers):
        types = pc.coalesce(types.cast(pa.string()), strangers)
    return table.set_column(place, job.columns.type, types).drop_columns([TYPE_NAME])


class Read(Protocol):
    """What must be known to read rows."""

    @property
    def columns(self) -> Columns: ...
    @property
    def tables(self) -> Mapping[str, Mapping[str, str]] | None: ...
    @property
    def known(self) -> Known: ...
    @property
    def labels(self) -> list[int]: ...


def readable(table: pa.Table, job: Read) -> tuple[pa.Table, Parcel | None]:
    """The events of a chunk as a batch, and a parcel of what could not be read."""
    dead: list[tuple[str, str | None, int | None, str]] = []
    if UNREADABLE in table.column_names:
        strange = table[UNREADABLE].filter(table[UNREADABLE].is_valid()).to_pylist()
        dead += [(row["reason"], None, None, row["text"]) for row in strange]
        table = table.filter(table[UNREADABLE].is_null()).drop_columns([UNREADABLE])
    seen = read(_by_type(table, job), job.columns, job.known)
    dead += seen.dead
    return seen.batch, Parcel(job.labels[0], LETTERS, None, None, encode(letters(dead))) if dead else None


def _by_type(table: pa.Table, job: Read) -> Data:
    """The rows as they were given: one table, or one for each type."""
    if job.tables is None:
        return table
    names = job.columns
    header = [name for name in (names.ts, names.seq, names.id) if name in table.column_names]
    parts: dict[str, pa.Table] = {}
    for type, attributes in job.tables.items():
        mine = table.filter(pc.equal(table[names.type], type))
        if mine.num_rows:
            columns = {name: mine[name] for name in header}
            columns |= {name: mine[column] for name, column in attributes.items() if column in mine.column_names}
            parts[type] = pa.table(columns)
    nothing = pa.table({names.ts: pa.array([], pa.int64())})
    return parts or {"": nothing}


def rows(parcels: list[Parcel]) -> pa.RecordBatch:
    """Parcels as rows. The payload of a single one is not copied."""
    *header, payloads = zip(*parcels, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(header, PARCELS, strict=False)]
    if len(payloads) == 1 and payloads[0] is not None:
        payload = pa.py_buffer(payloads[0])
        ends = pa.array([0, payload.size], pa.int32()).buffers()[1]
        return pa.record_batch([*arrays, pa.Array.from_buffers(pa.binary(), 1, [None, ends, payload])], schema=PARCELS)
    copied = [None if payload is None else bytes(payload) for payload in payloads]
    return pa.record_batch([*arrays, pa.array(copied, pa.binary())], schema=PARCELS)


def encode(table: pa.Table) -> pa.Buffer:
    """A table as bytes. How many is known before they are written, as a buffer that grows is copied again and again."""
    table = table.combine_chunks()
    measured = pa.MockOutputStream()
    _write(table, measured)
    held = pa.allocate_buffer(measured.size())
    _write(table, pa.FixedSizeBufferWriter(held))
    return held


def _write(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def decode(payload: bytes | pa.Buffer) -> pa.Table:
    """The table behind the bytes."""
    return pa.ipc.open_stream(pa.py_buffer(payload)).read_all()


def shortened(batch: pa.Table, types: str) -> pa.Table:
    """A batch as it travels: without what is the same in all rows, types in one byte if there are few."""
    if not batch["seq"].to_numpy().any():
        batch = batch.drop_columns(["seq"])
    numbers = batch["type"].to_numpy()
    if numbers.max() < 128:
        batch = batch.set_column(0, "type", pa.array(numbers.astype(np.int8)))
    return batch.replace_schema_metadata({"types": types})


def events_of(payload: bytes | pa.Buffer, *, nameless: bool = False) -> tuple[pa.Table, list[str]]:
    """The batch of a parcel of events, and the types that the numbers in it stand for.

    Every event is identified, unless it can stay `nameless`.
    """
    batch = decode(payload)
    types = list(json.loads(batch.schema.metadata[b"types"]))
    columns = {"type": pa.array(batch["type"].to_numpy().astype(np.int32)), "ts": batch["ts"]}
    columns["seq"] = batch["seq"] if "seq" in batch.column_names else pa.array(np.zeros(batch.num_rows, np.int64))
    for name in batch.column_names:
        held = batch[name]
        columns.setdefault(name, held.cast(pa.string()) if pa.types.is_dictionary(held.type) else held)
    found = pa.table(columns)
    if not nameless and "first" not in columns:
        words = np.array([text_words(type) for type in types], np.uint64)
        first, second = identities(found, words, np.arange(found.num_rows), {})
        found = found.append_column("first", pa.array(first)).append_column("second", pa.array(second))
    return found, types


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
