"""`tocsin serve` and `tocsin token`."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import typer

from tocsin.cli import showing
from tocsin.errors import TocsinError

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
        return showing.lines(super().format(record))


def serve(wanted: Wanted) -> None:
    """Runs the service until SIGTERM, or until Ctrl-C, which is a `KeyboardInterrupt` when all is saved."""
    try:
        from tocsin.service.web.app import create
    except ImportError as error:
        raise TocsinError(f"the service needs more packages ({error.name}): pip install 'tocsin[service]'") from None
    from tocsin.service.core import Options, Service, engine_of
    from tocsin.service.demo import Demo
    from tocsin.service.tokens import Role, Tokens
    from tocsin.service.web.access import Place
    from tocsin.service.web.server import listen, server
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
        showing.say(f"engine: {engine}; reading the log, {what}", err=True)
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
            showing.say(f"token with all roles (shown once): {secret}", err=True)
        showing.say(f"console: {address}/{'' if secret is None else '#token=' + secret}", err=True)
        showing.say(f"API: {address}/docs", err=True)
        showing.say(f"data: {folder}{' (temporary)' if wanted.folder is None else ''}", err=True)
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
    showing.say(tokens.issue(name, map(Role, roles or known), events_per_s or EVENTS_PER_S))
