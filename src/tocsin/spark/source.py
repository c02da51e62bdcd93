"""Build the Spark plan that turns DataFrames of events into the report of a detection.

    rows ─ filter, project (Catalyst) ─► pack (Python, next to the source) ─ shuffle blocks ─► slot (Python) ─► report
    Parquet files (see `pushdown`) ────────┘

For tables, shuffle blocks are partitioned by slot and sorted by time, and each partition is processed as a whole. For
streams, a slot is a group of Spark's stateful operator, and the state of the group is that of the slot's detector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from typing import TypeAlias

from pyspark.errors import PySparkTypeError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tocsin.engine import match_table
from tocsin.errors import EventError, nearest
from tocsin.events.columns import kind_of, one_array
from tocsin.events.reader import Columns
from tocsin.events.times import micros
from tocsin.events.types import Kind
from tocsin.plans.assignment import PLACER, assign_live_rules, assign_rules, forwarding
from tocsin.plans.explain import explain
from tocsin.plans.placers import Placer, placer
from tocsin.plans.plan import Plan
from tocsin.process import gc_paused
from tocsin.spark import blocks
from tocsin.spark.batch import batch_detector
from tocsin.spark.blocks import BLOCK_DDL, UNKNOWN_TYPE, UNREADABLE, WATERMARK, block_packer
from tocsin.spark.job import Job, send, with_plan
from tocsin.spark.names import col, exact, map_in_arrow
from tocsin.spark.pushdown import (
    Scan,
    conditions_by_type,
    row_condition,
    row_condition_of_type,
    scan_of,
    scan_to_blocks,
)
from tocsin.spark.rejected import count_rejected, rejected_accumulator
from tocsin.spark.times import event_time

EventFrames: TypeAlias = DataFrame | Mapping[str, DataFrame]

AT, WANTED = "_tocsin_at", "_tocsin_wanted"

TYPES_NUMBERED_MAX = 16
"""The most types that Spark numbers. If there are more, it sends the names of types to Python."""

PLACER_SETTING = "spark.tocsin.placer"
"""The setting of Spark's session that selects the placer of rules: even (the default), visiri, sctxpf or random."""

SLOTS_MAX = 32
"""The most slots that `default_slots` returns."""


@gc_paused()
def detect(
    rules: Plan,
    events: EventFrames,
    columns: Columns,
    *,
    delay_us: int = 0,
    slots: int | None = None,
    control: DataFrame | None = None,
    keep: Iterable[str] | None = None,
    select: Iterable[str] | None = None,
    log_rejected: bool = False,
) -> DataFrame:
    """Return the report of `rules` over `events` as a DataFrame.

    `log_rejected` logs a warning about rejected rows of a table.
    """
    frames = [events] if isinstance(events, DataFrame) else list(events.values())
    names = {*match_table.schema(rules, times=False).names, *(name for frame in frames for name in frame.columns)}
    with exact(frames[0].sparkSession, names):
        return _detect(rules, events, columns, delay_us, slots, control, keep, select, log_rejected)


def _detect(
    rules: Plan,
    events: EventFrames,
    columns: Columns,
    delay_us: int,
    slots: int | None,
    control: DataFrame | None,
    keep: Iterable[str] | None,
    select: Iterable[str] | None,
    log_rejected: bool,
) -> DataFrame:
    source, job = prepare(rules, events, columns, delay_us, slots, control, keep, select)
    sent = send(job)
    if source.streaming:
        from tocsin.spark.stream import detect_stream

        return detect_stream(source, sent, control)
    if source.scan is not None:
        shuffle_blocks = scan_to_blocks(source.frame, source.scan, sent, BLOCK_DDL)
    else:
        shuffle_blocks = map_in_arrow(source.needed(job.types), block_packer(sent, watermarks=False), BLOCK_DDL)
    if source.plan.is_timed:
        shuffle_blocks = shuffle_blocks.unionByName(source.final_markers(job))
    spread = shuffle_blocks.repartition(job.layout.slots, "slot").sortWithinPartitions("least")
    run = count_rejected(
        batch_detector(sent), rejected_accumulator(source.frame.sparkSession) if log_rejected else None
    )
    return blocks.with_kind(spread.mapInArrow(run, report_schema(job)))


def prepare(
    rules: Plan,
    events: EventFrames,
    columns: Columns,
    delay_us: int,
    slots: int | None,
    control: DataFrame | None,
    keep: Iterable[str] | None,
    select: Iterable[str] | None = None,
) -> tuple[FrameSource, Job]:
    """Check `rules` against `events`, and return the source of events and the job for the workers.

    The job assigns the rules to slots. If `keep` names types for rules that are added later, rules are assigned by
    their types alone.
    """
    retained_types = None if keep is None else tuple(sorted({*_types_of(rules), *keep}))
    source = FrameSource(rules, events, columns, retained_types or ())
    if not source.streaming and (control is not None or retained_types is not None):
        raise EventError("control rows are for streams only: these events are no stream")
    slots = slots or default_slots(source.frame.sparkSession)
    if select is not None:
        select = match_table.checked_select(select, match_table.schema(source.plan, times=source.times).names)
    layout = (
        assign_rules(source.plan, slots, placer=_placer(source.frame.sparkSession))
        if retained_types is None
        else assign_live_rules(source.plan, retained_types, slots)
    )
    filtered_types = source.filtered_types() if retained_types is None and source.scan is None else ()
    job = Job(
        rules.sources,
        source.catalog,
        columns,
        layout,
        delay_us,
        source.times,
        source.tables,
        select,
        retained_types,
        filtered_types,
    )
    return source, with_plan(job, source.plan)


def _placer(session: SparkSession) -> Placer:
    """Return the placer that the session's setting selects, for rules that cannot be partitioned by a key."""
    name = session.conf.get(PLACER_SETTING, "even")
    return PLACER if name == "even" else placer(str(name))


def explain_frames(
    rules: Plan,
    events: EventFrames,
    columns: Columns,
    *,
    delay_us: int = 0,
    slots: int | None = None,
    control: DataFrame | None = None,
    keep: Iterable[str] | None = None,
) -> str:
    """Describe what Spark reads and filters, which slots run which rules, and the plan of the rules."""
    source, job = prepare(rules, events, columns, delay_us, slots, control, keep)
    layout = job.layout
    lines = ["Spark"]
    if source.scan is not None:
        files = {path for task in source.scan.tasks for path, _ in task}
        lines.append(f"  reads    {', '.join(source.scan.columns)}")
        lines.append(f"  from     {len(files)} Parquet files, by the workers themselves")
    for columns_read, test in source.conditions() if source.scan is None else ():
        lines += [f"  reads    {', '.join(columns_read)}", f"  keeps    {test}"]
    lines.append("  all columns are read: they are an event's identity")
    lines.append(f"  slots    {layout.slots}")
    for unit in layout.units:
        names = ", ".join(unit.rules[:4]) + (f", … ({len(unit.rules):,})" if len(unit.rules) > 4 else "")
        if unit.key is None:
            lines.append(f"  {names}: in slot {unit.slot}")
        else:
            lines.append(f"  {names}: in every slot, by " + ", ".join(f"{t}.{a}" for t, a in unit.key.items()))
    copies = [len(forward.keys) + len(forward.slots) for forward in forwarding(source.plan, layout).values()]
    lines.append(f"  an event is sent to {max(copies, default=0)} slots at most")
    return "\n".join(lines) + "\n\n" + explain(source.plan)


def _types_of(rules: Plan) -> list[str]:
    """Return the input types that `rules` use or declare, sorted by name."""
    named = {type for rule in rules.sources for type in rule.uses}
    return sorted((named | set(rules.catalog.types)) - {rule.emits.name for rule in rules.sources})


def report_schema(job: Job) -> T.StructType:
    """Return Spark's schema for the report of `job`."""
    return from_arrow_schema(blocks.report_fields(job.matches))


def default_slots(session: SparkSession) -> int:
    """Return the number of slots to use if none is given.

    It is the number of shuffle partitions. If that is more than `SLOTS_MAX`, such as Spark's default of 200, it is the
    number of parallel tasks, up to `SLOTS_MAX`.
    """
    partitions = int(session.conf.get("spark.sql.shuffle.partitions", "200"))
    if partitions <= SLOTS_MAX:
        return partitions
    parallel = getattr(session, "_sc", None) and session.sparkContext.defaultParallelism
    return max(1, min(parallel or SLOTS_MAX, SLOTS_MAX))


class FrameSource:
    """The events of a detection, in one DataFrame or in one for each type.

    It binds the rules to the kinds of the events' attributes, and builds the DataFrame of needed rows and columns.
    """

    def __init__(
        self,
        rules: Plan,
        events: EventFrames,
        columns: Columns,
        retained_types: tuple[str, ...] = (),
        coordinates: tuple[str, ...] = (),
    ) -> None:
        self._columns, self._events, self._retained_types, self._coordinates = (
            columns,
            events,
            retained_types,
            coordinates,
        )
        self.tables: dict[str, dict[str, str]] | None = None
        catalog = rules.catalog
        if isinstance(events, DataFrame):
            _check_columns(events, columns, ("type", "ts", "id"))
            _check_types(events.schema[columns.type].dataType)
            kinds, empty = _kinds(events, columns)
            self.catalog = catalog.learned(kinds, {}, empty, complete=bool(kinds))
            frames = [events]
        else:
            self.tables = {}
            by_type: dict[str, dict[str, Kind]] = {}
            for name, frame in events.items():
                _check_columns(frame, columns, ("ts", "id"))
                by_type[name], _ = _kinds(frame, columns)
                self.tables[name] = {attribute: f"{attribute}:{kind}" for attribute, kind in by_type[name].items()}
            self.catalog = catalog.learned({}, by_type, frozenset(), complete=True)
            frames = list(events.values())
        self.plan = rules.bound_to(self.catalog)
        ts_types = {frame.schema[columns.ts].dataType for frame in frames}
        if len(ts_types) > 1:
            raise EventError(f"{columns.ts} is of several types: {', '.join(sorted(map(str, ts_types)))}")
        self._ts_type = ts_types.pop()
        _check_times(self._ts_type, columns)
        self.times = isinstance(self._ts_type, T.TimestampType | T.TimestampNTZType | T.DateType | T.StringType)
        self.streaming = any(frame.isStreaming for frame in frames)

    @property
    def frame(self) -> DataFrame:
        """The DataFrame of events, or the first of several."""
        return self._events if isinstance(self._events, DataFrame) else next(iter(self._events.values()))

    @cached_property
    def scan(self) -> Scan | None:
        """The row groups of Parquet files that workers read themselves; None if Spark must read the events."""
        if self.streaming or not isinstance(self._events, DataFrame) or self._retained_types or self._coordinates:
            return None
        return scan_of(self._events, self._columns_read(self._events, None), self._columns.type)

    def needed(self, types: Sequence[str] = ()) -> DataFrame:
        """Return the rows and columns that the rules need, with numbers in place of the names in `types`."""
        parts = [rows if test is None else rows.where(test) for rows, test in self._conditions()]
        return self._number_types(self._union(parts), types)

    def with_watermark(self, types: Sequence[str] = ()) -> DataFrame:
        """Return what `needed` returns, for a stream in which every row, needed or not, advances Spark's watermark."""
        parts = []
        for rows, test in self._conditions():
            wanted = F.lit(True) if test is None else F.coalesce(test, F.lit(False))
            parts.append(rows.select("*", event_time(self._columns, self._ts_type).alias(AT), wanted.alias(WANTED)))
        rows = self._union(parts).withWatermark(AT, "0 seconds")
        # A condition that names the event time is not pushed below the watermark.
        return self._number_types(rows.where(col(WANTED) | col(AT).isNull()).drop(AT, WANTED), types)

    def final_markers(self, job: Job) -> DataFrame:
        """Return a watermark marker for every slot, with the largest time of all rows, needed or not.

        At the end of a table, the timers of rules run up to this time.
        """
        times = self._union(
            [rows.select(event_time(self._columns, self._ts_type).alias(AT)) for rows, _ in self._conditions()]
        )
        largest = times.agg(F.unix_micros(F.max(AT)).alias("largest")).where("largest is not null")
        slots = F.explode(F.array(*(F.lit(label).cast("int") for label in job.labels)))
        null, nothing = F.lit(None).cast("bigint"), F.lit(None).cast("binary")
        return largest.select(
            slots.alias("slot"),
            F.lit(WATERMARK).alias("what"),
            null.alias("least"),
            "largest",
            nothing.alias("payload"),
        )

    def filtered_types(self) -> tuple[str, ...]:
        """Return the types whose rows Spark filters, so that only rows that pass some filter are read."""
        if not isinstance(self._events, DataFrame):
            return ()
        found = conditions_by_type(self.plan, self._events.schema)
        return tuple(name for name, test in found.items() if test is not None)

    def conditions(self) -> list[tuple[list[str], str]]:
        """Return for each DataFrame the columns that are read of it, and the condition for its rows as text."""
        found = []
        for rows, test in self._conditions():
            found.append((rows.columns, "all rows" if test is None else str(test).removeprefix("Column<'")[:-2]))
        return found

    def _number_types(self, rows: DataFrame, types: Sequence[str]) -> DataFrame:
        """Replace each name in the type column that is in `types` by its position, because strings are slow in Arrow.

        The names of other types move to the column `UNKNOWN_TYPE`.
        """
        name = self._columns.type
        if not 0 < len(types) <= TYPES_NUMBERED_MAX or rows.schema[name].dataType != T.StringType():
            return rows
        others = [col(other) for other in rows.columns if other != name]
        of_type = [F.when(col(name) == F.lit(type), F.lit(number)) for number, type in enumerate(types)]
        number = F.coalesce(*of_type).cast("tinyint")
        unknown_type = F.when(~F.coalesce(col(name).isin(*types), F.lit(False)), col(name))
        return rows.select(number.alias(name), unknown_type.alias(UNKNOWN_TYPE), *others)

    def _union(self, parts: list[DataFrame]) -> DataFrame:
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)

    def _conditions(self) -> list[tuple[DataFrame, Column | None]]:
        """Return the needed columns of each DataFrame, and the condition for its rows (None for all rows)."""
        columns, parts = self._columns, []
        if isinstance(self._events, DataFrame):
            rows = self._events.select(*(col(name) for name in self._columns_read(self._events, None)))
            return [(rows, row_condition(self.plan, columns, rows.schema, self._retained_types))]
        assert self.tables is not None
        for name, frame in self._events.items():
            kept = self._columns_read(frame, name)
            held = {attribute: self.tables[name][attribute] for attribute in kept if attribute in self.tables[name]}
            header = [col(other) for other in kept if other not in held]
            renamed = [col(attribute).alias(column) for attribute, column in held.items()]
            all_needed = name in self._retained_types
            test = None if all_needed else row_condition_of_type(name, self.plan, columns, frame.schema, held)
            parts.append((frame.select(F.lit(name).alias(columns.type), *header, *renamed), test))
        return parts

    def _columns_read(self, frame: DataFrame, type: str | None) -> list[str]:
        """Return the columns that Python reads: the header, and all attributes, because the ids of events need them."""
        columns, names = self._columns, frame.schema.names
        roles = (columns.type, columns.ts, columns.seq, columns.id, UNREADABLE)
        header = [name for name in roles if name is not None and name in names]
        if type is not None and columns.type in header:
            header.remove(columns.type)
        kinds, empty = _kinds(frame, columns)
        return [*header, *(name for name in names if name in kinds and name not in header and name not in empty)]


def _check_columns(frame: DataFrame, columns: Columns, roles: tuple[str, ...]) -> None:
    names = frame.schema.names
    for role in roles:
        name = getattr(columns, role)
        if name is not None and name not in names:
            hint = nearest(name, names) or ""
            message = f"the events have no column '{name}'; pass {role}=… if it has another name. {hint}"
            raise EventError(message.rstrip())
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise EventError(f"the events have two columns '{min(repeated)}'")


def _check_types(held: T.DataType) -> None:
    """Raise `EventError` if the type column does not contain text, with the same message as without Spark."""
    if not isinstance(held, T.StringType | T.NullType):
        raise EventError(f"the type column must hold names of event types, it is {held.simpleString()}")


def _check_times(held: T.DataType, columns: Columns) -> None:
    """Raise `EventError` if the column of times has an unreadable type, with the same message as without Spark."""
    try:
        empty = to_arrow_schema(T.StructType([T.StructField("ts", held)]), timezone="UTC").empty_table()
    except PySparkTypeError:
        raise EventError(f"ts must hold times or numbers, it is {held.simpleString()}") from None
    if not isinstance(held, T.NullType):
        micros(one_array(empty["ts"]), columns.ts_unit)


def _kinds(frame: DataFrame, columns: Columns) -> tuple[dict[str, Kind], frozenset[str]]:
    """Return the kind of each attribute of `frame`, and the names of its columns of type null.

    Columns whose type no attribute can have are left out.
    """
    kinds: dict[str, Kind] = {}
    empty: set[str] = set()
    header = {columns.type, columns.ts, columns.seq, columns.id}
    for name in frame.schema.names:
        held = frame.schema[name].dataType
        if name in header:
            continue
        if isinstance(held, T.NullType):
            empty.add(name)
            continue
        try:
            kind = kind_of(to_arrow_schema(T.StructType([T.StructField("_", held)]), timezone="UTC").field(0).type)
        except PySparkTypeError:  # Arrow has no such type, for example an interval of months
            continue
        if kind is not None and name:
            kinds[name] = kind
    return kinds, frozenset(empty)
