"""Who may do what? Tokens with roles, of which only hashes are kept, and what each may use up.

A token is shown once, when it is issued. The file has a line of JSON for each: name, roles, SHA-256, and how many
events a second it may publish.
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
    """What a token is for."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    DEPLOY = "deploy"


@dataclass(frozen=True, slots=True)
class Token:
    """Who asks. `events_per_s`: how much it may publish."""

    name: str
    roles: frozenset[Role]
    sha256: str = ""
    events_per_s: float = EVENTS_PER_S


ANYONE = Token("anyone", frozenset(Role))
"""Who asks where no tokens are needed."""


class Tokens:
    """The tokens of a file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._by_hash: dict[str, Token] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                one = json.loads(line)
                token = Token(one["name"], frozenset(map(Role, one["roles"])), one["sha256"], one["events_per_s"])
                self._by_hash[token.sha256] = token

    def __len__(self) -> int:
        return len(self._by_hash)

    def issue(self, name: str, roles: Iterable[Role], events_per_s: float = EVENTS_PER_S) -> str:
        """A new token, which nobody can read again."""
        if any(token.name == name for token in self._by_hash.values()):
            raise TocsinError(f"there is a token {name} already")
        secret = f"tocsin_{secrets.token_urlsafe(24)}"
        token = Token(name, frozenset(roles), _hash(secret), events_per_s)
        self._by_hash[token.sha256] = token
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps({**asdict(token), "roles": sorted(token.roles)}) + "\n")
        return secret

    def find(self, secret: str) -> Token | None:
        """Who a token is of. What is looked up is its hash, so that the time it takes tells nothing."""
        return self._by_hash.get(_hash(secret))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


@dataclass(slots=True)
class Bucket:
    """So much a second, and `BURST_S` seconds' worth at once."""

    per_s: float
    full: float = field(default=-1.0)
    at_s: float = 0.0


class Quotas:
    """What each token has left."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()

    def wait_s(self, token: Token, now_s: float | None = None) -> float:
        """How long the token has to wait before it may publish again; 0: not at all."""
        with self._lock:
            bucket = self._filled(token, time.monotonic() if now_s is None else now_s)
            return 0.0 if bucket.full > 0 else (1.0 - bucket.full) / bucket.per_s

    def use(self, token: Token, events: int) -> None:
        """Takes events off. It may be more than there is; the token then waits for longer."""
        with self._lock:
            self._filled(token, time.monotonic()).full -= events

    def _filled(self, token: Token, now_s: float) -> Bucket:
        bucket = self._buckets.get(token.name)
        most = token.events_per_s * BURST_S
        if bucket is None:
            bucket = self._buckets[token.name] = Bucket(token.events_per_s, most, now_s)
        bucket.full = min(most, bucket.full + max(0.0, now_s - bucket.at_s) * bucket.per_s)
        bucket.at_s = now_s
        return bucket
