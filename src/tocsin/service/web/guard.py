"""What is turned away before any route sees it: other names, other sites' pages, bodies too large or too slow."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tocsin.service.web.access import SMALL_BODY_BYTES, Place, Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

DRAINED_BYTES = 16 << 20
DRAINED_S = 2.0
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

        bounded = Bounded(receive, limit_bytes, self._place.body_s)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                await bounded.drain()
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in HEADERS if one[0] not in there)]
            await send(message)

        if refusal is not None:
            await _answer(refusal, sending)
            return
        await self._app(scope, bounded, sending)

    def _refused(self, headers: dict[bytes, str], limit_bytes: int) -> Refusal | None:
        host = headers.get(b"host", "")
        name = urlsplit(f"//{host}").hostname if host.isascii() else None
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


async def _answer(refusal: Refusal, send: Send) -> None:
    body = json.dumps({"error": {"message": refusal.detail}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": refusal.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
