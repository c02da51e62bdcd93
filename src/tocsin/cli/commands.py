"""The commands of `tocsin` and their options. The docstrings of the commands are the texts of `--help`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tocsin.cli import console, serve, sites
from tocsin.cli import run as running
from tocsin.cli.options import Engine, IdColumn, Rules, SeqColumn, TsColumn, TsUnit, TypeColumn, microseconds, rules_of
from tocsin.errors import TocsinError

SPARK = "On Spark"
WRONG_USAGE: Any = typer.BadParameter.__base__
"""The class `UsageError` of the Click that Typer uses. Newer versions of Typer bundle their own Click."""


class ErrorReportingGroup(TyperGroup):
    """Runs a command, and converts user errors to a message and an exit code. Ctrl-C exits without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TocsinError as error:
            console.say(f"tocsin: {error}", err=True)
            raise typer.Exit(1) from None
        except WRONG_USAGE as error:
            error.message = console.lines(error.message)
            raise
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=ErrorReportingGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from tocsin import __version__

        console.say(f"tocsin {__version__}")
        raise typer.Exit


@app.callback()
def tocsin(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Complex event processing: define combinations of events as rules, and get a match for each occurrence.

    [bold]Try it:[/bold]  tocsin demo

    [bold]Then:[/bold]  tocsin run fire.tesla --events readings.csv
    """


@app.command()
def check(
    rules: Rules,
    events: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Also check the rules against the types and attributes of these events."),
    ] = None,
    type_column: TypeColumn = "type",
    ts_column: TsColumn = "ts",
    ts_unit: TsUnit = None,
    seq_column: SeqColumn = "seq",
    id_column: IdColumn = None,
) -> None:
    """Check rules and print the event types that they define.

    With --events, an attribute that the events do not have is an error, and a type without events is a warning.

    [bold]Example:[/bold]  tocsin check fire.tesla

    [bold]Against events:[/bold]  tocsin check fire.tesla --events readings.csv
    """
    ruleset = rules_of(rules)
    against = ""
    if events is not None:
        from tocsin.cli.check import check_events

        names = {"type": type_column, "ts": ts_column, "seq": seq_column, "id": id_column}
        against = f"; {check_events(ruleset, rules, events, names, ts_unit and ts_unit.value)}"
    for rule in ruleset.rules:
        console.say(f"{rule.name}: {rule.emits}")
    for interest in ruleset.interests:
        console.say(f"{interest.name}: {', '.join(interest.delivers)} around {interest.focal.type}")
    moving = f" and {console.count(len(ruleset.interests), 'interest')}" if ruleset.interests else ""
    console.say(f"{rules}: {console.count(len(ruleset), 'rule')}{moving}, no errors{against}", err=True)


@app.command()
def explain(
    rules: Rules,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan as SVG to this file.")] = None,
) -> None:
    """Show the plan of the rules: what they read, what they share, and what state they keep.

    [bold]As text:[/bold]  tocsin explain fire.tesla

    [bold]As a drawing:[/bold]  tocsin explain fire.tesla --svg plan.svg
    """
    ruleset = rules_of(rules)
    if svg is None:
        console.say(ruleset.explain())
        return
    try:
        svg.write_text(ruleset.explain_svg(), encoding="utf-8")
    except OSError as error:
        raise TocsinError(f"{svg} cannot be written: {error.strerror}") from None
    console.say(f"plan written to {svg}", err=True)


@app.command()
def run(
    rules: Rules,
    events: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="The events: a .parquet, .jsonl, .csv or .events file, a folder of such files, or kafka://host:port/topic.",
        ),
    ],
    matches: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Write the matches to a .parquet, .jsonl or .csv file, a folder, or kafka://host:port/topic.",
        ),
    ] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Write rejected events with the reason to this file or folder."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if any event was rejected.")] = False,
    locations: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Location updates for moving queries, if they are not among the events."),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(help="How long events are kept for ranges that start later, such as '1 h'.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Process new events as they arrive, until Ctrl-C.")] = False,
    delay: Annotated[
        str | None,
        typer.Option(help="With --follow: how late events may arrive, such as '5 s'.", show_default="0 s"),
    ] = None,
    type_column: TypeColumn = "type",
    ts_column: TsColumn = "ts",
    ts_unit: TsUnit = None,
    seq_column: SeqColumn = "seq",
    id_column: IdColumn = None,
    limit: Annotated[int, typer.Option(min=0, help="The number of matches to print without --matches.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    engine: Annotated[Engine, typer.Option(help="Run on Spark, or embedded in this process.")] = Engine.SPARK,
    master: Annotated[str, typer.Option(metavar="URL", help="The Spark master.", rich_help_panel=SPARK)] = "local[*]",
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="The number of partitions over which rules are distributed.", rich_help_panel=SPARK),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder with the state of a --follow run.",
            show_default="MATCHES/.checkpoint, or .tocsin/RULES",
            rich_help_panel=SPARK,
        ),
    ] = None,
    rules_folder: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="With --follow: the folder to which 'tocsin change' writes rule changes.",
            rich_help_panel=SPARK,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|PORT",
            help="With --follow: Prometheus metrics, in a file or on a local port.",
            rich_help_panel=SPARK,
        ),
    ] = None,
) -> None:
    """Run rules over events and print the matches, or write them to a file.

    Without --follow, existing events are sorted by time and processed once; no event is late. With --follow, new files
    of a folder or new messages of a topic are processed as they arrive. Each match is written once, and a stopped run
    resumes where it stopped.

    Invalid events are rejected. The last line has their number and the reasons, and the time span of the events.
    --dead-letters writes rejected events to a file; --strict makes them an error.

    [bold]Print matches:[/bold]  tocsin run fire.tesla --events readings.csv

    [bold]Write:[/bold]  tocsin run fire.tesla --events readings/ --matches fires.parquet --dead-letters odd.jsonl

    [bold]Times in milliseconds:[/bold]
    tocsin run fire.tesla --events log.jsonl --ts-column time --ts-unit ms

    [bold]Follow a folder, with events up to five seconds late:[/bold]
    tocsin run fire.tesla --events readings/ --matches fires/ --follow --delay "5 s"

    [bold]From Kafka to Kafka, with rule changes:[/bold]
    tocsin run fire.tesla --events kafka://localhost:9092/readings --matches kafka://localhost:9092/fires
    --follow --rules-folder changes/ --metrics 9100

    [bold]Moving queries with location updates:[/bold]
    tocsin run accidents.mcep --events events/ --locations positions.csv

    [bold]Without Spark, for scripts:[/bold]  tocsin run fire.tesla --events log.jsonl --engine embedded --json
    """
    options = {"--delay": delay, "--checkpoint": checkpoint, "--rules-folder": rules_folder, "--metrics": metrics}
    given = [name for name, value in options.items() if value is not None]
    if given and not follow:
        reason = ": without it, events are sorted by time" if given[0] == "--delay" else ""
        raise typer.BadParameter(f"this needs --follow{reason}", param_hint=given[0])
    if engine is Engine.EMBEDDED and (follow or slots):
        raise typer.BadParameter("this needs --engine spark", param_hint="--follow" if follow else "--slots")
    ruleset = rules_of(rules)
    for name, value in (("--locations", locations), ("--history", history)):
        if value is not None and not ruleset.interests:
            raise typer.BadParameter(f"{rules} has no interest: this needs moving queries", param_hint=name)
    if ruleset.interests and rules_folder:
        raise typer.BadParameter("not supported for moving queries", param_hint="--rules-folder")
    run_options = running.RunOptions(
        rules=rules,
        events=events,
        matches=matches,
        dead_letters=dead_letters,
        names={"type": type_column, "ts": ts_column, "seq": seq_column, "id": id_column},
        ts_unit=ts_unit and ts_unit.value,
        delay=delay,
        limit=limit,
        master=master,
        slots=slots,
        checkpoint=checkpoint,
        changes=rules_folder,
        metrics=metrics,
        as_json=as_json,
        strict=strict,
        locations=locations,
        history=history,
    )
    how = running.run_embedded if engine is Engine.EMBEDDED else running.follow if follow else running.once
    raise typer.Exit(how(ruleset, run_options))


@app.command()
def why(
    rules: Rules,
    events: Annotated[str, typer.Option(metavar="PATH", help="The events: a file, or a folder of files.")],
    id: Annotated[str | None, typer.Option("--id", help="The id of a match or of an event.")] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The time of the event instead: 2026-07-01T12:00:00Z, or microseconds."),
    ] = None,
    rule: Annotated[str | None, typer.Option(metavar="NAME", help="Only this rule.")] = None,
    type_column: TypeColumn = "type",
    ts_column: TsColumn = "ts",
    ts_unit: TsUnit = None,
    seq_column: SeqColumn = "seq",
    id_column: IdColumn = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """Explain why a rule matched at an event, or why not: conditions, events, and the first failed condition.

    Supports TESLA rules, requests and SiddhiQL queries, not moving queries.

    [bold]Why this match:[/bold]  tocsin why fire.tesla --events readings.csv --id 5f0c…

    [bold]Why none here:[/bold]  tocsin why fire.tesla --events readings.csv --at 2026-07-01T12:03:00Z
    """
    names: dict[str, Any] = {"type": type_column, "ts": ts_column, "seq": seq_column, "id": id_column}
    if (id is None) == (at is None):
        raise typer.BadParameter("give either --id or --at", param_hint="--id")
    moment = None if at is None else microseconds(at)
    reasons = running.reasons(rules_of(rules), rules, events, id, moment, rule, names, ts_unit and ts_unit.value)
    if as_json:
        console.say(console.as_json([reason.as_data() for reason in reasons]))
    else:
        console.say("\n\n".join(map(str, reasons)))


@app.command()
def change(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The --rules-folder of a run.", show_default=False)],
    add: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rules to add; they replace rules of the same names.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A rule to remove; may be repeated.")] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The event time from which the change applies: ISO 8601, or microseconds.",
            show_default="the current time of the run",
        ),
    ] = None,
) -> None:
    """Add or remove rules of a --follow run while it runs.

    [bold]Add:[/bold]  tocsin change changes/ --add flood.tesla

    [bold]Remove, from noon on:[/bold]  tocsin change changes/ --remove Fire --at 2026-07-01T12:00:00Z
    """
    from tocsin.language.eps.ast import Request
    from tocsin.language.siddhi.ast import Query
    from tocsin.language.supported import check_supported
    from tocsin.language.syntax.ast import Rule

    if add is None and not remove:
        raise typer.BadParameter("give --add or --remove")
    change_data: dict[str, object] = {}
    if add is not None:
        ruleset = rules_of(add)
        remedy = "interests cannot change while a run follows; start a separate run: `tocsin run`"
        with running.errors_in(add):
            check_supported("`tocsin change`", ruleset.program, Rule, Request, Query, remedy=remedy, verb="add")
        change_data["add"] = add.read_text(encoding="utf-8")
    if remove:
        change_data["remove"] = remove
    if at is not None:
        change_data["at"] = microseconds(at)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{time.time_ns():020}.json"
        hidden = folder / f".{name}"
        hidden.write_text(json.dumps(change_data, ensure_ascii=False) + "\n", encoding="utf-8")
        hidden.rename(folder / name)
    except OSError as error:
        raise TocsinError(f"{folder} cannot be written: {error.strerror}") from None
    console.say(f"change written to {folder / name}", err=True)


@app.command()
def rekey(
    rules: Rules,
    checkpoint: Annotated[str, typer.Option(metavar="DIR", help="The checkpoint of a stopped run.")],
    to: Annotated[str, typer.Option(metavar="DIR", help="The new checkpoint.")],
    slots: Annotated[int | None, typer.Option(min=1, help="The new number of slots.")] = None,
    master: Annotated[str, typer.Option(metavar="URL", help="The Spark master.")] = "local[*]",
) -> None:
    """Copy the state of a stopped --follow run to a new checkpoint, with another number of slots or other rules.

    Resume the run with --checkpoint set to the new folder, and with the same folder of matches. New rules process
    events from the point at which the run resumes. The state of rules that are not in RULES is dropped.

    [bold]Example:[/bold]  tocsin rekey fire.tesla --checkpoint fires/.checkpoint --to fires-8 --slots 8
    """
    ruleset = rules_of(rules)
    from tocsin.spark import runs
    from tocsin.spark.sessions import plain_errors

    with plain_errors():
        spark = runs.connect(master, slots, (runs.events_of(checkpoint),))
        before, after = runs.rekey(ruleset, spark, checkpoint, to, slots)
    console.say(f"{to} has the state of {checkpoint}: {before} slots before, {after} now", err=True)


@app.command()
def demo(
    events: Annotated[int, typer.Option(min=1, help="The number of generated events.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the generated events.")] = 1,
    master: Annotated[str, typer.Option(metavar="URL", help="The Spark master.")] = "local[*]",
) -> None:
    """Generate readings of temperature, smoke and rain, and detect fires in them with three rules on Spark.

    [bold]Examples:[/bold]  tocsin demo     tocsin demo --events 100000 --seed 7
    """
    from tocsin.cli.simulate import demo

    demo(events, seed, master)


app.command()(serve.serve)
app.command()(serve.token)


@app.command()
def simulate(
    scenario: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO", help="A YAML file with topology, rules, sources and sinks.", show_default=False
        ),
    ],
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Centr, ST, MT, STpp or MTpp, with +aggregates for in-network aggregation, or auto; may be repeated.",
            show_default="the scenario's",
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a drawing of the network and its traffic to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    check: Annotated[
        bool, typer.Option(help="Compare each sink's matches with those of a single engine over all events.")
    ] = True,
    goal: Annotated[str, typer.Option(metavar="GOAL", help="What auto minimizes: traffic or delay.")] = "traffic",
) -> None:
    """Simulate rules on sites with slow links, in virtual time, and report traffic and delays.

    Exits with code 1 if a sink got wrong matches.

    [bold]Example:[/bold]  tocsin simulate examples/sites/fire.yaml --strategy ST --strategy MT --svg fire.svg
    """
    from tocsin.cli.simulate import simulated

    if not simulated(scenario, strategy or [], svg, as_json=as_json, check=check, goal=goal):
        raise typer.Exit(1)


app.add_typer(sites.site, name="site")


@app.command()
def study(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="trex, reliability, eps, visiri, mobility, or all.", show_default=False),
    ],
    figure: Annotated[str | None, typer.Option(metavar="N", help="Only this figure, or that of this claim.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's own sizes.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="The number of random seeds per data point.")] = 3,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for CSV and PNG files.")] = Path("study"),
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For mobility: a trace written by scripts/sumo_trace.py."),
    ] = None,
) -> None:
    """Repeat the evaluation of a paper: write a CSV and a PNG for each figure, and check the paper's claims.

    Exits with code 1 if a claim fails.

    [bold]Examples:[/bold]  tocsin study eps --quick     tocsin study all --out results
    """
    if quick and full:
        raise typer.BadParameter("--quick and --full exclude each other")
    if trace is not None and name != "mobility":
        raise typer.BadParameter("--trace needs the study mobility")
    from tocsin.cli.simulate import studied

    if not studied(name, figure, quick=quick, full=full, seeds=seeds, out=out, trace=trace):
        raise typer.Exit(1)


def main() -> None:
    """Run the `tocsin` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
