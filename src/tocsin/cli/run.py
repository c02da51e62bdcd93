"""Run rules over events, for `tocsin run`.

The rules run in this process (`run_embedded`), on Spark over existing events (`once`), or on Spark over new events as
they arrive (`follow`). Each way produces a `RunReport`, which is printed as text or as JSON. `reasons` explains
matches, for `tocsin why`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tocsin.cli import console as showing
from tocsin.cli.console import console, matches_by_rule, rate
from tocsin.errors import RuleError, TocsinError

if TYPE_CHECKING:
    import pyarrow as pa

    from tocsin.engine.detector import Detector
    from tocsin.engine.moving.detector import MovingDetector
    from tocsin.events.files import EventFiles, TableWriter
    from tocsin.events.lines import BadLine
    from tocsin.events.reader import Columns
    from tocsin.events.types import Kind
    from tocsin.ruleset import RuleSet
    from tocsin.why.reasons import Reason

EXAMPLES = 3
CHUNK_ROWS = 100_000
"""The number of events that are pushed at a time.

It is at most the number of dead letters (rejected events) that a detector keeps, so that no dead letter is lost even if
all events are bad.
"""


@dataclass
class RunReport:
    """The result of a run: counts, the first matches, and examples of rejected events (dead dead_letters)."""

    counts: dict[str, int]
    by_rule: Counter[str]
    shown: pa.Table | None
    dead: int
    examples: list[str]
    seconds: float
    reasons: Counter[str] = field(default_factory=Counter)
    """The number of dead letters for each reason."""
    span: tuple[int, int] | None = None
    """The first and the last time of the events (µs)."""


def as_json(report: RunReport, matches: str | None, dead_letters: str | None) -> dict[str, Any]:
    """Return the report as data for JSON.

    If the matches or the dead letters were written to a file, the data has the path of the file instead.
    """
    from tocsin.events.files import records

    return {
        "counts": report.counts,
        "by_rule": dict(report.by_rule),
        "seconds": round(report.seconds, 6),
        "events_per_second": round(report.counts["events"] / max(report.seconds, 1e-9)),
        "matches": matches or (records(report.shown) if report.shown is not None else None),
        "dead_letters": dead_letters or report.examples,
        "reasons": dict(report.reasons.most_common()),
        "span": report.span and [showing.moment(ts) for ts in report.span],
    }


def detect_embedded(
    detector: Detector | MovingDetector,
    source: EventFiles,
    matches: Path | None,
    dead_letters: Path | None,
    *,
    limit: int,
    ts_unit: str | None,
    locations: EventFiles | None = None,
) -> RunReport:
    """Push all events of `source` to `detector`, and return a report.

    Matches and dead letters are written to files if paths are given. `locations` are location updates for moving
    queries, which are pushed first.
    """
    from tocsin.engine.moving.detector import MovingDetector
    from tocsin.events.files import TableWriter

    for path in (matches, dead_letters):
        if path is not None and path.resolve() in {file.resolve() for file in source.paths}:
            raise TocsinError(f"{path} is one of the event files; choose another output")
    with ExitStack() as stack:
        builder = ReportBuilder(
            limit,
            stack.enter_context(TableWriter(matches)) if matches else None,
            stack.enter_context(TableWriter(dead_letters)) if dead_letters else None,
        )
        if locations is not None:
            assert isinstance(detector, MovingDetector)
            for chunk in locations.chunks(CHUNK_ROWS):
                builder.take(detector.locate(chunk.table))
                builder.reject(detector.dead_letters(), chunk.bad)
        seconds = _drive(detector, source, builder, ts_unit)
    counts = {**detector.counts, "bad_lines": builder.bad_lines}
    return RunReport(
        counts, builder.by_rule, builder.shown(), builder.dead, builder.examples, seconds, builder.reasons, builder.span
    )


@dataclass
class ReportBuilder:
    """Collects the parts of a `RunReport` while a run in this process makes progress, and writes the output files."""

    limit: int
    matches_to: TableWriter | None
    dead_to: TableWriter | None
    matches: int = 0
    by_rule: Counter[str] = field(default_factory=Counter)
    bad_lines: int = 0
    dead: int = 0
    examples: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    span: tuple[int, int] | None = None
    tables: list[pa.Table] = field(default_factory=list)

    def take(self, table: pa.Table) -> None:
        """Count the matches in `table`, keep the first of them, and write them all to the file, if there is one."""
        if not self.tables or (table.num_rows and self.matches < self.limit):
            self.tables.append(table.slice(0, max(0, self.limit - self.matches)))
        result = matches_by_rule(table)
        self.matches += sum(result.values())
        self.by_rule.update(result)
        if self.matches_to:
            self.matches_to.write(table)

    def reject(self, dead_letters: pa.Table, bad: list[BadLine]) -> None:
        """Count dead letters and lines that cannot be read, and write both to the file, if there is one."""
        import pyarrow as pa

        from tocsin.events.dead_letters import count_reasons

        if bad:
            rows = [(f"{line.path}, line {line.line}: {line.reason}", None, None, line.text) for line in bad]
            columns = [
                pa.array(column, dead_letters.schema.types[at]) for at, column in enumerate(zip(*rows, strict=True))
            ]
            dead_letters = pa.concat_tables([pa.table(columns, schema=dead_letters.schema), dead_letters])
        self.bad_lines += len(bad)
        self.dead += dead_letters.num_rows
        self.reasons.update(count_reasons(dead_letters))
        for row in dead_letters.slice(0, EXAMPLES - len(self.examples)).to_pylist():
            self.examples.append(f"{row['reason']}: {row['event'][:120]}")
        if self.dead_to:
            self.dead_to.write(dead_letters)

    def at(self, ts: Any) -> None:
        """Extend the time span of the events by their times `ts` (µs)."""
        if len(ts):
            first, last = int(ts.min()), int(ts.max())
            self.span = (first, last) if self.span is None else (min(self.span[0], first), max(self.span[1], last))

    def shown(self) -> pa.Table:
        """Return the first matches of the run as a table."""
        import pyarrow as pa

        return pa.concat_tables(self.tables)


def _drive(
    detector: Detector | MovingDetector, source: EventFiles, builder: ReportBuilder, ts_unit: str | None
) -> float:
    """Push all events to the detector, with a progress bar on a terminal. Return the elapsed seconds."""
    from tocsin.events.reader import times_us

    start = perf_counter()
    with _progress(source.bytes_total) as advance:
        for chunk in source.chunks(CHUNK_ROWS):
            builder.at(times_us(chunk.table[source.names["ts"]], ts_unit))
            builder.take(detector.push(chunk.table))
            builder.reject(detector.dead_letters(), chunk.bad)
            advance(chunk.bytes_read, detector.counts["events"], builder.matches)
        builder.take(detector.finish())
        builder.reject(detector.dead_letters(), [])
    return perf_counter() - start


@contextmanager
def _progress(bytes_total: int) -> Iterator[Any]:
    """Show a progress bar. Yield a function that updates the bytes read, the events and the matches."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    stderr = console(stderr=True)
    progress = TextColumn("{task.fields[events]:,} events  {task.fields[rate]}  {task.fields[matches]:,} matches")
    bar = Progress(
        BarColumn(), TaskProgressColumn(), progress, console=stderr, transient=True, disable=not stderr.is_terminal
    )
    start = perf_counter()
    with bar:
        task = bar.add_task("", total=max(1, bytes_total), events=0, rate="", matches=0)

        def advance(bytes_read: int, events: int, matches: int) -> None:
            so_far = rate(events, perf_counter() - start)
            bar.update(task, completed=bytes_read, events=events, rate=so_far, matches=matches)

        yield advance


ALL_US = 2**59
"""A delay that is longer than any time span of events."""
LOCATIONS_OPTIONAL = ("type", "seq", "id")
"""The columns that files of location updates need not have."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `tocsin run`."""

    rules: Path
    events: str
    matches: str | None
    dead_letters: str | None
    names: dict[str, Any]
    """The names of the columns type, ts, seq and id."""
    ts_unit: str | None
    delay: str | None
    limit: int
    master: str
    slots: int | None
    checkpoint: str | None
    changes: str | None
    metrics: str | None
    as_json: bool
    strict: bool = False
    locations: str | None = None
    history: str | None = None

    @property
    def columns(self) -> Columns:
        from tocsin.events.reader import Columns

        return Columns(**self.names, ts_unit=self.ts_unit)

    def print_report(self, report: RunReport) -> int:
        """Print the report and return the exit code, which is 1 if `strict` is true and events were rejected."""
        if self.as_json:
            showing.say(showing.as_json(as_json(report, self.matches, self.dead_letters)))
        else:
            if self.matches is None and self.limit and report.shown is not None:
                showing.show(report.shown, report.counts["matches"])
            showing.summary(report, self.matches, self.dead_letters)
        return 1 if self.strict and report.dead else 0


def run_embedded(ruleset: RuleSet, options: RunOptions) -> int:
    """Run rules in this process, and print the report. Return the exit code."""
    from tocsin.kernels.cache import on_compile

    with on_compile(lambda: showing.notice("compiling the engine (only once, takes a minute or two)")):
        return _embedded(ruleset, options)


def _embedded(ruleset: RuleSet, options: RunOptions) -> int:
    from tocsin.events.files import open_events

    for address in (options.events, options.locations, options.matches, options.dead_letters):
        if address is not None and "://" in address:
            raise TocsinError(f"{address} needs Spark: --engine embedded reads and writes only files")
    source = open_events(options.events, declared=declared_kinds(ruleset), ts_unit=options.ts_unit, **options.names)
    with showing.console(stderr=True).status("reading the columns and times of the events"):
        disorder_us = source.disorder_us(options.ts_unit)
    names: dict[str, Any] = {**options.names, "ts_unit": options.ts_unit}
    locations = None
    if ruleset.interests:
        # A range needs its location updates before the events in the range, so all files are sorted together.
        detector = ruleset.detector(delay=ALL_US, history=options.history or ALL_US, **names)
        if options.locations is not None:
            declared, optional = declared_kinds(ruleset), LOCATIONS_OPTIONAL
            locations = open_events(options.locations, declared=declared, optional=optional, **names)
    else:
        # The delay is as long as any event in the files is late, so that no event is rejected as late.
        detector = ruleset.detector(delay=disorder_us, **names)
    outputs = [Path(path) if path else None for path in (options.matches, options.dead_letters)]
    with errors_in(options.rules):
        report = detect_embedded(
            detector, source, *outputs, limit=options.limit, ts_unit=options.ts_unit, locations=locations
        )
    return options.print_report(report)


def reasons(
    ruleset: RuleSet,
    path: Path,
    events: str,
    id: str | None,
    at: int | None,
    rule: str | None,
    names: Mapping[str, Any],
    ts_unit: str | None,
) -> list[Reason]:
    """Explain the match with the id `id`, or why rules did not match at an event.

    The event is given by its id `id`, or by its time `at` (µs). If `rule` is given, only this rule is explained.
    """
    import pyarrow as pa

    from tocsin.events.files import open_events

    source = open_events(events, declared=declared_kinds(ruleset), ts_unit=ts_unit, **names)
    chunks = list(source.chunks())
    with errors_in(path):
        evidence = ruleset.evidence(pa.concat_tables([chunk.table for chunk in chunks]), **names, ts_unit=ts_unit)
        if rejected := sum(len(chunk.bad) for chunk in chunks) + evidence.rejected.num_rows:
            message = (
                f"{showing.count(rejected, 'row')} of {events} rejected; see the reasons with tocsin run --dead-letters"
            )
            showing.say(message, err=True)
        if id is not None and evidence.has_match(id):
            return [evidence.why(id)]
        return evidence.why_not(id, at, rule)


def once(ruleset: RuleSet, options: RunOptions) -> int:
    """Run rules on Spark over existing events, and print the report. Return the exit code."""
    from tocsin.spark import connectors, runs, sessions
    from tocsin.spark.names import exact

    _check_outputs(options)
    with (
        sessions.plain_errors(),
        errors_in(options.rules),
        showing.console(stderr=True).status("starting Spark") as status,
    ):
        session = runs.connect(options.master, options.slots, (options.events, options.locations, options.matches))
        with exact(session):
            status.update(showing.status_text(f"reading {options.events}"))
            source = connectors.open_table(session, options.events, options.columns, ruleset.types)
            locations = None
            if options.locations is not None:
                types, optional = ruleset.types, LOCATIONS_OPTIONAL
                locations = connectors.open_table(session, options.locations, options.columns, types, optional)
            result = runs.run_once(
                ruleset,
                source,
                options.columns,
                locations=locations,
                history=options.history,
                slots=options.slots,
                matches=options.matches,
                dead_letters=options.dead_letters,
                limit=options.limit,
            )
    return options.print_report(
        RunReport(
            result.counts, result.by_rule, result.shown, result.dead, result.examples, result.seconds, result.reasons,
            result.span,
        )
    )  # fmt: skip


def follow(ruleset: RuleSet, options: RunOptions) -> int:
    """Run rules on Spark over new events until the run is stopped, and print the report. Return the exit code."""
    from tocsin.cli import follow as following
    from tocsin.ruleset import duration_us
    from tocsin.spark import runs, sessions
    from tocsin.spark.names import exact

    _check_outputs(options)
    checkpoint = options.checkpoint or default_checkpoint(options.rules, options.matches)
    showing.say(f"checkpoint: {checkpoint}", err=True)
    follow_options = runs.FollowOptions(
        options.events,
        options.columns,
        checkpoint,
        delay_us=duration_us(options.delay or 0),
        slots=options.slots,
        matches=options.matches,
        dead_letters=options.dead_letters,
        changes=options.changes,
        locations=options.locations,
        history=options.history,
        print_matches=None if options.as_json else following.print_matches,
        log=lambda text: showing.say(text, err=True),
    )
    with sessions.plain_errors(), errors_in(options.rules):
        session = runs.connect(options.master, options.slots, (options.events, options.locations, options.matches))
        with exact(session):
            report, code = following.follow(runs.FollowRun(ruleset, session, follow_options), options.metrics)
    return options.print_report(report) or code


def default_checkpoint(rules: Path, matches: str | None) -> str:
    """Return the default folder of the checkpoint of a --follow run.

    >>> default_checkpoint(Path("rules/fire.tesla"), "fires/"), default_checkpoint(Path("rules/fire.tesla"), None)
    ('fires/.checkpoint', '.tocsin/fire')
    """
    if matches is None or "://" in matches:
        return f".tocsin/{rules.stem}"
    return f"{matches.rstrip('/')}/.checkpoint"


@contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Add the path of the rules to each `RuleError` that the block of a `with` statement raises."""
    try:
        yield
    except RuleError as error:
        raise TocsinError(f"{path}: {error}") from None


def _check_outputs(options: RunOptions) -> None:
    """Raise if an output file is one of the event files, or is in the folder of the events."""
    for path in (options.matches, options.dead_letters):
        if path is None or "://" in path or "://" in options.events:
            continue
        source, output = Path(options.events).resolve(), Path(path).resolve()
        if source == output and source.is_file():
            raise TocsinError(f"{path} is one of the event files; choose another output")
        if source.is_dir() and output.is_relative_to(source):
            raise TocsinError(f"{path} is in the folder of events; choose another output")


def declared_kinds(ruleset: RuleSet) -> dict[str, Kind]:
    """Return the kinds of the attributes that the rules declare, by name.

    An attribute that has different kinds in different types is left out.
    """
    kinds: dict[str, set[Kind]] = defaultdict(set)
    for type in ruleset.types.values():
        for name, kind in type.attributes:
            kinds[name].add(kind)
    return {name: kind for name, (kind, *others) in kinds.items() if not others}
