"""`tocsin serve` and `tocsin token`.

`tocsin serve` and `tocsin token`: their options.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from tocsin.cli import console
from tocsin.cli.options import Engine
from tocsin.errors import TocsinError


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
    from tocsin.ruleset import duration_us

    run_service(
        Wanted(
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

    issue(data, name, role or [], events_per_s)


LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Wanted:
    """What the options say."""

    folder: Path | None
    host: str
    port: int
    names: tuple[str, ...]
    open_to_all: bool
    delay_us: int
    ahead_us: int
    clock: str
    private_callbacks: bool
    demo: bool
    engine: str | None = None
    """If not said: that of the folder; Spark for a new one; embedded for the demo."""
    master: str | None = None


class Plain(logging.Formatter):
    """Log lines that do nothing to a terminal, whatever users send."""

    def format(self, record: logging.LogRecord) -> str:
        return console.lines(super().format(record))


def run_service(wanted: Wanted) -> None:
    """Runs the service until SIGTERM, or until Ctrl-C, which is a `KeyboardInterrupt` when all is saved."""
    try:
        from tocsin.service.web_app import create
    except ImportError as error:
        raise TocsinError(f"the service needs more packages ({error.name}): pip install 'tocsin[service]'") from None
    from tocsin.service.demo import Demo
    from tocsin.service.service import Options, Service, engine_of
    from tocsin.service.tokens import Role, Tokens
    from tocsin.service.web_access import Place
    from tocsin.service.web_app import listen, server
    from tocsin.service.webhooks import Webhooks

    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Plain("%(asctime)s %(levelname)s %(message)s"))
    if wanted.open_to_all and wanted.host not in LOOPBACK:
        raise TocsinError("a service that others can reach needs tokens: leave --no-tokens out")
    with ExitStack() as stack:
        folder = wanted.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-serve-")))
        try:
            listener = listen(wanted.host, wanted.port)
        except OSError as error:
            raise TocsinError(f"{wanted.host}:{wanted.port} cannot be listened on: {error.strerror}") from None
        stack.callback(listener.close)
        tokens = None if wanted.open_to_all else Tokens(folder / "tokens")
        secret = tokens.issue("owner", Role) if tokens is not None and not len(tokens) else None
        engine = wanted.engine or engine_of(folder) or ("embedded" if wanted.demo else "spark")
        if wanted.master is not None and engine != "spark":
            raise TocsinError("--master is for --engine spark")
        what = "starting Spark" if engine == "spark" else "compiling kernels where that is not done yet"
        console.say(f"engine: {engine}; reading the log, {what}", err=True)
        options = Options(
            delay_us=wanted.delay_us,
            ahead_us=wanted.ahead_us,
            clock=wanted.clock,
            engine=engine,
            master=wanted.master,
        )
        service = Service(folder, options)
        stack.callback(service.close)
        if engine == "embedded":
            _warm()
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not look at it again and again
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}"
        if secret is not None:
            console.say(f"token with all roles (shown once): {secret}", err=True)
        console.say(f"console: {address}/{'' if secret is None else '#token=' + secret}", err=True)
        console.say(f"API: {address}/docs", err=True)
        console.say(f"data: {folder}{' (temporary)' if wanted.folder is None else ''}", err=True)
        hosts = frozenset({*LOOPBACK, wanted.host, *wanted.names})
        demo = Demo(service) if wanted.demo else None

        async def run() -> None:
            webhooks = Webhooks(folder / "webhooks", service.matches, allow_private=wanted.private_callbacks)
            running = server(create(Place(service, webhooks, tokens, hosts)))
            if demo is not None:
                await asyncio.to_thread(demo.start)
            await running.serve(sockets=[listener])

        import uvloop

        stopped_by: list[int] = []

        def stop(number: int, _: FrameType | None) -> None:
            stopped_by.append(number)
            raise KeyboardInterrupt

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        try:
            uvloop.run(run())
        except KeyboardInterrupt:
            if signal.SIGINT in stopped_by:
                raise
        finally:
            if demo is not None:
                demo.stop()


def _warm() -> None:
    """Compiles what the first events would wait for."""
    from tocsin import Event, rules

    detector = rules("define Warm() from A(x>1.0) and last B(x>1.0) within 1 s from A").detector()
    detector.push([Event("B", 1, {"x": 2.0}), Event("A", 2, {"x": 2.0})])
    detector.finish()
    detector.snapshot()


def issue(folder: Path, name: str, roles: list[str], events_per_s: float | None) -> None:
    """Makes a token and prints it."""
    from tocsin.service.tokens import EVENTS_PER_S, Role, Tokens

    known = [str(role) for role in Role]
    for role in roles:
        if role not in known:
            raise typer.BadParameter(f"a role is one of {', '.join(known)}", param_hint="--role")
    tokens = Tokens(folder / "tokens")
    console.say(tokens.issue(name, map(Role, roles or known), events_per_s or EVENTS_PER_S))
