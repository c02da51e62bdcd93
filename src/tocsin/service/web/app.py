"""The application: routes, what every answer has in common, the console and the documents."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException

import tocsin
from tocsin.errors import StateError, TocsinError
from tocsin.service.core import Busy, Conflict, NotFound
from tocsin.service.looking import told
from tocsin.service.streams import TooLarge
from tocsin.service.web import events, hooks, matches, rules, state
from tocsin.service.web.access import Answer, Place
from tocsin.service.web.guard import Guard
from tocsin.service.web.models import Problem

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
    for module in (events, rules, matches, hooks, state):
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
