"""A service from afar: publish, deploy, subscribe. A connection that breaks is made again; nothing is lost, or twice.

    client = Client("http://127.0.0.1:8321", token)
    client.deploy("define Fire(area: string) from Smoke() where area = Smoke.area")
    client.publish([{"type": "Smoke", "area": "A1"}])
    for match in client.subscribe(after=0):
        print(match["rule"], match["attributes"])

Every request that publishes has a key, so that it counts once however often it has to be sent. A subscription goes on
behind the last match that it gave out.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
import pyarrow as pa

from tocsin.errors import RuleError, Span, TocsinError

TIMEOUT_S = 30.0
SILENCE_S = 45.0
"""How long a stream may say nothing before it is taken as broken; a service says something every 15 s."""
PATIENCE_S = 60.0
"""For how long a request is tried again."""
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
AGAIN = (408, 429, 500, 502, 503, 504)

Match = dict[str, Any]


class ServiceError(TocsinError):
    """The service said no. `status` is that of its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Speaks to a service: the one that TOCSIN_URL and TOCSIN_TOKEN of the environment name, if none is given."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        url = os.environ.get("TOCSIN_URL", "http://127.0.0.1:8321") if url is None else url
        token = os.environ.get("TOCSIN_TOKEN") if token is None else token
        headers = {} if not token else {"Authorization": f"Bearer {token}"}
        self._patience_s = patience_s
        self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # ---- events

    def publish(
        self,
        events: pa.Table | pa.RecordBatch | Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        key: str | None = None,
        id: str | None = None,
    ) -> dict[str, Any]:
        """Publishes events: an Arrow table, or objects with `type`, `ts` (now, if there is none) and attributes.

        Returns how many were accepted and why others were not. They are durable then. `key`: what this request is
        called, if it may be sent again by another client. `id`: the attribute that holds the source's own id of an
        event.
        """
        if isinstance(events, pa.Table | pa.RecordBatch):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, events.schema) as stream:
                stream.write(events)
            body, format = sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream"
        else:
            some = [events] if isinstance(events, Mapping) else events
            body = b"\n".join(json.dumps(dict(one), default=str).encode() for one in some)
            format = "application/x-ndjson"
        headers = {"Content-Type": format, "Idempotency-Key": key or uuid.uuid4().hex}
        receipt: dict[str, Any] = self._ask(
            "POST", "/events", content=body, headers=headers, params={} if id is None else {"id": id}
        ).json()
        return receipt

    def dead_letters(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """All events that were not used and are kept, in order: number, reason, type, ts (µs) and the text of each."""
        while True:
            page = self._ask("GET", "/dead-letters", params={"after": after, "limit": 1_000}).json()
            yield from page["dead_letters"]
            if not page["more"]:
                return
            after = page["next"]

    # ---- rules

    def deploy(self, text: str, language: str | None = None, *, replace: bool = False) -> list[dict[str, Any]]:
        """Deploys rules; they see events from now on."""
        body = {"text": text, "language": language, "replace": replace}
        rules: list[dict[str, Any]] = self._ask("POST", "/rules", json=body).json()
        return rules

    def check(self, text: str, language: str | None = None) -> dict[str, Any]:
        """What is wrong with a text of rules, without deploying it."""
        told: dict[str, Any] = self._ask("POST", "/rules/check", json={"text": text, "language": language}).json()
        return told

    def dry_run(self, text: str, language: str | None = None) -> dict[str, Any]:
        """What rules would have found in the last events."""
        told: dict[str, Any] = self._ask("POST", "/rules/dry-run", json={"text": text, "language": language}).json()
        return told

    def rules(self) -> list[dict[str, Any]]:
        """What is deployed."""
        rules: list[dict[str, Any]] = self._ask("GET", "/rules").json()
        return rules

    def remove(self, id: str) -> None:
        """Removes a rule."""
        self._ask("DELETE", f"/rules/{id}")

    # ---- matches

    def matches(
        self, *, rule: str | None = None, since: str | None = None, until: str | None = None, after: int = 0
    ) -> Iterator[Match]:
        """All matches that there are now, in order."""
        given = {"rule": rule, "since": since, "until": until}
        while True:
            params = {name: value for name, value in given.items() if value is not None}
            page = self._ask("GET", "/matches", params={**params, "after": after, "limit": 1_000}).json()
            yield from page["matches"]
            if not page["more"]:
                return
            after = page["next"]

    def latest(self, *, rule: str | None = None, limit: int = 100) -> list[Match]:
        """The last matches, or the last ones of a rule, in order."""
        params = {"latest": True, "limit": limit} | ({} if rule is None else {"rule": rule})
        found: list[Match] = self._ask("GET", "/matches", params=params).json()["matches"]
        return found

    def why(self, number: int) -> dict[str, Any]:
        """What a match is made of."""
        told: dict[str, Any] = self._ask("GET", f"/matches/{number}/why").json()
        return told

    def subscribe(self, *, rule: str | None = None, after: int | None = None) -> Iterator[Match]:
        """Matches as they are found, each once: from now on, or behind the one of a number. Does not end by itself."""
        params = {} if rule is None else {"rule": rule}
        wait_s, since_s = FIRST_WAIT_S, time.monotonic()
        if after is None:
            after = int(self._ask("GET", "/status").json()["matches"])
        timeout = httpx.Timeout(TIMEOUT_S, read=SILENCE_S)
        while True:
            try:
                headers = {"Last-Event-ID": str(after)}
                with self._http.stream(
                    "GET", "/matches/stream", params=params, headers=headers, timeout=timeout
                ) as answer:
                    if answer.status_code not in AGAIN:
                        _check(answer)
                        for match in _events(answer.iter_lines()):
                            after, wait_s, since_s = match["number"], FIRST_WAIT_S, time.monotonic()
                            yield match
            except httpx.TransportError as error:
                if time.monotonic() - since_s > self._patience_s + SILENCE_S:
                    raise ServiceError(503, f"the service cannot be reached: {error}") from None
            time.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    # ---- within

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Asks until there is an answer, or patience ends. Everything asked for may be asked twice."""
        wait_s, until_s = FIRST_WAIT_S, time.monotonic() + self._patience_s
        while True:
            try:
                answer = self._http.request(method, path, **options)
                if answer.status_code not in AGAIN or time.monotonic() > until_s:
                    _check(answer)
                    return answer
                wait_s = max(wait_s, float(answer.headers.get("Retry-After", 0)))
            except httpx.TransportError as error:
                if time.monotonic() > until_s:
                    raise ServiceError(503, f"the service cannot be reached: {error}") from None
            time.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _check(answer: httpx.Response) -> None:
    """Fails if the service said no: a `RuleError` where it is about a text of rules."""
    if answer.is_success:
        return
    answer.read()
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        raise ServiceError(answer.status_code, f"the service answered {answer.status_code}") from None
    if error.get("start") is not None:
        sent = json.loads(answer.request.content)["text"]
        raise RuleError(error["message"], source=sent, span=Span(error["start"], error["end"]), hint=error["hint"])
    message = " ".join(part for part in (error["message"], error.get("hint")) if part)
    raise ServiceError(answer.status_code, message)


def _events(lines: Iterator[str]) -> Iterator[Match]:
    """The matches of a stream of server-sent events."""
    kind = data = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            data = value
        elif not line:
            if kind == "match" and data:
                yield json.loads(data)
            elif kind == "gap":
                gone = json.loads(data)
                raise ServiceError(410, f"matches {gone['from']} to {gone['to']} are not kept any more")
            kind = data = ""
