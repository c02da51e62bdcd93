"""What does a shell see? `tocsin check`, `explain`, `run` and `demo`.

Results go to stdout, all else to stderr. Exit codes: 0 fine, 1 a mistake in the rules or the events (one block of text
says where), 2 wrong usage, 130 stopped by Ctrl-C. Whatever is slow to import is imported when a command needs it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tocsin.errors import RuleError, TocsinError, nearest

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from tocsin.api import RuleSet
    from tocsin.engine.detector import Detector
    from tocsin.events.files import EventFiles, TableWriter
    from tocsin.events.lines import BadLine
    from tocsin.events.types import Kind

ENGINES = ("embedded",)
EXAMPLES = 3
CHUNK_ROWS = 100_000
"""No more than a detector keeps dead letters, so that none is lost if all events are bad."""
WIDE = 160


class Answering(TyperGroup):
    """Turns what the user can mend into a message and an exit code, and Ctrl-C into a quiet end."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TocsinError as error:
            typer.echo(f"tocsin: {error}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Answering,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Unit(StrEnum):
    """What a whole number in the time column counts."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


Rules = Annotated[Path, typer.Argument(metavar="RULES", help="A file of rules.", show_default=False)]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tocsin {version('tocsin')}")
        raise typer.Exit


@app.callback()
def tocsin(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Complex event processing: say which combination of events matters, and get one match for each time it happens.

    [bold]Try it:[/bold]  tocsin demo

    [bold]Then:[/bold]  tocsin run fire.tesla --events readings.csv
    """


@app.command()
def check(rules: Rules) -> None:
    """Read rules and say what they define, or where they are wrong.

    [bold]Example:[/bold]  tocsin check fire.tesla
    """
    ruleset = _rules(rules)
    for rule in ruleset.rules:
        typer.echo(f"{rule.name}: {rule.emits}")
    typer.echo(f"{rules}: {_count(len(ruleset), 'rule')}, no mistake", err=True)


@app.command()
def explain(
    rules: Rules,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the plan into this file instead.")] = None,
) -> None:
    """Show the plan of the rules: what they read, what they share, what they remember.

    [bold]As text:[/bold]  tocsin explain fire.tesla

    [bold]As a drawing:[/bold]  tocsin explain fire.tesla --svg plan.svg
    """
    ruleset = _rules(rules)
    if svg is None:
        typer.echo(ruleset.explain())
        return
    try:
        svg.write_text(ruleset.explain_svg(), encoding="utf-8")
    except OSError as error:
        raise TocsinError(f"{svg} cannot be written: {error.strerror}") from None
    typer.echo(f"the plan is in {svg}", err=True)


@app.command()
def run(
    rules: Rules,
    events: Annotated[
        Path,
        typer.Option(metavar="PATH", help="Events: a .parquet, .jsonl, .csv or .events file, or a folder of them."),
    ],
    matches: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the matches to this .parquet, .jsonl or .csv file.")
    ] = None,
    dead_letters: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write late and bad events to this file, with the reason.")
    ] = None,
    delay: Annotated[str, typer.Option(help="How much later than others an event may come, such as '5 s'.")] = "0 s",
    ordered: Annotated[bool, typer.Option("--ordered", help="The events are in order: wait for none.")] = False,
    type_column: Annotated[str, typer.Option(help="The column with the type of each event.")] = "type",
    ts_column: Annotated[str, typer.Option(help="The column with its time.")] = "ts",
    ts_unit: Annotated[
        Unit | None, typer.Option(help="What whole numbers in that column count.", show_default="microseconds")
    ] = None,
    seq_column: Annotated[str, typer.Option(help="The column that orders events of one instant, if any.")] = "seq",
    id_column: Annotated[str, typer.Option(help="The column with the event's own id, if any.")] = "id",
    limit: Annotated[int, typer.Option(min=0, help="How many matches to show if they are not written.")] = 20,
    engine: Annotated[str, typer.Option(help="Where to run: embedded (in this process).")] = "embedded",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Run rules over events and show the matches, or write them to a file.

    [bold]Look:[/bold]  tocsin run fire.tesla --events readings.csv

    [bold]Keep:[/bold]  tocsin run fire.tesla --events readings/ --matches fires.parquet --dead-letters odd.jsonl

    [bold]Events up to five seconds late, times in milliseconds:[/bold]
    tocsin run fire.tesla --events log.jsonl --delay "5 s" --ts-column time --ts-unit ms

    [bold]For scripts:[/bold]  tocsin run fire.tesla --events log.jsonl --json
    """
    if engine not in ENGINES:
        raise typer.BadParameter(
            f"there is no engine '{engine}' yet; there is: {', '.join(ENGINES)}", param_hint="--engine"
        )
    from tocsin.events.files import TableWriter, open_events

    names = {"type": type_column, "ts": ts_column, "seq": seq_column, "id": id_column}
    ruleset = _rules(rules)
    source = open_events(events, declared=_declared(ruleset), **names)
    for path in (matches, dead_letters):
        if path is not None and path.resolve() in {file.resolve() for file in source.paths}:
            raise TocsinError(f"{path} is one of the files of events; write somewhere else")
    detector = ruleset.detector(delay=delay, ordered=ordered, ts_unit=ts_unit and ts_unit.value, **names)
    with _named(rules), ExitStack() as stack:
        outcome = Outcome(
            limit,
            stack.enter_context(TableWriter(matches)) if matches else None,
            stack.enter_context(TableWriter(dead_letters)) if dead_letters else None,
        )
        _drive(detector, source, outcome)
    if as_json:
        typer.echo(json.dumps(_report(outcome, detector, matches, dead_letters), ensure_ascii=False))
        return
    if matches is None and limit:
        _show(outcome.shown(), outcome.matches)
    _summary(outcome, detector, matches, dead_letters)


@app.command()
def demo(
    events: Annotated[int, typer.Option(min=1, help="How many events to make up.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Another number makes other events.")] = 1,
) -> None:
    """Make up readings of temperature, smoke and rain, and find the fires in them with three rules.

    [bold]Examples:[/bold]  tocsin demo     tocsin demo --events 100000 --seed 7
    """
    import tocsin
    from tocsin.events.scenarios import fire_events, fire_rules

    console = _console()
    text = fire_rules()
    console.print(text, markup=False, highlight=False)
    areas = max(1, min(1_000, events // 1_000))
    table = fire_events(events, areas=areas, rate=areas / 10, seed=seed)
    hours = (table["ts"][-1].value - table["ts"][0].value) / 3_600e6
    console.print(f"{events:,} events of {_count(areas, 'area')} over {hours:.1f} hours, made from seed {seed}.")

    ruleset = tocsin.rules(text)
    start = perf_counter()
    with _stderr().status("compiling kernels, once"):
        first = ruleset.detector()
        first.push(table.slice(0, 100_000))
        first.snapshot()
    if (compiled_s := perf_counter() - start) > 1:
        console.print(f"Kernels compiled in {compiled_s:.1f} s, once: they are kept for the next run.")
    start = perf_counter()
    matches = ruleset.detect(table)
    seconds = perf_counter() - start
    _show(matches.slice(0, 10), matches.num_rows)
    found = _found(matches)
    console.print("Matches: " + ", ".join(f"{rule.name} {found.get(rule.name, 0):,}" for rule in ruleset.rules))
    console.print(f"{events:,} events in {seconds:.2f} s: {_rate(events, seconds)}")


@dataclass
class Outcome:
    """What a run has found so far: counts, the first matches, examples of what was set aside."""

    limit: int
    matches_to: TableWriter | None
    dead_to: TableWriter | None
    matches: int = 0
    by_rule: Counter[str] = field(default_factory=Counter)
    bad_lines: int = 0
    dead: int = 0
    examples: list[str] = field(default_factory=list)
    kept: list[pa.Table] = field(default_factory=list)
    seconds: float = 0.0

    def take(self, table: pa.Table) -> None:
        """Takes matches as they become certain."""
        if not self.kept or (table.num_rows and self.matches < self.limit):
            self.kept.append(table.slice(0, max(0, self.limit - self.matches)))
        self.matches += table.num_rows
        self.by_rule.update(_found(table))
        if self.matches_to:
            self.matches_to.write(table)

    def set_aside(self, letters: pa.Table, bad: list[BadLine]) -> None:
        """Takes late and bad events, and lines that are no events."""
        import pyarrow as pa

        if bad:
            rows = [(f"{line.path}, line {line.line}: {line.reason}", None, None, line.text) for line in bad]
            columns = [pa.array(column, letters.schema.types[at]) for at, column in enumerate(zip(*rows, strict=True))]
            letters = pa.concat_tables([pa.table(columns, schema=letters.schema), letters])
        self.bad_lines += len(bad)
        self.dead += letters.num_rows
        for row in letters.slice(0, EXAMPLES - len(self.examples)).to_pylist():
            self.examples.append(f"{row['reason']}: {row['event'][:120]}")
        if self.dead_to:
            self.dead_to.write(letters)

    def shown(self) -> pa.Table:
        """The first matches."""
        import pyarrow as pa

        return pa.concat_tables(self.kept)


def _drive(detector: Detector, source: EventFiles, outcome: Outcome) -> None:
    """Sends all events through the detector, with a progress bar on a terminal."""
    start = perf_counter()
    with _stderr().status(f"looking at the columns of {source.source}"):
        _ = source.schema
    with _progress(source.bytes_total) as advance:
        for chunk in source.chunks(CHUNK_ROWS):
            outcome.take(detector.push(chunk.table))
            outcome.set_aside(detector.dead_letters(), chunk.bad)
            advance(chunk.bytes_read, detector.counts["events"], outcome.matches)
        outcome.take(detector.finish())
        outcome.set_aside(detector.dead_letters(), [])
    outcome.seconds = perf_counter() - start


@contextmanager
def _progress(bytes_total: int) -> Iterator[Any]:
    """A function to call with the bytes read, events and matches so far."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = _stderr()
    what = TextColumn("{task.fields[events]:,} events  {task.fields[rate]}  {task.fields[matches]:,} matches")
    bar = Progress(
        BarColumn(), TaskProgressColumn(), what, console=console, transient=True, disable=not console.is_terminal
    )
    start = perf_counter()
    with bar:
        task = bar.add_task("", total=max(1, bytes_total), events=0, rate="", matches=0)

        def advance(bytes_read: int, events: int, matches: int) -> None:
            rate = _rate(events, perf_counter() - start)
            bar.update(task, completed=bytes_read, events=events, rate=rate, matches=matches)

        yield advance


def _report(outcome: Outcome, detector: Detector, matches: Path | None, dead_letters: Path | None) -> dict[str, Any]:
    from tocsin.events.files import records

    counts = detector.counts
    return {
        "counts": {**counts, "bad_lines": outcome.bad_lines},
        "by_rule": dict(outcome.by_rule),
        "seconds": round(outcome.seconds, 6),
        "events_per_second": round(counts["events"] / max(outcome.seconds, 1e-9)),
        "matches": str(matches) if matches else records(outcome.shown()),
        "dead_letters": str(dead_letters) if dead_letters else outcome.examples,
    }


def _summary(outcome: Outcome, detector: Detector, matches: Path | None, dead_letters: Path | None) -> None:
    """What happened, in a few lines on stderr."""
    events = detector.counts["events"]
    typer.echo(f"{_count(events, 'event')} in {outcome.seconds:.2f} s: {_rate(events, outcome.seconds)}", err=True)
    rules = f" ({', '.join(f'{name} {found:,}' for name, found in sorted(outcome.by_rule.items())[:8])})"
    where = f", in {matches}" if matches else ""
    typer.echo(f"{_count(outcome.matches, 'match')}{rules if outcome.by_rule else ''}{where}", err=True)
    if outcome.dead:
        where = f"in {dead_letters}" if dead_letters else "--dead-letters FILE keeps them"
        typer.echo(f"{_count(outcome.dead, 'event')} set aside as late or bad; {where}. The first:", err=True)
        for example in outcome.examples:
            typer.echo(f"  {example}", err=True)


def _show(table: pa.Table, total: int) -> None:
    """Matches as a table on stdout."""
    from rich.table import Column, Table

    from tocsin.events.files import records

    if not total:
        typer.echo("no matches")
        return
    title = (
        _count(total, "match")
        if total == table.num_rows
        else f"the first {table.num_rows:,} of {_count(total, 'match')}"
    )
    names = [name for name in table.column_names if name not in ("id", "parts")]
    columns = [Column(name, overflow="fold") for name in (*names, "made of")]
    shown = Table(*columns, title=title, title_justify="left")
    for record in records(table):
        parts = ", ".join(f"{part['role']} {_clock(part['ts'])}" for part in record["parts"])
        shown.add_row(*("" if record[name] is None else str(record[name]) for name in names), parts)
    _console().print(shown)


def _clock(ts: str | int) -> str:
    """The time of day of an ISO time; a number as it is."""
    return ts[11:23] if isinstance(ts, str) else str(ts)


def _rules(path: Path) -> RuleSet:
    import tocsin

    if not path.is_file():
        beside = [file.name for file in path.parent.iterdir() if file.is_file()] if path.parent.is_dir() else []
        raise RuleError(f"there is no file {path}", hint=nearest(path.name, beside))
    with _named(path):
        return tocsin.rules(path)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Says in which file a mistake in the rules is."""
    try:
        yield
    except RuleError as error:
        raise TocsinError(f"{path}: {error}") from None


def _declared(ruleset: RuleSet) -> dict[str, Kind]:
    """What the attributes hold that the rules declare with one kind for all types."""
    kinds: dict[str, set[Kind]] = defaultdict(set)
    for type in ruleset.types.values():
        for name, kind in type.attributes:
            kinds[name].add(kind)
    return {name: kind for name, (kind, *others) in kinds.items() if not others}


def _found(matches: pa.Table) -> dict[str, int]:
    """How many matches each rule has."""
    counted: Any = matches["rule"].value_counts()
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else WIDE, soft_wrap=False)


def _stderr() -> Console:
    return _console(stderr=True)


def _count(number: int, noun: str) -> str:
    plural = noun if number == 1 else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {plural}"


def _rate(events: int, seconds: float) -> str:
    rate = events / max(seconds, 1e-9)
    return f"{rate / 1e6:.2f} M events/s" if rate >= 1e5 else f"{rate:,.0f} events/s"


def main() -> None:
    """The `tocsin` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
