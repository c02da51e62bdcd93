"""Start, watch and stop the sites of a plan, for `tocsin site`.

A *plan* is a scenario (topology, rules, sources and sinks) that also says how its sites are hosted. A site is a place
that runs rules, and each of its *replicas* is an application on Spark or a process without Spark. Replicas send each
other messages through *channels*. The docstrings of the commands are the texts of `--help`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli import console as showing
from tocsin.cli.console import console
from tocsin.cli.options import Engine
from tocsin.errors import TocsinError, nearest

if TYPE_CHECKING:
    from rich.console import Group

    from tocsin.sites.fleet import Fleet, ReplicaStatus
    from tocsin.sites.site_plan import SitePlan

LOOK_S = 0.5
SAY_S = 10.0
RATE_S = 2.0
Before = dict[str, tuple[float, int, int, tuple[str, str]]]
"""An earlier status by the name of the replica: its time, the messages and bytes sent, and the rates shown then."""


def plan(path: Path, strategy: str | None = None) -> SitePlan:
    """Read a plan from a file, which has a scenario with a section `hosting`.

    Without `strategy`, use the first strategy of the scenario, or the one with the best prediction if there is none.
    """
    from tocsin.overlay.strategies import strategy as named
    from tocsin.simulation import scenarios
    from tocsin.simulation.predictions import best, predict
    from tocsin.simulation.runs import topology_changes
    from tocsin.sites.site_plan import SECOND_US, PlanChange, SitePlan, all_sites, check_changes, hosting

    scenario = scenarios.read(path)
    chosen = scenario.strategies[0] if scenario.strategies else None
    if strategy == scenarios.AUTO or (strategy is None and chosen is None):
        chosen = named(
            best(predict(scenario.sites, scenario.rates, scenario.types, scenario.rules, scenario.values)).strategy
        )
    elif strategy is not None:
        chosen = named(strategy)
    assert chosen is not None
    changes, before = [], scenario.sites
    try:
        for number, (at_s, after) in enumerate(scenario.changes, 1):
            at_us = round(at_s * SECOND_US)
            changes.append(PlanChange(at_us, after, topology_changes(number, at_us, before, after, chosen)))
            before = after
        hosted = hosting(
            scenario.hosting, path.parent, all_sites([scenario.sites, *(change.sites for change in changes)])
        )
        check_changes(changes, scenario.sites, hosted)
    except TocsinError as error:
        raise TocsinError(f"{path}: {error}") from None
    events, where = (scenario.events.slice(0, 0), []) if hosted.live else (scenario.events, scenario.where.to_pylist())
    return SitePlan(
        scenario.sites, chosen, scenario.types, scenario.rules, events, where, scenario.warm_up_s + scenario.seconds,
        hosted, changes,
    )  # fmt: skip


def fleet(path: Path, strategy: str | None = None, engine: str = "spark") -> Fleet:
    """Return the fleet of a plan, which starts and stops the processes of its sites on this machine."""
    from tocsin.sites.fleet import Fleet, command

    site_plan = plan(path, strategy)
    return Fleet(site_plan, command(path.resolve(), site_plan.strategy.name, engine))


def run(path: Path, strategy: str | None, name: str, engine: str) -> None:
    """Run the replica `name` in this process until SIGINT or SIGTERM. The name of a site means its first replica."""
    from tocsin.cli.follow import stopping
    from tocsin.sites import spark_driver
    from tocsin.spark.sessions import plain_errors

    site_plan = plan(path, strategy)
    name = name if "#" in name else f"{name}#0"
    if name not in site_plan.names:
        raise TocsinError(f"there is no site {name}. {nearest(name, site_plan.names) or ''}".rstrip())
    with stopping() as stopped, plain_errors():
        hosted = spark_driver.run if engine == "spark" else spark_driver.run_embedded
        hosted(site_plan, name, stopped.wait)


def up(path: Path, strategy: str | None, engine: str, *, fresh: bool, detach: bool, check: bool) -> bool:
    """Start all sites and watch them until they finish, unless `detach` is true.

    Return whether every sink got the expected matches. The result is also true if this is not checked, or if the sites
    were stopped before.
    """
    from tocsin.cli.follow import stopping
    from tocsin.sites.host import received, sink_folder

    fleet_ = fleet(path, strategy, engine)
    fleet_.claim(fresh=fresh)
    fleet_.start()
    if detach:
        showing.say(f"{len(fleet_.plan.names)} started; see tocsin site status and tocsin site down", err=True)
        return True
    with stopping() as stopped:
        try:
            finished = _watched(fleet_, stopped.wait)
        finally:
            fleet_.stop()
    if not finished:
        showing.say(f"stopped; resume with tocsin site up {path}", err=True)
        return True
    correct = _check_sinks(fleet_) if check else {}
    verdicts = {True: ", as expected", False: ", NOT as expected", None: ""}
    for sink in sorted(fleet_.plan.sites.sinks):
        rows, where = len(received(fleet_.folder, sink)), sink_folder(fleet_.folder, sink)
        showing.say(f"{sink} got {rows:,}{verdicts[correct.get(sink)]}: {where}")
    return all(correct.values())


def down(path: Path) -> None:
    """Stop all sites of a plan."""
    stopped = fleet(path).stop()
    showing.say(f"stopped: {', '.join(stopped)}" if stopped else "no site was running", err=True)


def status(path: Path, *, as_json: bool) -> None:
    """Print the status of the sites of a plan, as tables or as JSON."""
    fleet_ = fleet(path)
    if as_json:
        rows = [{"name": one.name, "state": one.state, **one.status} for one in fleet_.statuses()]
        showing.say(json.dumps({"sites": rows, "waiting": fleet_.waiting()}, indent=2))
    else:
        console().print(_picture(fleet_, {}))


def hold(path: Path, here: str, there: str, *, held: bool) -> None:
    """Hold the channels from the site `here` to the site `there`, or release them if `held` is false."""
    from tocsin.sites.spark_driver import operator_channels

    site_plan = plan(path)
    if (here, there) not in site_plan.sites.delays_us:
        raise TocsinError(f"there is no link from {here} to {there}")
    with operator_channels(site_plan) as operator:
        for sender in site_plan.replicas(here):
            for receiver in site_plan.replicas(there):
                operator.hold(sender, receiver, held=held)


def forget(path: Path, name: str, *, back: bool) -> None:
    """Tell all other replicas that the replica `name` has failed for ever, so that they drop the data kept for it.

    If `back` is true, tell them instead that this replica is started again.
    """
    from tocsin.overlay.codec import encode
    from tocsin.overlay.replicas.messages import Decommissioned
    from tocsin.sites.channels import OPERATOR, MessageBatch, pack_messages, step_position
    from tocsin.sites.spark_driver import operator_channels

    site_plan = plan(path)
    if name not in site_plan.names:
        raise TocsinError(f"there is no replica {name}. {nearest(name, site_plan.names) or ''}".rstrip())
    if len(site_plan.replicas(name.partition("#")[0])) < 2:
        raise TocsinError(f"{name} is the only replica of its site and cannot be decommissioned")
    packed = pack_messages([encode(Decommissioned(name, back=back))])
    position = step_position(time.time_ns() // 1000, 0)
    others = [MessageBatch(OPERATOR, other, position, packed) for other in site_plan.names if other != name]
    with operator_channels(site_plan) as operator:
        operator.post(others)


def _watched(fleet_: Fleet, stopped: Callable[[float], bool]) -> bool:
    """Show the sites until they finish or `stopped` returns true. Return whether the sites finished."""
    from rich.live import Live

    screen = console(stderr=True)
    before: Before = {}
    printed_s = 0.0
    with Live(console=screen, refresh_per_second=2, transient=False) as live:
        while not stopped(LOOK_S):
            if screen.is_terminal:
                live.update(_picture(fleet_, before))
            elif time.monotonic() - printed_s > SAY_S:
                printed_s = time.monotonic()
                showing.say("; ".join(_line(one) for one in fleet_.statuses()), err=True)
            if fleet_.finished():
                live.update(_picture(fleet_, {}) if screen.is_terminal else "")
                return True
            fleet_.restart_failed()
            if not fleet_.processes():
                return False
    return False


def _rounds(status: dict[str, Any]) -> str:
    """Return the progress of a replica as text, without a total number of rounds if live sources have no end."""
    return f"{status['round']:,}" + ("" if status["rounds"] is None else f"/{status['rounds']:,}")


def _line(one: ReplicaStatus) -> str:
    ended = f" ({one.ended})" if one.ended else ""
    return f"{one.name} {one.state}{ended}" + (f" {_rounds(one.status)}" if one.status else "")


def _picture(fleet_: Fleet, before: Before) -> Group:
    """Return tables of the sites and links. Rates are relative to the status in `before`, which is updated."""
    from rich.console import Group
    from rich.table import Table

    sites = Table(title=f"{fleet_.plan.strategy.name}, {len(fleet_.plan.names)} applications", title_justify="left")
    for name in ("site", "", "round", "messages", "/s", "kB", "kB/s", "waits for", "sinks"):
        sites.add_column(name, justify="left" if name in ("site", "", "waits for", "sinks") else "right")
    links = Table(title="links; waiting: batches in the channel", title_justify="left")
    for name in ("from", "to", "messages", "kB", "waiting"):
        links.add_column(name, justify="left" if name in ("from", "to") else "right")
    waiting = fleet_.waiting()
    for one in fleet_.statuses():
        status = one.status
        if not status:
            sites.add_row(one.name, one.state)
            continue
        size = sum(status["sent_bytes"].values())
        rates = _rates(before, one.name, status["now_us"] / 1e6, status["traffic"], size)
        alone = len(fleet_.plan.replicas(status["site"])) == 1
        role = "" if alone else ", leads" if status["leading"] else ", follows"
        role += f", {status['refused']:,} refused" if status["refused"] else ""
        sinks = ", ".join(f"{sink} {count:,}" for sink, count in sorted(status["notified"].items()))
        sites.add_row(
            one.name, one.state + role, _rounds(status), f"{status['traffic']:,}", rates[0],
            f"{size / 1e3:,.0f}", rates[1], ", ".join(status["full"] or status["waits_for"]), status["lost"] or sinks,
        )  # fmt: skip
        for there, sent in sorted(status["sent_bytes"].items()):
            if there != status["site"]:
                behind = sum(waiting.get(name, {}).get(one.name, 0) for name in fleet_.plan.replicas(there))
                links.add_row(
                    one.name, there, f"{status['links'].get(there, 0):,}", f"{sent / 1e3:,.0f}", f"{behind:,}"
                )
    return Group(sites, links)


def _rates(before: Before, name: str, now_s: float, messages: int, size: int) -> tuple[str, str]:
    """Return the messages and kilobytes per second of a replica, as text. Rates cover at least `RATE_S` seconds."""
    then_s, messages_then, size_then, rates = before.setdefault(name, (now_s, messages, size, ("", "")))
    passed_s = now_s - then_s
    if passed_s >= RATE_S:
        rates = (f"{(messages - messages_then) / passed_s:,.0f}", f"{(size - size_then) / passed_s / 1e3:,.0f}")
        before[name] = (now_s, messages, size, rates)
    return rates


def _check_sinks(fleet_: Fleet) -> dict[str, bool]:
    """Return whether each sink got the right matches, by the name of the sink.

    The right matches are those of a single engine over all events, each once and in order.
    """
    from tocsin.simulation.checking import expected_matches
    from tocsin.sites.host import received

    site_plan = fleet_.plan
    changes = [(turn.at_us / 1e6, turn.sites) for turn in site_plan.changes]
    expected = expected_matches(
        site_plan.initial_sites,
        site_plan.types,
        site_plan.rules,
        site_plan.events,
        round(site_plan.seconds * 1e6),
        changes,
    )
    return {
        sink: [row["id"] for row in received(fleet_.folder, sink) if row.get("rule")] == ids
        for sink, ids in expected.items()
    }


site = typer.Typer(no_args_is_help=True, help="Run rules on sites, each an application on Spark.")

PlanFile = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN", help="A scenario (topology, rules, sources, sinks) with hosting.", show_default=False
    ),
]
StrategyName = Annotated[
    str | None,
    typer.Option(
        "--strategy", metavar="NAME", help="The strategy, as in tocsin simulate.", show_default="the plan's first"
    ),
]


SiteEngine = Annotated[Engine, typer.Option("--engine", help="Run each site on Spark, or in a process without Spark.")]


@site.command("up")
def site_up(
    plan: PlanFile,
    strategy: StrategyName = None,
    engine: SiteEngine = Engine.SPARK,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the state of an earlier run.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start the sites and return.")] = False,
    check: Annotated[
        bool, typer.Option(help="Compare each sink's matches with those of a single engine over all events.")
    ] = True,
) -> None:
    """Start all sites of a plan on this machine, and watch them until all events are processed.

    Ctrl-C stops the sites; the next start resumes them.

    [bold]Example:[/bold]  tocsin site up examples/sites/five.yaml
    """

    if not up(plan, strategy, engine.value, fresh=fresh, detach=detach, check=check):
        raise typer.Exit(1)


@site.command("run")
def site_run(
    plan: PlanFile,
    name: Annotated[
        str, typer.Option("--site", metavar="NAME", help="A site, or one of its replicas, such as town#1.")
    ],
    strategy: StrategyName = None,
    engine: SiteEngine = Engine.SPARK,
) -> None:
    """Run one site of a plan in this process until stopped.

    [bold]Example:[/bold]  tocsin site run examples/sites/five.yaml --site town
    """

    run(plan, strategy, name, engine.value)


@site.command("down")
def site_down(plan: PlanFile) -> None:
    """Stop the sites of a plan on this machine."""

    down(plan)


@site.command("status")
def site_status(
    plan: PlanFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show the sites of a plan, their leaders, and the traffic on their links."""

    status(plan, as_json=as_json)


@site.command("hold")
def site_hold(
    plan: PlanFile,
    here: Annotated[str, typer.Argument(metavar="FROM", help="The site that sends.", show_default=False)],
    there: Annotated[str, typer.Argument(metavar="TO", help="The site that receives.", show_default=False)],
    release: Annotated[bool, typer.Option("--release", help="Release the link.")] = False,
) -> None:
    """Hold a link: messages stay in its channel unread until it is released."""

    hold(plan, here, there, held=not release)


@site.command("forget")
def site_forget(
    plan: PlanFile,
    name: Annotated[str, typer.Argument(metavar="REPLICA", help="The replica, such as town#1.", show_default=False)],
    back: Annotated[bool, typer.Option("--back", help="Undo: the replica will be started again.")] = False,
) -> None:
    """Decommission a failed replica, so that no site waits for it or keeps data for it."""

    forget(plan, name, back=back)
