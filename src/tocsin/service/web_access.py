"""What is turned away before any route sees it: other names, other sites' pages, bodies too large or too slow.

Who is asking, and how much may they send? Tokens, roles, quotas, sizes, times.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tocsin.service.encoding import to_json
from tocsin.service.service import Service
from tocsin.service.tokens import ANYONE, Quotas, Role, Token, Tokens
from tocsin.service.webhooks import Webhooks

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES = 64 << 20
BODY_S = 30.0
SMALL_BODY_BYTES = 1 << 20
STREAMS_MAX = 256


class Answer(JSONResponse):
    """JSON as the service writes it: numbers that are not finite are null."""

    def render(self, content: Any) -> bytes:
        return to_json(content)


class Refusal(HTTPException):
    """An answer that is no: its status, and after how long to try again."""

    def __init__(self, status: int, message: str, retry_s: float | None = None) -> None:
        headers = {} if retry_s is None else {"Retry-After": str(max(1, math.ceil(retry_s)))}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers)


@dataclass
class Place:
    """What all routes share."""

    service: Service
    webhooks: Webhooks
    tokens: Tokens | None
    """None: everyone may do everything."""
    hosts: frozenset[str]
    """The names that the service answers to."""
    quotas: Quotas = field(default_factory=Quotas)
    body_bytes: int = BODY_BYTES
    body_s: float = BODY_S
    streams: int = 0
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the service stops: streams end then."""
    dry_runs: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


def place_of(request: Request) -> Place:
    """What all routes share."""
    place: Place = request.app.state.place
    return place


Here = Annotated[Place, Depends(place_of)]
_bearer = HTTPBearer(auto_error=False, description="A token that `tocsin token` has issued.")


def token_of(place: Here, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None) -> Token:
    """Who is asking."""
    if place.tokens is None:
        return ANYONE
    if given is None:
        raise Refusal(401, "a token is needed: Authorization: Bearer …")
    token = place.tokens.find(given.credentials)
    if token is None:
        raise Refusal(401, "the token is not known here")
    return token


def needs(*roles: Role) -> Any:
    """Lets through whoever has one of these roles."""

    def check(token: Annotated[Token, Depends(token_of)]) -> Token:
        if token.roles.isdisjoint(roles):
            raise Refusal(403, f"this needs a token with the role {' or '.join(roles)}")
        return token

    checked: Callable[..., Token] = check
    return Depends(checked)


Publisher = Annotated[Token, needs(Role.PUBLISH)]
Subscriber = Annotated[Token, needs(Role.SUBSCRIBE)]
Deployer = Annotated[Token, needs(Role.DEPLOY)]
Onlooker = Annotated[Token, needs(Role.SUBSCRIBE, Role.DEPLOY)]
Anyone = Annotated[Token, Depends(token_of)]


DRAINED_BYTES = 16 << 20
DRAINED_S = 2.0
DETAIL_BYTES = 1_000
"""How much of an answer that is no JSON is taken over into a problem document."""
Headers = list[tuple[bytes, bytes]]
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; "
        b"base-uri 'none'; form-action 'self'",
    ),
]


class Guard:
    """Stands before an application."""

    def __init__(self, app: ASGIApp, place: Place) -> None:
        self._app, self._place = app, place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        limit_bytes = self._place.body_bytes if scope["path"] == "/events" else SMALL_BODY_BYTES
        refusal = self._refused(headers, limit_bytes)
        if sum(name.lower() == b"host" for name, _ in scope["headers"]) > 1:
            refusal = Refusal(400, "a request has one Host header")

        bounded = Bounded(receive, limit_bytes, self._place.body_s)

        started = False
        refused: Message | None = None
        detail = b""

        async def sending(message: Message) -> None:
            nonlocal started, refused, detail
            if refused is not None:  # of an answer that is no problem document, the text becomes its message
                detail = (detail + message.get("body", b""))[:DETAIL_BYTES]
                if not message.get("more_body", False):
                    start, body = _problem(refused["status"], detail.decode(errors="replace"), refused["headers"])
                    await send(start)
                    await send(body)
                return
            if message["type"] == "http.response.start" and message["status"] >= 400:
                await bounded.drain()
            if message["type"] == "http.response.start":
                started = True
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in HEADERS if one[0] not in there)]
                if message["status"] >= 400 and not _is_json(message["headers"]) and scope["method"] != "HEAD":
                    refused = message
                    return
            await send(message)

        if refusal is not None:
            await _answer(refusal, sending)
            return
        try:
            await self._app(scope, bounded, sending)
        except asyncio.CancelledError:  # the service stops and does not wait any longer
            if not started:
                await _answer(Refusal(503, "the service is stopping"), send)

    def _refused(self, headers: dict[bytes, str], limit_bytes: int) -> Refusal | None:
        host = headers.get(b"host", "")
        name = _name_in(host)
        if "*" not in self._place.hosts and name not in self._place.hosts:
            return Refusal(421, "this service does not go by that name")
        origin = headers.get(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            return Refusal(403, "pages of other sites may not use this service")
        length = headers.get(b"content-length", "")
        if length.isdecimal() and int(length) > limit_bytes:
            return Refusal(413, f"a body has at most {limit_bytes:,} bytes")
        if headers.get(b"content-encoding", "identity") != "identity":
            return Refusal(415, "bodies come as they are, without a Content-Encoding")
        return None


class Bounded:
    """What receives a body, if it is not too large and does not take too long."""

    def __init__(self, receive: Receive, limit_bytes: int, limit_s: float) -> None:
        self._receive, self._limit_bytes, self._limit_s = receive, limit_bytes, limit_s
        self._until_s = asyncio.get_running_loop().time() + limit_s
        self._size = 0
        self._over = False

    async def __call__(self) -> Message:
        if self._over:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError:
            self._over = True
            raise Refusal(408, f"the body did not come within {self._limit_s:g} s") from None
        self._size += len(message.get("body", b""))
        self._over = not message.get("more_body", False)
        if self._size > self._limit_bytes:
            raise Refusal(413, f"a body has at most {self._limit_bytes:,} bytes")
        return message

    async def drain(self) -> None:
        """Takes in a little of what nobody wants to read: who is still sending would not hear the answer."""
        left = DRAINED_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAINED_S):
                while not self._over and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self._over = not message.get("more_body", False)


def _name_in(host: str) -> str | None:
    """The name that a Host header has, without the port; None if it is not of that form."""
    try:
        return urlsplit(f"//{host}").hostname if host.isascii() else None
    except ValueError:  # a bracket that is not closed, or no address in it
        return None


def _is_json(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(b"application/json") for name, value in headers)


def _problem(status: int, message: str, headers: Headers) -> tuple[Message, Message]:
    """The messages of a problem document. Of the headers those that say what the body is are replaced."""
    body = to_json({"error": {"message": message}})
    kept = [one for one in headers if one[0] not in (b"content-type", b"content-length")]
    about = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return (
        {"type": "http.response.start", "status": status, "headers": [*about, *kept]},
        {"type": "http.response.body", "body": body},
    )


async def _answer(refusal: Refusal, send: Send) -> None:
    for message in _problem(refusal.status_code, refusal.detail, [(b"connection", b"close")]):
        await send(message)
