"""How does each host get a data set, and what does it answer?

Every host gets the data as a user of that host would bring it:

- `embedded`: `RuleSet.detect` on Arrow tables. Files are read with pyarrow first, event notation as `Event` objects.
- `command`: `tocsin run --engine embedded` on files. A table is written as Parquet; tables by type are first joined
  into one, with a column for the type.
- `batch`: `RuleSet.report` on DataFrames that Spark makes of the tables, or `tocsin run --engine spark` on files.
- `stream`: `RuleSet.report` on a stream of Parquet files that Spark writes of the tables, or on files as
  `tocsin run --follow` reads them; all in one micro-batch.
- `service`: an HTTP service on a free port, embedded engine. It takes JSON lines as they are, everything else as Arrow
  tables; its columns have fixed names, so that others are renamed first.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from typer.testing import CliRunner

import tocsin
from tests.datasets.shapes import NO_LINE, Case, Files, Outcome, frozen, us
from tests.service.serving import running
from tocsin import cli
from tocsin.client import ServiceError
from tocsin.errors import TocsinError
from tocsin.events.formats import read_events
from tocsin.events.reader import Columns
from tocsin.events.types import Event, Kind
from tocsin.ruleset import DeadLetterWarning
from tocsin.service.records import TimeRecord
from tocsin.service.service import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOREVER_US = 2**59
HEADER = ("rule", "type", "ts", "seq", "id", "parts")
SLOTS = 2
NULLABLE = pyarrow.csv.ConvertOptions(strings_can_be_null=True)


def embedded(case: Case, folder: Path) -> Outcome:
    """The answer of the Python API in this process."""
    try:
        rules = tocsin.rules(case.rules)
        events = in_memory(case.data)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DeadLetterWarning)
            found = rules.detect(events, **case.options)
        detector = rules.detector(delay=FOREVER_US, **case.options)
        detector.push(in_memory(case.data))
        detector.finish()
        dead = reasons(detector.dead_letters())
    except TocsinError as error:
        return Outcome(error=str(error))
    warned = sum(int(str(one.message).split()[0]) for one in caught if one.category is DeadLetterWarning)
    assert warned == dead.total(), f"{warned} rows are in the warning, {dead.total()} are dead letters"
    return Outcome(matches_of(found), dead)


def command(case: Case, folder: Path, engine: str = "embedded") -> Outcome:
    """The answer of the command line, from the files that it writes."""
    rules = written_rules(case, folder)
    events = on_disk(case.data, case.options, folder / "events")
    found, dead = folder / "matches.parquet", folder / "dead.parquet"
    places = ["--matches", str(found), "--dead-letters", str(dead)]
    named = [f"--{name.replace('_', '-')}{'' if name == 'ts_unit' else '-column'}" for name in case.options]
    options = [part for pair in zip(named, case.options.values(), strict=True) for part in pair]
    arguments = ["run", str(rules), "--events", str(events), "--engine", engine, *places, *options]
    result = CliRunner().invoke(cli.app, arguments)
    if result.exit_code:
        assert result.exit_code == 1, f"{result.stderr}\n{result.exception!r}"
        assert result.stderr.startswith("tocsin: "), f"{result.stderr}\n{result.exception!r}"
        return Outcome(error=result.stderr)
    letters = pq.read_table(dead)
    matches = pq.read_table(found)
    counted = sum(name is not None for name in matches["rule"].to_pylist())  # markers of ranges are no matches
    assert f"{counted:,} match" in result.stderr, result.stderr
    if letters.num_rows:
        assert f"{letters.num_rows:,}" in result.stderr, result.stderr
    return Outcome(matches_of(matches), reasons(letters))


def batch(case: Case, folder: Path, spark: SparkSession) -> Outcome:
    """The answer of Spark over what is there."""
    if isinstance(case.data, Files):
        return command(case, folder, "spark")

    def run() -> pa.Table:
        frames = data_frames(spark, case)
        report = tocsin.rules(case.rules).report(frames, slots=SLOTS, **case.options)
        return report.toArrow()

    return reported(run)


def stream(case: Case, folder: Path, spark: SparkSession) -> Outcome:
    """The answer of Spark to a stream of files, in one micro-batch at whose end time has passed."""
    from tocsin.spark import connectors
    from tocsin.spark import stream as control

    found: list[pa.Table] = []

    def run() -> pa.Table:
        rules = tocsin.rules(case.rules)
        frames: Any
        if isinstance(case.data, Files):
            address = str(on_disk(case.data, case.options, folder / "events", alone=False))
            columns = Columns(**case.options)
            shape = connectors.infer_schema(spark, address, columns, rules.types)
            frames = connectors.open_stream(spark, address, shape, columns)
        else:
            frames = streams(spark, data_frames(spark, case), folder)
        orders = folder / "control"
        orders.mkdir()
        until = FOREVER_US if case.until is None else case.until
        (orders / "end.json").write_text(json.dumps({"advance": until}))
        asked = spark.readStream.schema(control.SCHEMA).json(str(orders))
        report = rules.report(frames, control=asked, delay=FOREVER_US, slots=SLOTS, **case.options)
        writer = report.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        query = (
            writer.foreachBatch(lambda frame, number: found.append(frame.toArrow())).trigger(availableNow=True).start()
        )
        try:
            assert query.awaitTermination(300), "the stream does not end"
        finally:
            query.stop()
        return pa.concat_tables(found)

    return reported(run)


def service(case: Case, folder: Path) -> Outcome:
    """The answer of the service: what the receipts reject, its dead letters and its matches."""
    kinds = kinds_of(case.rules)
    with running(folder / "service", Options(delay_us=FOREVER_US, ahead_us=2**60)) as place:
        client = place.client()
        try:
            client.deploy(case.rules)
            dead: Counter[str] = Counter()
            for body, format in bodies(case):
                headers = {"Content-Type": format}
                params = {name: value for name, value in case.options.items() if name in ("ts_unit", "id")}
                answer = place.http().post("/events", content=body, headers=headers, params=params)
                if not answer.is_success:
                    raise ServiceError(answer.status_code, answer.text)
                receipt = answer.json()
                dead += Counter(reason(one["reason"]) for one in receipt["reasons"])
        except TocsinError as error:
            return Outcome(error=str(error))
        place.service.wait()
        if place.service.events:
            place.service.committer.submit(
                TimeRecord(case.until or place.service.backend.largest + 1).encode()
            ).result()
            place.service.wait()
        letters = Counter(reason(one["reason"]) for one in client.dead_letters())
        assert dead <= letters, f"rejected, and no dead letters: {dead - letters}"
        found: Counter[Any] = Counter()
        for match in client.matches():
            attributes = {
                name: us(datetime.fromisoformat(value)) if kinds.get(name) is Kind.TIMESTAMP else value
                for name, value in match["attributes"].items()
            }
            more = {name: match[name] for name in ("query", "range", "error") if name in match}
            rule = "Marker" if match["type"] == "Marker" else match["rule"]
            found[frozen(rule, us(datetime.fromisoformat(match["ts"])), {**attributes, **more})] += 1
    return Outcome(found, letters)


# ---- data, as each host wants it


def in_memory(data: Any) -> Any:
    """The data as the API takes it."""
    if not isinstance(data, Files):
        return data
    if data.suffix == "events":
        return [event for content in data.content.values() for event in read_events(content.decode())]
    readers: dict[str, Callable[[pa.BufferReader], pa.Table]] = {
        "csv": lambda file: pyarrow.csv.read_csv(file, convert_options=NULLABLE),
        "jsonl": pyarrow.json.read_json,
        "parquet": pq.read_table,
    }
    tables = [readers[data.suffix](pa.BufferReader(content)) for content in data.content.values()]
    return pa.concat_tables(tables, promote_options="permissive")


def joined(tables: Mapping[str, pa.Table], type: str) -> pa.Table:
    """Tables by type as one table with a column for the type."""
    named = [table.append_column(type, pa.array([name] * table.num_rows)) for name, table in tables.items()]
    return pa.concat_tables(named, promote_options="permissive")


def on_disk(data: Any, options: Mapping[str, str], path: Path, *, alone: bool = True) -> Path:
    """The data as a file, or as a folder if there are several files or if one file is not to stand `alone`."""
    if isinstance(data, Files):
        path.mkdir()
        for name, content in data.content.items():
            (path / name).write_bytes(content)
        return path / next(iter(data.content)) if alone and len(data.content) == 1 else path
    table = data if isinstance(data, pa.Table) else joined(data, options.get("type", "type"))
    path = path.with_suffix(".parquet")
    pq.write_table(table, path)
    return path


def written_rules(case: Case, folder: Path) -> Path:
    path = folder / "case.rules"
    path.write_text(case.rules, encoding="utf-8")
    return path


def data_frames(spark: SparkSession, case: Case) -> Any:
    """The data as one DataFrame, or as one for each type. Types that Spark cannot make of Arrow's are cast first."""
    numbers = {pa.time32("s"): pa.int32(), pa.time64("us"): pa.int64()}
    casts = {pa.string_view(): pa.string(), pa.date64(): pa.date32(), **numbers}

    def frame(table: pa.Table) -> DataFrame:
        fields = [field.with_type(casts.get(field.type, field.type)) for field in table.schema]
        return spark.createDataFrame(table.cast(pa.schema(fields)))

    if isinstance(case.data, Mapping):
        return {name: frame(table) for name, table in case.data.items()}
    return frame(case.data)


def streams(spark: SparkSession, frames: Any, folder: Path) -> Any:
    """The same rows as streams of Parquet files."""

    def streamed(frame: DataFrame, path: Path) -> DataFrame:
        frame.coalesce(1).write.parquet(str(path))
        return spark.readStream.schema(frame.schema).parquet(str(path))

    if isinstance(frames, Mapping):
        return {name: streamed(frame, folder / "in" / name) for name, frame in frames.items()}
    return streamed(frames, folder / "in" / "all")


def bodies(case: Case) -> Iterable[tuple[bytes, str]]:
    """The data as requests: JSON lines as they are, else Arrow tables with the names that the service wants."""
    if isinstance(case.data, Files) and case.data.suffix == "jsonl":
        for content in case.data.content.values():
            yield content, "application/x-ndjson"
        return
    events = in_memory(case.data)
    if isinstance(events, list):
        yield json.dumps([as_json(event) for event in events]).encode(), "application/json"
        return
    names = {case.options[role]: role for role in ("type", "ts", "seq") if role in case.options}
    for table in [events] if isinstance(events, pa.Table) else [joined(events, case.options.get("type", "type"))]:
        sink = pa.BufferOutputStream()
        called = table.rename_columns([names.get(name, name) for name in table.column_names])
        with pa.ipc.new_stream(sink, called.schema) as writer:
            writer.write(called)
        yield sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream"


def as_json(event: Event) -> dict[str, Any]:
    more = {"seq": event.seq} if event.seq else {}
    return {"type": event.type, "ts": event.ts, **more, **event.attributes}


# ---- answers, brought into one form


def reported(run: Callable[[], pa.Table]) -> Outcome:
    """The outcome of a report of Spark's, or of the error that there is instead."""
    from tocsin.spark.sessions import plain_errors

    try:
        with plain_errors():
            report = run()
    except TocsinError as error:
        return Outcome(error=str(error))
    kinds = report["_kind"].to_pylist()
    matches = report.filter(pa.array([kind == "match" for kind in kinds], pa.bool_()))
    dead = report.filter(pa.array([kind == "dead letter" for kind in kinds], pa.bool_()))
    matches = matches.drop_columns([name for name in report.column_names if name.startswith("_")])
    return Outcome(matches_of(matches), Counter(reason(one) for one in dead["_reason"].to_pylist()))


def matches_of(table: pa.Table) -> Counter[Any]:
    """The matches of a table, with all times in microseconds."""
    columns = {
        name: (
            column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        )
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return Counter(
        frozen(row["rule"] or row["type"], row["ts"], {name: row[name] for name in row if name not in HEADER})
        for row in pa.table(columns).to_pylist()
    )


def reasons(letters: pa.Table) -> Counter[str]:
    return Counter(reason(one) for one in letters["reason"].to_pylist())


_NO_LINE = re.compile(
    r"^(it is )?not a (JSON object|line of CSV)|^invalid JSON|^\d+ values for \d+ columns|^a quote is left"
)
_LINE = re.compile(r"^.*, line \d+: ")
_SHOULD = re.compile(r"^(\S+) should be a \w+, it is ['\"]?(.*?)['\"]?$", re.DOTALL)
_NO_TIME = re.compile(r"^(\S+) is not a time: ['\"]?(.*?)['\"]?$", re.DOTALL)
_IS_NOT = re.compile(r"^(\S+) is (?:\"(.*?)\"|(\S+)), which is not .*$", re.DOTALL)


def reason(text: str) -> str:
    """A reason without the place in a file; of a value that does not fit, the column and the value alone; of a line
    that cannot be read at all, that, as each reader has its own words for it."""
    text = _LINE.sub("", text)
    if _NO_LINE.match(text):
        return NO_LINE
    if fits := _SHOULD.match(text):
        return f"{fits[1]}: {fits[2]}"
    if fits := _NO_TIME.match(text):
        return f"{fits[1]}: {fits[2]}"
    if fits := _IS_NOT.match(text):
        return f"{fits[1]}: {fits[2] or fits[3]}"
    return text


def kinds_of(rules: str) -> dict[str, Kind]:
    """The kinds of the attributes of matches; none if the rules are wrong."""
    try:
        return dict(tocsin.rules(rules).plan.emitted.kinds)
    except TocsinError:
        return {}
