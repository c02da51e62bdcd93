"""Publish events, deploy rules and subscribe to matches at a service, over HTTP.

    client = Client("http://127.0.0.1:8321", token)
    client.deploy("define Fire(area: string) from Smoke() where area = Smoke.area")
    client.publish([{"type": "Smoke", "area": "A1"}])
    for match in client.subscribe(after=0):
        print(match["rule"], match["attributes"])

The client retries failed requests. Each publish request has an idempotency key, so that the request counts once even if
it is sent again. A subscription reconnects after failures and resumes after the last match that it returned.
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
READ_TIMEOUT_S = 45.0
"""The time without data after which a stream is considered broken. A service sends something every 15 s."""
PATIENCE_S = 60.0
"""The time for which a failed request is retried."""
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
RETRIED_STATUS = (408, 429, 500, 502, 503, 504)

Match = dict[str, Any]


class ServiceError(TocsinError):
    """The service returned an error. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """A client of a service.

    The environment variables TOCSIN_URL and TOCSIN_TOKEN have the defaults of `url` and `token`.
    """

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
        """Publish an Arrow table of events, or objects with `type`, `ts` (default: now) and attributes.

        Return the counts of accepted and rejected events, and the reasons for rejections. Accepted events are durable.
        Requests with the same idempotency key `key` count once. The default is a random key, so give a key if another
        client may send the same request again. `id` names the attribute that has the source's own id of an event.
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
        ack: dict[str, Any] = self._ask(
            "POST", "/events", content=body, headers=headers, params={} if id is None else {"id": id}
        ).json()
        return ack

    def dead_letters(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the stored dead letters, which are rejected events, after number `after` in order.

        Each dead letter has the fields `number`, `reason`, `type`, `ts` (µs) and `event`, the start of its text.
        """
        while True:
            page = self._ask("GET", "/dead-letters", params={"after": after, "limit": 1_000}).json()
            yield from page["dead_letters"]
            if not page["more"]:
                return
            after = page["next"]

    # ---- rules

    def deploy(self, text: str, language: str | None = None, *, replace: bool = False) -> list[dict[str, Any]]:
        """Deploy the rules of `text` and return them. The rules process events that arrive from now on.

        If `replace` is true, the rules replace deployed rules of the same names.
        """
        body = {"text": text, "language": language, "replace": replace}
        rules: list[dict[str, Any]] = self._ask("POST", "/rules", json=body).json()
        return rules

    def check(self, text: str, language: str | None = None) -> dict[str, Any]:
        """Check whether the rules of `text` can be deployed, without deploying them."""
        response: dict[str, Any] = self._ask("POST", "/rules/check", json={"text": text, "language": language}).json()
        return response

    def dry_run(self, text: str, language: str | None = None) -> dict[str, Any]:
        """Return the matches of the rules of `text` in the recent events, without deploying the rules."""
        response: dict[str, Any] = self._ask("POST", "/rules/dry-run", json={"text": text, "language": language}).json()
        return response

    def rules(self) -> list[dict[str, Any]]:
        """Return the deployed rules."""
        rules: list[dict[str, Any]] = self._ask("GET", "/rules").json()
        return rules

    def remove(self, id: str) -> None:
        """Remove the rule `id`."""
        self._ask("DELETE", f"/rules/{id}")

    # ---- matches

    def matches(
        self, *, rule: str | None = None, since: str | None = None, until: str | None = None, after: int = 0
    ) -> Iterator[Match]:
        """Yield the stored matches after number `after`, in order.

        Select matches by `rule`, and by event time from `since` on and before `until` (ISO 8601).
        """
        given = {"rule": rule, "since": since, "until": until}
        while True:
            params = {name: value for name, value in given.items() if value is not None}
            page = self._ask("GET", "/matches", params={**params, "after": after, "limit": 1_000}).json()
            yield from page["matches"]
            if not page["more"]:
                return
            after = page["next"]

    def latest(self, *, rule: str | None = None, limit: int = 100) -> list[Match]:
        """Return the last `limit` matches, oldest first. If `rule` is given, return only matches of this rule."""
        params = {"latest": True, "limit": limit} | ({} if rule is None else {"rule": rule})
        matches: list[Match] = self._ask("GET", "/matches", params=params).json()["matches"]
        return matches

    def why(self, number: int) -> dict[str, Any]:
        """Explain the match with number `number`. Return its rule, its events, and the check of each clause."""
        response: dict[str, Any] = self._ask("GET", f"/matches/{number}/why").json()
        return response

    def subscribe(self, *, rule: str | None = None, after: int | None = None) -> Iterator[Match]:
        """Yield each match once, as soon as it is detected, without end.

        Start after the match with number `after`. By default, yield only matches that are detected from now on.
        """
        params = {} if rule is None else {"rule": rule}
        wait_s, since_s = FIRST_WAIT_S, time.monotonic()
        if after is None:
            after = int(self._ask("GET", "/status").json()["matches"])
        timeout = httpx.Timeout(TIMEOUT_S, read=READ_TIMEOUT_S)
        while True:
            try:
                headers = {"Last-Event-ID": str(after)}
                with self._http.stream(
                    "GET", "/matches/stream", params=params, headers=headers, timeout=timeout
                ) as answer:
                    if answer.status_code not in RETRIED_STATUS:
                        _check(answer)
                        for match in _events(answer.iter_lines()):
                            after, wait_s, since_s = match["number"], FIRST_WAIT_S, time.monotonic()
                            yield match
            except httpx.TransportError as error:
                if time.monotonic() - since_s > self._patience_s + READ_TIMEOUT_S:
                    raise ServiceError(503, f"the service cannot be reached: {error}") from None
            time.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    # ---- internals

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request, and retry it until `patience_s` has passed. Every request is safe to repeat."""
        wait_s, until_s = FIRST_WAIT_S, time.monotonic() + self._patience_s
        while True:
            try:
                answer = self._http.request(method, path, **options)
                if answer.status_code not in RETRIED_STATUS or time.monotonic() > until_s:
                    _check(answer)
                    return answer
                wait_s = max(wait_s, float(answer.headers.get("Retry-After", 0)))
            except httpx.TransportError as error:
                if time.monotonic() > until_s:
                    raise ServiceError(503, f"the service cannot be reached: {error}") from None
            time.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _check(answer: httpx.Response) -> None:
    """Raise a `ServiceError` if the response is an error, or a `RuleError` for an error in the text of rules."""
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
    """Yield the matches of a stream of server-sent events."""
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
                gap = json.loads(data)
                raise ServiceError(410, f"matches {gap['from']} to {gap['to']} are no longer stored")
            kind = data = ""
