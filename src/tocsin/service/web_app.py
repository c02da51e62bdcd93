"""Runs the application on a socket, and does not wait for clients that are slow to say what they want.

The application: routes, what every answer has in common, the console and the documents.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import tocsin
from tocsin.errors import StateError, TocsinError
from tocsin.service import web_events, web_matches, web_rules, web_status, web_webhooks
from tocsin.service.arrow_streams import TooLarge
from tocsin.service.encoding import to_json
from tocsin.service.inspection import told
from tocsin.service.service import Busy, Conflict, NotFound
from tocsin.service.web_access import HEADERS, Answer, Guard, Place
from tocsin.service.web_models import Problem

journal = logging.getLogger("tocsin.service")

STATIC = Path(str(files("tocsin.service"))) / "static"
DOCS_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)
_PROBLEMS = {
    400: "The request cannot be read.",
    401: "A token is missing or not known.",
    403: "The token has not the role that is needed.",
    404: "There is no such thing.",
    408: "The body came too slowly.",
    409: "There is such a rule already.",
    413: "The body is too large.",
    415: "The body is of a kind that is not read here.",
    421: "The service does not go by that name.",
    422: "What was sent cannot be used; the answer says why.",
    429: "Too much, too fast.",
    431: "The request line and the headers are too large.",
    503: "Not now; try again.",
}


def create(place: Place) -> FastAPI:
    """The application for a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await place.webhooks.start()
        yield
        await place.webhooks.stop()

    app = FastAPI(
        title="Tocsin",
        version=tocsin.__version__,
        description="Complex event processing: events in, rules over them, one match for each time that it happens.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        default_response_class=Answer,
        responses={code: {"model": Problem, "description": said} for code, said in _PROBLEMS.items()},
    )
    app.state.place = place
    for module in (web_events, web_rules, web_matches, web_webhooks, web_status):
        app.include_router(module.router)
    app.add_exception_handler(TocsinError, _told)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _failed)
    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False), name="static")

    @app.get("/", include_in_schema=False)
    async def console() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        page = get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Tocsin",
            swagger_js_url="/static/vendor/swagger-ui-bundle.js",
            swagger_css_url="/static/vendor/swagger-ui.css",
            swagger_favicon_url="/static/bell.svg",
            swagger_ui_parameters={"validatorUrl": None},  # or it would be asked for from elsewhere
        )
        # The page has a script of its own, which the others may not.
        return HTMLResponse(page.body, headers={"content-security-policy": DOCS_POLICY})

    app.add_middleware(Guard, place=place)
    return app


def _problem(status: int, error: dict[str, Any], headers: dict[str, str] | None = None) -> Answer:
    return Answer({"error": error}, status, headers)


async def _told(_: Request, error: Exception) -> Answer:
    assert isinstance(error, TocsinError)
    if isinstance(error, NotFound):
        return _problem(404, told(error))
    if isinstance(error, TooLarge):
        return _problem(413, told(error))
    if isinstance(error, Conflict):
        return _problem(409, told(error))
    if isinstance(error, Busy | StateError):
        return _problem(503, told(error), {"Retry-After": "1"})
    return _problem(422, told(error))


async def _refused(_: Request, error: Exception) -> Answer:
    assert isinstance(error, StarletteHTTPException | HTTPException)
    return _problem(error.status_code, {"message": str(error.detail)}, dict(error.headers or {}))


async def _invalid(_: Request, error: Exception) -> Answer:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _problem(422, {"message": f"{where}: {first['msg']}"})


async def _failed(request: Request, error: Exception) -> Answer:
    journal.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _problem(500, {"message": "something went wrong here; the service's log says what"})


HEADERS_S = 10.0
CONNECTIONS_MAX = 2_000


HEAD_BYTES_MAX = 64 << 10
"""How large the request line and the headers of a request may be together; the trailers after a body likewise."""
DISCARDED_BYTES_MAX = 1 << 20
DISCARDED_S = 0.5
"""How much is read after a refusal, and for how long: a client that is still sending would not get the answer."""
REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class HeadTooLarge(Exception):
    """The request line and the headers have too many bytes."""


class Impatient(HttpToolsProtocol):
    """Ends a connection whose request line and headers do not come in time, or are too large.

    The parser appends each piece of a header's value to what it has, which copies all of it: without a bound, 50 MB of
    one value keep the event loop busy for seconds.
    """

    _clock: asyncio.TimerHandle | None = None
    _head_bytes = 0
    """How much has come of the request line, headers or trailers that are not complete."""
    _parsed_bytes = 0
    """The same for those of them that the parser has handed on."""
    _refused = False
    """Whether this connection has had its answer, and is only read so that the client gets it."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._clock is None and (self.cycle is None or self.cycle.response_complete):
            self._wait()
        if self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._refused:
            if self._head_bytes > DISCARDED_BYTES_MAX:
                self.transport.close()
            return
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self._refused and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        self._parsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._parse(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._parse(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop()
        self._head_bytes = self._parsed_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._parsed_bytes > HEAD_BYTES_MAX:
            self._refuse_head()
        else:
            self._refuse(400, "this is not a request of HTTP/1.1 that can be read")

    def _parse(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > HEAD_BYTES_MAX:
            raise HeadTooLarge

    def _refuse_head(self) -> None:
        self._refuse(431, f"the request line and the headers have at most {HEAD_BYTES_MAX:,} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Answers with a problem document, unless another answer is under way, and closes the connection."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = to_json({"error": {"message": message}})
            head = b"HTTP/1.1 %d %s\r\n" % (status, REASONS[status])
            about = [*HEADERS, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            lines = b"".join(b"%s: %s\r\n" % one for one in [*about, (b"connection", b"close")])
            self.transport.write(head + lines + b"\r\n" + body)
        self._refused = True
        self.loop.call_later(DISCARDED_S, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._clock = self.loop.call_later(HEADERS_S, self._end)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _end(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """Ends event streams first when it stops: they would go on until they are cancelled."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        place: Place = self.config.app.state.place  # type: ignore[union-attr]
        place.ending.set()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket on an address; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


def server(app: FastAPI) -> uvicorn.Server:
    """What runs the application; nothing of a request but its method and path is ever logged."""
    config = uvicorn.Config(
        app,
        http=Impatient,
        loop="uvloop",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=15,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=3,
    )
    return Server(config)
