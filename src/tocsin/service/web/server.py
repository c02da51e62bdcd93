"""Runs the application on a socket, and does not wait for clients that are slow to say what they want."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 10.0
CONNECTIONS_MAX = 2_000


class Impatient(HttpToolsProtocol):
    """Ends a connection whose request line and headers do not come in time."""

    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._clock is None and (self.cycle is None or self.cycle.response_complete):
            self._wait()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._stop()
        super().on_headers_complete()

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


def listen(host: str, port: int) -> socket.socket:
    """A socket on an address; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


def server(app: Any) -> uvicorn.Server:
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
    return uvicorn.Server(config)
