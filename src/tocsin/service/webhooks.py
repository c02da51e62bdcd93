"""Matches sent to where somebody asked for them: signed, in order, again and again until they are taken or given up.

A webhook keeps the number of the last match that was taken. Its body is `{"matches": […]}`; the header
`Tocsin-Signature: t=…,v1=…` has the time and the HMAC-SHA256, under the webhook's secret, of that time, a dot and the
body. Any answer from 200 to 299 takes it. What fails is tried again, each time after twice as long; after the last time
it is put among the webhook's dead letters, and the next matches get their turn. A receiver may get a match twice, with
the same number.

Addresses inside of the network that the service runs in are refused, unless it is told otherwise: an address is looked
up once for each delivery, checked, and then connected to as it was checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import random
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tocsin.errors import TocsinError
from tocsin.service.feed import Feed, Line
from tocsin.service.service import NotFound

journal = logging.getLogger("tocsin.service")

BATCH = 100
ATTEMPTS = 8
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
TIMEOUT_S = 10.0
WEBHOOKS_MAX = 100
DEAD_BYTES = 16 << 20
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class RefusedAddress(TocsinError):
    """An address that nothing is sent to."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where matches go: of some rules, or of all. `cursor`: the last match that was dealt with."""

    id: str
    url: str
    rules: tuple[str, ...]
    secret: str
    cursor: int
    by: str = ""


@dataclass(slots=True)
class Standing:
    """How a webhook is doing."""

    delivered: int = 0
    failures: int = 0
    last_error: str | None = None


def signature(secret: str, at_s: int, body: bytes) -> str:
    """The header that shows who sent a body, and when.

    >>> signature("secret", 1, b"{}")[:20]
    't=1,v1=1122767b19311'
    """
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


class Webhooks:
    """The webhooks of a folder. Used by the event loop's thread."""

    def __init__(
        self,
        folder: str | Path,
        matches: Feed,
        *,
        allow_private: bool = False,
        first_wait_s: float = FIRST_WAIT_S,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.folder, self._matches = Path(folder), matches
        self.allow_private = allow_private
        self._first_wait_s, self._attempts = first_wait_s, attempts
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.all: dict[str, Webhook] = {}
        self.standings: dict[str, Standing] = {}
        self._dead: dict[str, Feed] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._client: httpx.AsyncClient | None = None
        self._news = asyncio.Event()
        for path in sorted(self.folder.glob("*.json")):
            kept = json.loads(path.read_text(encoding="utf-8"))
            self._open(Webhook(**{**kept, "rules": tuple(kept["rules"])}))

    async def start(self) -> None:
        """Begins to deliver."""
        loop = asyncio.get_running_loop()
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False)
        self._matches.listeners.append(partial(_soon, loop, self._wake))
        for id in self.all:
            self._tasks[id] = asyncio.create_task(self._deliver(id))

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        for feed in self._dead.values():
            feed.close()
        if self._client is not None:
            await self._client.aclose()

    async def add(self, url: str, rules: Sequence[str] = (), by: str = "") -> Webhook:
        """A new webhook, for matches from now on. Its secret is told once."""
        if len(self.all) >= WEBHOOKS_MAX:
            raise TocsinError(f"there are at most {WEBHOOKS_MAX} webhooks")
        await resolve(url, allow_private=self.allow_private)
        webhook = Webhook(uuid.uuid4().hex, url, tuple(rules), secrets.token_urlsafe(32), self._matches.last, by)
        self._keep(webhook)
        self._open(webhook)
        if self._client is not None:
            self._tasks[webhook.id] = asyncio.create_task(self._deliver(webhook.id))
        return webhook

    async def remove(self, id: str) -> None:
        """Sends nothing more there."""
        self.get(id)
        if (task := self._tasks.pop(id, None)) is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        del self.all[id]
        self._path(id).unlink(missing_ok=True)
        self._dead.pop(id).close()

    def get(self, id: str) -> Webhook:
        if id not in self.all:
            raise NotFound(f"there is no webhook {id}")
        return self.all[id]

    def dead_letters(self, id: str, after: int = 0, limit: int = 100) -> list[Line]:
        """What was given up, with the last error."""
        self.get(id)
        return self._dead[id].after(after, limit)

    # ---- within

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}.json"

    def _open(self, webhook: Webhook) -> None:
        self.all[webhook.id] = webhook
        self.standings[webhook.id] = Standing()
        self._dead[webhook.id] = Feed(self.folder / f"{webhook.id}.dead", keep_bytes=DEAD_BYTES, at_hand=100)

    def _keep(self, webhook: Webhook) -> None:
        self.all[webhook.id] = webhook
        fresh = self.folder / f".{webhook.id}.part"
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(asdict(webhook)), encoding="utf-8")
        fresh.replace(self._path(webhook.id))

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _deliver(self, id: str) -> None:
        while True:
            news = self._news
            webhook = self.all[id]
            lines = self._matches.after(webhook.cursor, BATCH)
            if not lines:
                await news.wait()
                continue
            wanted = [line for line in lines if not webhook.rules or _rule(line) in webhook.rules]
            if wanted:
                await self._insist(webhook, wanted)
            self._keep(replace(self.all[id], cursor=lines[-1].number))

    async def _insist(self, webhook: Webhook, lines: Sequence[Line]) -> None:
        """Sends matches until they are taken, or given up."""
        body = b'{"matches":[' + b",".join(line.text for line in lines) + b"]}"
        standing, wait_s = self.standings[webhook.id], self._first_wait_s
        for attempt in range(1, self._attempts + 1):
            error = await self._send(webhook, body)
            if error is None:
                standing.delivered += len(lines)
                standing.last_error = None
                return
            standing.failures += 1
            standing.last_error = error
            if attempt < self._attempts:
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        journal.warning("webhook %s: gave up %d matches: %s", webhook.id, len(lines), standing.last_error)
        given_up = [{"error": standing.last_error, "match": json.loads(line.text)} for line in lines]
        await asyncio.to_thread(self._dead[webhook.id].write, given_up)

    async def _send(self, webhook: Webhook, body: bytes) -> str | None:
        """Sends a body once; what went wrong, if anything did."""
        assert self._client is not None
        try:
            address = await resolve(webhook.url, allow_private=self.allow_private)
            url = httpx.URL(webhook.url)
            headers = {
                "Host": url.netloc.decode(),
                "Content-Type": "application/json",
                "User-Agent": "tocsin",
                "Tocsin-Webhook": webhook.id,
                "Tocsin-Signature": signature(webhook.secret, int(time.time()), body),
            }
            request = self._client.build_request(
                "POST", url.copy_with(host=address), content=body, headers=headers,
                extensions={"sni_hostname": url.host, "timeout": httpx.Timeout(TIMEOUT_S).as_dict()},
            )  # fmt: skip
            answer = await self._client.send(request, stream=True)
            await answer.aclose()
        except (httpx.HTTPError, RefusedAddress, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"[:200]
        return None if answer.is_success else f"answered {answer.status_code}"


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop may have ended
        loop.call_soon_threadsafe(call)


def _rule(line: Line) -> str:
    match = json.loads(line.text)
    return str(match.get("query") or match["rule"])


async def resolve(url: str, *, allow_private: bool) -> str:
    """The IP address to send to; `RefusedAddress` if there is none, or one that nothing may be sent to."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise RefusedAddress("the address is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "\\" in url:
        raise RefusedAddress("a webhook is an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise RefusedAddress("the address must not have a user or a password in it")
    loop = asyncio.get_running_loop()
    try:
        found = await asyncio.wait_for(loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM), TIMEOUT_S)
    except (OSError, UnicodeError, TimeoutError):
        raise RefusedAddress(f"{parts.hostname[:100]} cannot be found") from None
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        if not allow_private and not is_public(address):
            raise RefusedAddress(f"{parts.hostname[:100]} is an address inside of this network, nothing is sent there")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open Internet.

    >>> [is_public(one) for one in ("8.8.8.8", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe")]
    [True, False, False, False, False]
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip in _NAT64:
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip.sixtofour is not None or ip.teredo is not None:
            return False
    return ip.is_global and not ip.is_multicast
