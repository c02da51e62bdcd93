"""Run the commands `tocsin simulate`, `tocsin study` and `tocsin demo`.

`simulate` runs a scenario once for each strategy, `study` repeats the evaluation of a paper, and `demo` detects fires
in generated events on Spark.
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from tocsin.cli import console as showing
from tocsin.cli.console import console, count, rate, show
from tocsin.errors import TocsinError, nearest

WARM_ROWS = 20_000


def demo(events: int, seed: int, master: str) -> None:
    """Generate events, detect fires in them with three rules on Spark, and print the matches."""
    import pyarrow.parquet as pq

    import tocsin
    from tocsin.datasets import fire_events, fire_rules
    from tocsin.events.reader import Columns
    from tocsin.spark import connectors, runs, sessions

    out = console()
    text = fire_rules()
    out.print(text, markup=False, highlight=False)
    ruleset = tocsin.rules(text)
    areas = max(1, min(1_000, events // 1_000))
    with (
        sessions.plain_errors(),
        tempfile.TemporaryDirectory(prefix="tocsin-demo-") as folder,
        ThreadPoolExecutor(1) as executor,
        console(stderr=True).status("starting Spark, compiling kernels"),
    ):
        begun = perf_counter()
        starting = executor.submit(runs.connect, master, None, ())
        table = fire_events(events, areas=areas, rate=areas / 10, seed=seed)
        first, everything = Path(folder) / "first.parquet", Path(folder) / "events.parquet"
        pq.write_table(table.slice(0, WARM_ROWS), first)
        pq.write_table(table, everything, row_group_size=max(1, events // 8))
        # This compiles the kernels to disk, from where the Spark workers load them.
        warm = ruleset.detector()
        warm.push(table.slice(0, WARM_ROWS))
        warm.snapshot()
        session = starting.result()
        runs.run_once(ruleset, connectors.open_table(session, str(first), Columns(), {}), Columns(), limit=1)
        ready_s = perf_counter() - begun
        result = runs.run_once(
            ruleset, connectors.open_table(session, str(everything), Columns(), {}), Columns(), limit=10
        )
    hours = (table["ts"][-1].value - table["ts"][0].value) / 3_600e6
    out.print(f"{events:,} events of {count(areas, 'area')} over {hours:.1f} hours, generated from seed {seed}.")
    assert result.shown is not None
    show(result.shown, result.counts["matches"])
    out.print("Matches: " + ", ".join(f"{rule.name} {result.by_rule[rule.name]:,}" for rule in ruleset.rules))
    out.print(f"Spark {session.version} on {master}, ready after {ready_s:.1f} s.", highlight=False)
    out.print(f"{events:,} events in {result.seconds:.2f} s: {rate(events, result.seconds)}")


def simulated(
    path: Path, strategies: list[str], svg: Path | None, *, as_json: bool, check: bool, goal: str = "traffic"
) -> bool:
    """Run a scenario once for each strategy, and print the traffic and delays.

    Return whether every sink got the expected matches. If `check` is false, return true.
    """
    from tocsin.overlay.strategies import strategy
    from tocsin.simulation import scenarios
    from tocsin.simulation.checking import wrong_sinks
    from tocsin.simulation.predictions import GOALS, best, predict
    from tocsin.simulation.runs import picture, run

    scenario = scenarios.read(path)
    chosen = [strategy(name) for name in strategies if name != scenarios.AUTO]
    predictions: list[dict[str, Any]] = []
    if len(chosen) < len(strategies) or not (strategies or scenario.strategies):
        if goal not in GOALS:
            raise TocsinError(f"there is no goal '{goal}'. {nearest(goal, GOALS)}")
        result = predict(scenario.sites, scenario.rates, scenario.types, scenario.rules, scenario.values)
        pick = best(result, goal)
        predictions = [{**asdict(one), "chosen": one is pick} for one in result]
        chosen.append(strategy(pick.strategy))
        if not as_json:
            _show_predictions(predictions)
    chosen = chosen or list(scenario.strategies)
    end_s = scenario.warm_up_s + scenario.seconds
    outcomes: list[dict[str, Any]] = []
    for one in chosen:
        cuts = [scenario.warm_up_s, end_s] if scenario.warm_up_s else [end_s]
        outcome, network = run(
            scenario.sites, one, scenario.types, scenario.rules, scenario.events, scenario.where,
            epochs_s=cuts, measured_from_s=scenario.warm_up_s, changes=scenario.changes,
        )  # fmt: skip
        row: dict[str, Any] = {
            "strategy": one.name,
            "messages_per_s": round(outcome.traffic / outcome.seconds, 2),
            "bytes_per_s": round(outcome.bytes / outcome.seconds, 1),
            "messages": dict(sorted(outcome.messages.items())),
            "links": {" ".join(link): count for link, count in sorted(outcome.links.items())},
            "notices": outcome.notices,
            "delay_ms_mean": round(outcome.delay_ms_mean, 3),
            "delay_ms_max": round(outcome.delay_ms_max, 3),
            "leader": outcome.root,
        }
        if outcome.repairs:
            row["repairs"] = [asdict(repair) for repair in outcome.repairs]
        if check:
            row["wrong_sinks"] = wrong_sinks(
                network, scenario.sites, scenario.types, scenario.rules, scenario.events, round(end_s * 1_000_000),
                scenario.changes,
            )  # fmt: skip
        outcomes.append(row)
        if svg is not None:
            where = svg if len(chosen) == 1 else svg.with_stem(f"{svg.stem}-{one.name}")
            try:
                where.write_text(picture(outcome, dict(scenario.sites.delays_us)), encoding="utf-8")
            except OSError as error:
                raise TocsinError(f"{where} cannot be written: {error.strerror}") from None
    if as_json:
        more = {"predictions": predictions} if predictions else {}
        showing.say(json.dumps({"seconds": scenario.seconds, **more, "runs": outcomes}, indent=2))
    else:
        _show(outcomes, scenario.seconds)
    return not any(row.get("wrong_sinks") for row in outcomes)


def _show(outcomes: list[dict[str, Any]], seconds: float) -> None:
    from rich.table import Table

    table = Table(title=f"{seconds:g} s of events; traffic is messages × hops", title_justify="left")
    for name in (
        "strategy",
        "messages/s",
        "bytes/s",
        "events",
        "matches",
        "awakened",
        "answers",
        "shares",
        "progress",
        "notices",
    ):
        table.add_column(name, justify="left" if name == "strategy" else "right")
    for name in ("delay ms", "most ms", "sinks"):
        table.add_column(name, justify="right")
    for row in outcomes:
        counts = row["messages"]
        counts["Shares"] = counts.get("Shares", 0) + counts.get("Survey", 0)
        kinds = [f"{counts.get(kind, 0):,}" for kind in ("Events", "Matches", "Awaken", "Answer", "Shares", "Progress")]
        wrong = row.get("wrong_sinks")
        sinks = "" if wrong is None else "right" if not wrong else "wrong: " + ", ".join(wrong)
        table.add_row(
            row["strategy"], f"{row['messages_per_s']:,.1f}", f"{row['bytes_per_s']:,.0f}", *kinds,
            f"{row['notices']:,}", f"{row['delay_ms_mean']:.2f}", f"{row['delay_ms_max']:.2f}", sinks,
        )  # fmt: skip
    console().print(table)
    _show_repairs(outcomes)


def _show_predictions(predictions: list[dict[str, Any]]) -> None:
    """Print the predicted traffic and delay of each strategy."""
    from rich.table import Table

    table = Table(title="Predicted from topology and rates", title_justify="left")
    for name in ("strategy", "messages/s", "delay ms", ""):
        table.add_column(name, justify="left" if name in ("strategy", "") else "right")
    for one in predictions:
        note = "chosen" if one["chosen"] else ""
        table.add_row(one["strategy"], f"{one['messages_per_s']:,.1f}", f"{one['delay_ms']:.2f}", note)
    console().print(table)


def _show_repairs(outcomes: list[dict[str, Any]]) -> None:
    """Print the cost of the topology changes, if there were any."""
    from rich.table import Table

    rows = [(row["strategy"], repair) for row in outcomes for repair in row.get("repairs", ())]
    if not rows:
        return
    table = Table(title="Topology changes: cost of repairing trees, tables and rules", title_justify="left")
    for name in ("strategy", "at s", "messages", "events sent again", "ms"):
        table.add_column(name, justify="left" if name == "strategy" else "right")
    for strategy, repair in rows:
        table.add_row(
            strategy, f"{repair['at_s']:g}", f"{repair['messages']:,}", f"{repair['events']:,}",
            f"{repair['time_ms']:.2f}",
        )  # fmt: skip
    console().print(table)


def studied(
    name: str, figure: str | None, *, quick: bool, full: bool, seeds: int, out: Path, trace: Path | None = None
) -> bool:
    """Run the study `name`, or all studies, and print the claims. Return whether every claim holds."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from tocsin.studies import NAMES, named
    from tocsin.studies import study as running
    from tocsin.studies.study import Claim, Scale

    claims: list[Claim] = []
    scale = Scale(quick, full, seeds, None if trace is None else str(trace.absolute()))
    for study in [named(one) for one in (NAMES if name == "all" else (name,))]:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=console(stderr=True), transient=True) as bar:
            task = bar.add_task(study.title)

            def show_progress(which: str, done: int, total: int, study=study, bar=bar, task=task) -> None:  # type: ignore[no-untyped-def]
                bar.update(task, description=f"{study.name} {which}: {done} of {total} runs")

            claims += running.run(study, scale, out, show_progress, figure)
    screen = console()
    for claim in claims:
        screen.print(str(claim), markup=False, highlight=False, soft_wrap=True)
    if name == "all":
        table = Table("claim", "", "measured")
        for claim in claims:
            table.add_row(claim.id, "holds" if claim.holds else "fails", claim.measured)
        screen.print(table)
    console(stderr=True).print(f"figures and rows: {out}", highlight=False)
    return all(claim.holds for claim in claims)
