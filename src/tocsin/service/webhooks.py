"""Deliver matches to webhooks: signed, in order, and with retries.

The body of a delivery is `{"matches": […]}`. The header `Tocsin-Signature: t=…,v1=…` has the time, and the HMAC-SHA256
of the time, a dot and the body under the webhook's secret. The receiver acknowledges a delivery with a status from 200
to 299. A failed delivery is retried with exponential backoff. After the last attempt, its matches become dead letters
of the webhook, and delivery continues with the next matches. A webhook stores the number of the last processed match.
A receiver may get a match twice, with the same number.

Addresses in private networks are refused by default. The host of a URL is resolved once for each delivery. The address
is checked, and then used for the connection.
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

logger = logging.getLogger("tocsin.service")

BATCH = 100
ATTEMPTS = 8
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
TIMEOUT_S = 10.0
WEBHOOKS_MAX = 100
DEAD_BYTES = 16 << 20
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class RefusedAddress(TocsinError):
    """Matches must not be sent to this address."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of the matches of `rules`, or of all rules if `rules` is empty.

    `cursor` is the number of the last processed match.
    """

    id: str
    url: str
    rules: tuple[str, ...]
    secret: str
    cursor: int
    by: str = ""


@dataclass(slots=True)
class WebhookStatus:
    """The number of delivered matches and of failed attempts of a webhook, and its last error."""

    delivered: int = 0
    failures: int = 0
    last_error: str | None = None


def signature(secret: str, at_s: int, body: bytes) -> str:
    """Return the value of the header that signs `body` with `secret` at the time `at_s`.

    >>> signature("secret", 1, b"{}")[:20]
    't=1,v1=1122767b19311'
    """
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


class Webhooks:
    """The webhooks stored in a folder. Only the event loop's thread may use this object."""

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
        self.statuses: dict[str, WebhookStatus] = {}
        self._dead: dict[str, Feed] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._client: httpx.AsyncClient | None = None
        self._news = asyncio.Event()
        for path in sorted(self.folder.glob("*.json")):
            fields = json.loads(path.read_text(encoding="utf-8"))
            self._open(Webhook(**{**fields, "rules": tuple(fields["rules"])}))

    async def start(self) -> None:
        """Start to deliver matches to all webhooks."""
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
        """Add a webhook that gets matches from now on, of the given rules or of all rules."""
        if len(self.all) >= WEBHOOKS_MAX:
            raise TocsinError(f"there are at most {WEBHOOKS_MAX} webhooks")
        await resolve(url, allow_private=self.allow_private)
        webhook = Webhook(uuid.uuid4().hex, url, tuple(rules), secrets.token_urlsafe(32), self._matches.last, by)
        self._store(webhook)
        self._open(webhook)
        if self._client is not None:
            self._tasks[webhook.id] = asyncio.create_task(self._deliver(webhook.id))
        return webhook

    async def remove(self, id: str) -> None:
        """Remove the webhook `id`."""
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
        """Return the matches that could not be delivered to the webhook `id`, each with the last error."""
        self.get(id)
        return self._dead[id].after(after, limit)

    # ---- internals

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}.json"

    def _open(self, webhook: Webhook) -> None:
        self.all[webhook.id] = webhook
        self.statuses[webhook.id] = WebhookStatus()
        self._dead[webhook.id] = Feed(self.folder / f"{webhook.id}.dead", keep_bytes=DEAD_BYTES, cached=100)

    def _store(self, webhook: Webhook) -> None:
        self.all[webhook.id] = webhook
        temporary = self.folder / f".{webhook.id}.part"
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(asdict(webhook)), encoding="utf-8")
        temporary.replace(self._path(webhook.id))

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
                await self._send_with_retries(webhook, wanted)
            self._store(replace(self.all[id], cursor=lines[-1].number))

    async def _send_with_retries(self, webhook: Webhook, lines: Sequence[Line]) -> None:
        """Send the matches in `lines` until they are acknowledged, or make them dead letters after the last attempt."""
        body = b'{"matches":[' + b",".join(line.text for line in lines) + b"]}"
        status, wait_s = self.statuses[webhook.id], self._first_wait_s
        for attempt in range(1, self._attempts + 1):
            error = await self._send(webhook, body)
            if error is None:
                status.delivered += len(lines)
                status.last_error = None
                return
            status.failures += 1
            status.last_error = error
            if attempt < self._attempts:
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        logger.warning("webhook %s: %d matches were not delivered: %s", webhook.id, len(lines), status.last_error)
        given_up = [{"error": status.last_error, "match": json.loads(line.text)} for line in lines]
        await asyncio.to_thread(self._dead[webhook.id].write, given_up)

    async def _send(self, webhook: Webhook, body: bytes) -> str | None:
        """Send `body` to the webhook once. Return the error, or None if the body is acknowledged."""
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
    """Return an IP address of the host in `url`.

    Raise `RefusedAddress` if the host cannot be resolved or an address is not allowed.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise RefusedAddress("the URL is invalid") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "\\" in url:
        raise RefusedAddress("a webhook needs an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise RefusedAddress("the URL must not contain a user or a password")
    loop = asyncio.get_running_loop()
    try:
        infos = await asyncio.wait_for(loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM), TIMEOUT_S)
    except (OSError, UnicodeError, TimeoutError):
        raise RefusedAddress(f"{parts.hostname[:100]} cannot be resolved") from None
    addresses = [str(one[4][0]) for one in infos]
    for address in addresses:
        if not allow_private and not is_public(address):
            raise RefusedAddress(f"{parts.hostname[:100]} is an address of a private network, which is not allowed")
    return addresses[0]


def is_public(address: str) -> bool:
    """Return whether an IP address is public.

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
