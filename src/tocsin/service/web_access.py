"""Control access: routes require tokens with roles, and a middleware limits requests before they reach a route.

The middleware checks the Host and Origin headers of a request, and limits the size and the duration of its body.
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
from tocsin.service.tokens import ANYONE, AccessToken, Quotas, Role, Tokens
from tocsin.service.webhooks import Webhooks

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES = 64 << 20
BODY_S = 30.0
SMALL_BODY_BYTES = 1 << 20
STREAMS_MAX = 256


class FiniteJsonResponse(JSONResponse):
    """A JSON response in which numbers that are not finite are null."""

    def render(self, content: Any) -> bytes:
        return to_json(content)


class Refusal(HTTPException):
    """An error response with a status and, optionally, a Retry-After header."""

    def __init__(self, status: int, message: str, retry_s: float | None = None) -> None:
        headers = {} if retry_s is None else {"Retry-After": str(max(1, math.ceil(retry_s)))}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers)


@dataclass
class AppState:
    """State that all routes share."""

    service: Service
    webhooks: Webhooks
    tokens: Tokens | None
    """The access tokens, or None if all requests are allowed."""
    hosts: frozenset[str]
    """The host names that the Host header may have."""
    quotas: Quotas = field(default_factory=Quotas)
    body_bytes: int = BODY_BYTES
    body_s: float = BODY_S
    streams: int = 0
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """An event that is set when the service stops, to end streams."""
    dry_runs: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


def app_state(request: Request) -> AppState:
    """Return the state that all routes share."""
    state: AppState = request.app.state.state
    return state


State = Annotated[AppState, Depends(app_state)]
_bearer = HTTPBearer(auto_error=False, description="A token that `tocsin token` has issued.")


def token_of(
    state: State, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None
) -> AccessToken:
    """Return the access token of the request. Refuse the request if the token is missing or unknown."""
    if state.tokens is None:
        return ANYONE
    if given is None:
        raise Refusal(401, "a token is required: Authorization: Bearer …")
    token = state.tokens.find(given.credentials)
    if token is None:
        raise Refusal(401, "the token is unknown")
    return token


def needs(*roles: Role) -> Any:
    """Return a dependency that requires a token with one of `roles`."""

    def check(token: Annotated[AccessToken, Depends(token_of)]) -> AccessToken:
        if token.roles.isdisjoint(roles):
            raise Refusal(403, f"the token lacks the role {' or '.join(roles)}")
        return token

    checked: Callable[..., AccessToken] = check
    return Depends(checked)


Publisher = Annotated[AccessToken, needs(Role.PUBLISH)]
Subscriber = Annotated[AccessToken, needs(Role.SUBSCRIBE)]
Deployer = Annotated[AccessToken, needs(Role.DEPLOY)]
Observer = Annotated[AccessToken, needs(Role.SUBSCRIBE, Role.DEPLOY)]
Anyone = Annotated[AccessToken, Depends(token_of)]


DISCARDED_BYTES = 16 << 20
DISCARDED_S = 2.0
DETAIL_BYTES = 1_000
"""The bytes of an error response in plain text that are copied into a problem document, its replacement in JSON."""
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


class AccessMiddleware:
    """Limit requests before they reach the application, and add security headers to responses."""

    def __init__(self, app: ASGIApp, state: AppState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        limit_bytes = self._state.body_bytes if scope["path"] == "/events" else SMALL_BODY_BYTES
        refusal = self._refused(headers, limit_bytes)
        if sum(name.lower() == b"host" for name, _ in scope["headers"]) > 1:
            refusal = Refusal(400, "a request must have one Host header")

        bounded = LimitedBody(receive, limit_bytes, self._state.body_s)

        started = False
        refused: Message | None = None
        detail = b""

        async def sending(message: Message) -> None:
            nonlocal started, refused, detail
            if refused is not None:  # turn the text of a plain error response into a problem document
                detail = (detail + message.get("body", b""))[:DETAIL_BYTES]
                if not message.get("more_body", False):
                    start, body = _problem(refused["status"], detail.decode(errors="replace"), refused["headers"])
                    await send(start)
                    await send(body)
                return
            if message["type"] == "http.response.start" and message["status"] >= 400:
                await bounded.discard()
            if message["type"] == "http.response.start":
                started = True
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in HEADERS if one[0] not in present)]
                if message["status"] >= 400 and not _is_json(message["headers"]) and scope["method"] != "HEAD":
                    refused = message
                    return
            await send(message)

        if refusal is not None:
            await _answer(refusal, sending)
            return
        try:
            await self._app(scope, bounded, sending)
        except asyncio.CancelledError:  # the service stops without waiting any longer
            if not started:
                await _answer(Refusal(503, "the service is stopping"), send)

    def _refused(self, headers: dict[bytes, str], limit_bytes: int) -> Refusal | None:
        host = headers.get(b"host", "")
        name = _name_in(host)
        if "*" not in self._state.hosts and name not in self._state.hosts:
            return Refusal(421, "host not allowed")
        origin = headers.get(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            return Refusal(403, "origin not allowed")
        length = headers.get(b"content-length", "")
        if length.isdecimal() and int(length) > limit_bytes:
            return Refusal(413, f"a body has at most {limit_bytes:,} bytes")
        if headers.get(b"content-encoding", "identity") != "identity":
            return Refusal(415, "Content-Encoding is not supported")
        return None


class LimitedBody:
    """Receive the body of a request within limits of size and time."""

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
            raise Refusal(408, f"the body did not arrive within {self._limit_s:g} s") from None
        self._size += len(message.get("body", b""))
        self._over = not message.get("more_body", False)
        if self._size > self._limit_bytes:
            raise Refusal(413, f"a body has at most {self._limit_bytes:,} bytes")
        return message

    async def discard(self) -> None:
        """Read and discard the rest of the body, up to a limit of size and time.

        A client that is still sending would not read the response.
        """
        left = DISCARDED_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARDED_S):
                while not self._over and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self._over = not message.get("more_body", False)


def _name_in(host: str) -> str | None:
    """Return the name in a Host header without the port, or None if the header is invalid."""
    try:
        return urlsplit(f"//{host}").hostname if host.isascii() else None
    except ValueError:  # an unclosed bracket, or an invalid address in it
        return None


def _is_json(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(b"application/json") for name, value in headers)


def _problem(status: int, message: str, headers: Headers) -> tuple[Message, Message]:
    """Return the messages that send `message` as a problem document. Replace the headers about the content."""
    body = to_json({"error": {"message": message}})
    others = [one for one in headers if one[0] not in (b"content-type", b"content-length")]
    about = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return (
        {"type": "http.response.start", "status": status, "headers": [*about, *others]},
        {"type": "http.response.body", "body": body},
    )


async def _answer(refusal: Refusal, send: Send) -> None:
    for message in _problem(refusal.status_code, refusal.detail, [(b"connection", b"close")]):
        await send(message)
