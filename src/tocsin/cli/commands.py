"""The commands and their options."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tocsin.cli import console, serve, sites
from tocsin.cli import run as running
from tocsin.cli.options import Engine, IdColumn, Rules, SeqColumn, TsColumn, TsUnit, TypeColumn, microseconds, rules_of
from tocsin.errors import TocsinError

if TYPE_CHECKING:
    pass

SPARK = "On Spark"
WRONG_USAGE: Any = typer.BadParameter.__base__
"""Click's UsageError, of the click that Typer uses: its own in newer versions."""


class Answering(TyperGroup):
    """Turns what the user can mend into a message and an exit code, and Ctrl-C into a quiet end."""

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
    cls=Answering,
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Complex event processing: say which combination of events matters, and get one match for each time it happens.

    [bold]Try it:[/bold]  tocsin demo

    [bold]Then:[/bold]  tocsin run fire.tesla --events readings.csv
    """


@app.command()
def check(
    rules: Rules,
    events: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Check the rules against the types and attributes of these events, too."),
    ] = None,
    type_column: TypeColumn = "type",
    ts_column: TsColumn = "ts",
    ts_unit: TsUnit = None,
    seq_column: SeqColumn = "seq",
    id_column: IdColumn = None,
) -> None:
    """Read rules and say what they define, or where they are wrong.

    With --events, an attribute that the events do not have is an error, and a type that no event has is a warning.

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
    console.say(f"{rules}: {console.count(len(ruleset), 'rule')}{moving}, no mistake{against}", err=True)


@app.command()
def explain(
    rules: Rules,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the plan into this file instead.")] = None,
) -> None:
    """Show the plan of the rules: what they read, what they share, what they remember.

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
    console.say(f"the plan is in {svg}", err=True)


@app.command()
def run(
    rules: Rules,
    events: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Events: a .parquet, .jsonl, .csv or .events file, a folder of them, or kafka://host:port/topic.",
        ),
    ],
    matches: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Write the matches to this .parquet, .jsonl or .csv file, to a folder, or to kafka://host:port/topic.",
        ),
    ] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Write late and bad events to this file or folder, with the reason."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with exit code 1 if any row was rejected.")] = False,
    locations: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Location updates of the objects that queries follow, if not among the events."
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(help="How far back from a range's start events are kept, such as '1 h'.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    delay: Annotated[
        str | None,
        typer.Option(
            help="With --follow: how much later than others an event may come, such as '5 s'.", show_default="0 s"
        ),
    ] = None,
    type_column: TypeColumn = "type",
    ts_column: TsColumn = "ts",
    ts_unit: TsUnit = None,
    seq_column: SeqColumn = "seq",
    id_column: IdColumn = None,
    limit: Annotated[int, typer.Option(min=0, help="How many matches to show if they are not written.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    engine: Annotated[Engine, typer.Option(help="Where to run: on Spark, or in this process.")] = Engine.SPARK,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.", rich_help_panel=SPARK)] = "local[*]",
    slots: Annotated[
        int | None, typer.Option(min=1, help="Over how many partitions to lay out the rules.", rich_help_panel=SPARK)
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where --follow keeps what it needs to go on.",
            show_default="MATCHES/.checkpoint, or .tocsin/RULES",
            rich_help_panel=SPARK,
        ),
    ] = None,
    rules_folder: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="With --follow: rules change by what 'tocsin change' puts here.",
            rich_help_panel=SPARK,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|PORT",
            help="With --follow: metrics for Prometheus, in a file or on a port of this machine.",
            rich_help_panel=SPARK,
        ),
    ] = None,
) -> None:
    """Run rules over events and show the matches, or write them to a file.

    Without --follow, that is over what is there: it is sorted by time, and no event is late. With it, the run goes on
    with new files of a folder or new messages of a topic, each match is written once, and a run that was stopped goes
    on where it was.

    Rows that cannot be used are rejected: the last line says how many and why, --dead-letters keeps them, and --strict
    makes them an error. It also says from when to when the events are.

    [bold]Look:[/bold]  tocsin run fire.tesla --events readings.csv

    [bold]Keep:[/bold]  tocsin run fire.tesla --events readings/ --matches fires.parquet --dead-letters odd.jsonl

    [bold]Times in milliseconds:[/bold]
    tocsin run fire.tesla --events log.jsonl --ts-column time --ts-unit ms

    [bold]Follow a folder; events may be five seconds late:[/bold]
    tocsin run fire.tesla --events readings/ --matches fires/ --follow --delay "5 s"

    [bold]From Kafka to Kafka, with rules that change:[/bold]
    tocsin run fire.tesla --events kafka://localhost:9092/readings --matches kafka://localhost:9092/fires
    --follow --rules-folder changes/ --metrics 9100

    [bold]Queries that move, and where their objects are:[/bold]
    tocsin run accidents.mcep --events events/ --locations positions.csv

    [bold]Without Spark, for scripts:[/bold]  tocsin run fire.tesla --events log.jsonl --engine embedded --json
    """
    options = {"--delay": delay, "--checkpoint": checkpoint, "--rules-folder": rules_folder, "--metrics": metrics}
    given = [name for name, value in options.items() if value is not None]
    if given and not follow:
        why = ": without it, events are sorted by time" if given[0] == "--delay" else ""
        raise typer.BadParameter(f"this is for --follow only{why}", param_hint=given[0])
    if engine is Engine.EMBEDDED and (follow or slots):
        raise typer.BadParameter("this is for --engine spark", param_hint="--follow" if follow else "--slots")
    ruleset = rules_of(rules)
    for name, value in (("--locations", locations), ("--history", history)):
        if value is not None and not ruleset.interests:
            raise typer.BadParameter(f"{rules} has no interest: this is for queries that move", param_hint=name)
    if ruleset.interests and rules_folder:
        raise typer.BadParameter("this is not for queries that move", param_hint="--rules-folder")
    wanted = running.Wanted(
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
    raise typer.Exit(how(ruleset, wanted))


@app.command()
def why(
    rules: Rules,
    events: Annotated[str, typer.Option(metavar="PATH", help="Events: a file, or a folder of files.")],
    id: Annotated[str | None, typer.Option("--id", help="The id of a match (why), or of an event (why not).")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Or when the event came: 2026-07-01T12:00:00Z, or µs.")
    ] = None,
    rule: Annotated[str | None, typer.Option(metavar="NAME", help="Only this rule.")] = None,
    type_column: TypeColumn = "type",
    ts_column: TsColumn = "ts",
    ts_unit: TsUnit = None,
    seq_column: SeqColumn = "seq",
    id_column: IdColumn = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """Say why a rule matched at an event, or why not: what it asks, what was found, and the first thing not met.

    For rules of TESLA, requests and queries of SiddhiQL, not for queries that move.

    [bold]Why this match:[/bold]  tocsin why fire.tesla --events readings.csv --id 5f0c…

    [bold]Why none here:[/bold]  tocsin why fire.tesla --events readings.csv --at 2026-07-01T12:03:00Z
    """
    names: dict[str, Any] = {"type": type_column, "ts": ts_column, "seq": seq_column, "id": id_column}
    if (id is None) == (at is None):
        raise typer.BadParameter("say which: --id or --at", param_hint="--id")
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
        Path | None, typer.Option(metavar="FILE", help="Rules to add; one with a known name replaces that.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A rule to remove; may be repeated.")] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="From this event time on: ISO 8601, or microseconds.",
            show_default="the time that the run has reached",
        ),
    ] = None,
) -> None:
    """Change the rules of a run that follows events, while it runs.

    [bold]Add:[/bold]  tocsin change changes/ --add flood.tesla

    [bold]Remove, from noon on:[/bold]  tocsin change changes/ --remove Fire --at 2026-07-01T12:00:00Z
    """
    from tocsin.language.eps.ast import Request
    from tocsin.language.siddhi.ast import Query
    from tocsin.language.supported import check_supported
    from tocsin.language.syntax.ast import Rule

    if add is None and not remove:
        raise typer.BadParameter("say what to --add or --remove")
    order: dict[str, object] = {}
    if add is not None:
        ruleset = rules_of(add)
        remedy = "interests do not come and go while a run follows; use a run of its own: `tocsin run`"
        with running.named(add):
            check_supported("`tocsin change`", ruleset.program, Rule, Request, Query, remedy=remedy, verb="add")
        order["add"] = add.read_text(encoding="utf-8")
    if remove:
        order["remove"] = remove
    if at is not None:
        order["at"] = microseconds(at)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{time.time_ns():020}.json"
        hidden = folder / f".{name}"
        hidden.write_text(json.dumps(order, ensure_ascii=False) + "\n", encoding="utf-8")
        hidden.rename(folder / name)
    except OSError as error:
        raise TocsinError(f"{folder} cannot be written: {error.strerror}") from None
    console.say(f"the change is in {folder / name}", err=True)


@app.command()
def rekey(
    rules: Rules,
    checkpoint: Annotated[str, typer.Option(metavar="DIR", help="The checkpoint of a run that is stopped.")],
    to: Annotated[str, typer.Option(metavar="DIR", help="The new checkpoint.")],
    slots: Annotated[int | None, typer.Option(min=1, help="Another number of slots.")] = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.")] = "local[*]",
) -> None:
    """Move the state of a followed stream to a new checkpoint: for more or fewer slots, or for other rules.

    The run then goes on where it was with --checkpoint set to the new folder, and the same folder of matches. Rules
    that are new see events from there on; the state of rules that are not in RULES any more is left behind.

    [bold]Example:[/bold]  tocsin rekey fire.tesla --checkpoint fires/.checkpoint --to fires-8 --slots 8
    """
    ruleset = rules_of(rules)
    from tocsin.spark import runs
    from tocsin.spark.sessions import plainly

    with plainly():
        spark = runs.connect(master, slots, (runs.events_of(checkpoint),))
        before, after = runs.rekey(ruleset, spark, checkpoint, to, slots)
    console.say(f"{to} has the state of {checkpoint}: {before} slots before, {after} now", err=True)


@app.command()
def demo(
    events: Annotated[int, typer.Option(min=1, help="How many events to make up.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Another number makes other events.")] = 1,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.")] = "local[*]",
) -> None:
    """Make up readings of temperature, smoke and rain, and find the fires in them with three rules, on Spark.

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
        typer.Argument(metavar="SCENARIO", help="A YAML file: topology, rules, sources, sinks.", show_default=False),
    ],
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Centr, ST, MT, STpp or MTpp, with +tally for aggregates on the way, or auto; may be repeated.",
            show_default="the scenario's",
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the network with the traffic on its links into this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    check: Annotated[
        bool, typer.Option(help="Compare what each sink gets with the same rules over all events in one place.")
    ] = True,
    goal: Annotated[str, typer.Option(metavar="GOAL", help="What auto makes least: traffic or delay.")] = "traffic",
) -> None:
    """Run rules over sites that are joined by slow links, under virtual time: what is sent, and how long it takes.

    Ends with an error code if a sink did not get what it should.

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
    figure: Annotated[str | None, typer.Option(metavar="N", help="Only this figure, or the one of this claim.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, for a look.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's own sizes.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many times what is drawn at random is drawn.")] = 3,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the CSV and PNG files go.")] = Path("study"),
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="mobility: drive by this trace, as scripts/sumo_trace.py writes them."),
    ] = None,
) -> None:
    """Run the evaluation of a paper on this code: a CSV and a PNG for each figure, and what holds of its claims.

    Ends with an error code if a claim fails.

    [bold]Examples:[/bold]  tocsin study eps --quick     tocsin study all --out results
    """
    if quick and full:
        raise typer.BadParameter("one of --quick and --full, not both")
    if trace is not None and name != "mobility":
        raise typer.BadParameter("--trace is for the study of mobility")
    from tocsin.cli.simulate import studied

    if not studied(name, figure, quick=quick, full=full, seeds=seeds, out=out, trace=trace):
        raise typer.Exit(1)


def main() -> None:
    """The `tocsin` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
