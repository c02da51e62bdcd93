"""From DataFrames to DataFrames: how a detection becomes a Spark plan.

    rows ─ filter, project (Catalyst) ─► pack (Python, beside the source) ─ parcels ─► slot (Python) ─► report
    Parquet files (see `scans`) ───────────────┘

Batch: parcels are partitioned by slot and sorted by time, and each partition is detected as a whole. Streaming: a slot
is a group of Spark's stateful operator, and its state is the detector's.
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
from tocsin.events.columns import kind_of, whole
from tocsin.events.reader import Columns
from tocsin.events.times import micros
from tocsin.events.types import Kind
from tocsin.plans.assignment import PLACER, forwarding, lay_out, lay_out_live
from tocsin.plans.explain import explain
from tocsin.plans.placers import Placer, placer
from tocsin.plans.plan import Plan
from tocsin.process import uncollected
from tocsin.spark import blocks
from tocsin.spark.batch import batch_detector
from tocsin.spark.blocks import PARCELS_DDL, TICK, TYPE_NAME, UNREADABLE, packer
from tocsin.spark.job import Job, bound, send
from tocsin.spark.names import col, exact, map_in_arrow
from tocsin.spark.pushdown import Scan, needed, needed_of_type, scan_of, scanned, tests_by_type
from tocsin.spark.rejected import counted, counter
from tocsin.spark.times import moment

Events: TypeAlias = DataFrame | Mapping[str, DataFrame]

AT, WANTED = "_tocsin_at", "_tocsin_wanted"

TYPES_NUMBERED_MAX = 16
"""With more types, Spark sends their names."""

PLACER_SETTING = "spark.tocsin.placer"
"""A setting of Spark's session: even (the default), visiri, sctxpf or random."""

SLOTS_MAX = 32
"""How many slots there are at most if nobody says a number."""


@uncollected()
def detect(
    rules: Plan,
    events: Events,
    columns: Columns,
    *,
    delay_us: int = 0,
    slots: int | None = None,
    control: DataFrame | None = None,
    keep: Iterable[str] | None = None,
    select: Iterable[str] | None = None,
    telling: bool = False,
) -> DataFrame:
    """The report of these rules over these events. `telling`: rejected rows of a table are logged."""
    frames = [events] if isinstance(events, DataFrame) else list(events.values())
    names = {*match_table.schema(rules, times=False).names, *(name for frame in frames for name in frame.columns)}
    with exact(frames[0].sparkSession, names):
        return _detect(rules, events, columns, delay_us, slots, control, keep, select, telling)


def _detect(
    rules: Plan,
    events: Events,
    columns: Columns,
    delay_us: int,
    slots: int | None,
    control: DataFrame | None,
    keep: Iterable[str] | None,
    select: Iterable[str] | None,
    telling: bool,
) -> DataFrame:
    source, job = prepare(rules, events, columns, delay_us, slots, control, keep, select)
    sent = send(job)
    if source.streaming:
        from tocsin.spark.stream import detect_stream

        return detect_stream(source, sent, control)
    if source.scan is not None:
        parcels = scanned(source.frame, source.scan, sent, PARCELS_DDL)
    else:
        parcels = map_in_arrow(source.needed(job.types), packer(sent, ticks=False), PARCELS_DDL)
    if source.plan.is_timed:
        parcels = parcels.unionByName(source.last_tick(job))
    spread = parcels.repartition(job.layout.slots, "slot").sortWithinPartitions("least")
    run = counted(batch_detector(sent), counter(source.frame.sparkSession) if telling else None)
    return blocks.told_apart(spread.mapInArrow(run, report_schema(job)))


def prepare(
    rules: Plan,
    events: Events,
    columns: Columns,
    delay_us: int,
    slots: int | None,
    control: DataFrame | None,
    keep: Iterable[str] | None,
    select: Iterable[str] | None = None,
) -> tuple[Source, Job]:
    """Checks the rules against the events, and lays them out: for these rules, or live if more types are kept."""
    kept = None if keep is None else tuple(sorted({*_types_of(rules), *keep}))
    source = Source(rules, events, columns, kept or ())
    if not source.streaming and (control is not None or kept is not None):
        raise EventError("control rows are for streams only: these events are no stream")
    slots = slots or default_slots(source.frame.sparkSession)
    if select is not None:
        select = match_table.checked(select, match_table.schema(source.plan, times=source.times).names)
    layout = (
        lay_out(source.plan, slots, placer=_placer(source.frame.sparkSession))
        if kept is None
        else lay_out_live(source.plan, kept, slots)
    )
    sifted = source.sifted() if kept is None and source.scan is None else ()
    job = Job(
        rules.sources, source.catalog, columns, layout, delay_us, source.times, source.tables, select, kept, sifted
    )
    return source, bound(job, source.plan)


def _placer(session: SparkSession) -> Placer:
    """What places rules that cannot be partitioned: this project's own placer, or that of the session's setting."""
    name = session.conf.get(PLACER_SETTING, "even")
    return PLACER if name == "even" else placer(str(name))


def explain_frames(
    rules: Plan,
    events: Events,
    columns: Columns,
    *,
    delay_us: int = 0,
    slots: int | None = None,
    control: DataFrame | None = None,
    keep: Iterable[str] | None = None,
) -> str:
    """What Spark will do, and then what each slot will."""
    source, job = prepare(rules, events, columns, delay_us, slots, control, keep)
    layout = job.layout
    lines = ["Spark"]
    if source.scan is not None:
        files = {path for task in source.scan.tasks for path, _ in task}
        lines.append(f"  reads    {', '.join(source.scan.columns)}")
        lines.append(f"  from     {len(files)} Parquet files, by the workers themselves")
    for kept, test in source.conditions() if source.scan is None else ():
        lines += [f"  reads    {', '.join(kept)}", f"  keeps    {test}"]
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
    """The types from outside that rules look at, and those that are declared."""
    named = {type for rule in rules.sources for type in rule.uses}
    return sorted((named | set(rules.given.types)) - {rule.emits.name for rule in rules.sources})


def report_schema(job: Job) -> T.StructType:
    """The columns of a job's report."""
    return from_arrow_schema(blocks.schema(job.matches))


def default_slots(session: SparkSession) -> int:
    """As many slots as there are shuffle partitions, or as tasks run at once where that is Spark's own 200."""
    partitions = int(session.conf.get("spark.sql.shuffle.partitions", "200"))
    if partitions <= SLOTS_MAX:
        return partitions
    parallel = getattr(session, "_sc", None) and session.sparkContext.defaultParallelism
    return max(1, min(parallel or SLOTS_MAX, SLOTS_MAX))


class Source:
    """Events in one or several DataFrames as one, with what is known of their types."""

    def __init__(
        self,
        rules: Plan,
        events: Events,
        columns: Columns,
        types_kept: tuple[str, ...] = (),
        places: tuple[str, ...] = (),
    ) -> None:
        self._columns, self._events, self._types_kept, self._places = columns, events, types_kept, places
        self.tables: dict[str, dict[str, str]] | None = None
        catalog = rules.given
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
        held = {frame.schema[columns.ts].dataType for frame in frames}
        if len(held) > 1:
            raise EventError(f"{columns.ts} is of several types: {', '.join(sorted(map(str, held)))}")
        self._held = held.pop()
        _check_times(self._held, columns)
        self.times = isinstance(self._held, T.TimestampType | T.TimestampNTZType | T.DateType | T.StringType)
        self.streaming = any(frame.isStreaming for frame in frames)

    @property
    def frame(self) -> DataFrame:
        """Any of the DataFrames."""
        return self._events if isinstance(self._events, DataFrame) else next(iter(self._events.values()))

    @cached_property
    def scan(self) -> Scan | None:
        """How workers read the events from their files, if Spark need not."""
        if self.streaming or not isinstance(self._events, DataFrame) or self._types_kept or self._places:
            return None
        return scan_of(self._events, self._kept(self._events, None), self._columns.type)

    def needed(self, types: Sequence[str] = ()) -> DataFrame:
        """The rows and columns that the rules need, with numbers for these types."""
        parts = [rows if test is None else rows.where(test) for rows, test in self._parts()]
        return self._numbered(self._together(parts), types)

    def ticking(self, types: Sequence[str] = ()) -> DataFrame:
        """The same of a stream, where every row moves Spark's watermark, needed or not."""
        parts = []
        for rows, test in self._parts():
            wanted = F.lit(True) if test is None else F.coalesce(test, F.lit(False))
            parts.append(rows.select("*", moment(self._columns, self._held).alias(AT), wanted.alias(WANTED)))
        rows = self._together(parts).withWatermark(AT, "0 seconds")
        # A condition that names the event time is not pushed below the watermark.
        return self._numbered(rows.where(col(WANTED) | col(AT).isNull()).drop(AT, WANTED), types)

    def last_tick(self, job: Job) -> DataFrame:
        """A parcel for every slot with the largest time of all rows, needed or not: up to there timers run."""
        moments = self._together(
            [rows.select(moment(self._columns, self._held).alias(AT)) for rows, _ in self._parts()]
        )
        largest = moments.agg(F.unix_micros(F.max(AT)).alias("largest")).where("largest is not null")
        slots = F.explode(F.array(*(F.lit(label).cast("int") for label in job.labels)))
        none, nothing = F.lit(None).cast("bigint"), F.lit(None).cast("binary")
        return largest.select(
            slots.alias("slot"), F.lit(TICK).alias("what"), none.alias("least"), "largest", nothing.alias("payload")
        )

    def sifted(self) -> tuple[str, ...]:
        """The types of which only rows that some filter wants are among the needed ones."""
        if not isinstance(self._events, DataFrame):
            return ()
        found = tests_by_type(self.plan, self._events.schema)
        return tuple(name for name, test in found.items() if test is not None)

    def conditions(self) -> list[tuple[list[str], str]]:
        """For each DataFrame the columns that are read of it and the condition for its rows, as text."""
        found = []
        for rows, test in self._parts():
            found.append((rows.columns, "all rows" if test is None else str(test).removeprefix("Column<'")[:-2]))
        return found

    def _numbered(self, rows: DataFrame, types: Sequence[str]) -> DataFrame:
        """The rows with numbers for these types, and the names of others: strings are dear in Arrow."""
        name = self._columns.type
        if not 0 < len(types) <= TYPES_NUMBERED_MAX or rows.schema[name].dataType != T.StringType():
            return rows
        others = [col(other) for other in rows.columns if other != name]
        of_type = [F.when(col(name) == F.lit(type), F.lit(number)) for number, type in enumerate(types)]
        number = F.coalesce(*of_type).cast("tinyint")
        stranger = F.when(~F.coalesce(col(name).isin(*types), F.lit(False)), col(name))
        return rows.select(number.alias(name), stranger.alias(TYPE_NAME), *others)

    def _together(self, parts: list[DataFrame]) -> DataFrame:
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)

    def _parts(self) -> list[tuple[DataFrame, Column | None]]:
        """The columns that the rules need of each DataFrame, and the condition for its rows."""
        columns, parts = self._columns, []
        if isinstance(self._events, DataFrame):
            rows = self._events.select(*(col(name) for name in self._kept(self._events, None)))
            return [(rows, needed(self.plan, columns, rows.schema, self._types_kept))]
        assert self.tables is not None
        for name, frame in self._events.items():
            kept = self._kept(frame, name)
            held = {attribute: self.tables[name][attribute] for attribute in kept if attribute in self.tables[name]}
            header = [col(other) for other in kept if other not in held]
            renamed = [col(attribute).alias(column) for attribute, column in held.items()]
            kept_whole = name in self._types_kept
            test = None if kept_whole else needed_of_type(name, self.plan, columns, frame.schema, held)
            parts.append((frame.select(F.lit(name).alias(columns.type), *header, *renamed), test))
        return parts

    def _kept(self, frame: DataFrame, type: str | None) -> list[str]:
        """The columns that cross into Python: all that an event's identity is made of."""
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
            message = f"the events have no column '{name}'; say {role}=… if it is called otherwise. {hint}"
            raise EventError(message.rstrip())
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise EventError(f"the events have two columns called '{min(repeated)}'")


def _check_types(held: T.DataType) -> None:
    """Fails as every host does if the types of events are no names."""
    if not isinstance(held, T.StringType | T.NullType):
        raise EventError(f"the type column must hold names of event types, it is {held.simpleString()}")


def _check_times(held: T.DataType, columns: Columns) -> None:
    """Fails as every host does if `ts` cannot be read."""
    try:
        empty = to_arrow_schema(T.StructType([T.StructField("ts", held)]), timezone="UTC").empty_table()
    except PySparkTypeError:
        raise EventError(f"ts must hold times or numbers, it is {held.simpleString()}") from None
    if not isinstance(held, T.NullType):
        micros(whole(empty["ts"]), columns.ts_unit)


def _kinds(frame: DataFrame, columns: Columns) -> tuple[dict[str, Kind], frozenset[str]]:
    """The kinds of the attributes, and the columns that hold nothing. What cannot be an attribute is left out."""
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
        except PySparkTypeError:  # a type that Arrow has not, such as an interval of months
            continue
        if kind is not None and name:
            kinds[name] = kind
    return kinds, frozenset(empty)
