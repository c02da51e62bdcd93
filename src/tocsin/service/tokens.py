"""Issue and check access tokens, which have roles and quotas.

The secret of a token is shown once, when the token is issued; only its hash is stored. The file of tokens has one line
of JSON for each token. A line has the token's name, its roles, the SHA-256 hash of its secret, and the number of events
per second that it may publish.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from tocsin.errors import TocsinError

EVENTS_PER_S = 1_000_000
BURST_S = 5.0


class Role(StrEnum):
    """The roles that a token may have. Each role allows one kind of request."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    DEPLOY = "deploy"


@dataclass(frozen=True, slots=True)
class AccessToken:
    """An access token. `sha256` is the hash of its secret, and `events_per_s` its quota for publishing."""

    name: str
    roles: frozenset[Role]
    sha256: str = ""
    events_per_s: float = EVENTS_PER_S


ANYONE = AccessToken("anyone", frozenset(Role))
"""The token that all requests have if tokens are disabled."""


class Tokens:
    """The access tokens in a file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._by_hash: dict[str, AccessToken] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                one = json.loads(line)
                token = AccessToken(one["name"], frozenset(map(Role, one["roles"])), one["sha256"], one["events_per_s"])
                self._by_hash[token.sha256] = token

    def __len__(self) -> int:
        return len(self._by_hash)

    def issue(self, name: str, roles: Iterable[Role], events_per_s: float = EVENTS_PER_S) -> str:
        """Issue a new token and return its secret, which cannot be read again."""
        if any(token.name == name for token in self._by_hash.values()):
            raise TocsinError(f"token {name} already exists")
        secret = f"tocsin_{secrets.token_urlsafe(24)}"
        token = AccessToken(name, frozenset(roles), _hash(secret), events_per_s)
        self._by_hash[token.sha256] = token
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps({**asdict(token), "roles": sorted(token.roles)}) + "\n")
        return secret

    def find(self, secret: str) -> AccessToken | None:
        """Return the token with this secret, or None. The lookup is by hash, so its timing reveals nothing."""
        return self._by_hash.get(_hash(secret))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


@dataclass(slots=True)
class Bucket:
    """The remaining quota of a token, as a token bucket.

    `full` is the number of events left at time `at_s`. It grows by `per_s` per second, up to the events of `BURST_S`.
    """

    per_s: float
    full: float = field(default=-1.0)
    at_s: float = 0.0


class Quotas:
    """The remaining quota of each token."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()

    def wait_s(self, token: AccessToken, now_s: float | None = None) -> float:
        """Return the seconds until `token` may publish again, or 0 if it may publish now."""
        with self._lock:
            bucket = self._filled(token, time.monotonic() if now_s is None else now_s)
            return 0.0 if bucket.full > 0 else (1.0 - bucket.full) / bucket.per_s

    def use(self, token: AccessToken, events: int) -> None:
        """Subtract `events` from the quota of `token`. If the quota becomes negative, the token waits longer."""
        with self._lock:
            self._filled(token, time.monotonic()).full -= events

    def _filled(self, token: AccessToken, now_s: float) -> Bucket:
        bucket = self._buckets.get(token.name)
        most = token.events_per_s * BURST_S
        if bucket is None:
            bucket = self._buckets[token.name] = Bucket(token.events_per_s, most, now_s)
        bucket.full = min(most, bucket.full + max(0.0, now_s - bucket.at_s) * bucket.per_s)
        bucket.at_s = now_s
        return bucket
