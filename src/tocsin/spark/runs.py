"""A whole run on Spark, as a shell starts it: once over what is there, or following what comes.

A run that follows has a checkpoint folder. Beside Spark's own files it holds what must be the same when it goes on
(`tocsin.json`: the number of slots, the shape of the events) and the changes of rules that were taken (`changes/`).
Rules change through a folder that is looked into between batches. A change is checked, and then handed on to the query
through `changes/`, which is a source of its own. If it needs events of a type that the query does not keep, the query
is first started anew from its checkpoint, so that it keeps them.
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
from tocsin.spark.metrics import SEEN, Counters, Listener
from tocsin.spark.names import col
from tocsin.spark.sessions import session
from tocsin.spark.source import default_slots
from tocsin.spark.stream import ELSEWHERE, SCHEMA, added, types_of

if TYPE_CHECKING:
    from tocsin.ruleset import RuleSet

COLLECTED_MAX = 1_000_000
"""More matches than this go through a folder on their way into one file."""
EXAMPLES = 3
NAME = "tocsin"
PLACE = "_tocsin_place"
STOP_S_MAX = 10.0


def connect(master: str, slots: int | None, addresses: tuple[str | None, ...]) -> SparkSession:
    """The session for a run that reads and writes these addresses."""
    sessions.reach(master)
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
class Found:
    """What a run over what is there has found."""

    counts: dict[str, int]
    by_rule: Counter[str]
    shown: pa.Table | None
    dead: int
    examples: list[str]
    seconds: float
    reasons: Counter[str]
    """How many dead letters there are for each reason."""
    span: tuple[int, int] | None
    """The first and the last time of the events (µs)."""


def once(
    ruleset: RuleSet,
    events: connectors.Events,
    columns: Columns,
    *,
    slots: int | None = None,
    matches: str | None = None,
    dead_letters: str | None = None,
    limit: int = 20,
    locations: connectors.Events | None = None,
    history: str | None = None,
) -> Found:
    """Detects in what is there, and writes or shows the matches in the order of time, or by query and range."""
    begun = perf_counter()
    with ExitStack() as places:
        matches_to = places.enter_context(_place(matches)) if matches is not None else None
        dead_to = places.enter_context(_place(dead_letters)) if dead_letters is not None else None
        at = None if locations is None else locations.frame
        named = names(columns)
        report = ruleset.report(events.frame, **named, slots=slots, locations=at, history=history).persist()
        places.callback(report.unpersist)
        told = [json.loads(row["metrics"]) for row in blocks.metrics(report).collect()]
        by_rule: Counter[str] = Counter()
        reasons = count_reasons(events.bad)
        for slot in told:
            by_rule.update(slot["by_rule"])
            reasons.update(slot.get("reasons", {}))
        dead = sum(slot["letters"] for slot in told) + events.bad.num_rows
        found, strange = blocks.matches(report), blocks.dead_letters(report)
        shown = None
        if matches_to is not None:
            _write(found, matches_to, by_rule.total())
        else:
            shown = in_order(found).limit(limit).toArrow()
        examples: list[str] = []
        if dead:
            rows = [*events.bad.slice(0, EXAMPLES).to_pylist(), *(row.asDict() for row in strange.take(EXAMPLES))]
            examples = [f"{row['reason']}: {row['event'][:120]}" for row in rows[:EXAMPLES]]
        if dead_to is not None:
            _write(strange, dead_to, dead, events.bad)
        all_read = [source.measured() for source in (events, locations) if source is not None]
    bad = sum(read.bad_lines for read in all_read)
    counts = {
        "events": sum(read.events for read in all_read),
        "late": sum(slot["late"] for slot in told),
        "dead": dead - bad,
        "matches": by_rule.total(),
        "bad_lines": bad,
    }
    first, last = all_read[0].first, all_read[0].last
    span = None if first is None or last is None else (first, last)
    return Found(counts, by_rule, shown, dead, examples, perf_counter() - begun, reasons, span)


def in_order(rows: DataFrame) -> DataFrame:
    """Rows by time; what queries that move deliver by query, each in the order in which it stands in its partition."""
    if "query" in rows.columns:
        return rows.withColumn(PLACE, F.monotonically_increasing_id()).orderBy("query", PLACE).drop(PLACE)
    return rows.orderBy(*(name for name in ("ts", "id") if name in rows.columns))


def names(columns: Columns) -> dict[str, Any]:
    """The columns as options of `RuleSet.report`."""
    return {"type": columns.type, "ts": columns.ts, "seq": columns.seq, "id": columns.id, "ts_unit": columns.ts_unit}


@contextmanager
def _place(path: str) -> Iterator[TableWriter | str]:
    """Where to write; fails early if that cannot be."""
    if path.startswith("kafka://"):
        kafka.topic(path)
        yield path
    elif is_file(path):
        with TableWriter(path) as writer:
            yield writer
    else:
        there = Path(path)
        if connectors.is_local(path) and there.exists() and (not there.is_dir() or any(there.iterdir())):
            message = f"there is something in {path} already: name an empty folder, or a file such as {path}.parquet"
            raise EventError(message)
        yield connectors.absolute(path)


def is_file(path: str) -> bool:
    """Whether a path names one file, by its ending."""
    suffix = Path(path).suffix.lower()
    if suffix and suffix not in FORMATS:
        raise EventError(f"{Path(path).name} ends in '{suffix}', which is no known format")
    return bool(suffix) and connectors.is_local(path)


def _write(rows: DataFrame, to: TableWriter | str, count: int, first: pa.Table | None = None) -> None:
    """Rows into one file, a folder of files, or a topic; `first` before them."""
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
    found = settled(rows.toArrow())
    if first is not None and first.num_rows:
        found = pa.concat_tables([first.cast(found.schema), found])
    to.write(found)


def settled(found: pa.Table) -> pa.Table:
    """Collected rows in the order that `in_order` means."""
    order = ("query",) if "query" in found.column_names else ("ts", "id")
    # The sort is stable.
    return found.sort_by([(name, "ascending") for name in order if name in found.column_names])


def _as(rows: DataFrame) -> list[Any]:
    return [col(field.name).cast(field.dataType).alias(field.name) for field in rows.schema]


# ---- following


@dataclass
class Follow:
    """What to follow, and where to."""

    events: str
    columns: Columns
    checkpoint: str
    delay_us: int = 0
    slots: int | None = None
    matches: str | None = None
    dead_letters: str | None = None
    changes: str | None = None
    """The folder of changes of the rules."""
    locations: str | None = None
    """Location updates, for queries that move."""
    history: str | None = None
    printed: Callable[[pa.Table], None] | None = None
    """Takes matches that are written nowhere."""
    said: Callable[[str], None] = print
    """Takes what is worth a line."""


@dataclass
class Followed:
    """A query that follows events, and is started anew when it must keep more of them."""

    ruleset: RuleSet
    spark: SparkSession
    what: Follow
    counters: Counters = field(default_factory=Counters)
    query: Any = None
    kept: set[str] = field(default_factory=set)
    _refused: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        what = self.what
        for path in (what.matches, what.dead_letters):
            if path is not None and not path.startswith("kafka://") and is_file(path):
                raise EventError(f"{path} is one file; with --follow, name a folder, or kafka://host:port/topic")
        if what.dead_letters is not None and what.dead_letters.startswith("kafka://"):
            raise EventError("dead letters go to a folder")
        memo = _remembered(what.checkpoint)
        self.slots = what.slots or memo.get("slots") or default_slots(self.spark)
        if self.slots != memo.get("slots", self.slots):
            raise StateError(ELSEWHERE.format(slots=memo["slots"], now=self.slots))
        if "shape" in memo:
            self.shape = connectors.Shape.from_data(memo["shape"])
        else:
            self.shape = connectors.shape_of(self.spark, what.events, what.columns, self.ruleset.types)
        self.places: connectors.Shape | None = None
        if what.locations is not None:
            if "places" in memo:
                self.places = connectors.Shape.from_data(memo["places"])
            else:
                self.places = connectors.shape_of(
                    self.spark, what.locations, what.columns, self.ruleset.types, ("type", "seq", "id")
                )
        if what.changes is not None:
            Path(what.changes).mkdir(parents=True, exist_ok=True)
            self._taken.mkdir(parents=True, exist_ok=True)
            for change in sorted(self._taken.glob("*.json")):
                self.kept |= self._needed(change)[0]
        told = {"events": what.events, "columns": asdict(what.columns), "delay_us": what.delay_us}
        if self.places is not None:
            told |= {"locations": what.locations, "places": self.places.to_data()}
        if what.history is not None:
            told["history"] = what.history
        _remember(what.checkpoint, {"slots": self.slots, "shape": self.shape.to_data(), **told} | memo)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The query runs within."""
        listener = Listener(self.counters, NAME)
        self.spark.streams.addListener(listener)
        try:
            self.start()
            yield
        finally:
            self.stop()
            self.spark.streams.removeListener(listener)

    def start(self) -> None:
        """Starts the query, or starts it again from its checkpoint."""
        what, changes, keep = self.what, None, None
        events = connectors.stream(self.spark, what.events, self.shape, what.columns)
        events = events.observe(SEEN, *connectors.measures(events, what.columns))
        if what.changes is not None:
            changes, keep = (
                self.spark.readStream.schema(SCHEMA).json(connectors.absolute(str(self._taken))),
                sorted(self.kept),
            )
        locations = None
        if what.locations is not None and self.places is not None:
            locations = connectors.stream(self.spark, what.locations, self.places, what.columns)
        report = self.ruleset.report(
            events, **names(what.columns), delay=what.delay_us, slots=self.slots, control=changes, keep=keep,
            locations=locations, history=what.history,
        )  # fmt: skip
        more: list[sinks.Batch] = [self._tell_refusals] if what.changes is not None else []
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
        """Stops the query after the batch that is under way, if that ends soon; else it is done again later."""
        query, batches, until = self.query, self.counters.batches, monotonic() + STOP_S_MAX
        if query is None:
            return
        while query.isActive and query.status["isTriggerActive"] and monotonic() < until:
            if self.counters.batches > batches:
                break
            sleep(0.05)
        query.stop()
        with suppress(Py4JError):  # so that all that was done is counted
            self.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()

    def look(self) -> None:
        """Looks whether the query is well, and whether rules are to change. To be called now and then."""
        failed = self.query.exception()
        if failed is not None:
            raise failed
        if not self.query.isActive:
            raise TocsinError("the query has ended")
        if self.what.changes is None:
            return
        for path in sorted(Path(self.what.changes).glob("*.json")):
            if path.name[0] not in "._" and not (self._taken / path.name).exists():
                self._take(path)

    def _take(self, path: Path) -> None:
        """Hands a change of the rules on to the query."""
        mark = path.name, path.stat().st_mtime_ns
        if mark in self._refused:
            return
        try:
            needed, told = self._needed(path)
        except (TocsinError, ValueError) as error:
            self._refused.add(mark)
            self.what.said(f"{path} was not taken: {error}")
            return
        more = needed - self.kept - self._own()
        if more:
            self.stop()
            self.kept |= needed
        fresh = self._taken / f".{path.name}"
        shutil.copyfile(path, fresh)
        fresh.rename(self._taken / path.name)
        again = f"; started again from the checkpoint, to keep {', '.join(sorted(more))}" if more else ""
        if more:
            self.start()
        self.what.said(f"{path.name}: {told}{again}")

    def _needed(self, path: Path) -> tuple[set[str], str]:
        """The types that a change of the rules needs, and what it does."""
        types: set[str] = set()
        does = []
        for line in path.read_text(encoding="utf-8").splitlines():
            order = json.loads(line) if line.strip() else {}
            if not isinstance(order, dict) or not order.keys() <= {"add", "remove", "at", "advance"}:
                raise EventError("a change has the keys add, remove, at, advance, and no other")
            rules = added(order)
            types |= {type for rule in rules for type in types_of(rule)} - {rule.emits.name for rule in rules}
            does += [f"adds {rule.name}" for rule in rules]
            does += [f"removes {name}" for name in order.get("remove") or ()]
            does += [f"advances to {order['advance']}"] if order.get("advance") is not None else []
        return types - {rule.emits.name for rule in self.ruleset.rules}, ", ".join(does) or "nothing to do"

    def _own(self) -> set[str]:
        """The types that are kept anyway."""
        return {type for rule in self.ruleset.rules for type in types_of(rule)} | set(self.ruleset.types)

    def _print(self, report: DataFrame, batch: int) -> None:
        if self.what.printed is not None:
            found = blocks.matches(report).toArrow()
            if found.num_rows:
                self.what.printed(settled(found))

    def _tell_refusals(self, report: DataFrame, batch: int) -> None:
        for row in blocks.dead_letters(report).where("reason LIKE 'the rules were not changed%'").collect():
            self.what.said(row["reason"])

    @property
    def _taken(self) -> Path:
        return Path(self.what.checkpoint) / "changes"


def events_of(checkpoint: str) -> str | None:
    """What the run of a checkpoint follows."""
    address: str | None = _remembered(checkpoint).get("events")
    return address


def rekey(ruleset: RuleSet, spark: SparkSession, old: str, new: str, slots: int | None) -> tuple[int, int]:
    """Makes the checkpoint `new` for these rules and that many slots, with the state of the checkpoint of a run.

    Returns the numbers of slots before and after.
    """
    memo = _remembered(old)
    if not memo.keys() >= {"slots", "shape", "events", "columns", "delay_us"}:
        raise StateError(f"{old} is not the checkpoint of a 'tocsin run --follow'; see RuleSet.rekey for other queries")
    if (Path(old) / "changes").exists():
        raise StateError(f"rules come and go in {old}: one key for all of them cannot be moved")
    columns = Columns(**memo["columns"])
    events = connectors.stream(spark, memo["events"], connectors.Shape.from_data(memo["shape"]), columns)
    slots = slots or memo["slots"]
    more: dict[str, Any] = {}
    if memo.get("locations") is not None:
        shape = connectors.Shape.from_data(memo["places"])
        more["locations"] = connectors.stream(spark, memo["locations"], shape, columns)
    if ruleset.interests:
        more["history"] = memo.get("history")
    given = {**names(columns), "delay": memo["delay_us"], "slots": slots, **more}
    ruleset.rekey(events, connectors.absolute(old), connectors.absolute(new), **given)
    _remember(new, {**memo, "slots": slots})
    return memo["slots"], slots


def _remembered(checkpoint: str) -> dict[str, Any]:
    """What must be the same when a run goes on."""
    path = Path(checkpoint) / "tocsin.json"
    if not connectors.is_local(checkpoint) or not path.exists():
        return {}
    try:
        memo: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise StateError(f"{path} is damaged") from None
    return memo


def _remember(checkpoint: str, memo: Mapping[str, Any]) -> None:
    if not connectors.is_local(checkpoint):
        return
    path = Path(checkpoint) / "tocsin.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(memo), encoding="utf-8")
    fresh.replace(path)
