"""Runs the application on a socket, and does not wait for clients that are slow to say what they want."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tocsin.service.encoding import to_json
from tocsin.service.web.access import Place
from tocsin.service.web.guard import HEADERS

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
