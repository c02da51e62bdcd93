"""A service in this process, on its own port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tocsin.client import Client
from tocsin.service.service import Options, Service
from tocsin.service.tokens import Role, Tokens
from tocsin.service.web_access import AppState
from tocsin.service.web_app import create, listen, server
from tocsin.service.webhooks import Webhooks

OPTIONS = Options(delay_us=0, ahead_us=2**60)


@dataclass
class Running:
    """A running service and its tokens: one per role, and one with all roles."""

    url: str
    service: Service
    state: AppState
    tokens: dict[str, str]
    clients: dict[tuple[str, str | None], Any] = field(default_factory=dict)

    def client(self, role: str = "all") -> Client:
        key = ("client", role)
        if key not in self.clients:
            self.clients[key] = Client(self.url, self.tokens[role], patience_s=20)
        client: Client = self.clients[key]
        return client

    def http(self, role: str | None = "all") -> httpx.Client:
        key = ("http", role)
        if key not in self.clients:
            headers = {} if role is None else {"Authorization": f"Bearer {self.tokens[role]}"}
            self.clients[key] = httpx.Client(base_url=self.url, headers=headers, timeout=60)
        client: httpx.Client = self.clients[key]
        return client

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def running(
    folder: Path, options: Options = OPTIONS, *, allow_private: bool = False, port: int = 0, **state_options: Any
) -> Iterator[Running]:
    """Run a service on a free port within the block."""
    service = Service(folder, options)
    tokens = Tokens(folder / "tokens")
    secrets = {str(role): tokens.issue(str(role), [role]) for role in Role}
    secrets["all"] = tokens.issue("all", Role)
    secrets["slow"] = tokens.issue("slow", Role, events_per_s=10)
    listener = listen("127.0.0.1", port)
    started = threading.Event()
    box: dict[str, Any] = {}

    async def run() -> None:
        webhooks = Webhooks(
            folder / "webhooks", service.matches, allow_private=allow_private, first_wait_s=0.01, attempts=4
        )
        state = AppState(service, webhooks, tokens, frozenset({"127.0.0.1", "localhost"}), **state_options)
        box["state"] = state
        box["server"] = server(create(state))
        started.set()
        await box["server"].serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(30)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        while not box["server"].started:
            threading.Event().wait(0.01)
        service_info = Running(url, service, box["state"], secrets)
        yield service_info
        for client in service_info.clients.values():
            client.close()
    finally:
        box["server"].should_exit = True
        thread.join(30)
        listener.close()
        service.close()
