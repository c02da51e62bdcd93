"""How does `tocsin run` run? In this process, on Spark over what is there, or on Spark following what comes.

What has a run found? The same for every engine, and as JSON for scripts; and how the engine in this process runs.
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
from tocsin.cli.console import console, found_by_rule, rate
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
"""No more than a detector keeps dead letters, so that none is lost if all events are bad."""


@dataclass
class Outcome:
    """Counts, the first matches, and examples of what was set aside."""

    counts: dict[str, int]
    by_rule: Counter[str]
    shown: pa.Table | None
    dead: int
    examples: list[str]
    seconds: float
    reasons: Counter[str] = field(default_factory=Counter)
    """How many dead letters there are for each reason."""
    span: tuple[int, int] | None = None
    """The first and the last time of the events (µs)."""


def as_json(outcome: Outcome, matches: str | None, dead_letters: str | None) -> dict[str, Any]:
    """The outcome for scripts."""
    from tocsin.events.files import records

    return {
        "counts": outcome.counts,
        "by_rule": dict(outcome.by_rule),
        "seconds": round(outcome.seconds, 6),
        "events_per_second": round(outcome.counts["events"] / max(outcome.seconds, 1e-9)),
        "matches": matches or (records(outcome.shown) if outcome.shown is not None else None),
        "dead_letters": dead_letters or outcome.examples,
        "reasons": dict(outcome.reasons.most_common()),
        "span": outcome.span and [showing.moment(ts) for ts in outcome.span],
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
) -> Outcome:
    """Runs in this process, and writes or keeps what comes out."""
    from tocsin.engine.moving.detector import MovingDetector
    from tocsin.events.files import TableWriter

    for path in (matches, dead_letters):
        if path is not None and path.resolve() in {file.resolve() for file in source.paths}:
            raise TocsinError(f"{path} is one of the files of events; write somewhere else")
    with ExitStack() as stack:
        taking = Taking(
            limit,
            stack.enter_context(TableWriter(matches)) if matches else None,
            stack.enter_context(TableWriter(dead_letters)) if dead_letters else None,
        )
        if locations is not None:
            assert isinstance(detector, MovingDetector)
            for chunk in locations.chunks(CHUNK_ROWS):
                taking.take(detector.locate(chunk.table))
                taking.set_aside(detector.dead_letters(), chunk.bad)
        seconds = _drive(detector, source, taking, ts_unit)
    counts = {**detector.counts, "bad_lines": taking.bad_lines}
    return Outcome(
        counts, taking.by_rule, taking.shown(), taking.dead, taking.examples, seconds, taking.reasons, taking.span
    )


@dataclass
class Taking:
    """What a run in this process has found so far."""

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
    kept: list[pa.Table] = field(default_factory=list)

    def take(self, table: pa.Table) -> None:
        """Takes matches as they become certain."""
        if not self.kept or (table.num_rows and self.matches < self.limit):
            self.kept.append(table.slice(0, max(0, self.limit - self.matches)))
        found = found_by_rule(table)
        self.matches += sum(found.values())
        self.by_rule.update(found)
        if self.matches_to:
            self.matches_to.write(table)

    def set_aside(self, letters: pa.Table, bad: list[BadLine]) -> None:
        """Takes late and bad events, and lines that are no events."""
        import pyarrow as pa

        from tocsin.events.dead_letters import count_reasons

        if bad:
            rows = [(f"{line.path}, line {line.line}: {line.reason}", None, None, line.text) for line in bad]
            columns = [pa.array(column, letters.schema.types[at]) for at, column in enumerate(zip(*rows, strict=True))]
            letters = pa.concat_tables([pa.table(columns, schema=letters.schema), letters])
        self.bad_lines += len(bad)
        self.dead += letters.num_rows
        self.reasons.update(count_reasons(letters))
        for row in letters.slice(0, EXAMPLES - len(self.examples)).to_pylist():
            self.examples.append(f"{row['reason']}: {row['event'][:120]}")
        if self.dead_to:
            self.dead_to.write(letters)

    def at(self, ts: Any) -> None:
        """Takes the times of events (µs)."""
        if len(ts):
            first, last = int(ts.min()), int(ts.max())
            self.span = (first, last) if self.span is None else (min(self.span[0], first), max(self.span[1], last))

    def shown(self) -> pa.Table:
        """The first matches."""
        import pyarrow as pa

        return pa.concat_tables(self.kept)


def _drive(detector: Detector | MovingDetector, source: EventFiles, taking: Taking, ts_unit: str | None) -> float:
    """Sends all events through the detector, with a progress bar on a terminal. Returns the seconds it took."""
    from tocsin.events.reader import times_us

    start = perf_counter()
    with _progress(source.bytes_total) as advance:
        for chunk in source.chunks(CHUNK_ROWS):
            taking.at(times_us(chunk.table[source.names["ts"]], ts_unit))
            taking.take(detector.push(chunk.table))
            taking.set_aside(detector.dead_letters(), chunk.bad)
            advance(chunk.bytes_read, detector.counts["events"], taking.matches)
        taking.take(detector.finish())
        taking.set_aside(detector.dead_letters(), [])
    return perf_counter() - start


@contextmanager
def _progress(bytes_total: int) -> Iterator[Any]:
    """A function to call with the bytes read, events and matches so far."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    stderr = console(stderr=True)
    what = TextColumn("{task.fields[events]:,} events  {task.fields[rate]}  {task.fields[matches]:,} matches")
    bar = Progress(
        BarColumn(), TaskProgressColumn(), what, console=stderr, transient=True, disable=not stderr.is_terminal
    )
    start = perf_counter()
    with bar:
        task = bar.add_task("", total=max(1, bytes_total), events=0, rate="", matches=0)

        def advance(bytes_read: int, events: int, matches: int) -> None:
            so_far = rate(events, perf_counter() - start)
            bar.update(task, completed=bytes_read, events=events, rate=so_far, matches=matches)

        yield advance


ALL_US = 2**59
"""A delay within which all events are."""
LOCATIONS_OPTIONAL = ("type", "seq", "id")
"""Columns that location updates need not have."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the options of `tocsin run` say."""

    rules: Path
    events: str
    matches: str | None
    dead_letters: str | None
    names: dict[str, Any]
    """What the columns type, ts, seq and id are called."""
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

    def tell(self, outcome: Outcome) -> int:
        """Prints what was found, and returns the exit code: 1 if rows were rejected that must not be."""
        if self.as_json:
            showing.say(showing.as_json(as_json(outcome, self.matches, self.dead_letters)))
        else:
            if self.matches is None and self.limit and outcome.shown is not None:
                showing.show(outcome.shown, outcome.counts["matches"])
            showing.summary(outcome, self.matches, self.dead_letters)
        return 1 if self.strict and outcome.dead else 0


def run_embedded(ruleset: RuleSet, wanted: Wanted) -> int:
    """The run in this process. Returns the exit code."""
    from tocsin.kernels.cache import telling

    with telling(lambda: showing.remark("compiling the engine: once, for a minute or two")):
        return _embedded(ruleset, wanted)


def _embedded(ruleset: RuleSet, wanted: Wanted) -> int:
    from tocsin.events.files import open_events

    for address in (wanted.events, wanted.locations, wanted.matches, wanted.dead_letters):
        if address is not None and "://" in address:
            raise TocsinError(f"{address} is for Spark: --engine embedded reads and writes files")
    source = open_events(wanted.events, declared=declared_kinds(ruleset), ts_unit=wanted.ts_unit, **wanted.names)
    with showing.console(stderr=True).status("looking at the columns and times of the events"):
        disorder_us = source.disorder_us(wanted.ts_unit)
    names: dict[str, Any] = {**wanted.names, "ts_unit": wanted.ts_unit}
    locations = None
    if ruleset.interests:
        # Ranges need location updates before the events in them, in whichever files these are: all are put in order.
        detector = ruleset.detector(delay=ALL_US, history=wanted.history or ALL_US, **names)
        if wanted.locations is not None:
            declared, optional = declared_kinds(ruleset), LOCATIONS_OPTIONAL
            locations = open_events(wanted.locations, declared=declared, optional=optional, **names)
    else:
        # Files are sorted: events wait for as long as the files are out of order, and none is late.
        detector = ruleset.detector(delay=disorder_us, **names)
    places = [Path(path) if path else None for path in (wanted.matches, wanted.dead_letters)]
    with named(wanted.rules):
        outcome = detect_embedded(
            detector, source, *places, limit=wanted.limit, ts_unit=wanted.ts_unit, locations=locations
        )
    return wanted.tell(outcome)


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
    """Why the match of an id was found, or what became of the rules at an event."""
    import pyarrow as pa

    from tocsin.events.files import open_events

    source = open_events(events, declared=declared_kinds(ruleset), ts_unit=ts_unit, **names)
    chunks = list(source.chunks())
    with named(path):
        evidence = ruleset.evidence(pa.concat_tables([chunk.table for chunk in chunks]), **names, ts_unit=ts_unit)
        if rejected := sum(len(chunk.bad) for chunk in chunks) + evidence.rejected.num_rows:
            told = f"{showing.count(rejected, 'row')} of {events} rejected: tocsin run says why, with --dead-letters"
            showing.say(told, err=True)
        if id is not None and evidence.has_match(id):
            return [evidence.why(id)]
        return evidence.why_not(id, at, rule)


def once(ruleset: RuleSet, wanted: Wanted) -> int:
    """The run on Spark over what is there. Returns the exit code."""
    from tocsin.spark import connectors, runs, sessions
    from tocsin.spark.names import exact

    _check_places(wanted)
    with sessions.plainly(), named(wanted.rules), showing.console(stderr=True).status("starting Spark") as status:
        session = runs.connect(wanted.master, wanted.slots, (wanted.events, wanted.locations, wanted.matches))
        with exact(session):
            status.update(showing.waiting(f"reading {wanted.events}"))
            source = connectors.table(session, wanted.events, wanted.columns, ruleset.types)
            locations = None
            if wanted.locations is not None:
                types, optional = ruleset.types, LOCATIONS_OPTIONAL
                locations = connectors.table(session, wanted.locations, wanted.columns, types, optional)
            found = runs.once(
                ruleset,
                source,
                wanted.columns,
                locations=locations,
                history=wanted.history,
                slots=wanted.slots,
                matches=wanted.matches,
                dead_letters=wanted.dead_letters,
                limit=wanted.limit,
            )
    return wanted.tell(
        Outcome(
            found.counts, found.by_rule, found.shown, found.dead, found.examples, found.seconds, found.reasons,
            found.span,
        )
    )  # fmt: skip


def follow(ruleset: RuleSet, wanted: Wanted) -> int:
    """The run on Spark that goes on. Returns the exit code."""
    from tocsin.cli import follow as following
    from tocsin.ruleset import duration_us
    from tocsin.spark import runs, sessions
    from tocsin.spark.names import exact

    _check_places(wanted)
    checkpoint = wanted.checkpoint or default_checkpoint(wanted.rules, wanted.matches)
    showing.say(f"checkpoint: {checkpoint}", err=True)
    what = runs.Follow(
        wanted.events,
        wanted.columns,
        checkpoint,
        delay_us=duration_us(wanted.delay or 0),
        slots=wanted.slots,
        matches=wanted.matches,
        dead_letters=wanted.dead_letters,
        changes=wanted.changes,
        locations=wanted.locations,
        history=wanted.history,
        printed=None if wanted.as_json else following.print_matches,
        said=lambda text: showing.say(text, err=True),
    )
    with sessions.plainly(), named(wanted.rules):
        session = runs.connect(wanted.master, wanted.slots, (wanted.events, wanted.locations, wanted.matches))
        with exact(session):
            outcome, code = following.follow(runs.Followed(ruleset, session, what), wanted.metrics)
    return wanted.tell(outcome) or code


def default_checkpoint(rules: Path, matches: str | None) -> str:
    """Where a run that follows keeps its state if nobody says.

    >>> default_checkpoint(Path("rules/fire.tesla"), "fires/"), default_checkpoint(Path("rules/fire.tesla"), None)
    ('fires/.checkpoint', '.tocsin/fire')
    """
    if matches is None or "://" in matches:
        return f".tocsin/{rules.stem}"
    return f"{matches.rstrip('/')}/.checkpoint"


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Says in which file a mistake in the rules is."""
    try:
        yield
    except RuleError as error:
        raise TocsinError(f"{path}: {error}") from None


def _check_places(wanted: Wanted) -> None:
    """Fails if something is to be written among the events."""
    for path in (wanted.matches, wanted.dead_letters):
        if path is None or "://" in path or "://" in wanted.events:
            continue
        source, place = Path(wanted.events).resolve(), Path(path).resolve()
        if source == place and source.is_file():
            raise TocsinError(f"{path} is one of the files of events; write somewhere else")
        if source.is_dir() and place.is_relative_to(source):
            raise TocsinError(f"{path} is in the folder of events; write somewhere else")


def declared_kinds(ruleset: RuleSet) -> dict[str, Kind]:
    """What the attributes hold that the rules declare with one kind for all types."""
    kinds: dict[str, set[Kind]] = defaultdict(set)
    for type in ruleset.types.values():
        for name, kind in type.attributes:
            kinds[name].add(kind)
    return {name: kind for name, (kind, *others) in kinds.items() if not others}
