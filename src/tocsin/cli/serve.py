"""Run the HTTP service, and create tokens for it: `tocsin serve` and `tocsin token`.

The docstrings of `serve` and `token` are the texts of `--help`.
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


class ServiceClock(StrEnum):
    """The clock of a service, which is driven by the times of events or is the wall clock."""

    EVENTS = "events"
    WALL = "wall"


Folder = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The folder for all data of the service.")]


def serve(
    data: Folder = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 8321,
    name: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="An allowed host name of the service; may be repeated.")
    ] = None,
    no_tokens: Annotated[
        bool, typer.Option("--no-tokens", help="Allow all requests from this machine without a token.")
    ] = False,
    delay: Annotated[str, typer.Option(help="How late events may arrive.")] = "1 s",
    ahead: Annotated[
        str, typer.Option(help="How far event times may be ahead of this machine's clock; later events are rejected.")
    ] = "1 min",
    clock: Annotated[
        ServiceClock, typer.Option(help="Whether time comes from the events or from the wall clock.")
    ] = ServiceClock.EVENTS,
    private_callbacks: Annotated[
        bool, typer.Option("--private-callbacks", help="Allow webhooks to private network addresses.")
    ] = False,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="Run rules on Spark, or embedded in this process, with latencies of milliseconds.",
            show_default="the folder's engine; Spark for a new folder; embedded with --demo",
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="The Spark master.", show_default="all cores of this machine")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Publish generated sensor readings with fires.")] = False,
) -> None:
    """Serve rules over HTTP: publish events, get matches, and inspect both in a web console.

    All data is in one folder and survives a crash; without --data it is deleted at exit. The first start prints a token
    with all roles, once; create others with 'tocsin token'.

    [bold]Try it:[/bold]  tocsin serve --demo

    [bold]With a data folder:[/bold]  tocsin serve --data fires/ --delay "5 s"

    [bold]Without Spark:[/bold]  tocsin serve --data fires/ --engine embedded
    """
    from tocsin.ruleset import duration_us

    run_service(
        ServeOptions(
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
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The data folder of the service.")],
    name: Annotated[str, typer.Option(help="The name of the token.")],
    role: Annotated[
        list[str] | None,
        typer.Option(help="publish, subscribe or deploy; may be repeated.", show_default="all three"),
    ] = None,
    events_per_s: Annotated[
        float | None,
        typer.Option(min=1, help="The number of events per second that it may publish.", show_default=False),
    ] = None,
) -> None:
    """Create a token for a service.

    The token is printed once and not stored. The service reads new tokens when it starts.

    [bold]Example:[/bold]  tocsin token --data fires/ --name sensors --role publish
    """

    issue(data, name, role or [], events_per_s)


LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServeOptions:
    """The options of `tocsin serve`."""

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
    """The engine. None means the engine of the folder or, for a new folder, Spark, or `embedded` with the demo."""
    master: str | None = None


class EscapingFormatter(logging.Formatter):
    """Formats log lines with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return console.lines(super().format(record))


def run_service(options: ServeOptions) -> None:
    """Run the service until SIGTERM or Ctrl-C, and save its state.

    After Ctrl-C, raise `KeyboardInterrupt` when the state is saved.
    """
    try:
        from tocsin.service.web_app import create
    except ImportError as error:
        raise TocsinError(f"the service needs the package {error.name}: pip install 'tocsin[service]'") from None
    from tocsin.service.demo import Demo
    from tocsin.service.service import Options, Service, engine_of
    from tocsin.service.tokens import Role, Tokens
    from tocsin.service.web_access import AppState
    from tocsin.service.web_app import listen, server
    from tocsin.service.webhooks import Webhooks

    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(EscapingFormatter("%(asctime)s %(levelname)s %(message)s"))
    if options.open_to_all and options.host not in LOOPBACK:
        raise TocsinError("--no-tokens is only allowed on a loopback address")
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-serve-")))
        try:
            listener = listen(options.host, options.port)
        except OSError as error:
            raise TocsinError(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from None
        stack.callback(listener.close)
        tokens = None if options.open_to_all else Tokens(folder / "tokens")
        secret = tokens.issue("owner", Role) if tokens is not None and not len(tokens) else None
        engine = options.engine or engine_of(folder) or ("embedded" if options.demo else "spark")
        if options.master is not None and engine != "spark":
            raise TocsinError("--master needs --engine spark")
        step = "starting Spark" if engine == "spark" else "compiling kernels if needed"
        console.say(f"engine: {engine}; reading the log, {step}", err=True)
        service_options = Options(
            delay_us=options.delay_us,
            ahead_us=options.ahead_us,
            clock=options.clock,
            engine=engine,
            master=options.master,
        )
        service = Service(folder, service_options)
        stack.callback(service.close)
        if engine == "embedded":
            _warm()
        gc.collect()
        gc.freeze()  # exclude long-lived objects from garbage collection
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}"
        if secret is not None:
            console.say(f"token with all roles (shown once): {secret}", err=True)
        console.say(f"console: {address}/{'' if secret is None else '#token=' + secret}", err=True)
        console.say(f"API: {address}/docs", err=True)
        console.say(f"data: {folder}{' (temporary)' if options.folder is None else ''}", err=True)
        hosts = frozenset({*LOOPBACK, options.host, *options.names})
        demo = Demo(service) if options.demo else None

        async def run() -> None:
            webhooks = Webhooks(folder / "webhooks", service.matches, allow_private=options.private_callbacks)
            running = server(create(AppState(service, webhooks, tokens, hosts)))
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
    """Run a small rule, so that the kernels are compiled before the first events arrive."""
    from tocsin import Event, rules

    detector = rules("define Warm() from A(x>1.0) and last B(x>1.0) within 1 s from A").detector()
    detector.push([Event("B", 1, {"x": 2.0}), Event("A", 2, {"x": 2.0})])
    detector.finish()
    detector.snapshot()


def issue(folder: Path, name: str, roles: list[str], events_per_s: float | None) -> None:
    """Create a token for the service with the data folder `folder`, and print the token.

    Without `roles`, the token has all roles.
    """
    from tocsin.service.tokens import EVENTS_PER_S, Role, Tokens

    all_roles = [str(role) for role in Role]
    for role in roles:
        if role not in all_roles:
            raise typer.BadParameter(f"the role must be one of {', '.join(all_roles)}", param_hint="--role")
    tokens = Tokens(folder / "tokens")
    console.say(tokens.issue(name, map(Role, roles or all_roles), events_per_s or EVENTS_PER_S))
