"""`tocsin site …`: its commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.options import Engine

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
    from tocsin.cli import sites

    if not sites.up(plan, strategy, engine.value, fresh=fresh, detach=detach, check=check):
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
    from tocsin.cli import sites

    sites.run(plan, strategy, name, engine.value)


@site.command("down")
def site_down(plan: PlanFile) -> None:
    """Stop the sites of a plan on this machine."""
    from tocsin.cli import sites

    sites.down(plan)


@site.command("status")
def site_status(
    plan: PlanFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show how the sites of a plan are, who leads, and what their links carry."""
    from tocsin.cli import sites

    sites.status(plan, as_json=as_json)


@site.command("hold")
def site_hold(
    plan: PlanFile,
    here: Annotated[str, typer.Argument(metavar="FROM", help="The site that sends.", show_default=False)],
    there: Annotated[str, typer.Argument(metavar="TO", help="The site that receives.", show_default=False)],
    release: Annotated[bool, typer.Option("--release", help="Let it be read again.")] = False,
) -> None:
    """Hold a link back: what one site sends stays in the channel and is not read, until it is released."""
    from tocsin.cli import sites

    sites.hold(plan, here, there, held=not release)


@site.command("forget")
def site_forget(
    plan: PlanFile,
    name: Annotated[str, typer.Argument(metavar="REPLICA", help="Such as town#1.", show_default=False)],
    back: Annotated[bool, typer.Option("--back", help="It will be started again after all.")] = False,
) -> None:
    """Tell all sites that a replica has failed for ever, so that nobody waits for it or keeps anything for it."""
    from tocsin.cli import sites

    sites.forget(plan, name, back=back)
