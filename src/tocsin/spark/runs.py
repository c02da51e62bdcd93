"""Run a detection on Spark from the command line: once over a table, or following a stream.

A run that follows a stream has a checkpoint folder. Besides Spark's own files, the folder has `tocsin.json`, with what
must not change when the run continues (such as the number of slots and the schema of the events), and `changes/`, with
the rule changes that the run has accepted.

Rules change through another folder, which the run checks between batches. A change is validated and then copied to
`changes/`, which is a source of the query. If the change needs types of events that the query does not keep, the query
is first restarted from its checkpoint, so that it keeps them.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.errors import EventError, StateError, TocsinError
from tocsin.events.dead_letters import count_reasons
from tocsin.events.files import FORMATS, TableWriter
from tocsin.events.reader import Columns
from tocsin.spark import blocks, connectors, kafka, sessions, sinks
from tocsin.spark.listener import INPUT_METRICS, Counters, Listener
from tocsin.spark.names import col
from tocsin.spark.sessions import session
from tocsin.spark.source import default_slots
from tocsin.spark.stream import SCHEMA, SLOTS_DIFFER, added_rules, types_of

if TYPE_CHECKING:
    from tocsin.ruleset import RuleSet

COLLECTED_MAX = 1_000_000
"""The most rows that the driver collects to write a single output file. More rows go through a temporary folder."""
EXAMPLES = 3
NAME = "tocsin"
ROW_NUMBER = "_tocsin_place"
STOP_S_MAX = 10.0


def connect(master: str, slots: int | None, addresses: tuple[str | None, ...]) -> SparkSession:
    """Return the Spark session for a run that reads from and writes to `addresses`."""
    sessions.check_master(master)
    settings = {}
    topics = [kafka.topic(address) for address in addresses if address and address.startswith("kafka://")]
    if topics:
        settings["spark.jars"] = ",".join(kafka.jars())
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        return session(master, settings, slots)
    except TocsinError as error:
        raise sessions.no_java(str(error)) or error from None


# ---- once


@dataclass
class RunResult:
    """The result of a run over a table."""

    counts: dict[str, int]
    """The numbers of events, late events, dead letters, matches and bad lines."""
    by_rule: Counter[str]
    shown: pa.Table | None
    """The first matches, if the matches are not written to an output."""
    dead: int
    examples: list[str]
    """Some dead letters as text."""
    seconds: float
    reasons: Counter[str]
    """The number of dead letters by reason."""
    span: tuple[int, int] | None
    """The earliest and the latest time of the events (µs)."""


def run_once(
    ruleset: RuleSet,
    events: connectors.EventInput,
    columns: Columns,
    *,
    slots: int | None = None,
    matches: str | None = None,
    dead_letters: str | None = None,
    limit: int = 20,
    locations: connectors.EventInput | None = None,
    history: str | None = None,
) -> RunResult:
    """Detect in a table, write the matches and dead letters, and return the result.

    The matches of rules are ordered by time, and those of moving queries by query and range. Without an output
    `matches`, the result has the first `limit` matches.
    """
    started_s = perf_counter()
    with ExitStack() as outputs:
        matches_to = outputs.enter_context(_open_output(matches)) if matches is not None else None
        dead_to = outputs.enter_context(_open_output(dead_letters)) if dead_letters is not None else None
        at = None if locations is None else locations.frame
        named = column_options(columns)
        report = ruleset.report(events.frame, **named, slots=slots, locations=at, history=history).persist()
        outputs.callback(report.unpersist)
        metrics = [json.loads(row["metrics"]) for row in blocks.metrics(report).collect()]
        by_rule: Counter[str] = Counter()
        reasons = count_reasons(events.bad)
        for slot in metrics:
            by_rule.update(slot["by_rule"])
            reasons.update(slot.get("reasons", {}))
        dead = sum(slot["letters"] for slot in metrics) + events.bad.num_rows
        found, rejected = blocks.matches(report), blocks.dead_letters(report)
        shown = None
        if matches_to is not None:
            _write(found, matches_to, by_rule.total())
        else:
            shown = in_order(found).limit(limit).toArrow()
        examples: list[str] = []
        if dead:
            rows = [*events.bad.slice(0, EXAMPLES).to_pylist(), *(row.asDict() for row in rejected.take(EXAMPLES))]
            examples = [f"{row['reason']}: {row['event'][:120]}" for row in rows[:EXAMPLES]]
        if dead_to is not None:
            _write(rejected, dead_to, dead, events.bad)
        all_read = [source.statistics() for source in (events, locations) if source is not None]
    bad = sum(read.bad_lines for read in all_read)
    counts = {
        "events": sum(read.events for read in all_read),
        "late": sum(slot["late"] for slot in metrics),
        "dead": dead - bad,
        "matches": by_rule.total(),
        "bad_lines": bad,
    }
    first, last = all_read[0].first, all_read[0].last
    span = None if first is None or last is None else (first, last)
    return RunResult(counts, by_rule, shown, dead, examples, perf_counter() - started_s, reasons, span)


def in_order(rows: DataFrame) -> DataFrame:
    """Order the matches of rules by time and id, and the rows of moving queries by query.

    The rows of one moving query stay in the order of their partition.
    """
    if "query" in rows.columns:
        return (
            rows.withColumn(ROW_NUMBER, F.monotonically_increasing_id()).orderBy("query", ROW_NUMBER).drop(ROW_NUMBER)
        )
    return rows.orderBy(*(name for name in ("ts", "id") if name in rows.columns))


def column_options(columns: Columns) -> dict[str, Any]:
    """Convert `columns` to keyword arguments of `RuleSet.report`."""
    return {"type": columns.type, "ts": columns.ts, "seq": columns.seq, "id": columns.id, "ts_unit": columns.ts_unit}


@contextmanager
def _open_output(path: str) -> Iterator[TableWriter | str]:
    """Open the output `path` as a file, or check that it is a topic or an empty folder.

    An output that cannot be written raises an error before the detection starts.
    """
    if path.startswith("kafka://"):
        kafka.topic(path)
        yield path
    elif is_file(path):
        with TableWriter(path) as writer:
            yield writer
    else:
        there = Path(path)
        if connectors.is_local(path) and there.exists() and (not there.is_dir() or any(there.iterdir())):
            message = f"{path} is not empty: name an empty folder, or a file such as {path}.parquet"
            raise EventError(message)
        yield connectors.absolute(path)


def is_file(path: str) -> bool:
    """Return whether `path` is a single file, which is so if it is local and has a suffix.

    Raise `EventError` if the suffix is not that of a known format.
    """
    suffix = Path(path).suffix.lower()
    if suffix and suffix not in FORMATS:
        raise EventError(f"{Path(path).name} ends in '{suffix}', which is no known format")
    return bool(suffix) and connectors.is_local(path)


def _write(rows: DataFrame, to: TableWriter | str, count: int, first: pa.Table | None = None) -> None:
    """Write `rows` to the output `to`, which is one file, a folder of files or a topic.

    `count` is the number of rows. A file or a folder also gets the rows of `first`.
    """
    if isinstance(to, str):
        if to.startswith("kafka://"):
            sinks.send(rows, to)
            return
        if first is not None and first.num_rows:
            rows = rows.unionByName(rows.sparkSession.createDataFrame(first).select(*_as(rows)))
        in_order(rows).write.mode("append").parquet(to)
        return
    if count > COLLECTED_MAX:
        columns = rows.limit(0).toArrow().schema
        with tempfile.TemporaryDirectory(prefix=".tocsin-", dir=to.path.parent) as folder:
            in_order(rows).write.mode("append").parquet(connectors.absolute(f"{folder}/parts"))
            for part in sorted((Path(folder) / "parts").glob("part-*.parquet")):
                with pq.ParquetFile(part) as file:
                    for batch in file.iter_batches():
                        to.write(pa.Table.from_batches([batch]).cast(columns))
        return
    found = sort_collected(rows.toArrow())
    if first is not None and first.num_rows:
        found = pa.concat_tables([first.cast(found.schema), found])
    to.write(found)


def sort_collected(found: pa.Table) -> pa.Table:
    """Sort the collected rows `found` as `in_order` sorts rows in Spark."""
    order = ("query",) if "query" in found.column_names else ("ts", "id")
    # The sort is stable.
    return found.sort_by([(name, "ascending") for name in order if name in found.column_names])


def _as(rows: DataFrame) -> list[Any]:
    return [col(field.name).cast(field.dataType).alias(field.name) for field in rows.schema]


# ---- following


@dataclass
class FollowOptions:
    """The inputs, outputs and settings of a run that follows a stream."""

    events: str
    columns: Columns
    checkpoint: str
    delay_us: int = 0
    slots: int | None = None
    matches: str | None = None
    dead_letters: str | None = None
    changes: str | None = None
    """The folder that the run checks for rule changes."""
    locations: str | None = None
    """The address of the location updates, for moving queries."""
    history: str | None = None
    print_matches: Callable[[pa.Table], None] | None = None
    """Called with the matches of each batch if `matches` is None."""
    log: Callable[[str], None] = print
    """Called with each log line."""


@dataclass
class FollowRun:
    """A streaming query that follows events, and is restarted when a rule change needs more types of events."""

    ruleset: RuleSet
    spark: SparkSession
    what: FollowOptions
    counters: Counters = field(default_factory=Counters)
    query: Any = None
    retained_types: set[str] = field(default_factory=set)
    _refused_changes: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        what = self.what
        for path in (what.matches, what.dead_letters):
            if path is not None and not path.startswith("kafka://") and is_file(path):
                raise EventError(f"{path} is a file; with --follow, name a folder, or kafka://host:port/topic")
        if what.dead_letters is not None and what.dead_letters.startswith("kafka://"):
            raise EventError("dead letters go to a folder")
        settings = _read_settings(what.checkpoint)
        self.slots = what.slots or settings.get("slots") or default_slots(self.spark)
        if self.slots != settings.get("slots", self.slots):
            raise StateError(SLOTS_DIFFER.format(slots=settings["slots"], now=self.slots))
        if "shape" in settings:
            self.shape = connectors.SourceSchema.from_data(settings["shape"])
        else:
            self.shape = connectors.infer_schema(self.spark, what.events, what.columns, self.ruleset.types)
        self.location_schema: connectors.SourceSchema | None = None
        if what.locations is not None:
            if "places" in settings:
                self.location_schema = connectors.SourceSchema.from_data(settings["places"])
            else:
                self.location_schema = connectors.infer_schema(
                    self.spark, what.locations, what.columns, self.ruleset.types, ("type", "seq", "id")
                )
        if what.changes is not None:
            Path(what.changes).mkdir(parents=True, exist_ok=True)
            self._changes_taken.mkdir(parents=True, exist_ok=True)
            for change in sorted(self._changes_taken.glob("*.json")):
                self.retained_types |= self._read_change(change)[0]
        source = {"events": what.events, "columns": asdict(what.columns), "delay_us": what.delay_us}
        if self.location_schema is not None:
            source |= {"locations": what.locations, "places": self.location_schema.to_data()}
        if what.history is not None:
            source["history"] = what.history
        _write_settings(what.checkpoint, {"slots": self.slots, "shape": self.shape.to_data(), **source} | settings)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the query, and stop it at the end of the `with` block."""
        listener = Listener(self.counters, NAME)
        self.spark.streams.addListener(listener)
        try:
            self.start()
            yield
        finally:
            self.stop()
            self.spark.streams.removeListener(listener)

    def start(self) -> None:
        """Start the query, or restart it from its checkpoint."""
        what, changes, keep = self.what, None, None
        events = connectors.open_stream(self.spark, what.events, self.shape, what.columns)
        events = events.observe(INPUT_METRICS, *connectors.statistics_columns(events, what.columns))
        if what.changes is not None:
            changes, keep = (
                self.spark.readStream.schema(SCHEMA).json(connectors.absolute(str(self._changes_taken))),
                sorted(self.retained_types),
            )
        locations = None
        if what.locations is not None and self.location_schema is not None:
            locations = connectors.open_stream(self.spark, what.locations, self.location_schema, what.columns)
        report = self.ruleset.report(
            events, **column_options(what.columns), delay=what.delay_us, slots=self.slots, control=changes, keep=keep,
            locations=locations, history=what.history,
        )  # fmt: skip
        more: list[sinks.Batch] = [self._log_refused] if what.changes is not None else []
        folder = dead_letters = None
        if what.matches is None:
            more.append(self._print)
        elif what.matches.startswith("kafka://"):
            more.append(sinks.to_kafka(what.matches))
        else:
            folder = connectors.absolute(what.matches)
        if what.dead_letters is not None:
            dead_letters = connectors.absolute(what.dead_letters)
        writer = report.writeStream.queryName(NAME).option("checkpointLocation", connectors.absolute(what.checkpoint))
        self.query = writer.foreachBatch(sinks.folders(folder, dead_letters, more)).start()

    def stop(self) -> None:
        """Stop the query after its current batch.

        If the batch does not end within `STOP_S_MAX` seconds, the query stops at once, and the batch is repeated when
        the query continues.
        """
        query, batches, until = self.query, self.counters.batches, monotonic() + STOP_S_MAX
        if query is None:
            return
        while query.isActive and query.status["isTriggerActive"] and monotonic() < until:
            if self.counters.batches > batches:
                break
            sleep(0.05)
        query.stop()
        with suppress(Py4JError):  # so that the counters include the last batch
            self.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()

    def poll(self) -> None:
        """Raise an error if the query has failed or ended, and accept new rule changes.

        Call this regularly while the query runs.
        """
        failed = self.query.exception()
        if failed is not None:
            raise failed
        if not self.query.isActive:
            raise TocsinError("the query has ended")
        if self.what.changes is None:
            return
        for path in sorted(Path(self.what.changes).glob("*.json")):
            if path.name[0] not in "._" and not (self._changes_taken / path.name).exists():
                self._take_change(path)

    def _take_change(self, path: Path) -> None:
        """Pass the rule change in the file `path` to the query, or log why it is invalid."""
        mark = path.name, path.stat().st_mtime_ns
        if mark in self._refused_changes:
            return
        try:
            needed, description = self._read_change(path)
        except (TocsinError, ValueError) as error:
            self._refused_changes.add(mark)
            self.what.log(f"{path} was rejected: {error}")
            return
        more = needed - self.retained_types - self._own_types()
        if more:
            self.stop()
            self.retained_types |= needed
        temporary = self._changes_taken / f".{path.name}"
        shutil.copyfile(path, temporary)
        temporary.rename(self._changes_taken / path.name)
        restarted = f"; restarted from the checkpoint, to keep {', '.join(sorted(more))}" if more else ""
        if more:
            self.start()
        self.what.log(f"{path.name}: {description}{restarted}")

    def _read_change(self, path: Path) -> tuple[set[str], str]:
        """Return the event types that the rule change in the file `path` needs, and a description of the change."""
        types: set[str] = set()
        does = []
        for line in path.read_text(encoding="utf-8").splitlines():
            order = json.loads(line) if line.strip() else {}
            if not isinstance(order, dict) or not order.keys() <= {"add", "remove", "at", "advance"}:
                raise EventError("a change has the keys add, remove, at, advance, and no other")
            rules = added_rules(order)
            types |= {type for rule in rules for type in types_of(rule)} - {rule.emits.name for rule in rules}
            does += [f"adds {rule.name}" for rule in rules]
            does += [f"removes {name}" for name in order.get("remove") or ()]
            does += [f"advances to {order['advance']}"] if order.get("advance") is not None else []
        return types - {rule.emits.name for rule in self.ruleset.rules}, ", ".join(does) or "nothing to do"

    def _own_types(self) -> set[str]:
        """Return the event types that the query keeps even without rule changes."""
        return {type for rule in self.ruleset.rules for type in types_of(rule)} | set(self.ruleset.types)

    def _print(self, report: DataFrame, batch: int) -> None:
        if self.what.print_matches is not None:
            found = blocks.matches(report).toArrow()
            if found.num_rows:
                self.what.print_matches(sort_collected(found))

    def _log_refused(self, report: DataFrame, batch: int) -> None:
        for row in blocks.dead_letters(report).where("reason LIKE 'the rules were not changed%'").collect():
            self.what.log(row["reason"])

    @property
    def _changes_taken(self) -> Path:
        return Path(self.what.checkpoint) / "changes"


def events_of(checkpoint: str) -> str | None:
    """Return the address of the events that the run with this checkpoint follows."""
    address: str | None = _read_settings(checkpoint).get("events")
    return address


def rekey(ruleset: RuleSet, spark: SparkSession, old: str, new: str, slots: int | None) -> tuple[int, int]:
    """Create the checkpoint `new` for `ruleset` and `slots` with the state of the checkpoint `old`.

    `old` must be the checkpoint of a run that follows a stream. Without `slots`, the number of slots stays the same.
    Return the number of slots of `old` and of `new`.
    """
    settings = _read_settings(old)
    if not settings.keys() >= {"slots", "shape", "events", "columns", "delay_us"}:
        raise StateError(f"{old} is not the checkpoint of a 'tocsin run --follow'; see RuleSet.rekey for other queries")
    if (Path(old) / "changes").exists():
        raise StateError(f"the rules of {old} change while it runs: its state cannot be moved to other slots")
    columns = Columns(**settings["columns"])
    events = connectors.open_stream(
        spark, settings["events"], connectors.SourceSchema.from_data(settings["shape"]), columns
    )
    slots = slots or settings["slots"]
    more: dict[str, Any] = {}
    if settings.get("locations") is not None:
        shape = connectors.SourceSchema.from_data(settings["places"])
        more["locations"] = connectors.open_stream(spark, settings["locations"], shape, columns)
    if ruleset.interests:
        more["history"] = settings.get("history")
    given = {**column_options(columns), "delay": settings["delay_us"], "slots": slots, **more}
    ruleset.rekey(events, connectors.absolute(old), connectors.absolute(new), **given)
    _write_settings(new, {**settings, "slots": slots})
    return settings["slots"], slots


def _read_settings(checkpoint: str) -> dict[str, Any]:
    """Read the settings that must not change when a run continues; empty for a new checkpoint."""
    path = Path(checkpoint) / "tocsin.json"
    if not connectors.is_local(checkpoint) or not path.exists():
        return {}
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise StateError(f"{path} is damaged") from None
    return settings


def _write_settings(checkpoint: str, settings: Mapping[str, Any]) -> None:
    if not connectors.is_local(checkpoint):
        return
    path = Path(checkpoint) / "tocsin.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(settings), encoding="utf-8")
    temporary.replace(path)
