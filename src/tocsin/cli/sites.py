"""`tocsin site`: the sites of a plan as applications on Spark, started, watched and stopped.

`tocsin site …`: its commands and their options.
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

    from tocsin.sites.fleet import Fleet, Seen
    from tocsin.sites.site_plan import Plan

LOOK_S = 0.5
SAY_S = 10.0
RATE_S = 2.0
Before = dict[str, tuple[float, int, int, tuple[str, str]]]
"""By replica: when it was looked at, messages and bytes it had sent, and its rates before that."""


def plan(path: Path, strategy: str | None = None) -> Plan:
    """The plan in a file: a scenario, and how it is hosted."""
    from tocsin.overlay.strategies import strategy as named
    from tocsin.simulation import scenarios
    from tocsin.simulation.predictions import best, predicted
    from tocsin.simulation.runs import announced
    from tocsin.sites.site_plan import SECOND_US, Plan, Turn, checked, everything, hosting

    found = scenarios.read(path)
    chosen = found.strategies[0] if found.strategies else None
    if strategy == scenarios.AUTO or (strategy is None and chosen is None):
        chosen = named(best(predicted(found.sites, found.rates, found.types, found.rules, found.values)).strategy)
    elif strategy is not None:
        chosen = named(strategy)
    assert chosen is not None
    turns, before = [], found.sites
    try:
        for number, (at_s, after) in enumerate(found.changes, 1):
            at_us = round(at_s * SECOND_US)
            turns.append(Turn(at_us, after, announced(number, at_us, before, after, chosen)))
            before = after
        hosted = hosting(found.hosting, path.parent, everything([found.sites, *(turn.sites for turn in turns)]))
        checked(turns, found.sites, hosted)
    except TocsinError as error:
        raise TocsinError(f"{path}: {error}") from None
    events, where = (found.events.slice(0, 0), []) if hosted.live else (found.events, found.where.to_pylist())
    return Plan(
        found.sites, chosen, found.types, found.rules, events, where, found.warm_up_s + found.seconds, hosted, turns,
    )  # fmt: skip


def fleet(path: Path, strategy: str | None = None, engine: str = "spark") -> Fleet:
    """The replicas of a plan on this machine."""
    from tocsin.sites.fleet import Fleet, command

    found = plan(path, strategy)
    return Fleet(found, command(path.resolve(), found.strategy.name, engine))


def run(path: Path, strategy: str | None, name: str, engine: str) -> None:
    """Runs one replica, here, until it is stopped."""
    from tocsin.cli.follow import stopping
    from tocsin.sites import spark_driver
    from tocsin.spark.sessions import plainly

    found = plan(path, strategy)
    name = name if "#" in name else f"{name}#0"
    if name not in found.names:
        raise TocsinError(f"there is no site {name}. {nearest(name, found.names) or ''}".rstrip())
    with stopping() as stopped, plainly():
        hosted = spark_driver.run if engine == "spark" else spark_driver.run_embedded
        hosted(found, name, stopped.wait)


def up(path: Path, strategy: str | None, engine: str, *, fresh: bool, detach: bool, check: bool) -> bool:
    """Starts all sites and watches them until they have finished; says whether every sink got what it should."""
    from tocsin.cli.follow import stopping
    from tocsin.sites.host import received, sink_folder

    ships = fleet(path, strategy, engine)
    ships.claim(fresh=fresh)
    ships.start()
    if detach:
        showing.say(
            f"{len(ships.plan.names)} started: tocsin site status shows them, tocsin site down stops them", err=True
        )
        return True
    with stopping() as stopped:
        try:
            finished = _watched(ships, stopped.wait)
        finally:
            ships.stop()
    if not finished:
        showing.say(f"stopped; tocsin site up {path} goes on from here", err=True)
        return True
    right = _judged(ships) if check else {}
    said = {True: ", exactly what one place would find", False: ", NOT what one place would find", None: ""}
    for sink in sorted(ships.plan.sites.sinks):
        rows, where = len(received(ships.folder, sink)), sink_folder(ships.folder, sink)
        showing.say(f"{sink} got {rows:,}{said[right.get(sink)]}: {where}")
    return all(right.values())


def down(path: Path) -> None:
    """Stops all sites of a plan."""
    stopped = fleet(path).stop()
    showing.say(f"stopped: {', '.join(stopped)}" if stopped else "nothing ran", err=True)


def status(path: Path, *, as_json: bool) -> None:
    """Shows how the sites are."""
    ships = fleet(path)
    if as_json:
        rows = [{"name": one.name, "state": one.state, **one.told} for one in ships.seen()]
        showing.say(json.dumps({"sites": rows, "waiting": ships.waiting()}, indent=2))
    else:
        console().print(_picture(ships, {}))


def hold(path: Path, here: str, there: str, *, held: bool) -> None:
    """Makes the channels from one site to another unreadable, or readable again."""
    from tocsin.sites.spark_driver import operating

    found = plan(path)
    if (here, there) not in found.sites.delays_us:
        raise TocsinError(f"there is no link from {here} to {there}")
    with operating(found) as operator:
        for sender in found.replicas(here):
            for receiver in found.replicas(there):
                operator.hold(sender, receiver, held=held)


def forget(path: Path, name: str, *, back: bool) -> None:
    """Tells all sites that a replica will not come back, so that nobody keeps anything for it; or that it will."""
    from tocsin.overlay.codec import encode
    from tocsin.overlay.replicas.messages import Gone
    from tocsin.sites.channels import OPERATOR, Parcel, packed, placed
    from tocsin.sites.spark_driver import operating

    found = plan(path)
    if name not in found.names:
        raise TocsinError(f"there is no replica {name}. {nearest(name, found.names) or ''}".rstrip())
    if len(found.replicas(name.partition("#")[0])) < 2:
        raise TocsinError(f"{name} is the only one of its site: without it nothing goes on")
    said = packed([encode(Gone(name, back=back))])
    place = placed(time.time_ns() // 1000, 0)
    others = [Parcel(OPERATOR, other, place, said) for other in found.names if other != name]
    with operating(found) as operator:
        operator.post(others)


def _watched(ships: Fleet, stopped: Callable[[float], bool]) -> bool:
    """Shows the sites until they have finished or it is time to stop; says whether they have finished."""
    from rich.live import Live

    screen = console(stderr=True)
    before: Before = {}
    said_s = 0.0
    with Live(console=screen, refresh_per_second=2, transient=False) as live:
        while not stopped(LOOK_S):
            if screen.is_terminal:
                live.update(_picture(ships, before))
            elif time.monotonic() - said_s > SAY_S:
                said_s = time.monotonic()
                showing.say("; ".join(_line(one) for one in ships.seen()), err=True)
            if ships.finished():
                live.update(_picture(ships, {}) if screen.is_terminal else "")
                return True
            ships.tend()
            if not ships.processes():
                return False
    return False


def _rounds(told: dict[str, Any]) -> str:
    """How far a replica is; there is no end where sources are live."""
    return f"{told['round']:,}" + ("" if told["rounds"] is None else f"/{told['rounds']:,}")


def _line(one: Seen) -> str:
    ended = f" ({one.ended})" if one.ended else ""
    return f"{one.name} {one.state}{ended}" + (f" {_rounds(one.told)}" if one.told else "")


def _picture(ships: Fleet, before: Before) -> Group:
    """Sites and links as tables; rates are since `before`, which is brought up to date."""
    from rich.console import Group
    from rich.table import Table

    sites = Table(title=f"{ships.plan.strategy.name}, {len(ships.plan.names)} applications", title_justify="left")
    for name in ("site", "", "round", "messages", "/s", "kB", "kB/s", "waits for", "sinks"):
        sites.add_column(name, justify="left" if name in ("site", "", "waits for", "sinks") else "right")
    links = Table(title="links; waiting: parcels in the channel", title_justify="left")
    for name in ("from", "to", "messages", "kB", "waiting"):
        links.add_column(name, justify="left" if name in ("from", "to") else "right")
    waiting = ships.waiting()
    for one in ships.seen():
        told = one.told
        if not told:
            sites.add_row(one.name, one.state)
            continue
        size = sum(told["sent_bytes"].values())
        rates = _rates(before, one.name, told["now_us"] / 1e6, told["traffic"], size)
        alone = len(ships.plan.replicas(told["site"])) == 1
        role = "" if alone else ", leads" if told["leading"] else ", follows"
        role += f", {told['refused']:,} refused" if told["refused"] else ""
        sinks = ", ".join(f"{sink} {count:,}" for sink, count in sorted(told["notified"].items()))
        sites.add_row(
            one.name, one.state + role, _rounds(told), f"{told['traffic']:,}", rates[0],
            f"{size / 1e3:,.0f}", rates[1], ", ".join(told["full"] or told["waits_for"]), told["lost"] or sinks,
        )  # fmt: skip
        for there, sent in sorted(told["sent_bytes"].items()):
            if there != told["site"]:
                behind = sum(waiting.get(name, {}).get(one.name, 0) for name in ships.plan.replicas(there))
                links.add_row(one.name, there, f"{told['links'].get(there, 0):,}", f"{sent / 1e3:,.0f}", f"{behind:,}")
    return Group(sites, links)


def _rates(before: Before, name: str, now_s: float, messages: int, size: int) -> tuple[str, str]:
    """Messages and kilobytes a second, over some seconds."""
    then_s, messages_then, size_then, rates = before.setdefault(name, (now_s, messages, size, ("", "")))
    passed_s = now_s - then_s
    if passed_s >= RATE_S:
        rates = (f"{(messages - messages_then) / passed_s:,.0f}", f"{(size - size_then) / passed_s / 1e3:,.0f}")
        before[name] = (now_s, messages, size, rates)
    return rates


def _judged(ships: Fleet) -> dict[str, bool]:
    """Whether each sink got exactly what the rules over all events at one place find, once each and in order."""
    from tocsin.simulation.checking import due
    from tocsin.sites.host import received

    made = ships.plan
    changes = [(turn.at_us / 1e6, turn.sites) for turn in made.turns]
    expected = due(made.begins, made.types, made.rules, made.events, round(made.seconds * 1e6), changes)
    return {
        sink: [row["id"] for row in received(ships.folder, sink) if row.get("rule")] == ids
        for sink, ids in expected.items()
    }


site = typer.Typer(no_args_is_help=True, help="Run rules over sites for real: each an application on Spark.")

PlanFile = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN", help="A scenario (topology, rules, sources, sinks) with hosting.", show_default=False
    ),
]
StrategyName = Annotated[
    str | None, typer.Option("--strategy", metavar="NAME", help="As in simulate.", show_default="the plan's first")
]


SiteEngine = Annotated[Engine, typer.Option("--engine", help="An application on Spark, or a process without it.")]


@site.command("up")
def site_up(
    plan: PlanFile,
    strategy: StrategyName = None,
    engine: SiteEngine = Engine.SPARK,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run left in the folder.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start them and return.")] = False,
    check: Annotated[
        bool, typer.Option(help="Compare what each sink got with the same rules over all events in one place.")
    ] = True,
) -> None:
    """Start every site of a plan on this machine, and watch them until all events are through.

    Ctrl-C stops them; started again, they go on from there.

    [bold]Example:[/bold]  tocsin site up examples/sites/five.yaml
    """

    if not up(plan, strategy, engine.value, fresh=fresh, detach=detach, check=check):
        raise typer.Exit(1)


@site.command("run")
def site_run(
    plan: PlanFile,
    name: Annotated[str, typer.Option("--site", metavar="NAME", help="A site, or one of its replicas: town#1.")],
    strategy: StrategyName = None,
    engine: SiteEngine = Engine.SPARK,
) -> None:
    """Run one site of a plan, here, until it is stopped.

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
    """Show how the sites of a plan are, who leads, and what their links carry."""

    status(plan, as_json=as_json)


@site.command("hold")
def site_hold(
    plan: PlanFile,
    here: Annotated[str, typer.Argument(metavar="FROM", help="The site that sends.", show_default=False)],
    there: Annotated[str, typer.Argument(metavar="TO", help="The site that receives.", show_default=False)],
    release: Annotated[bool, typer.Option("--release", help="Let it be read again.")] = False,
) -> None:
    """Hold a link back: what one site sends stays in the channel and is not read, until it is released."""

    hold(plan, here, there, held=not release)


@site.command("forget")
def site_forget(
    plan: PlanFile,
    name: Annotated[str, typer.Argument(metavar="REPLICA", help="Such as town#1.", show_default=False)],
    back: Annotated[bool, typer.Option("--back", help="It will be started again after all.")] = False,
) -> None:
    """Tell all sites that a replica has failed for ever, so that nobody waits for it or keeps anything for it."""

    forget(plan, name, back=back)
