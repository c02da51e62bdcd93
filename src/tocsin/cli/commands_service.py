"""`tocsin serve` and `tocsin token`: their options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.options import Engine


class Clock(StrEnum):
    """What time is, for a service."""

    EVENTS = "events"
    WALL = "wall"


Folder = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where everything is kept.")]


def serve(
    data: Folder = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 is any that is free.")] = 8321,
    name: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A name that others call it by; may be repeated.")
    ] = None,
    no_tokens: Annotated[bool, typer.Option("--no-tokens", help="Everyone on this machine may do everything.")] = False,
    delay: Annotated[str, typer.Option(help="How much later than others an event may come.")] = "1 s",
    ahead: Annotated[
        str, typer.Option(help="How far ahead of this machine's clock an event may be; others are rejected.")
    ] = "1 min",
    clock: Annotated[
        Clock, typer.Option(help="What time is: what events say, or what the clock on the wall says.")
    ] = Clock.EVENTS,
    private_callbacks: Annotated[
        bool, typer.Option("--private-callbacks", help="Webhooks may go to addresses inside of this network.")
    ] = False,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="Where rules run: on Spark, or in this process, which answers in milliseconds.",
            show_default="that of the folder; Spark for a new one; embedded with --demo",
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Where Spark runs.", show_default="all cores of this machine")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="With fires in made-up readings, live.")] = False,
) -> None:
    """Serve rules over HTTP: events in, matches out, and a console to look at them.

    Everything is in one folder and survives a crash; without --data it is gone at the end. The first start makes a
    token with all roles and shows it once; 'tocsin token' makes others.

    [bold]Look:[/bold]  tocsin serve --demo

    [bold]Keep:[/bold]  tocsin serve --data fires/ --delay "5 s"

    [bold]Without Spark:[/bold]  tocsin serve --data fires/ --engine embedded
    """
    from tocsin.api import duration_us
    from tocsin.cli import serving

    serving.serve(
        serving.Wanted(
            folder=data,
            host=host,
            port=port,
            names=tuple(name or ()),
            open_to_all=no_tokens,
            delay_us=duration_us(delay),
            ahead_us=duration_us(ahead),
            clock=clock.value,
            private_callbacks=private_callbacks,
            demo=demo,
            engine=None if engine is None else engine.value,
            master=master,
        )
    )


def token(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder of the service.")],
    name: Annotated[str, typer.Option(help="Whom it is for.")],
    role: Annotated[
        list[str] | None,
        typer.Option(help="publish, subscribe or deploy; may be repeated.", show_default="all three"),
    ] = None,
    events_per_s: Annotated[
        float | None, typer.Option(min=1, help="How many events a second it may publish.", show_default=False)
    ] = None,
) -> None:
    """Make a token for a service, which reads it when it starts. It is printed once, and kept nowhere.

    [bold]Example:[/bold]  tocsin token --data fires/ --name sensors --role publish
    """
    from tocsin.cli import serving

    serving.issue(data, name, role or [], events_per_s)
