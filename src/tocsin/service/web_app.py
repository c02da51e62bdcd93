"""Create the HTTP application of a service, and the server that runs it.

The application has the routes, error responses, the console and the API documents. The server closes connections whose
request line and headers arrive too slowly or are too large.
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
from tocsin.service.inspection import error_fields
from tocsin.service.service import Busy, Conflict, NotFound
from tocsin.service.web_access import HEADERS, AccessMiddleware, AppState, FiniteJsonResponse
from tocsin.service.web_models import Problem

logger = logging.getLogger("tocsin.service")

STATIC = Path(str(files("tocsin.service"))) / "static"
DOCS_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)
_PROBLEMS = {
    400: "The request is malformed.",
    401: "The token is missing or unknown.",
    403: "The token lacks the required role.",
    404: "The resource does not exist.",
    408: "The body arrived too slowly.",
    409: "The rule already exists.",
    413: "The body is too large.",
    415: "The content type is not supported.",
    421: "Host not allowed.",
    422: "The content is invalid; the response has the reason.",
    429: "The quota is exceeded.",
    431: "The request line and the headers are too large.",
    503: "The service is unavailable; try again.",
}


def create(state: AppState) -> FastAPI:
    """Create the HTTP application of a service, whose routes share `state`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await state.webhooks.start()
        yield
        await state.webhooks.stop()

    app = FastAPI(
        title="Tocsin",
        version=tocsin.__version__,
        description="Complex event processing: publish events, deploy rules, and get a match for each occurrence.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        default_response_class=FiniteJsonResponse,
        responses={code: {"model": Problem, "description": description} for code, description in _PROBLEMS.items()},
    )
    app.state.state = state
    for module in (web_events, web_rules, web_matches, web_webhooks, web_status):
        app.include_router(module.router)
    app.add_exception_handler(TocsinError, _tocsin_error)
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
            swagger_ui_parameters={"validatorUrl": None},  # otherwise the page would load a badge from another site
        )
        # Unlike other pages, this one has an inline script.
        return HTMLResponse(page.body, headers={"content-security-policy": DOCS_POLICY})

    app.add_middleware(AccessMiddleware, state=state)
    return app


def _problem(status: int, error: dict[str, Any], headers: dict[str, str] | None = None) -> FiniteJsonResponse:
    return FiniteJsonResponse({"error": error}, status, headers)


async def _tocsin_error(_: Request, error: Exception) -> FiniteJsonResponse:
    assert isinstance(error, TocsinError)
    if isinstance(error, NotFound):
        return _problem(404, error_fields(error))
    if isinstance(error, TooLarge):
        return _problem(413, error_fields(error))
    if isinstance(error, Conflict):
        return _problem(409, error_fields(error))
    if isinstance(error, Busy | StateError):
        return _problem(503, error_fields(error), {"Retry-After": "1"})
    return _problem(422, error_fields(error))


async def _refused(_: Request, error: Exception) -> FiniteJsonResponse:
    assert isinstance(error, StarletteHTTPException | HTTPException)
    return _problem(error.status_code, {"message": str(error.detail)}, dict(error.headers or {}))


async def _invalid(_: Request, error: Exception) -> FiniteJsonResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _problem(422, {"message": f"{where}: {first['msg']}"})


async def _failed(request: Request, error: Exception) -> FiniteJsonResponse:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _problem(500, {"message": "internal error; see the service's log"})


HEADERS_S = 10.0
CONNECTIONS_MAX = 2_000


HEAD_BYTES_MAX = 64 << 10
"""The maximal size in bytes of the request line and headers of a request, and of its trailers."""
DISCARDED_BYTES_MAX = 1 << 20
DISCARDED_S = 0.5
"""How many bytes are read after an error response, and for how many seconds.

A client that is still sending would not read the response otherwise.
"""
REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class HeadTooLarge(Exception):
    """The request line and the headers are too large."""


class LimitedHttp(HttpToolsProtocol):
    """Close a connection whose request line and headers do not arrive in time, or are too large.

    The parser appends each part of a header's value to the parts before it, and copies all of them each time. Without a
    limit, a value of 50 MB would block the event loop for seconds.
    """

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    """The number of received bytes of an incomplete request line, headers or trailers."""
    _parsed_bytes = 0
    """The number of bytes of the request line, headers or trailers that the parser has reported."""
    _refused = False
    """Whether an error response was sent, so that further input is only discarded."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
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
            self._refuse(400, "this is not a valid HTTP/1.1 request")

    def _parse(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > HEAD_BYTES_MAX:
            raise HeadTooLarge

    def _refuse_head(self) -> None:
        self._refuse(431, f"the request line and the headers have at most {HEAD_BYTES_MAX:,} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Send a problem document, unless a response has started, and close the connection."""
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
        self._timer = self.loop.call_later(HEADERS_S, self._end)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """A server that ends event streams before it stops. Otherwise the streams would run until they are cancelled."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state: AppState = self.config.app.state.state  # type: ignore[union-attr]
        state.ending.set()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to `host` and `port`. Port 0 picks a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


def server(app: FastAPI) -> uvicorn.Server:
    """Return a server for the application. Of a request, logs contain only the method and the path."""
    config = uvicorn.Config(
        app,
        http=LimitedHttp,
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
